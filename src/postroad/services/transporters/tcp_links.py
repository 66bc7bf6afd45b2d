"""The connections that a node has made to others.

One is made when there is something to send, and kept until the other side ends it or too many
others are used more. Whoever ends it is gone: nodes end no connection of others while they live.
"""

from __future__ import annotations

import asyncio
import logging
import random
from functools import partial
from typing import Protocol

from postroad.core import ThrottledLogger
from postroad.core.timing import backoff
from postroad.services.errors import BrokerDisconnectedError
from postroad.services.kinds import GOSSIP, Kind

from .tcp_addresses import AddressBook
from .tcp_frames import encode_header
from .tcp_link import Link

logger = logging.getLogger("postroad.services.transporters")

CONNECTIONS_MAX = 32
CONNECT_TIMEOUT_S = 5.0
DIALS_MAX = 64
"""Connections that are being made at once: whoever names many nodes must not make this one busy."""
RETRY_FIRST_S = 0.2
RETRY_MAX_S = 5.0

_LOG_INTERVAL_S = 10.0


class LinkListener(Protocol):
    """Who is told of connections."""

    def link_begins(self, node_id: str) -> None:
        """A connection is being made; what is sent to the node now goes first."""
        ...

    def link_lost(self, node_id: str, *, is_unexpected: bool) -> None:
        """A node ended its connection, or cannot be reached."""
        ...


class Links:
    """The connections that this node has made."""

    def __init__(
        self,
        book: AddressBook,
        listener: LinkListener,
        *,
        connections_max: int = CONNECTIONS_MAX,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._book = book
        self._listener = listener
        self._connections_max = connections_max
        self._connect_timeout_s = connect_timeout_s
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, Link] = {}
        self._dialing: set[Link] = set()
        # Those that are being closed, until they are.
        self._leaving: set[Link] = set()
        self._uses = 0
        # How often in a row a node could not be reached, and when to try again.
        self._failures: dict[str, tuple[int, float]] = {}
        self._last: Link | None = None
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)

    def send(self, node_id: str, kind: Kind, data: bytes) -> None:
        """Send a packet; raises BrokerDisconnectedError if the node cannot be reached now."""
        link = self._links.get(node_id) or self._begin(node_id)
        link.send(encode_header(kind, len(data)), data)
        self._last = link
        if kind not in GOSSIP:
            self._uses += 1
            link.last_use, link.is_used = self._uses, True

    async def room(self) -> None:
        """Wait while much waits for the node that something was sent to last."""
        if self._last is not None:
            await self._last.room()

    def is_open(self, node_id: str) -> bool:
        """Whether there is a connection to a node now."""
        link = self._links.get(node_id)
        return link is not None and link.is_open

    def can_try(self, node_id: str) -> bool:
        """Whether there is a connection to a node, or one can be tried now."""
        if node_id in self._links:
            return True
        if len(self._dialing) >= DIALS_MAX or not self._book.addresses(node_id):
            return False
        return self._failures.get(node_id, (0, 0.0))[1] <= self._loop.time()

    def failures(self, node_id: str) -> int:
        """How often in a row a node could not be reached."""
        return self._failures.get(node_id, (0, 0.0))[0]

    def forgive(self, node_id: str) -> None:
        """There is a sign of a node: it may be tried at once."""
        self._failures.pop(node_id, None)

    async def close(self, patience_s: float) -> None:
        """End all connections, after what was sent as far as that is possible soon."""
        links = [*self._links.values(), *self._leaving]
        self._links.clear()
        self._leaving.clear()
        self._last = None
        closed = [link.closed for link in links]
        try:
            for link in links:
                link.close()
            if closed:
                await asyncio.wait(closed, timeout=patience_s)
        finally:
            for link in links:
                link.abort()
        if closed:
            await asyncio.wait(closed)

    # Told by links.

    def made(self, link: Link) -> None:
        """A connection is there."""
        self._dialing.discard(link)
        self._failures.pop(link.node_id, None)
        self._make_room()

    def ended(self, link: Link, reason: Exception | None) -> None:
        """The other side ended a connection."""
        self._drop(link)
        self._tell(link, f"the connection ended: {reason or 'closed there'}")
        self._book.miss(link.node_id)
        self._listener.link_lost(link.node_id, is_unexpected=reason is not None)

    def missed(self, link: Link, reason: str) -> None:
        """A node could not be reached."""
        self._drop(link)
        self._tell(link, f"no connection: {reason}")
        attempt = self.failures(link.node_id) + 1
        pause_s = backoff(
            attempt, initial_delay_s=RETRY_FIRST_S, max_delay_s=RETRY_MAX_S, jitter=random.random()
        )
        self._failures[link.node_id] = attempt, self._loop.time() + pause_s
        self._book.miss(link.node_id)
        self._listener.link_lost(link.node_id, is_unexpected=True)

    # How it is done.

    def _begin(self, node_id: str) -> Link:
        if not self.can_try(node_id):
            raise BrokerDisconnectedError(f"node {node_id!r:.80} cannot be reached now")
        link = self._links[node_id] = Link(node_id, self, self._loop)
        self._uses += 1
        link.last_use = self._uses
        self._make_room()
        self._dialing.add(link)
        link.dial(self._book.addresses(node_id), self._connect_timeout_s)
        self._listener.link_begins(node_id)
        return link

    def _make_room(self) -> None:
        """End the idle connections that were not used for longest, if there are too many."""
        surplus = len(self._links) - self._connections_max
        if surplus <= 0:
            return
        idle = [link for link in self._links.values() if link.is_idle]
        for link in sorted(idle, key=lambda link: link.last_use)[:surplus]:
            self._drop(link)
            self._leaving.add(link)
            link.closed.add_done_callback(partial(self._left, link))
            link.close()

    def _left(self, link: Link, _: asyncio.Future[None]) -> None:
        self._leaving.discard(link)

    def _tell(self, link: Link, text: str) -> None:
        is_loss = link.unsent and link.is_used
        level = logging.WARNING if is_loss else logging.DEBUG
        self._log.log(
            link.node_id,
            self._loop.time(),
            "%s: %s; %d packets were not sent",
            link.node_id,
            text,
            link.unsent,
            level=level,
        )

    def _drop(self, link: Link) -> None:
        self._dialing.discard(link)
        if self._links.get(link.node_id) is link:
            del self._links[link.node_id]
