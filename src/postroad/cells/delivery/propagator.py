"""Runs what announces and learns routes over the tunnels of a domain.

The rule of the glue: after anything happened, send what is to be sent, change the table as is to
be, and keep one timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from postroad.cells.addresses import Role
from postroad.cells.delivery.dispatcher import MessageDispatcher
from postroad.cells.delivery.domain_links import DomainLink
from postroad.cells.delivery.update_intake import Intake
from postroad.cells.routing.advertisements import (
    AdvertisementAck,
    AdvertisementUpdate,
    RoutingUpdate,
    ShutdownNotice,
    decode_routing_update,
    encode_routing_update,
)
from postroad.cells.routing.advertiser import RouteAdvertiser, build_advertisement
from postroad.cells.routing.route_learner import RouteLearner
from postroad.core.errors import ConfigError, MalformedPayloadError
from postroad.core.limits import KIB, ROUTE_NAMES_PER_S, ROUTES_AT_ONCE_MAX
from postroad.core.timing import NEVER

logger = logging.getLogger("postroad.cells")

# News up to this size are read at once: they cost no more than other messages.
_SMALL_BYTES = 1 * KIB


class RoutePropagator:
    """Tells other domains what this one offers, and learns from them."""

    def __init__(self, exchange: MessageDispatcher, *, incarnation: int) -> None:
        self._exchange = exchange
        self._loop = exchange.loop
        config = exchange.config
        self.announcer = RouteAdvertiser(
            exchange.domain, incarnation=incarnation, config=config.announcing
        )
        self.learner = RouteLearner(exchange.domain, config=config.learning)
        self._intake = Intake(ROUTE_NAMES_PER_S)
        # The peers that are told what is known of them once all of it is in the table, and whether
        # that is less than before.
        self._unanswered: dict[str, bool] = {}
        self._links: dict[str, DomainLink] = {}
        self._is_scheduled = False
        # Whether the offer may have changed since it was told.
        self._is_offer_old = True
        self._is_learning = False
        self._timer: asyncio.TimerHandle | None = None
        self._settled: list[asyncio.Future[None]] = []
        self.bytes_sent = 0
        exchange.on_change.append(self._on_change)

    # What happens.

    def link_up(self, link: DomainLink) -> None:
        """A tunnel came up."""
        now = self._loop.time()
        self._forget_news(link.domain.name)
        self._links[link.domain.name] = link
        self._exchange.neighbors.up(link.domain)
        self.learner.peer_up(link.domain, now)
        self.announcer.peer_up(link.domain.name, link.domain.role, now)
        self._schedule()

    def link_down(self, name: str) -> None:
        """A tunnel is gone."""
        self._links.pop(name, None)
        self._forget_news(name)
        self._exchange.neighbors.down(name)
        self.learner.peer_down(name, self._loop.time())
        self.announcer.peer_down(name)
        self._process_outputs()

    def receive(self, link: DomainLink, payload: bytes) -> None:
        """News came out of a tunnel; snapshots, and whatever is large, wait for their turn."""
        name = link.domain.name
        if self._links.get(name) is not link:
            return
        if len(payload) > _SMALL_BYTES:
            self._intake.put(name, payload)
        else:
            update = self._read(link, payload)
            if isinstance(update, AdvertisementUpdate):
                self._intake.put(name, update)
            elif update is not None:
                self._hear(link, update)
        self._schedule()

    def _forget_news(self, name: str) -> None:
        """The tunnel that brought them is gone."""
        self._intake.drop(name)
        self._unanswered.pop(name, None)

    def _read(self, link: DomainLink, payload: bytes) -> RoutingUpdate | None:
        """News, unless they are none, or those of another process."""
        try:
            update = decode_routing_update(payload)
        except MalformedPayloadError as error:
            link.reject(str(error))
            return None
        if (
            isinstance(update, AdvertisementUpdate | ShutdownNotice)
            and update.incarnation != link.incarnation
        ):
            link.reject(f"news of incarnation {update.incarnation}, not {link.incarnation}")
            return None
        return update

    def _take_in(self, now: float) -> None:
        """Look at the news of peers whose turn it is."""
        for name, news in self._intake.take(now):
            link = self._links[name]
            update = self._read(link, news) if isinstance(news, bytes) else news
            if update is not None:
                self._hear(link, update)
            if isinstance(update, AdvertisementUpdate):
                self._intake.charge(name, len(update.offer), now)

    def _hear(self, link: DomainLink, update: RoutingUpdate) -> None:
        name, now = link.domain.name, self._loop.time()
        if isinstance(update, AdvertisementAck):
            self.announcer.receive(update, name, now)
            return
        is_less = isinstance(update, ShutdownNotice) or self.learner.would_withdraw(update, name)
        if self.learner.receive(update, name, now) is not None:
            self._unanswered[name] = is_less or self._unanswered.get(name, False)
        self._note_reach(name)

    def _answer(self) -> None:
        """Tell peers what is known of them, if all of it is in the table."""
        for name in [it for it in self._unanswered if self.learner.is_applied(it)]:
            link, is_less = self._links[name], self._unanswered.pop(name)
            news = encode_routing_update(self.learner.ack_for(name))
            self.bytes_sent += len(news)
            if is_less:
                # Nothing may follow the answer that the peer does not expect any more.
                link.reroute_queued()
                link.send_update_last(news)
            else:
                link.send_update(news)

    def _note_reach(self, name: str) -> None:
        """Whether messages of a domain can come by others, it tells itself."""
        if self._exchange.neighbors.tells(name, self.learner.offer_of(name).domains):
            for link in self._links.values():
                link.clear_fast_paths()

    def announce_shutdown(self) -> None:
        """This domain is about to stop: if it is a core, satellites should find other ways."""
        self.announcer.announce_shutdown()
        self._process_outputs()

    # What is done.

    def _on_change(self) -> None:
        if not self._is_learning:
            self._is_offer_old = True
            self._schedule()

    def _schedule(self) -> None:
        """Do everything at the end of this turn of the loop, once for all that happens in it."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self._process_outputs()

    def _process_outputs(self) -> None:
        now = self._loop.time()
        self._take_in(now)
        self._learn(now)
        self._answer()
        if self._is_offer_old:
            self._advertise(now)
        for name, update in self.announcer.drain_outgoing():
            if name in self._links:
                self._send(self._links[name], encode_routing_update(update))
        for warning in self.announcer.take_warnings():
            self._exchange.warn("another", "%s", warning)
        self._arm(min(self.announcer.deadline(), self.learner.deadline(), self._intake.deadline()))
        self._tell_if_settled()

    def _advertise(self, now: float) -> None:
        exchange = self._exchange
        try:
            offer = build_advertisement(exchange.table, exchange.domain, without=exchange.withdrawn)
        except ConfigError as error:
            exchange.warn("offer", "what is offered cannot be told: %s", error)
        else:
            self._is_offer_old = False
            self.announcer.advertise(offer, now)

    def _learn(self, now: float) -> None:
        """Change some routes, and go on in the next turn of the loop if there are more."""
        changes = self.learner.drain_changes(ROUTES_AT_ONCE_MAX)
        if changes:
            counts = Counter(route.target.domain for route in (*changes.added, *changes.deleted))
            for name, count in counts.items():
                self._intake.charge(name, count, now)
            self._is_learning = True
            try:
                self._exchange.change_routes(
                    added=changes.added, deleted=changes.deleted, is_strict=False
                )
            finally:
                self._is_learning = False
        if self.learner.has_changes:
            self._schedule()

    def _send(self, link: DomainLink, news: bytes) -> None:
        self.bytes_sent += len(news)
        link.send_update(news)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when < NEVER:
            self._timer = self._loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        self.announcer.tick(now)
        self.learner.tick(now)
        self._process_outputs()

    # Waiting for others.

    @property
    def is_acknowledged(self) -> bool:
        """Whether every peer has acknowledged what this domain offers, and that it leaves."""
        return not (
            self._is_offer_old
            or self.announcer.unacknowledged()
            or self.announcer.unacknowledged_shutdown()
        )

    async def wait_acknowledged(self, timeout_s: float) -> bool:
        """Wait until every peer has heard everything; False if that takes too long."""
        if self.is_acknowledged:
            return True
        settled: asyncio.Future[None] = self._loop.create_future()
        self._settled.append(settled)
        try:
            await asyncio.wait({settled}, timeout=timeout_s)
        finally:
            self._settled.remove(settled)
        return self.is_acknowledged

    def _tell_if_settled(self) -> None:
        if self._settled and self.is_acknowledged:
            for settled in self._settled:
                if not settled.done():
                    settled.set_result(None)

    def close(self) -> None:
        """Do nothing any more."""
        self._arm(NEVER)

    def cores(self) -> list[str]:
        """The cores that can be reached directly."""
        return sorted(name for name, link in self._links.items() if link.domain.role is Role.CORE)
