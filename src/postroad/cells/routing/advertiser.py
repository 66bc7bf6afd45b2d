"""The route advertiser: sends the advertisement of this domain to its peers until acknowledged.

Its owner sends the result of `drain_outgoing` after every call, logs `drain_warnings`, and calls
`tick` at `deadline()`. Each peer has at most one update in flight: while it is not acknowledged,
changes wait, and the next update contains them all.
"""

from __future__ import annotations

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
from postroad.core.limits import check_positive
from postroad.core.timing import NEVER


class RouteAdvertiserConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a route advertiser."""

    resend_first_s: float = 0.5
    """Delay before the first resend of an update that is not acknowledged."""
    resend_max_s: float = 30.0
    """Longest delay between resends; the delay doubles up to this value."""
    check_interval_s: float = 30.0
    """How often the version that a peer has is queried."""

    def __post_init__(self) -> None:
        check_positive(self)


class _PeerGroup:
    """Peers of one role, which get the same advertisement."""

    def __init__(self, advertisement: RouteAdvertisement, number: int) -> None:
        self.set(advertisement, number)

    def set(self, advertisement: RouteAdvertisement, number: int) -> None:
        self.advertisement = advertisement
        self.number = number
        self.digest = advertisement.digest()


class _AdvertisedPeer(msgspec.Struct, eq=False):
    """Peer and the progress of its acknowledgements."""

    group: _PeerGroup
    resend_s: float
    due: float
    """When to resend, or to query."""
    acknowledged: int = 0
    """Number of the last acknowledged update; 0 if none."""
    in_flight: int = 0
    """Number of the update in flight; 0 if none."""
    sent_at: float = -NEVER

    @property
    def is_acknowledged(self) -> bool:
        return self.acknowledged == self.group.number


def build_advertisement(
    table: RouteTable, domain: DomainInfo, *, without: Collection[str] = ()
) -> RouteAdvertisement:
    """Return the advertisement of the local cells and tunnels in a table, without some cells."""
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
    """Advertises local routes to peers: everything to cores, the queues of a core to satellites."""

    def __init__(
        self, domain: DomainInfo, *, incarnation: int, config: RouteAdvertiserConfig | None = None
    ) -> None:
        self.domain = domain
        # Higher than that of any earlier start of this domain.
        self.incarnation = incarnation
        self.config = config or RouteAdvertiserConfig()
        self._number = 1
        empty = RouteAdvertisement(zone=domain.zone)
        self._groups = {role: _PeerGroup(empty, self._number) for role in Role}
        self._peers: dict[str, _AdvertisedPeer] = {}
        # Peers that have not acknowledged the shutdown notice.
        self.unacknowledged_shutdown: set[str] = set()
        self._outgoing: list[tuple[str, RoutingUpdate]] = []
        self._warnings: list[str] = []

    # Outputs.

    def drain_outgoing(self) -> list[tuple[str, RoutingUpdate]]:
        """Remove and return the updates to send, with their peers."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def drain_warnings(self) -> list[str]:
        """Remove and return the warnings for operators."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def deadline(self) -> float:
        """Return when `tick` must be called."""
        return min((peer.due for peer in self._peers.values()), default=NEVER)

    def unacknowledged(self) -> list[str]:
        """Return the peers that have not acknowledged the current advertisement."""
        return sorted(name for name, peer in self._peers.items() if not peer.is_acknowledged)

    # Events.

    def advertise(self, advertisement: RouteAdvertisement, now: float) -> None:
        """Set the advertisement of this domain and send it to the peers that lack it."""
        full = RouteAdvertisement(
            advertisement.queues, advertisement.topics, self.domain.zone, advertisement.domains
        )
        queues = RouteAdvertisement(advertisement.queues, (), self.domain.zone)
        self._change(self._groups[Role.CORE], full)
        self._change(self._groups[Role.SATELLITE], queues)
        for name, peer in self._peers.items():
            if not peer.is_acknowledged and not peer.in_flight:
                self._send(name, peer, now)

    def peer_up(self, name: str, role: Role, now: float) -> None:
        """Send the full advertisement to a peer whose tunnel came up."""
        if role is Role.SATELLITE and self.domain.role is Role.SATELLITE:
            self._peers.pop(name, None)
            return
        peer = self._peers[name] = _AdvertisedPeer(
            self._groups[role], self.config.resend_first_s, due=now
        )
        self._send(name, peer, now)

    def peer_down(self, name: str) -> None:
        """Remove a peer whose tunnel is lost."""
        self._peers.pop(name, None)
        self.unacknowledged_shutdown.discard(name)

    def announce_shutdown(self) -> None:
        """Send a shutdown notice to the satellites, if this domain is a core."""
        if self.domain.role is Role.CORE:
            satellites = self._groups[Role.SATELLITE]
            leaving = [name for name, peer in self._peers.items() if peer.group is satellites]
            self.unacknowledged_shutdown.update(leaving)
            self._outgoing += [(name, ShutdownNotice(self.incarnation)) for name in leaving]

    def receive(self, ack: AdvertisementAck, name: str, now: float) -> None:
        """Handle the acknowledgement of a peer."""
        peer = self._peers.get(name)
        if peer is None:
            return
        if ack.acknowledges_shutdown:
            self.unacknowledged_shutdown.discard(name)
        if (ack.incarnation, ack.number) > (self.incarnation, self._number):
            self._warnings.append(
                f"{name} has an advertisement of another process named {self.domain.name}, of "
                f"incarnation {ack.incarnation}; this one is {self.incarnation}"
            )
        elif ack.incarnation == self.incarnation:
            self._on_ack(ack, name, peer, now)
        elif not peer.in_flight:
            self._resend(name, peer, now)

    def tick(self, now: float) -> None:
        """Resend updates without acknowledgement, and query peers that are due."""
        for name, peer in self._peers.items():
            if peer.due > now:
                continue
            if peer.in_flight or not peer.is_acknowledged:
                self._send(name, peer, now)
            else:
                self._outgoing.append((name, AdvertisementQuery()))
                peer.due = now + self.config.check_interval_s

    # Internals.

    def _change(self, group: _PeerGroup, advertisement: RouteAdvertisement) -> None:
        if advertisement != group.advertisement:
            self._number += 1
            group.set(advertisement, self._number)

    def _on_ack(self, ack: AdvertisementAck, name: str, peer: _AdvertisedPeer, now: float) -> None:
        group = peer.group
        if ack.number == group.number and ack.digest == group.digest:
            peer.acknowledged, peer.in_flight = ack.number, 0
            peer.resend_s = self.config.resend_first_s
            peer.due = now + self.config.check_interval_s
        elif not peer.in_flight:
            self._resend(name, peer, now)
        elif ack.number == peer.in_flight != group.number:
            # Only a newer update is sent at once; a peer with a wrong digest waits for the resend.
            peer.resend_s = self.config.resend_first_s
            self._send(name, peer, now)

    def _resend(self, name: str, peer: _AdvertisedPeer, now: float) -> None:
        """Resend the advertisement to a peer that has another version.

        At most once per `resend_first_s`, in case the peer reports a wrong version each time.
        """
        peer.acknowledged = 0
        if now - peer.sent_at >= self.config.resend_first_s:
            self._send(name, peer, now)
        else:
            peer.due = peer.sent_at + self.config.resend_first_s

    def _send(self, name: str, peer: _AdvertisedPeer, now: float) -> None:
        """Send the current advertisement; the resend delay doubles until an acknowledgement."""
        group = peer.group
        self._outgoing.append(
            (name, AdvertisementUpdate(self.incarnation, group.number, group.advertisement))
        )
        peer.in_flight = group.number
        peer.sent_at = now
        peer.due = now + peer.resend_s
        peer.resend_s = min(2 * peer.resend_s, self.config.resend_max_s)

    def __repr__(self) -> str:
        peers, missing = len(self._peers), len(self.unacknowledged())
        name, number = self.domain.name, self._number
        return f"<RouteAdvertiser of {name}: #{number}, {peers} peers, {missing} unacknowledged>"
