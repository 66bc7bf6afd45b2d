"""The receiver of snapshots: which routes of this domain others are the reason for.

A core has routes to every queue and topic that another domain offers. A satellite has routes to
the queues of cores, and a default route to each core. Nobody passes on what others offer, with one
exception: a core that has no tunnel to a domain knows the cores that have one, and goes through
them.

Whoever runs it applies what `take_changes` gives after every call, and again while `has_changes`,
and calls `tick` at `deadline()`. The routes to the domains themselves are the business of their
tunnels.
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
"""What tells routes from one another that one peer is the reason for."""
_Steps: TypeAlias = Iterator[tuple[Route | None, Route | None]]
"""A route to be deleted, and one to be added, if there are any."""


class RouteLearnerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a learner."""

    default_delay_s: float = 5.0
    """How long another core is left to meet the other satellites before all goes through it."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.default_delay_s) and self.default_delay_s >= 0):
            raise ConfigError(
                f"default_delay_s={self.default_delay_s!r} must be a finite number, 0 or more"
            )


class RouteChanges(msgspec.Struct, frozen=True):
    """What is to be changed in the table, all at once."""

    added: tuple[Route, ...] = ()
    deleted: tuple[Route, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.deleted)


class _LearnedPeer:
    """One domain at the other end of a tunnel, and what is known of it."""

    def __init__(self, domain: DomainInfo) -> None:
        self.domain = domain
        self.have = AdvertisementAck()
        self.offer = RouteAdvertisement()
        # When it may become a default route; NEVER for what must not.
        self.default_due = NEVER
        self.is_default = False


class RouteLearner:
    """Learns from peers what they offer.

    Args:
        domain: this domain.
        config: all times.
    """

    def __init__(self, domain: DomainInfo, *, config: RouteLearnerConfig | None = None) -> None:
        self.domain = domain
        self.config = config or RouteLearnerConfig()
        self._peers: dict[str, _LearnedPeer] = {}
        # The routes that were given out because of each peer.
        self._given: dict[str, dict[_Key, Route]] = {}
        # The peers to look at again, and what is still to be done because of others.
        self._dirty: set[str] = set()
        self._steps: dict[str, _Steps] = {}

    # What is known, and what is to be done.

    def advertisements(self) -> dict[str, RouteAdvertisement]:
        """What each peer offers, as far as it is known."""
        return {name: self._peers[name].offer for name in sorted(self._peers)}

    def offer_of(self, name: str) -> RouteAdvertisement:
        """What a peer offers, as far as it is known."""
        peer = self._peers.get(name)
        return RouteAdvertisement() if peer is None else peer.offer

    def ack_for(self, name: str) -> AdvertisementAck:
        """Which snapshot of a peer is known."""
        peer = self._peers.get(name)
        return AdvertisementAck() if peer is None else peer.have

    @property
    def has_changes(self) -> bool:
        """Whether `take_changes` has more to give."""
        return bool(self._dirty or self._steps)

    def is_applied(self, name: str) -> bool:
        """Whether all changes were taken that a peer is the reason for."""
        return name not in self._dirty and name not in self._steps

    def drain_changes(self, count_max: int | None = None) -> RouteChanges:
        """What became of the routes since the last call: all, or not many more than so many.

        Peers have their turns one after the other.
        """
        for name in sorted(self._dirty):
            self._steps[name] = self._steps_of(name)
        self._dirty.clear()
        steps: list[tuple[Route | None, Route | None]] = []
        for name in list(self._steps):
            count = None if count_max is None else count_max - len(steps)
            if count is not None and count <= 0:
                break
            taken = list(islice(self._steps[name], count))
            self._note(name, taken)
            steps += taken
            rest = self._steps.pop(name)
            if count is not None and len(taken) == count:
                # Next time it is others' turn.
                self._steps[name] = rest
        return RouteChanges(
            tuple([added for _, added in steps if added is not None]),
            tuple([deleted for deleted, _ in steps if deleted is not None]),
        )

    def _note(self, name: str, taken: list[tuple[Route | None, Route | None]]) -> None:
        given = self._given.setdefault(name, {})
        for deleted, added in taken:
            if added is not None:
                given[_key_of(added)] = added
            elif deleted is not None:
                del given[_key_of(deleted)]
        if not given:
            del self._given[name]

    def _steps_of(self, name: str) -> _Steps:
        """From the routes that were given out because of a peer to those that are wanted."""
        given = list(self._given.get(name, {}).items())
        wanted = self._routes_from(name)
        for key, route in given:
            if key not in wanted:
                yield route, None
        had = dict(given)
        for key, zone in wanted.items():
            before = had.get(key)
            if before is None or before.zone != zone:
                yield before, _make_route(key, CellAddress.of_domain(name), zone)

    def deadline(self) -> float:
        """When `tick` must be called."""
        return min((peer.default_due for peer in self._peers.values()), default=NEVER)

    # What happens.

    def peer_up(self, domain: DomainInfo, now: float) -> None:
        """A tunnel to a peer came up.

        What was known stays until the peer tells anew, if no one said that the old tunnel is gone.
        """
        before = self._peers.get(domain.name)
        peer = self._peers[domain.name] = _LearnedPeer(domain)
        if before is not None:
            peer.offer = before.offer
            peer.is_default = before.is_default and self._is_upstream(peer)
        self._mark_dirty(domain.name)
        if self._is_upstream(peer) and not peer.is_default:
            peer.default_due = now + self.config.default_delay_s
        self._ensure_default(now)

    def peer_down(self, name: str, now: float) -> None:
        """The tunnel to a peer is gone, and so is all it offered."""
        if self._peers.pop(name, None) is not None:
            self._mark_dirty(name)
            self._ensure_default(now)

    def would_withdraw(
        self, update: AdvertisementUpdate | AdvertisementQuery | ShutdownNotice, name: str
    ) -> bool:
        """Whether a peer offers less by this update than before."""
        peer = self._peers.get(name)
        if peer is None or not isinstance(update, AdvertisementUpdate):
            return False
        before, after = peer.offer, update.offer
        return not (
            set(before.queues) <= set(after.queues) and set(before.topics) <= set(after.topics)
        )

    def receive(
        self,
        update: AdvertisementUpdate | AdvertisementQuery | ShutdownNotice,
        name: str,
        now: float,
    ) -> AdvertisementAck | None:
        """Hear a peer; gives what to answer, which is nothing to those without a tunnel."""
        peer = self._peers.get(name)
        if peer is None:
            return None
        if isinstance(update, AdvertisementUpdate):
            self._apply(update, peer)
        elif (
            isinstance(update, ShutdownNotice)
            and update.incarnation == peer.have.incarnation
            and not peer.have.acknowledges_shutdown
        ):
            peer.have = msgspec.structs.replace(peer.have, acknowledges_shutdown=True)
            self._demote_default(peer)
            self._ensure_default(now)
        return peer.have

    def tick(self, now: float) -> None:
        """Make default routes of the cores that had their time."""
        for peer in self._peers.values():
            if peer.default_due <= now:
                self._make_default(peer)

    # How it is done.

    def _apply(self, snapshot: AdvertisementUpdate, peer: _LearnedPeer) -> None:
        """Take a snapshot unless it is older than what is there."""
        if (snapshot.incarnation, snapshot.number) >= (peer.have.incarnation, peer.have.number):
            digest, knows_leaving = snapshot.offer.digest(), peer.have.acknowledges_shutdown
            peer.offer = snapshot.offer
            peer.have = AdvertisementAck(
                snapshot.incarnation, snapshot.number, digest, knows_leaving
            )
            self._dirty.add(peer.domain.name)

    def _mark_dirty(self, name: str) -> None:
        """A tunnel came or went: so may detours to the same domain."""
        self._dirty.add(name)
        for other, peer in self._peers.items():
            if peer.domain.role is Role.CORE and name in peer.offer.domains:
                self._dirty.add(other)

    def _routes_from(self, name: str) -> dict[_Key, str | None]:
        """The routes there should be because of a peer, and their zones."""
        peer = self._peers.get(name)
        wanted: dict[_Key, str | None] = {}
        if peer is None:
            return wanted
        offer, zone = peer.offer, peer.offer.zone
        if peer.is_default:
            wanted[RouteType.DEFAULT, ANY] = peer.domain.zone
        if self.domain.role is Role.CORE:
            wanted |= dict.fromkeys(
                ((RouteType.DOMAIN, it) for it in self._indirect_domains(peer)), None
            )
        if Role.CORE in (self.domain.role, peer.domain.role):
            wanted |= dict.fromkeys(((RouteType.QUEUE, it) for it in offer.queues), zone)
        if self.domain.role is Role.CORE:
            wanted |= dict.fromkeys(((RouteType.TOPIC, it) for it in offer.topics), zone)
        return wanted

    def _indirect_domains(self, peer: _LearnedPeer) -> Iterator[str]:
        """The domains that are reached through a peer, for want of a tunnel."""
        if peer.domain.role is not Role.CORE:
            return iter(())
        known = self._peers.keys() | {self.domain.name}
        return (name for name in peer.offer.domains if name not in known)

    def _is_upstream(self, peer: _LearnedPeer) -> bool:
        return self.domain.role is Role.SATELLITE and peer.domain.role is Role.CORE

    def _ensure_default(self, now: float) -> None:
        """While there is no other default route, nobody has to wait to become one."""
        self.tick(now)
        if not any(peer.is_default for peer in self._peers.values()):
            for peer in self._peers.values():
                if peer.default_due < NEVER:
                    self._make_default(peer)

    def _make_default(self, peer: _LearnedPeer) -> None:
        peer.is_default, peer.default_due = True, NEVER
        self._dirty.add(peer.domain.name)

    def _demote_default(self, peer: _LearnedPeer) -> None:
        peer.is_default, peer.default_due = False, NEVER
        self._dirty.add(peer.domain.name)

    def __repr__(self) -> str:
        defaults = sum(peer.is_default for peer in self._peers.values())
        return f"<Learner of {self.domain.name}: {len(self._peers)} peers, {defaults} defaults>"


def _key_of(route: Route) -> _Key:
    return route.type, route.domain if route.type is RouteType.DOMAIN else route.cell


def _make_route(key: _Key, target: CellAddress, zone: str | None) -> Route:
    type, name = key
    if type is RouteType.DOMAIN:
        return Route.to_domain(name, target)
    return Route(type, name, ANY, target, zone)
