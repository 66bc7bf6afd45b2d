"""Tunnels to other domains: one for each, a gateway of this domain as long as it lives.

What cannot be written at once waits in a bounded queue, news of routes before everything else. When
a tunnel is gone, what still waited goes another way or comes back to its sender.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from postroad.cells.addresses import DomainInfo, Role
from postroad.cells.delivery.cell_registry import ForwardedMessage, gateway_name
from postroad.cells.delivery.cell_runner import CellRunner
from postroad.cells.delivery.dispatcher import MessageDispatcher
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.delivery.envelope_codec import decode_envelope, encode_envelope, route_prefix
from postroad.cells.delivery.failure import DeliveryFailure
from postroad.cells.delivery.fair_queue import FairQueue
from postroad.cells.delivery.fast_paths import (
    DeliverFastPath,
    FastPath,
    ForwardFastPath,
    ReplyFastPath,
)
from postroad.cells.errors import NoRouteError
from postroad.cells.routing.decision import MessageOrigin
from postroad.cells.routing.route import Route
from postroad.cells.shell.system_cells import TunnelCell, make_tunnel_cell
from postroad.cells.statistics import LinkStatistics
from postroad.core.errors import (
    ConfigError,
    ConnectionClosedError,
    HandshakeRejectedError,
    MalformedPayloadError,
    MessageTooLargeError,
)
from postroad.net import Tunnel
from postroad.wire import RequestFrame

logger = logging.getLogger("postroad.cells")

MESSAGE = "cell"
"""The subject of envelopes in a tunnel."""
ROUTES = "routes"
"""The subject of news of routes."""

# How often to look whether everything is written.
_FLUSH_POLL_INTERVAL_S = 0.01
# Ways remembered for each tunnel, and how long what they begin with may be.
_FAST_PATHS_MAX = 4_096
_PREFIX_BYTES_MAX = 512
# News are few: whoever sends them waits for an acknowledgement, and repeats them if need be.
_UPDATES_MAX = 1_000


class DomainLink:
    """The tunnel to one domain, as a gateway of this one."""

    def __init__(
        self, tunnel: Tunnel, domain: DomainInfo, dispatcher: MessageDispatcher, links: DomainLinks
    ) -> None:
        self.tunnel = tunnel
        self.domain = domain
        self.gateway = gateway_name(domain.name)
        self._origin = MessageOrigin.from_peer(domain.name, domain.role)
        self._dispatcher = dispatcher
        self._links = links
        config = dispatcher.config
        self._updates: deque[bytes] = deque()
        self._final_updates: deque[bytes] = deque()
        self._queue: FairQueue[ForwardedMessage] = FairQueue(
            config.link_messages_max, config.link_bytes_max
        )
        # What becomes of messages, by what they begin with.
        self._fast_paths: dict[bytes, FastPath] = {}
        self._sent = self._received = self._refused = self._malformed = 0

    @property
    def incarnation(self) -> int:
        """The number of the process at the other end."""
        return self.tunnel.peer.incarnation

    # Sending.

    def try_send(self, forwarded: ForwardedMessage) -> bool:
        """Send a message, or have it wait; False if its sender has too many waiting already."""
        if self.can_send_now:
            self._send(forwarded, forwarded.forward.envelope)
            return True
        envelope = forwarded.envelope
        source, via = self._dispatcher.fairness_key(envelope, forwarded.origin)
        bypasses_share = envelope.is_reply
        if self._queue.try_put(
            forwarded, envelope.memory_bytes, source, via=via, bypasses_share=bypasses_share
        ):
            return True
        self._refused += 1
        return False

    def send_update(self, update: bytes) -> None:
        """Send news of routes, before all messages that wait."""
        if self.tunnel.can_send and not self._updates:
            self._send_update_now(update)
        elif len(self._updates) < _UPDATES_MAX:
            self._updates.append(update)

    def send_update_last(self, update: bytes) -> None:
        """Send news that say that no more messages come, so after those that wait."""
        if self._queue and len(self._final_updates) < _UPDATES_MAX:
            self._final_updates.append(update)
        else:
            self.send_update(update)

    def on_writable(self) -> None:
        """The tunnel takes more: send what waits."""
        while self._updates and self.tunnel.can_send:
            self._send_update_now(self._updates.popleft())
        while self._queue and self.tunnel.can_send:
            forwarded = self._queue.pop()
            waited_s = self._dispatcher.loop.time() - forwarded.arrived
            self._send(forwarded, forwarded.forward.envelope.with_elapsed(int(waited_s * 1000)))
        while self._final_updates and not self._queue:
            self.send_update(self._final_updates.popleft())

    def _send_update_now(self, update: bytes) -> None:
        try:
            self.tunnel.send_nowait(ROUTES, update)
        except (MessageTooLargeError, ConnectionClosedError) as error:
            # Whoever announces repeats it; what is too large stays so until less is offered.
            name = self.domain.name
            self._dispatcher.warn(f"untold {name}", "cannot tell %s of routes: %s", name, error)

    def _send(self, forwarded: ForwardedMessage, envelope: Envelope) -> None:
        try:
            bytes_max = self.tunnel.send_bytes_max - len(MESSAGE)
            self.tunnel.send_nowait(MESSAGE, encode_envelope(envelope, bytes_max=bytes_max))
            self._sent += 1
        except MessageTooLargeError as error:
            self._return(forwarded, error)
        except ConnectionClosedError:
            # It is told in a moment that the tunnel is lost; this one would come too late for it.
            self._dispatcher.reroute_or_fail(forwarded)

    def _return(self, forwarded: ForwardedMessage, error: MessageTooLargeError) -> None:
        hop = forwarded.envelope.destination.last
        failure = DeliveryFailure.of(
            type(error), error.detail, hop=hop, at=self._dispatcher.domain.name
        )
        self._dispatcher.notify_sender(forwarded.envelope, forwarded.origin, failure)

    @property
    def can_send_now(self) -> bool:
        """Whether a message would be sent at once."""
        return self.tunnel.can_send and not self._queue

    def send_encoded(self, data: bytes) -> None:
        """Send a message that is written already; ask first whether the way is clear."""
        self.tunnel.send_nowait(MESSAGE, data)
        self._sent += 1

    # Receiving.

    def on_messages(self, requests: list[RequestFrame]) -> None:
        """Messages and news came out of the tunnel."""
        now = self._dispatcher.loop.time()
        for request in requests:
            if request.subject == MESSAGE:
                self._receive(request.payload, now)
            elif request.subject == ROUTES:
                self._links.on_update(self, request.payload)
            else:
                self.reject(f"unknown subject {request.subject!r}")

    def _receive(self, data: bytes, now: float) -> None:
        try:
            prefix = route_prefix(data)
            fast_path = self._fast_paths.get(prefix)
            if fast_path is not None and fast_path.try_handle(data, len(prefix), now):
                self._received += 1
                return
            envelope = decode_envelope(data)
        except MalformedPayloadError as error:
            self.reject(str(error))
            return
        neighbors, source = self._dispatcher.neighbors, envelope.source
        fault = neighbors.find_source_fault(source, self.domain.name, is_reply=envelope.is_reply)
        if fault is not None:
            self.reject(fault.text)
            if fault.should_reply:
                self._dispatcher.reject(envelope, NoRouteError, fault.text)
            return
        self._received += 1
        self._dispatcher.receive(envelope, self._origin, now)
        if fast_path is not None or len(prefix) > _PREFIX_BYTES_MAX:
            return
        # A way is for whatever begins like that, so more is asked of it than of a reply.
        if not envelope.is_reply or neighbors.find_source_fault(source, self.domain.name) is None:
            self._cache_fast_path(prefix, envelope)

    def _cache_fast_path(self, prefix: bytes, envelope: Envelope) -> None:
        """Remember what becomes of messages with this route, until any route changes."""
        fast_path = self._fast_path_for(envelope)
        if fast_path is not None:
            if len(self._fast_paths) >= _FAST_PATHS_MAX:
                self._fast_paths.clear()
            self._fast_paths[prefix] = fast_path

    def _fast_path_for(self, envelope: Envelope) -> FastPath | None:
        dispatcher, path = self._dispatcher, envelope.destination
        if path.is_complete or path.current.domain == dispatcher.domain.name:
            return self._local_fast_path(envelope)
        forward = dispatcher.direct_forward(envelope, self._origin)
        if forward is None:
            return None
        link = dispatcher.registry.gateways.get(forward.gateway)
        return (
            ForwardFastPath(link, forward.envelope, dispatcher)
            if isinstance(link, DomainLink)
            else None
        )

    def _local_fast_path(self, envelope: Envelope) -> FastPath | None:
        dispatcher, path = self._dispatcher, envelope.destination
        last = path.last
        if envelope.is_reply:
            is_local = last is not None and last.domain == dispatcher.domain.name
            return ReplyFastPath(dispatcher, envelope.source) if is_local else None
        direct = dispatcher.direct_delivery(envelope, self._origin)
        if direct is None:
            return None
        runner, delivery, reply_forward = direct
        link = dispatcher.registry.gateways.get(reply_forward.gateway)
        return (
            DeliverFastPath(self, runner, delivery, reply_forward, dispatcher)
            if link is self
            else None
        )

    def clear_fast_paths(self) -> None:
        """Routes have changed."""
        self._fast_paths.clear()

    def reject(self, text: str) -> None:
        """Drop what a peer should not have sent; it harms nobody else."""
        self._malformed += 1
        self._dispatcher.statistics.malformed += 1
        self._dispatcher.warn(
            f"malformed {self.domain.name}", "dropped what %s sent: %s", self.domain.name, text
        )

    # The end.

    def on_lost(self, reason: str) -> None:
        """The tunnel is gone."""
        self._links.remove(self, reason)
        for forwarded in self._queue.pop_all():
            self._dispatcher.reroute_or_fail(forwarded)

    def reroute_queued(self) -> None:
        """Have what waits go another way, if it may; the rest waits on."""
        for forwarded in list(self._queue.pop_all()):
            was_selected = forwarded.forward.selected_target is not None
            can_reroute = was_selected and self._dispatcher.has_alternative(forwarded)
            if can_reroute or not self.try_send(forwarded):
                self._dispatcher.reroute_or_fail(forwarded)

    def statistics(self) -> LinkStatistics:
        """What went through and what waits."""
        return LinkStatistics(
            domain=self.domain,
            incarnation=self.incarnation,
            round_trip_s=self.tunnel.round_trip_s,
            sent=self._sent,
            received=self._received,
            waiting=len(self._queue),
            waiting_bytes=self._queue.bytes,
            refused=self._refused,
            malformed=self._malformed,
        )

    @property
    def is_flushed(self) -> bool:
        """Whether nothing waits for this tunnel."""
        return not (self._updates or self._queue or self._final_updates)

    def __repr__(self) -> str:
        return f"<DomainLink to {self.domain.name}: {len(self._queue)} waiting>"


class DomainLinks:
    """All tunnels of a domain.

    Args:
        exchange: where messages come from and go to.
        on_up, on_down: told of domains that can be reached, and no more.
        on_update: called with each routing update.
        cores: all that may be cores; None for whoever says so.
    """

    def __init__(
        self,
        dispatcher: MessageDispatcher,
        *,
        on_up: Callable[[DomainLink], None],
        on_down: Callable[[str], None],
        on_update: Callable[[DomainLink, bytes], None],
        cores: frozenset[str] | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._local = dispatcher.domain
        self._on_up = on_up
        self._on_down = on_down
        self.on_update = on_update
        self._cores = cores
        self.by_domain: dict[str, DomainLink] = {}
        dispatcher.registry.on_change.append(self._clear_fast_paths)

    def _clear_fast_paths(self) -> None:
        for link in self.by_domain.values():
            link.clear_fast_paths()

    def accept(self, tunnel: Tunnel) -> DomainLink:
        """Take a tunnel in use; raises HandshakeRejectedError if the other end may not have one."""
        domain = self._identify(tunnel)
        link = DomainLink(tunnel, domain, self._dispatcher, self)
        cell = make_tunnel_cell(link)
        previous = self.by_domain.get(domain.name)
        if previous is not None:
            if previous.incarnation > link.incarnation:
                raise HandshakeRejectedError(
                    f"another process is domain {domain.name}, and began later than this one"
                )
            self._dispatcher.registry.remove_cell(previous.gateway)
        self.by_domain[domain.name] = link
        self._register(link, cell)
        self._on_up(link)
        logger.info("%s: tunnel to %s %s", self._local.name, domain.role.value, domain.name)
        if previous is not None:
            previous.tunnel.close("replaced by another tunnel")
        return link

    def _identify(self, tunnel: Tunnel) -> DomainInfo:
        peer = tunnel.peer
        try:
            domain = DomainInfo(peer.name, Role(peer.role), peer.zone or None)
        except (ValueError, ConfigError) as error:
            raise HandshakeRejectedError(f"node {peer.name} is no domain: {error}") from None
        if domain.role is Role.SATELLITE and self._local.role is Role.SATELLITE:
            raise HandshakeRejectedError(
                f"{domain.name} and {self._local.name} are both satellites"
            )
        if domain.role is Role.CORE and self._cores is not None and domain.name not in self._cores:
            self._dispatcher.warn(
                f"core {domain.name}", "refused %s: it may be no core", domain.name
            )
            raise HandshakeRejectedError(
                f"{domain.name} may be no core: the setting cores of {self._local.name} lists the "
                "names of those that may"
            )
        return domain

    def _register(self, link: DomainLink, cell: TunnelCell) -> None:
        runner = CellRunner(cell, self._dispatcher)
        self._dispatcher.registry.gateways[link.gateway] = link
        target = Route.to_domain(link.domain.name, self._local.cell(link.gateway))
        self._dispatcher.registry.add_cell(runner, [target])

    def remove(self, link: DomainLink, reason: str) -> None:
        """A tunnel is gone; nothing is to be done if another took its place."""
        if self.by_domain.get(link.domain.name) is link:
            del self.by_domain[link.domain.name]
            self._dispatcher.registry.remove_cell(link.gateway)
            self._on_down(link.domain.name)
            logger.info("%s: lost the tunnel to %s: %s", self._local.name, link.domain.name, reason)

    async def wait_flushed(self, timeout_s: float) -> bool:
        """Wait until nothing waits for a tunnel any more; False if that takes too long."""
        deadline = self._dispatcher.loop.time() + timeout_s
        while not all(link.is_flushed for link in self.by_domain.values()):
            if self._dispatcher.loop.time() >= deadline:
                return False
            await asyncio.sleep(_FLUSH_POLL_INTERVAL_S)
        return True

    def close(self, reason: str) -> list[Tunnel]:
        """Say goodbye to everybody; gives the tunnels to wait for."""
        tunnels = [link.tunnel for link in self.by_domain.values()]
        for tunnel in tunnels:
            tunnel.close(reason)
        return tunnels
