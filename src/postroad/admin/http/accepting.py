"""Takes connections, and always has room for one more.

When all places are taken, the oldest connection of whichever source has the most makes room, so
that whoever opens many closes its own: whether they idle, send a part of a request, ask for what
needs no token, or have not finished their TLS handshake. Only a client that has shown who it is,
and waits for an answer, is left alone.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger("postroad.admin")

# A crowd at the door must not keep the loop from everything else.
_ACCEPTED_AT_ONCE = 32
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_EXHAUSTED_PAUSE_S = 0.05
_NETWORK_BYTES = 8


class Place:
    """A place of one connection.

    Attributes:
        source: where it comes from; those of one source share their fate.
        close: ends the connection at once.
    """

    __slots__ = ("close", "source")

    def __init__(self, source: str, close: Callable[[], object]) -> None:
        self.source = source
        self.close = close


class Room:
    """The places of all connections.

    Args:
        places_max: how many there are.
    """

    def __init__(self, places_max: int) -> None:
        self._places_max = places_max
        self._taken: set[Place] = set()
        # Those of each source that can make room, the oldest first.
        self._spare: dict[str, dict[Place, None]] = {}

    def __len__(self) -> int:
        return len(self._taken)

    def enter(self, source: str, close: Callable[[], object]) -> Place | None:
        """A place for a new connection; None if none can be made free."""
        if len(self._taken) >= self._places_max and not self.make_room():
            return None
        place = Place(source, close)
        self._taken.add(place)
        self.release(place)
        return place

    def make_room(self) -> bool:
        """Close a connection; False if all are kept."""
        spare = max(self._spare.values(), key=len, default=None)
        if spare is None:
            return False
        place = next(iter(spare))
        self.leave(place)
        place.close()
        return True

    def keep(self, place: Place) -> None:
        """Leave a connection alone: somebody who is known waits for an answer."""
        spare = self._spare.get(place.source, {})
        spare.pop(place, None)
        if not spare:
            self._spare.pop(place.source, None)

    def release(self, place: Place) -> None:
        """A connection can make room, if it could not already."""
        if place in self._taken:
            self._spare.setdefault(place.source, {}).setdefault(place)

    def leave(self, place: Place) -> None:
        """A connection has ended."""
        self.keep(place)
        self._taken.discard(place)


class Connection(Protocol):
    """What makes a protocol for a connection that has a place."""

    def __call__(self, place: Place) -> asyncio.Protocol: ...


class Acceptor:
    """Accepts connections until it is stopped.

    Args:
        listener: listens already; closed in the end.
        room: where connections get their places.
        connection: makes the protocol of one.
        context: for TLS.
        handshake_s: time for a handshake of TLS.
    """

    def __init__(
        self,
        listener: socket.socket,
        room: Room,
        connection: Connection,
        context: ssl.SSLContext | None,
        handshake_s: float,
    ) -> None:
        self._listener = listener
        self._room = room
        self._connection = connection
        self._context = context
        self._handshake_s = handshake_s
        self._beginning: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Accept from now on."""
        self._accepting = asyncio.create_task(self._accept(), name="postroad admin")

    async def stop(self) -> None:
        """Accept no more, and close connections that have not begun."""
        tasks = [*self._beginning, *([] if self._accepting is None else [self._accepting])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            for _ in range(_ACCEPTED_AT_ONCE):
                try:
                    accepted, address = await loop.sock_accept(self._listener)
                except OSError as error:
                    if error.errno in _EXHAUSTED:
                        self._room.make_room()
                        await asyncio.sleep(_EXHAUSTED_PAUSE_S)
                    continue
                self._admit(accepted, source_of(address))
            await asyncio.sleep(0)

    def _admit(self, accepted: socket.socket, source: str) -> None:
        place = self._room.enter(source, lambda: beginning.cancel())
        if place is None:
            accepted.close()
            return
        beginning = asyncio.create_task(self._begin(accepted, place), name="postroad admin client")
        self._beginning.add(beginning)
        beginning.add_done_callback(functools.partial(self._on_begun, accepted, place))

    async def _begin(self, accepted: socket.socket, place: Place) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: self._connection(place),
            accepted,
            ssl=self._context,
            ssl_handshake_timeout=None if self._context is None else self._handshake_s,
        )

    def _on_begun(
        self, accepted: socket.socket, place: Place, beginning: asyncio.Task[None]
    ) -> None:
        self._beginning.discard(beginning)
        if beginning.cancelled() or (error := beginning.exception()) is not None:
            self._room.leave(place)
            accepted.close()
            # A handshake that fails is told to the client by TLS.
            if not beginning.cancelled() and not isinstance(error, OSError):
                logger.error("a connection could not be begun: %r", error)


def source_of(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """Where a connection comes from: an address, and of IPv6 the network that one machine has."""
    host = address[0].partition("%")[0]
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(parsed, ipaddress.IPv4Address):
        return host
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped is not None else parsed.packed[:_NETWORK_BYTES].hex()
