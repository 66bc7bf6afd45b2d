"""The route learner: turns the advertisements of peers into routes of this domain.

A core learns a route to every queue and topic that a peer advertises. A satellite learns routes to
the queues of cores, and a default route to each core. Learned routes are not advertised further,
with one exception: a core without a tunnel to a domain learns domain routes through the cores that
have one.

`RoutePropagator` (delivery/propagator.py) feeds updates into `receive`, applies `drain_changes` to
the route table after every call, and again while `has_changes`, and calls `tick` at `deadline()`.
The domain routes of tunnels are added by `DomainLinks`, not here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import TypeAlias

import msgspec

from postroad.cells.addresses import ANY, CellAddress, DomainInfo, Role
from postroad.cells.routing.advertisements import (
    AdvertisementAck,
    AdvertisementQuery,
    AdvertisementUpdate,
    RouteAdvertisement,
    ShutdownNotice,
)
from postroad.cells.routing.route import Route, RouteType
from postroad.core.errors import ConfigError
from postroad.core.timing import NEVER

_Key: TypeAlias = tuple[RouteType, str]
"""Key of a route among those learned from one peer."""
_Steps: TypeAlias = Iterator[tuple[Route | None, Route | None]]
"""Pairs of a route to delete and a route to add; either may be None."""


class RouteLearnerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a route learner."""

    default_delay_s: float = 5.0
    """How long a new core may connect to other satellites before it gets a default route."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.default_delay_s) and self.default_delay_s >= 0):
            raise ConfigError(
                f"default_delay_s={self.default_delay_s!r} must be a finite number, 0 or more"
            )


class RouteChanges(msgspec.Struct, frozen=True):
    """Changes of the route table, to be applied at once."""

    added: tuple[Route, ...] = ()
    deleted: tuple[Route, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.deleted)


class _LearnedPeer(msgspec.Struct, eq=False):
    """Peer domain, its advertisement, and the state of its default route."""

    domain: DomainInfo
    ack: AdvertisementAck = AdvertisementAck()
    advertisement: RouteAdvertisement = RouteAdvertisement()
    default_due: float = NEVER
    """When it becomes a default route; NEVER if it must not."""
    is_default: bool = False


class RouteLearner:
    """Learns routes from the advertisements of peers."""

    def __init__(self, domain: DomainInfo, *, config: RouteLearnerConfig | None = None) -> None:
        self.domain = domain
        self.config = config or RouteLearnerConfig()
        self._peers: dict[str, _LearnedPeer] = {}
        # Routes in the table that were learned from each peer.
        self._learned: dict[str, dict[_Key, Route]] = {}
        # Peers whose routes must be computed anew, and the pending steps of the others.
        self._dirty: set[str] = set()
        self._steps: dict[str, _Steps] = {}

    # Outputs.

    def advertisements(self) -> dict[str, RouteAdvertisement]:
        """Return the last advertisement of each peer."""
        return {name: self._peers[name].advertisement for name in sorted(self._peers)}

    def get_advertisement(self, name: str) -> RouteAdvertisement:
        """Return the last advertisement of a peer; empty if there is none."""
        peer = self._peers.get(name)
        return RouteAdvertisement() if peer is None else peer.advertisement

    def ack_for(self, name: str) -> AdvertisementAck:
        """Return the acknowledgement of the last advertisement of a peer."""
        peer = self._peers.get(name)
        return AdvertisementAck() if peer is None else peer.ack

    @property
    def has_changes(self) -> bool:
        return bool(self._dirty or self._steps)

    def is_applied(self, name: str) -> bool:
        """Return whether all changes caused by a peer were drained."""
        return name not in self._dirty and name not in self._steps

    def drain_changes(self, count_max: int | None = None) -> RouteChanges:
        """Remove and return pending route changes, about `count_max` at most.

        Peers take turns, so that a large advertisement does not delay the others.
        """
        for name in sorted(self._dirty):
            self._steps[name] = self._steps_for(name)
        self._dirty.clear()
        steps: list[tuple[Route | None, Route | None]] = []
        for name in list(self._steps):
            count = None if count_max is None else count_max - len(steps)
            if count is not None and count <= 0:
                break
            steps_taken = list(islice(self._steps[name], count))
            self._record_steps(name, steps_taken)
            steps += steps_taken
            remaining_steps = self._steps.pop(name)
            if count is not None and len(steps_taken) == count:
                # Reinserted at the end: the other peers are next.
                self._steps[name] = remaining_steps
        return RouteChanges(
            tuple([added for _, added in steps if added is not None]),
            tuple([deleted for deleted, _ in steps if deleted is not None]),
        )

    def _record_steps(
        self, name: str, steps_taken: list[tuple[Route | None, Route | None]]
    ) -> None:
        current = self._learned.setdefault(name, {})
        for deleted, added in steps_taken:
            if added is not None:
                current[_key_of(added)] = added
            elif deleted is not None:
                del current[_key_of(deleted)]
        if not current:
            del self._learned[name]

    def _steps_for(self, name: str) -> _Steps:
        """Yield the changes from the current routes of a peer to those of its advertisement."""
        current = list(self._learned.get(name, {}).items())
        target_routes = self._routes_from(name)
        for key, route in current:
            if key not in target_routes:
                yield route, None
        current_by_key = dict(current)
        for key, zone in target_routes.items():
            previous = current_by_key.get(key)
            if previous is None or previous.zone != zone:
                yield previous, _make_route(key, CellAddress.of_domain(name), zone)

    def deadline(self) -> float:
        """Return when `tick` must be called."""
        return min((peer.default_due for peer in self._peers.values()), default=NEVER)

    # Events.

    def peer_up(self, domain: DomainInfo, now: float) -> None:
        """Add a peer whose tunnel came up.

        If the tunnel replaces another one, the old routes stay until the next advertisement.
        """
        previous = self._peers.get(domain.name)
        peer = self._peers[domain.name] = _LearnedPeer(domain)
        if previous is not None:
            peer.advertisement = previous.advertisement
            peer.is_default = previous.is_default and self._is_upstream(peer)
        self._mark_dirty(domain.name)
        if self._is_upstream(peer) and not peer.is_default:
            peer.default_due = now + self.config.default_delay_s
        self._ensure_default(now)

    def peer_down(self, name: str, now: float) -> None:
        """Withdraw all routes of a peer whose tunnel is lost."""
        if self._peers.pop(name, None) is not None:
            self._mark_dirty(name)
            self._ensure_default(now)

    def would_withdraw(
        self, update: AdvertisementUpdate | AdvertisementQuery | ShutdownNotice, name: str
    ) -> bool:
        """Return whether an update withdraws a queue or topic of a peer."""
        peer = self._peers.get(name)
        if peer is None or not isinstance(update, AdvertisementUpdate):
            return False
        previous, new = peer.advertisement, update.advertisement
        return not (
            set(previous.queues) <= set(new.queues) and set(previous.topics) <= set(new.topics)
        )

    def receive(
        self,
        update: AdvertisementUpdate | AdvertisementQuery | ShutdownNotice,
        name: str,
        now: float,
    ) -> AdvertisementAck | None:
        """Apply an update of a peer; return the acknowledgement, or None if the peer is unknown."""
        peer = self._peers.get(name)
        if peer is None:
            return None
        if isinstance(update, AdvertisementUpdate):
            self._apply(update, peer)
        elif (
            isinstance(update, ShutdownNotice)
            and update.incarnation == peer.ack.incarnation
            and not peer.ack.acknowledges_shutdown
        ):
            peer.ack = msgspec.structs.replace(peer.ack, acknowledges_shutdown=True)
            peer.is_default, peer.default_due = False, NEVER
            self._dirty.add(peer.domain.name)
            self._ensure_default(now)
        return peer.ack

    def tick(self, now: float) -> None:
        """Add default routes to the cores whose delay is over."""
        for peer in self._peers.values():
            if peer.default_due <= now:
                self._make_default(peer)

    # Internals.

    def _apply(self, update: AdvertisementUpdate, peer: _LearnedPeer) -> None:
        """Store an advertisement unless it is older than the current one."""
        if (update.incarnation, update.number) >= (peer.ack.incarnation, peer.ack.number):
            digest, is_shutting_down = update.advertisement.digest(), peer.ack.acknowledges_shutdown
            peer.advertisement = update.advertisement
            peer.ack = AdvertisementAck(update.incarnation, update.number, digest, is_shutting_down)
            self._dirty.add(peer.domain.name)

    def _mark_dirty(self, name: str) -> None:
        """Recompute the routes of a peer, and of the cores with indirect routes to it."""
        self._dirty.add(name)
        for other, peer in self._peers.items():
            if peer.domain.role is Role.CORE and name in peer.advertisement.domains:
                self._dirty.add(other)

    def _routes_from(self, name: str) -> dict[_Key, str | None]:
        """Return the routes that the advertisement of a peer implies, with their zones."""
        peer = self._peers.get(name)
        target_routes: dict[_Key, str | None] = {}
        if peer is None:
            return target_routes
        advertisement, zone = peer.advertisement, peer.advertisement.zone
        if peer.is_default:
            target_routes[RouteType.DEFAULT, ANY] = peer.domain.zone
        if self.domain.role is Role.CORE:
            target_routes |= dict.fromkeys(
                ((RouteType.DOMAIN, name) for name in self._indirect_domains(peer)), None
            )
        if Role.CORE in (self.domain.role, peer.domain.role):
            target_routes |= dict.fromkeys(
                ((RouteType.QUEUE, name) for name in advertisement.queues), zone
            )
        if self.domain.role is Role.CORE:
            target_routes |= dict.fromkeys(
                ((RouteType.TOPIC, name) for name in advertisement.topics), zone
            )
        return target_routes

    def _indirect_domains(self, peer: _LearnedPeer) -> Iterator[str]:
        """Return the domains without a tunnel to this one that are reached through a core."""
        if peer.domain.role is not Role.CORE:
            return iter(())
        connected = self._peers.keys() | {self.domain.name}
        return (name for name in peer.advertisement.domains if name not in connected)

    def _is_upstream(self, peer: _LearnedPeer) -> bool:
        return self.domain.role is Role.SATELLITE and peer.domain.role is Role.CORE

    def _ensure_default(self, now: float) -> None:
        """Add default routes without delay while there is none."""
        self.tick(now)
        if not any(peer.is_default for peer in self._peers.values()):
            for peer in self._peers.values():
                if peer.default_due < NEVER:
                    self._make_default(peer)

    def _make_default(self, peer: _LearnedPeer) -> None:
        peer.is_default, peer.default_due = True, NEVER
        self._dirty.add(peer.domain.name)

    def __repr__(self) -> str:
        defaults = sum(peer.is_default for peer in self._peers.values())
        name, peers = self.domain.name, len(self._peers)
        return f"<RouteLearner of {name}: {peers} peers, {defaults} defaults>"


def _key_of(route: Route) -> _Key:
    return route.type, route.domain if route.type is RouteType.DOMAIN else route.cell


def _make_route(key: _Key, target: CellAddress, zone: str | None) -> Route:
    type, name = key
    if type is RouteType.DOMAIN:
        return Route.to_domain(name, target)
    return Route(type, name, ANY, target, zone)
