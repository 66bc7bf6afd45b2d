"""The sender of snapshots: what this domain offers, and who knows of it already.

Whoever runs it sends what `take_outgoing` gives after every call, tells of what `take_warnings`
gives, and calls `tick` at `deadline()`. Each peer has one snapshot on its way at most: while it is
not acknowledged, changes wait, and the next one sent has them all.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import msgspec

from postroad.cells.addresses import DomainInfo, Role
from postroad.cells.routing.advertisements import (
    AdvertisementAck,
    AdvertisementQuery,
    AdvertisementUpdate,
    RouteAdvertisement,
    RoutingUpdate,
    ShutdownNotice,
)
from postroad.cells.routing.route import RouteType
from postroad.cells.routing.route_table import RouteTable
from postroad.core.errors import ConfigError
from postroad.core.timing import NEVER


class RouteAdvertiserConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times of an announcer."""

    resend_first_s: float = 0.5
    """How long to wait for an acknowledgement, the first time."""
    resend_max_s: float = 30.0
    """How long at most; it doubles until then."""
    check_interval_s: float = 30.0
    """How often peers are asked whether what they have is right."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{field}={value!r} must be a finite number above 0")


class _PeerGroup:
    """The peers of one role: they are told the same."""

    def __init__(self, offer: RouteAdvertisement, number: int) -> None:
        self.set(offer, number)

    def set(self, offer: RouteAdvertisement, number: int) -> None:
        self.offer = offer
        self.number = number
        self.digest = offer.digest()


class _AdvertisedPeer:
    """One peer, and how far it is."""

    def __init__(self, audience: _PeerGroup, now: float, config: RouteAdvertiserConfig) -> None:
        self.audience = audience
        # What it acknowledged last, and what it was sent since; 0 if nothing.
        self.acknowledged = 0
        self.in_flight = 0
        self.resend_s = config.resend_first_s
        self.sent_at = -NEVER
        # When to send again, or to check.
        self.due = now

    @property
    def is_settled(self) -> bool:
        return self.acknowledged == self.audience.number


def build_advertisement(
    table: RouteTable, domain: DomainInfo, *, without: Collection[str] = ()
) -> RouteAdvertisement:
    """What a domain offers, by its own table: what its cells do, but for some, and its tunnels."""
    queues: set[str] = set()
    topics: set[str] = set()
    domains: set[str] = set()
    for route in table:
        target = route.target
        if target.domain != domain.name or target.is_domain or target.cell in without:
            continue
        if route.type is RouteType.QUEUE:
            queues.add(route.cell)
        elif route.type is RouteType.TOPIC:
            topics.add(route.cell)
        elif route.type is RouteType.DOMAIN:
            domains.add(route.domain)
    return RouteAdvertisement.of(queues, topics, domain.zone, domains)


class RouteAdvertiser:
    """Tells peers what this domain offers: cores all of it, satellites the queues of a core.

    Args:
        domain: this domain.
        incarnation: higher than that of any earlier start of this domain.
        config: all times.
    """

    def __init__(
        self, domain: DomainInfo, *, incarnation: int, config: RouteAdvertiserConfig | None = None
    ) -> None:
        self.domain = domain
        self.incarnation = incarnation
        self.config = config or RouteAdvertiserConfig()
        self._number = 1
        empty = RouteAdvertisement(zone=domain.zone)
        self._audiences = {role: _PeerGroup(empty, self._number) for role in Role}
        self._peers: dict[str, _AdvertisedPeer] = {}
        # Peers that were told of the end and have not said that they heard it.
        self._unheard: set[str] = set()
        self._outgoing: list[tuple[str, RoutingUpdate]] = []
        self._warnings: list[str] = []

    # What is to be done.

    def drain_outgoing(self) -> list[tuple[str, RoutingUpdate]]:
        """What is to be sent to which peers."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def take_warnings(self) -> list[str]:
        """What an operator should know since the last call."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def deadline(self) -> float:
        """When `tick` must be called."""
        return min((peer.due for peer in self._peers.values()), default=NEVER)

    def unacknowledged(self) -> list[str]:
        """The peers that have not acknowledged what this domain offers now."""
        return sorted(name for name, peer in self._peers.items() if not peer.is_settled)

    def unacknowledged_shutdown(self) -> list[str]:
        """The peers that have not acknowledged that this domain is about to stop."""
        return sorted(self._unheard)

    # What happens.

    def advertise(self, offer: RouteAdvertisement, now: float) -> None:
        """This is what this domain offers now; the zone is the domain's."""
        full = RouteAdvertisement(offer.queues, offer.topics, self.domain.zone, offer.domains)
        queues = RouteAdvertisement(offer.queues, (), self.domain.zone)
        self._change(self._audiences[Role.CORE], full)
        self._change(self._audiences[Role.SATELLITE], queues)
        for name, peer in self._peers.items():
            if not peer.is_settled and not peer.in_flight:
                self._send(name, peer, now)

    def peer_up(self, name: str, role: Role, now: float) -> None:
        """A tunnel to a peer came up; it is told everything, whatever it was told before."""
        if role is Role.SATELLITE and self.domain.role is Role.SATELLITE:
            self._peers.pop(name, None)
            return
        peer = self._peers[name] = _AdvertisedPeer(self._audiences[role], now, self.config)
        self._send(name, peer, now)

    def peer_down(self, name: str) -> None:
        """The tunnel to a peer is gone."""
        self._peers.pop(name, None)
        self._unheard.discard(name)

    def announce_shutdown(self) -> None:
        """This domain is about to stop: if it is a core, its satellites find other ways."""
        if self.domain.role is Role.CORE:
            satellites = self._audiences[Role.SATELLITE]
            leaving = [name for name, peer in self._peers.items() if peer.audience is satellites]
            self._unheard.update(leaving)
            self._outgoing += [(name, ShutdownNotice(self.incarnation)) for name in leaving]

    def receive(self, have: AdvertisementAck, name: str, now: float) -> None:
        """A peer says what it has of this domain's."""
        peer = self._peers.get(name)
        if peer is None:
            return
        if have.acknowledges_shutdown:
            self._unheard.discard(name)
        if (have.incarnation, have.number) > (self.incarnation, self._number):
            self._warn_of_another(have, name)
        elif have.incarnation == self.incarnation:
            self._on_ack(have, name, peer, now)
        elif not peer.in_flight:
            self._resend(name, peer, now)

    def tick(self, now: float) -> None:
        """Send again what was not acknowledged, and check what was long ago."""
        for name, peer in self._peers.items():
            if peer.due > now:
                continue
            if peer.in_flight or not peer.is_settled:
                self._send(name, peer, now)
            else:
                self._outgoing.append((name, AdvertisementQuery()))
                peer.due = now + self.config.check_interval_s

    # How it is done.

    def _change(self, audience: _PeerGroup, offer: RouteAdvertisement) -> None:
        if offer != audience.offer:
            self._number += 1
            audience.set(offer, self._number)

    def _on_ack(self, have: AdvertisementAck, name: str, peer: _AdvertisedPeer, now: float) -> None:
        audience = peer.audience
        if have.number == audience.number and have.digest == audience.digest:
            peer.acknowledged, peer.in_flight = have.number, 0
            peer.resend_s = self.config.resend_first_s
            peer.due = now + self.config.check_interval_s
        elif not peer.in_flight:
            self._resend(name, peer, now)
        elif have.number == peer.in_flight != audience.number:
            # It goes on at once only to something newer: a peer that is always wrong has to wait.
            peer.resend_s = self.config.resend_first_s
            self._send(name, peer, now)

    def _resend(self, name: str, peer: _AdvertisedPeer, now: float) -> None:
        """A check found something else than there should be.

        Who finds that again and again, whatever it is sent, has to wait.
        """
        peer.acknowledged = 0
        if now - peer.sent_at >= self.config.resend_first_s:
            self._send(name, peer, now)
        else:
            peer.due = peer.sent_at + self.config.resend_first_s

    def _send(self, name: str, peer: _AdvertisedPeer, now: float) -> None:
        """Send the newest; wait longer each time until something is acknowledged."""
        audience = peer.audience
        self._outgoing.append(
            (name, AdvertisementUpdate(self.incarnation, audience.number, audience.offer))
        )
        peer.in_flight = audience.number
        peer.sent_at = now
        peer.due = now + peer.resend_s
        peer.resend_s = min(2 * peer.resend_s, self.config.resend_max_s)

    def _warn_of_another(self, have: AdvertisementAck, name: str) -> None:
        self._warnings.append(
            f"{name} has heard of another {self.domain.name}, of incarnation {have.incarnation}; "
            f"this one is {self.incarnation}"
        )

    def __repr__(self) -> str:
        peers, behind = len(self._peers), len(self.unacknowledged())
        return f"<Announcer of {self.domain.name}: #{self._number}, {peers} peers, {behind} behind>"
