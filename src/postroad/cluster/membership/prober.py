"""Failure detector: probes members in turn, first directly, then through others.

A member that does not acknowledge in time is suspected (`MemberTable.suspect`).
"""

from __future__ import annotations

import msgspec

from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import (
    ProbeAckPacket,
    ProbeNackPacket,
    ProbeRequestPacket,
    encode_packet,
    padding_for,
)
from postroad.cluster.membership.member_table import MemberEntry
from postroad.cluster.membership.members import MemberState
from postroad.core import Address

# Probes in flight, and probes relayed for other members; further ones are dropped.
_PROBES_MAX = 64
_RELAYS_MAX = 256
# Share of the requester's remaining time after which a relay sends a nack, so that the nack arrives
# in time.
_RELAY_SHARE = 2 / 3
# A probe waits at least this many round trips.
_ROUND_TRIPS = 4


class Probe:
    """A probe in flight."""

    def __init__(
        self, entry: MemberEntry, started: float, direct_s: float, timeout_s: float
    ) -> None:
        record = entry.record
        self.name = record.name
        self.instance = record.instance
        self.incarnation = record.incarnation
        self.started = started
        # How long only the direct ack is awaited; None once indirect probes were sent.
        self.direct_until: float | None = started + direct_s
        # When to send the probe again, if the timeout is lengthened.
        self.retry_at = self.until = started + timeout_s
        self.relays = 0
        self.relays_replied = 0

    @property
    def deadline(self) -> float:
        """When this probe needs attention next."""
        return min(self.until, self.retry_at if self.direct_until is None else self.direct_until)


class _RelayedProbe(msgspec.Struct):
    """A probe sent on behalf of another member."""

    requester: Address
    nonce: int
    until: float
    bytes_max: int
    """Maximum size of the reply."""


class Prober:
    """Probes members in turn and keeps the probes in flight."""

    def __init__(self, context: MembershipContext) -> None:
        self._context = context
        self._config = context.config
        self._member_table = context.member_table
        self._probe_order: list[str] = []
        self._probes: dict[int, Probe] = {}
        self._relays: dict[int, _RelayedProbe] = {}
        self._next_probe_at = 0.0

    def start(self, now: float) -> None:
        """Start at a random offset, so that nodes started together do not probe in step."""
        self._next_probe_at = now + self._config.probe_interval_s * self._context.rng.random()

    def deadline(self) -> float:
        """Return when `tick` has something to do."""
        pending = [probe.deadline for probe in self._probes.values()]
        pending += [relay.until for relay in self._relays.values()]
        suspicions = [entry.suspicion for entry in self._member_table.suspects.values()]
        pending += [suspicion.renotify_at for suspicion in suspicions if suspicion is not None]
        return min(self._next_probe_at, *pending) if pending else self._next_probe_at

    def tick(self, now: float) -> None:
        """Run everything that is due: nacks, timeouts, indirect probes, the next probe."""
        for nonce, relay in list(self._relays.items()):
            if relay.until <= now:
                del self._relays[nonce]
                self._context.send(relay.requester, ProbeNackPacket(nonce=relay.nonce))
        for nonce, probe in list(self._probes.items()):
            if probe.until <= now:
                del self._probes[nonce]
                self._fail(probe, now)
            elif probe.direct_until is not None and probe.direct_until <= now:
                probe.direct_until = None
                self._probe_indirectly(nonce, probe, now)
            elif probe.direct_until is None and probe.retry_at <= now:
                self._retry(nonce, probe, now)
        for entry in self._member_table.suspects.values():
            if entry.suspicion is not None and entry.suspicion.is_renotify_due(now):
                # Gossip may not have reached the suspected member.
                self._send_probe_packet(self._context.new_nonce(), entry)
        if self._next_probe_at <= now:
            self._next_probe_at = (
                now + self._config.probe_interval_s * self._context.health.timeout_multiplier
            )
            target = self._next_target()
            if target is not None:
                self.probe(target, now)

    def extend_deadlines(self, seconds: float) -> None:
        """Extend all deadlines by the time that this node stalled."""
        for probe in self._probes.values():
            probe.started += seconds
            probe.until += seconds
            probe.retry_at += seconds
            if probe.direct_until is not None:
                probe.direct_until += seconds
        for relay in self._relays.values():
            relay.until += seconds

    def _next_target(self) -> MemberEntry | None:
        """Return the next member of the shuffled order: each comes once before any comes twice."""
        active = self._member_table.active
        while True:
            if not self._probe_order:
                if not active:
                    return None
                self._probe_order = list(active)
                self._context.rng.shuffle(self._probe_order)
            entry = active.get(self._probe_order.pop())
            if entry is not None:
                return entry

    def probe(self, entry: MemberEntry, now: float) -> None:
        """Probe a member, unless a probe of it is in flight."""
        is_probed = any(probe.name == entry.record.name for probe in self._probes.values())
        if is_probed or len(self._probes) >= _PROBES_MAX:
            return
        bound_s = entry.round_trip.upper_bound_s
        multiplier = self._context.health.timeout_multiplier
        probe = Probe(
            entry,
            now,
            max(self._config.indirect_probe_delay_s * multiplier, bound_s),
            max(self._config.probe_timeout_s * multiplier, _ROUND_TRIPS * bound_s),
        )
        nonce = self._context.new_nonce()
        self._probes[nonce] = probe
        self._context.counters.probes += 1
        self._send_probe_packet(nonce, entry)

    def _send_probe_packet(
        self, nonce: int, entry: MemberEntry, *, in_stream: bool = False
    ) -> None:
        record = entry.record
        # A suspected member must learn of the suspicion to be able to refute it.
        first = () if record.state is MemberState.ALIVE else (record,)
        records = self._context.gossip_records(*first, in_stream=in_stream)
        self._context.send_probe(nonce, record, records, in_stream=in_stream)

    def _retry(self, nonce: int, probe: Probe, now: float) -> None:
        """Send the probe again: a longer timeout does not help if the only packet was lost."""
        probe.retry_at = now + self._config.probe_timeout_s
        entry = self._member_table.active.get(probe.name)
        if entry is not None:
            self._send_probe_packet(nonce, entry)
            self._send_probe_packet(nonce, entry, in_stream=True)

    def _probe_indirectly(self, nonce: int, probe: Probe, now: float) -> None:
        """Probe over TCP, and ask other members for indirect probes."""
        probe.retry_at = now + self._config.probe_timeout_s
        entry = self._member_table.active.get(probe.name)
        if entry is None:
            return
        self._send_probe_packet(nonce, entry, in_stream=True)
        relays = self._context.sample_members(self._config.indirect_probes, exclude=probe.name)
        probe.relays = len(relays)
        for relay in relays:
            request = ProbeRequestPacket(
                nonce=nonce,
                target=probe.name,
                records=self._context.gossip_records(),
                padding=padding_for(probe.name),
            )
            self._context.send(relay.record.address, request, to=relay.record.name)

    def _fail(self, probe: Probe, now: float) -> None:
        """Suspect the member; lower the local health if not even the relays replied."""
        self._context.counters.probes_failed += 1
        entry = self._member_table.active.get(probe.name)
        if entry is not None and entry.state is MemberState.ALIVE:
            is_confirmed = probe.relays > 0 and probe.relays_replied == probe.relays
            if not is_confirmed:
                self._context.health.worsen()
        # The member has been silent since the probe; time added by the health score does not count.
        since = max(probe.started, now - self._config.probe_timeout_s)
        if self._member_table.suspect(probe.name, probe.incarnation, since=since):
            self._context.counters.suspicions += 1

    # Replies.

    def is_pending(self, nonce: int) -> bool:
        """Return whether a probe of a member with this nonce is in flight."""
        return nonce in self._probes

    def on_ack(self, ack: ProbeAckPacket, now: float, *, in_stream: bool) -> bool:
        """Handle an ack; return False if no probe of this node has its nonce."""
        relay = self._relays.pop(ack.nonce, None)
        if relay is not None:
            relayed_ack = ProbeAckPacket(
                nonce=relay.nonce,
                name=ack.name,
                instance=ack.instance,
                leave_digest=ack.leave_digest,
                incarnation=ack.incarnation,
                is_member=ack.is_member,
            )
            if len(encode_packet(relayed_ack)) <= relay.bytes_max:
                self._context.send(relay.requester, relayed_ack)
            return True
        probe = self._probes.pop(ack.nonce, None)
        if probe is None:
            return False
        if (ack.name, ack.instance) != (probe.name, probe.instance):
            # Another process replied at the address of the member.
            self._member_table.suspect(probe.name, probe.incarnation, since=probe.started)
            return True
        self._context.health.improve()
        self._context.counters.probes_by_stream += in_stream and probe.direct_until is None
        entry = self._member_table.active.get(probe.name)
        is_direct = probe.direct_until is not None
        if entry is not None and is_direct:
            entry.round_trip.add(now - probe.started)
        if entry is not None and (is_direct or in_stream):
            # Only the member itself can have replied; after indirect probes the relays know the
            # nonce.
            self._member_table.confirm_alive(entry, ack.incarnation, now)
        return True

    def on_nack(self, nack: ProbeNackPacket) -> None:
        """Count a relay that is alive but got no ack from the target."""
        probe = self._probes.get(nack.nonce)
        if probe is not None:
            probe.relays_replied = min(probe.relays_replied + 1, probe.relays)

    def on_request(
        self, request: ProbeRequestPacket, requester: Address, now: float, *, bytes_max: int
    ) -> None:
        """Probe a member on behalf of another; only a known one, at its known address."""
        entry = self._member_table.active.get(request.target)
        if entry is None or len(self._relays) >= _RELAYS_MAX:
            self._context.send(requester, ProbeNackPacket(nonce=request.nonce))
            return
        nonce = self._context.new_nonce()
        timeout_s = (
            self._config.probe_timeout_s - self._config.indirect_probe_delay_s
        ) * _RELAY_SHARE
        self._relays[nonce] = _RelayedProbe(requester, request.nonce, now + timeout_s, bytes_max)
        self._send_probe_packet(nonce, entry)
