"""Tunnels to other domains, one for each; an open tunnel is a gateway of this domain.

Messages that cannot be written at once wait in a bounded queue; routing updates go before them.
When a tunnel is lost, its queued messages are rerouted or reported as failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from postroad.cells.addresses import ANY, DomainInfo, Role
from postroad.cells.config import LinkStatistics
from postroad.cells.delivery.cell_registry import ForwardedMessage, gateway_name
from postroad.cells.delivery.cell_runner import CellRunner
from postroad.cells.delivery.dispatcher import MessageDispatcher
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.delivery.envelope_codec import decode_envelope, encode_envelope, route_prefix
from postroad.cells.delivery.failure import DeliveryFailure
from postroad.cells.delivery.fair_queue import FairQueue
from postroad.cells.delivery.fast_paths import FastPath, find_fast_path
from postroad.cells.errors import NoRouteError
from postroad.cells.routing.decision import MessageOrigin
from postroad.cells.routing.route import Route, RouteType
from postroad.cells.routing.route_table import CacheSection
from postroad.cells.shell.system_cells import TunnelCell
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
"""The subject of routing updates in a tunnel."""

# How often `wait_flushed` checks the queues.
_FLUSH_POLL_INTERVAL_S = 0.01
# Fast paths cached for each tunnel, and the longest route prefix of one.
_FAST_PATHS_MAX = 4_096
_PREFIX_BYTES_MAX = 512
# Updates queued for a tunnel; the advertiser repeats an update that is not acknowledged.
_UPDATES_MAX = 1_000


class DomainLink:
    """Tunnel to one domain, as a gateway of this domain."""

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
        self._waiting = self._queue.items
        # Fast paths by the route prefix of messages, all of which have verified source paths.
        self._fast_path_section: CacheSection[bytes, FastPath] = CacheSection(
            dispatcher.registry.cache, _FAST_PATHS_MAX
        )
        self._fast_paths = self._fast_path_section.results
        self._sent = self._received = self._refused = self._malformed = 0

    @property
    def incarnation(self) -> int:
        """Incarnation of the process at the other end."""
        return self.tunnel.peer.incarnation

    # Sending.

    def try_send(self, forwarded: ForwardedMessage) -> bool:
        """Send or queue a message; return False if the share of its source is used up."""
        if self.tunnel.can_send and not self._waiting:
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
        """Send a routing update before all queued messages."""
        if self.tunnel.can_send and not self._updates:
            self._send_update_now(update)
        elif len(self._updates) < _UPDATES_MAX:
            self._updates.append(update)

    def send_update_last(self, update: bytes) -> None:
        """Send a routing update after all queued messages, which it withdraws the route of."""
        if self._queue and len(self._final_updates) < _UPDATES_MAX:
            self._final_updates.append(update)
        else:
            self.send_update(update)

    def on_writable(self) -> None:
        """Send queued updates and messages: the tunnel has capacity again."""
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
            # The advertiser repeats it; one that is too large fails until routes are withdrawn.
            name = self.domain.name
            self._dispatcher.warn(
                f"update {name}", "cannot send a routing update to %s: %s", name, error
            )

    def _send(self, forwarded: ForwardedMessage, envelope: Envelope) -> None:
        try:
            bytes_max = self.tunnel.send_bytes_max - len(MESSAGE)
            self.tunnel.send_nowait(MESSAGE, encode_envelope(envelope, bytes_max=bytes_max))
            self._sent += 1
        except MessageTooLargeError as error:
            hop = forwarded.envelope.destination.last
            failure = DeliveryFailure.of(
                type(error), error.detail, hop=hop, at=self._dispatcher.domain.name
            )
            self._dispatcher.notify_sender(forwarded.envelope, forwarded.origin, failure)
        except ConnectionClosedError:
            # `on_lost` follows, but would not find this message in the queue any more.
            self._dispatcher.reroute_or_fail(forwarded)

    def try_send_encoded(self, data: bytes) -> bool:
        """Send an encoded message; return False if it cannot be sent at once."""
        tunnel = self.tunnel
        if self._waiting or not tunnel.can_send:
            return False
        try:
            tunnel.send_nowait(MESSAGE, data)
        except (MessageTooLargeError, ConnectionClosedError):
            return False
        self._sent += 1
        return True

    # Receiving.

    def on_messages(self, requests: list[RequestFrame]) -> None:
        """Handle messages and routing updates that arrived."""
        now = self._dispatcher.loop.time()
        fast_paths = self._fast_paths
        handled = 0
        for request in requests:
            data = request.payload
            if request.subject == MESSAGE:
                prefix = route_prefix(data)
                fast_path = fast_paths.get(prefix)
                if fast_path is not None and fast_path.try_handle(data, len(prefix), now):
                    handled += 1
                else:
                    self._receive(data, prefix, now)
            elif request.subject == ROUTES:
                self._links.on_update(self, data)
            else:
                self.reject(f"unknown subject {request.subject!r}")
        self._received += handled

    def _receive(self, data: bytes, prefix: bytes, now: float) -> None:
        """Handle a message that no fast path has handled."""
        try:
            envelope = decode_envelope(data)
        except MalformedPayloadError as error:
            self.reject(str(error))
            return
        if prefix not in self._fast_paths and not self._has_valid_source(envelope):
            return
        self._received += 1
        self._dispatcher.receive(envelope, self._origin, now)
        if prefix not in self._fast_paths and len(prefix) <= _PREFIX_BYTES_MAX:
            self._cache_fast_path(prefix, envelope)

    def _has_valid_source(self, envelope: Envelope) -> bool:
        """Return whether the source path is possible; if not, the message is rejected."""
        fault = self._dispatcher.neighbors.find_source_fault(
            envelope.source, self.domain.name, is_reply=envelope.is_reply
        )
        if fault is None:
            return True
        self.reject(fault.text)
        if fault.should_reply:
            self._dispatcher.reject(envelope, NoRouteError, fault.text)
        return False

    def _cache_fast_path(self, prefix: bytes, envelope: Envelope) -> None:
        """Cache the fast path of this route, or that it has none.

        It serves all messages of this prefix, so its source path must be valid for requests.
        """
        source = envelope.source
        is_reply_only = envelope.is_reply and self._dispatcher.neighbors.find_source_fault(
            source, self.domain.name
        )
        if envelope.is_expired or is_reply_only:
            return
        fast_path, dependencies = find_fast_path(self._dispatcher, envelope, self._origin)
        dependencies.update((RouteType.DOMAIN, ANY, hop.domain) for hop in source.hops)
        self._fast_path_section.put(prefix, fast_path, dependencies)

    def reject(self, text: str) -> None:
        """Count and log an invalid message of the peer, which is dropped."""
        self._malformed += 1
        self._dispatcher.statistics.malformed += 1
        self._dispatcher.warn(
            f"malformed {self.domain.name}",
            "message of peer %s dropped: %s",
            self.domain.name,
            text,
        )

    # Closing.

    def on_lost(self, reason: str) -> None:
        """Unregister the lost tunnel, and reroute its queued messages."""
        self._fast_path_section.clear()
        self._links.remove(self, reason)
        for forwarded in self._queue.pop_all():
            self._dispatcher.reroute_or_fail(forwarded)

    def reroute_queued(self) -> None:
        """Reroute the queued messages that have an alternative; the others stay queued."""
        for forwarded in list(self._queue.pop_all()):
            was_selected = forwarded.forward.selected_target is not None
            can_reroute = was_selected and self._dispatcher.has_alternative(forwarded)
            if can_reroute or not self.try_send(forwarded):
                self._dispatcher.reroute_or_fail(forwarded)

    def statistics(self) -> LinkStatistics:
        """Return counters and gauges of the tunnel."""
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
        """Whether the queues of this tunnel are empty."""
        return not (self._updates or self._queue or self._final_updates)

    def __repr__(self) -> str:
        return f"<DomainLink to {self.domain.name}: {len(self._queue)} waiting>"


class DomainLinks:
    """All tunnels of a domain."""

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

    def accept(self, tunnel: Tunnel) -> DomainLink:
        """Register a tunnel; raises HandshakeRejectedError if the peer may not open one."""
        domain = self._identify(tunnel)
        link = DomainLink(tunnel, domain, self._dispatcher, self)
        try:
            cell = TunnelCell(link)
        except ConfigError as error:
            text = f"invalid name of domain {domain.name}: {error}"
            raise HandshakeRejectedError(text) from None
        previous = self.by_domain.get(domain.name)
        if previous is not None:
            if previous.incarnation > link.incarnation:
                raise HandshakeRejectedError(
                    f"a later process with the name {domain.name} has a tunnel already"
                )
            self._dispatcher.registry.remove_cell(previous.gateway)
        self.by_domain[domain.name] = link
        runner, registry = CellRunner(cell, self._dispatcher), self._dispatcher.registry
        registry.gateways[link.gateway] = link
        target = Route.to_domain(domain.name, self._local.cell(link.gateway))
        registry.add_cell(runner, [target])
        self._on_up(link)
        logger.info(
            "domain %s: tunnel to %s %s opened", self._local.name, domain.role.value, domain.name
        )
        if previous is not None:
            previous.tunnel.close("replaced by another tunnel")
        return link

    def _identify(self, tunnel: Tunnel) -> DomainInfo:
        peer = tunnel.peer
        try:
            domain = DomainInfo(peer.name, Role(peer.role), peer.zone or None)
        except (ValueError, ConfigError) as error:
            raise HandshakeRejectedError(f"node {peer.name} is no valid domain: {error}") from None
        if domain.role is Role.SATELLITE and self._local.role is Role.SATELLITE:
            raise HandshakeRejectedError(
                f"no tunnels between satellites: {domain.name} and {self._local.name}"
            )
        if domain.role is Role.CORE and self._cores is not None and domain.name not in self._cores:
            self._dispatcher.warn(
                f"core {domain.name}",
                "core %s rejected: its name is not in the setting cores",
                domain.name,
            )
            raise HandshakeRejectedError(
                f"core {domain.name} rejected: its name is not in the setting cores "
                f"of {self._local.name}"
            )
        return domain

    def remove(self, link: DomainLink, reason: str) -> None:
        """Unregister a lost tunnel, unless another tunnel has replaced it."""
        if self.by_domain.get(link.domain.name) is link:
            del self.by_domain[link.domain.name]
            self._dispatcher.registry.remove_cell(link.gateway)
            self._on_down(link.domain.name)
            logger.info(
                "domain %s: tunnel to %s lost: %s", self._local.name, link.domain.name, reason
            )

    async def wait_flushed(self, timeout_s: float) -> bool:
        """Wait until the queues of all tunnels are empty; return False after the timeout."""
        deadline = self._dispatcher.loop.time() + timeout_s
        while not all(link.is_flushed for link in self.by_domain.values()):
            if self._dispatcher.loop.time() >= deadline:
                return False
            await asyncio.sleep(_FLUSH_POLL_INTERVAL_S)
        return True

    def close(self, reason: str) -> list[Tunnel]:
        """Close all tunnels, and return them for `wait_closed`."""
        tunnels = [link.tunnel for link in self.by_domain.values()]
        for tunnel in tunnels:
            tunnel.close(reason)
        return tunnels
