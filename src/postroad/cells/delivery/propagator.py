"""The route propagator: runs route advertiser and route learner over the tunnels of a domain.

How a domain learns a route: `receive` gets a routing update out of a tunnel, `RouteLearner.receive`
(routing/route_learner.py) turns it into route changes, `_apply_route_changes` writes them into the
route table of the registry, and `_send_acks` acknowledges the update. How others learn the routes
of this domain: `_on_change` sees a change of the table, `_advertise` hands it to `RouteAdvertiser`
(routing/advertiser.py), whose updates are sent until they are acknowledged.

Advertiser and learner do no I/O: after every event, `_process_outputs` sends their outgoing
updates, applies their route changes and sets one timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from postroad.cells.addresses import ANY, Role
from postroad.cells.delivery.dispatcher import MessageDispatcher
from postroad.cells.delivery.domain_links import DomainLink
from postroad.cells.routing.advertisements import (
    AdvertisementAck,
    AdvertisementUpdate,
    RoutingUpdate,
    ShutdownNotice,
    decode_routing_update,
    encode_routing_update,
)
from postroad.cells.routing.advertiser import RouteAdvertiser, build_advertisement
from postroad.cells.routing.route import RouteType
from postroad.cells.routing.route_learner import RouteLearner
from postroad.core.errors import ConfigError, MalformedPayloadError
from postroad.core.limits import KIB, ROUTE_NAMES_PER_S, ROUTES_AT_ONCE_MAX
from postroad.core.timing import NEVER

# Entries before those of peers that need not wait any more are purged.
_IDLE_MAX = 1_000


class RoutingUpdateQueue:
    """Latest pending update of each peer, rate limited, so that none can occupy the event loop.

    An update costs the names that it contains and the routes that it changes; a peer waits in
    proportion to that cost, which outlives its tunnel, before its next update is applied. Only the
    latest update of a peer is kept meanwhile, because each contains the full advertisement.
    """

    def __init__(self, names_per_s: float) -> None:
        self._names_per_s = names_per_s
        self._latest: dict[str, RoutingUpdate | bytes] = {}
        # When the next update of a peer may be applied.
        self._ready_at: dict[str, float] = {}

    def put(self, name: str, update: RoutingUpdate | bytes) -> None:
        """Store an update of a peer, decoded or not; it replaces an older one."""
        previous = self._latest.get(name)
        if not (
            isinstance(previous, AdvertisementUpdate)
            and isinstance(update, AdvertisementUpdate)
            and (previous.incarnation, previous.number) > (update.incarnation, update.number)
        ):
            self._latest[name] = update

    def discard(self, name: str) -> None:
        """Drop the pending update of a peer whose tunnel is lost."""
        self._latest.pop(name, None)

    def pop_ready(self, now: float) -> list[tuple[str, RoutingUpdate | bytes]]:
        """Remove and return the updates that may be applied now, with their peers."""
        ready = [name for name in self._latest if self._ready_at.get(name, 0.0) <= now]
        return [(name, self._latest.pop(name)) for name in ready]

    def charge(self, name: str, names: int, now: float) -> None:
        """Charge a peer for names that were processed or routes that were changed."""
        if len(self._ready_at) > _IDLE_MAX:
            self._ready_at = {peer: at for peer, at in self._ready_at.items() if at > now}
        self._ready_at[name] = max(self._ready_at.get(name, now), now) + names / self._names_per_s

    def deadline(self) -> float:
        """Return when the next update may be applied, or NEVER."""
        return min((self._ready_at.get(name, 0.0) for name in self._latest), default=NEVER)


logger = logging.getLogger("postroad.cells")

# Updates up to this size are decoded at once: they cost no more than other messages.
_SMALL_BYTES = 1 * KIB


class RoutePropagator:
    """Advertises the routes of this domain to its peers, and learns their routes."""

    def __init__(self, dispatcher: MessageDispatcher, *, incarnation: int) -> None:
        self._dispatcher = dispatcher
        self._loop = dispatcher.loop
        config = dispatcher.config
        self.advertiser = RouteAdvertiser(
            dispatcher.domain, incarnation=incarnation, config=config.advertiser
        )
        self.learner = RouteLearner(dispatcher.domain, config=config.route_learner)
        self._pending_updates = RoutingUpdateQueue(ROUTE_NAMES_PER_S)
        # Peers to acknowledge once all of their routes are in the table, and whether the update
        # withdrew routes.
        self._unacknowledged: dict[str, bool] = {}
        self._links: dict[str, DomainLink] = {}
        self._is_scheduled = False
        # Whether the table has changed since the last advertisement.
        self._is_advertisement_stale = True
        self._is_applying_routes = False
        self._timer: asyncio.TimerHandle | None = None
        self._ack_waiters: list[asyncio.Future[None]] = []
        self.bytes_sent = 0
        dispatcher.registry.on_change.append(self._on_change)

    # Events.

    def link_up(self, link: DomainLink) -> None:
        """Start to exchange routes over a new tunnel."""
        now = self._loop.time()
        self._discard_updates(link.domain.name)
        self._links[link.domain.name] = link
        self._dispatcher.neighbors.link_up(link.domain)
        self._invalidate_neighbor(link.domain.name)
        self.learner.peer_up(link.domain, now)
        self.advertiser.peer_up(link.domain.name, link.domain.role, now)
        self._schedule()

    def link_down(self, name: str) -> None:
        """Withdraw the routes learned through a lost tunnel."""
        self._links.pop(name, None)
        self._discard_updates(name)
        self._dispatcher.neighbors.link_down(name)
        self._invalidate_neighbor(name)
        self.learner.peer_down(name, self._loop.time())
        self.advertiser.peer_down(name)
        self._process_outputs()

    def receive(self, link: DomainLink, payload: bytes) -> None:
        """Handle a routing update of a peer; advertisements and large updates are rate limited."""
        name = link.domain.name
        if self._links.get(name) is not link:
            return
        if len(payload) > _SMALL_BYTES:
            self._pending_updates.put(name, payload)
        else:
            update = self._decode(link, payload)
            if isinstance(update, AdvertisementUpdate):
                self._pending_updates.put(name, update)
            elif update is not None:
                self._apply_update(link, update)
        self._schedule()

    def _discard_updates(self, name: str) -> None:
        """Drop the pending updates of a peer whose tunnel is lost or replaced."""
        self._pending_updates.discard(name)
        self._unacknowledged.pop(name, None)

    def _decode(self, link: DomainLink, payload: bytes) -> RoutingUpdate | None:
        """Decode an update; return None if it is malformed or of another incarnation."""
        try:
            update = decode_routing_update(payload)
        except MalformedPayloadError as error:
            link.reject(str(error))
            return None
        if (
            isinstance(update, AdvertisementUpdate | ShutdownNotice)
            and update.incarnation != link.incarnation
        ):
            expected = link.incarnation
            link.reject(f"routing update of incarnation {update.incarnation}, expected {expected}")
            return None
        return update

    def _apply_pending_updates(self, now: float) -> None:
        """Apply the pending updates of peers within their rate limit."""
        for name, data in self._pending_updates.pop_ready(now):
            link = self._links[name]
            update = self._decode(link, data) if isinstance(data, bytes) else data
            if update is not None:
                self._apply_update(link, update)
            if isinstance(update, AdvertisementUpdate):
                self._pending_updates.charge(name, len(update.advertisement), now)

    def _apply_update(self, link: DomainLink, update: RoutingUpdate) -> None:
        name, now = link.domain.name, self._loop.time()
        if isinstance(update, AdvertisementAck):
            self.advertiser.receive(update, name, now)
            return
        is_withdrawal = isinstance(update, ShutdownNotice) or self.learner.would_withdraw(
            update, name
        )
        if self.learner.receive(update, name, now) is not None:
            self._unacknowledged[name] = is_withdrawal or self._unacknowledged.get(name, False)
        # Through which domains messages of the peer may come, as it advertises.
        reachable = self.learner.get_advertisement(name).domains
        if self._dispatcher.neighbors.set_reachable(name, reachable):
            self._invalidate_neighbor(name)

    def _send_acks(self) -> None:
        """Acknowledge the updates whose routes are all in the table."""
        for name in [peer for peer in self._unacknowledged if self.learner.is_applied(peer)]:
            link, is_withdrawal = self._links[name], self._unacknowledged.pop(name)
            data = encode_routing_update(self.learner.ack_for(name))
            self.bytes_sent += len(data)
            if is_withdrawal:
                # After this ack the peer expects no message for the withdrawn routes any more.
                link.reroute_queued()
                link.send_update_last(data)
            else:
                link.send_update(data)

    def _invalidate_neighbor(self, name: str) -> None:
        """Have the source paths that contain a neighbor verified anew."""
        self._dispatcher.registry.cache.invalidate([(RouteType.DOMAIN, ANY, name)])

    def announce_shutdown(self) -> None:
        """Send a shutdown notice, so that satellites stop using this core as default route."""
        self.advertiser.announce_shutdown()
        self._process_outputs()

    # Processing.

    def _on_change(self) -> None:
        if not self._is_applying_routes:
            self._is_advertisement_stale = True
            self._schedule()

    def _schedule(self) -> None:
        """Process all events of this iteration of the event loop once, at its end."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self._process_outputs()

    def _process_outputs(self) -> None:
        now = self._loop.time()
        self._apply_pending_updates(now)
        self._apply_route_changes(now)
        self._send_acks()
        if self._is_advertisement_stale:
            self._advertise(now)
        for name, update in self.advertiser.drain_outgoing():
            if name in self._links:
                self._send(self._links[name], encode_routing_update(update))
        for warning in self.advertiser.drain_warnings():
            self._dispatcher.warn("another", "%s", warning)
        self._arm(
            min(
                self.advertiser.deadline(),
                self.learner.deadline(),
                self._pending_updates.deadline(),
            )
        )
        if self._ack_waiters and self.is_acknowledged:
            for waiter in self._ack_waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _advertise(self, now: float) -> None:
        dispatcher = self._dispatcher
        try:
            advertisement = build_advertisement(
                dispatcher.registry.table, dispatcher.domain, without=dispatcher.registry.withdrawn
            )
        except ConfigError as error:
            dispatcher.warn("advertisement", "cannot advertise the local routes: %s", error)
        else:
            self._is_advertisement_stale = False
            self.advertiser.advertise(advertisement, now)

    def _apply_route_changes(self, now: float) -> None:
        """Apply a batch of learned route changes; the next iteration of the loop continues."""
        changes = self.learner.drain_changes(ROUTES_AT_ONCE_MAX)
        if changes:
            counts = Counter(route.target.domain for route in (*changes.added, *changes.deleted))
            for name, count in counts.items():
                self._pending_updates.charge(name, count, now)
            self._is_applying_routes = True
            try:
                self._dispatcher.registry.change_routes(
                    added=changes.added, deleted=changes.deleted, is_strict=False
                )
            finally:
                self._is_applying_routes = False
        if self.learner.has_changes:
            self._schedule()

    def _send(self, link: DomainLink, data: bytes) -> None:
        self.bytes_sent += len(data)
        link.send_update(data)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when < NEVER:
            self._timer = self._loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        self.advertiser.tick(now)
        self.learner.tick(now)
        self._process_outputs()

    # Waiting for acknowledgements.

    @property
    def is_acknowledged(self) -> bool:
        """Whether every peer has acknowledged the advertisement and any shutdown notice."""
        return not (
            self._is_advertisement_stale
            or self.advertiser.unacknowledged()
            or self.advertiser.unacknowledged_shutdown
        )

    async def wait_acknowledged(self, timeout_s: float) -> bool:
        """Wait until `is_acknowledged`; return False after the timeout."""
        if self.is_acknowledged:
            return True
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._ack_waiters.append(waiter)
        try:
            await asyncio.wait({waiter}, timeout=timeout_s)
        finally:
            self._ack_waiters.remove(waiter)
        return self.is_acknowledged

    def close(self) -> None:
        self._arm(NEVER)

    def cores(self) -> list[str]:
        return sorted(name for name, link in self._links.items() if link.domain.role is Role.CORE)
