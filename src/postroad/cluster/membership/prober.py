"""Asking members in turn whether they live: directly, then through others, then suspecting them."""

from __future__ import annotations

from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import (
    ProbeAckPacket,
    ProbeNackPacket,
    ProbePacket,
    ProbeRequestPacket,
    encode_packet,
    padding_for,
)
from postroad.cluster.membership.member_table import MemberEntry
from postroad.cluster.membership.members import MemberState
from postroad.core import Address

# Members asked at one time, and members asked for others; more are refused.
_PROBES_MAX = 64
_RELAYS_MAX = 256
# A relay gives up before the one who asked does, so that its word still counts.
_RELAY_SHARE = 2 / 3
# How many round trips a probe may take at least.
_ROUND_TRIPS = 4


class Probe:
    """One question under way."""

    __slots__ = (
        "direct_until",
        "incarnation",
        "instance",
        "name",
        "relays",
        "relays_answered",
        "retry_at",
        "started",
        "until",
    )

    def __init__(
        self, entry: MemberEntry, started: float, direct_s: float, timeout_s: float
    ) -> None:
        record = entry.record
        self.name = record.name
        self.instance = record.instance
        self.incarnation = record.incarnation
        self.started = started
        # Until when only the direct answer is awaited; then None.
        self.direct_until: float | None = started + direct_s
        # When to ask once more, of whoever waits so long.
        self.retry_at = self.until = started + timeout_s
        self.relays = 0
        self.relays_answered = 0

    @property
    def deadline(self) -> float:
        """When something must be done about it."""
        return min(self.until, self.retry_at if self.direct_until is None else self.direct_until)


class _RelayedProbe:
    """A question asked for somebody else."""

    __slots__ = ("bytes_max", "nonce", "requester", "until")

    def __init__(self, requester: Address, nonce: int, until: float, bytes_max: int) -> None:
        self.requester = requester
        self.nonce = nonce
        self.until = until
        # How long the answer may be.
        self.bytes_max = bytes_max


class Prober:
    """All questions under way, and whose turn is next."""

    def __init__(self, context: MembershipContext) -> None:
        self._context = context
        self._config = context.config
        self._member_table = context.member_table
        self._probe_order: list[str] = []
        self._probes: dict[int, Probe] = {}
        self._relays: dict[int, _RelayedProbe] = {}
        self._next_probe_at = 0.0

    def start(self, now: float) -> None:
        """Nodes that start together should not all ask at the same moments."""
        self._next_probe_at = now + self._config.probe_interval_s * self._context.rng.random()

    def deadline(self) -> float:
        """When `tick` has something to do."""
        pending = [probe.deadline for probe in self._probes.values()]
        pending += [relay.until for relay in self._relays.values()]
        suspicions = [entry.suspicion for entry in self._member_table.suspects.values()]
        pending += [suspicion.renotify_at for suspicion in suspicions if suspicion is not None]
        return min(self._next_probe_at, *pending) if pending else self._next_probe_at

    def tick(self, now: float) -> None:
        """Go on with what is due."""
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
        self._notify_suspects(now)
        if self._next_probe_at <= now:
            self._next_probe_at = (
                now + self._config.probe_interval_s * self._context.health.timeout_multiplier
            )
            entry = self._next_target()
            if entry is not None:
                self.probe(entry, now)

    def extend_deadlines(self, seconds: float) -> None:
        """This node stood still: nobody is to blame for not being heard meanwhile."""
        for probe in self._probes.values():
            probe.started += seconds
            probe.until += seconds
            probe.retry_at += seconds
            if probe.direct_until is not None:
                probe.direct_until += seconds
        for relay in self._relays.values():
            relay.until += seconds

    def _next_target(self) -> MemberEntry | None:
        """Everybody comes once before anybody comes twice."""
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
        """Ask a member, unless it is being asked."""
        is_probed = any(probe.name == entry.record.name for probe in self._probes.values())
        if is_probed or len(self._probes) >= _PROBES_MAX:
            return
        bound_s = entry.round_trip.upper_bound_s
        multiplier = self._context.health.timeout_multiplier
        probe = Probe(
            entry,
            now,
            max(self._config.indirect_after_s * multiplier, bound_s),
            max(self._config.probe_timeout_s * multiplier, _ROUND_TRIPS * bound_s),
        )
        nonce = self._context.new_nonce()
        self._probes[nonce] = probe
        self._context.counters.probes += 1
        self._send_probe_packet(nonce, entry)

    def _send_probe_packet(
        self, nonce: int, entry: MemberEntry, *, in_stream: bool = False
    ) -> None:
        local, record = self._member_table.local, entry.record
        # Whoever is suspected must hear of it, to be able to object.
        first = () if record.state is MemberState.ALIVE else (record,)
        packet = ProbePacket(
            nonce=nonce,
            name=local.name,
            instance=local.instance,
            records=self._context.gossip_records(*first, in_stream=in_stream),
            padding=padding_for(record.name),
        )
        self._context.send(record.address, packet, to=record.name, in_stream=in_stream)

    def _retry(self, nonce: int, probe: Probe, now: float) -> None:
        """Patience is of use only if the question does not get lost once and for all."""
        probe.retry_at = now + self._config.probe_timeout_s
        entry = self._member_table.active.get(probe.name)
        if entry is not None:
            self._send_probe_packet(nonce, entry)
            self._send_probe_packet(nonce, entry, in_stream=True)

    def _probe_indirectly(self, nonce: int, probe: Probe, now: float) -> None:
        """The direct way is silent: try the stream, and have others try."""
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
        """Nobody reached it. If not even those who were asked answer, the trouble may be here."""
        self._context.counters.probes_failed += 1
        entry = self._member_table.active.get(probe.name)
        if entry is not None and entry.state is MemberState.ALIVE:
            is_confirmed = probe.relays > 0 and probe.relays_answered == probe.relays
            if not is_confirmed:
                self._context.health.worsen()
        # It has been silent since the question; but whatever more patience cost is not its fault.
        since = max(probe.started, now - self._config.probe_timeout_s)
        if self._member_table.suspect(probe.name, probe.incarnation, since=since):
            self._context.counters.suspicions += 1

    def _notify_suspects(self, now: float) -> None:
        """Tell suspects of their suspicion once more: the way by others may have failed."""
        for entry in self._member_table.suspects.values():
            if entry.suspicion is not None and entry.suspicion.is_renotify_due(now):
                self._send_probe_packet(self._context.new_nonce(), entry)

    # Answers.

    def is_pending(self, nonce: int) -> bool:
        """Whether a question of that number to a member may be answered yet."""
        return nonce in self._probes

    def on_ack(self, ack: ProbeAckPacket, now: float, *, in_stream: bool) -> bool:
        """An answer to a question of this node; False if there is no such question."""
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
            # The member is not there any more; somebody else is.
            self._member_table.suspect(probe.name, probe.incarnation, since=probe.started)
            return True
        self._context.health.improve()
        self._context.counters.probes_by_stream += in_stream and probe.direct_until is None
        entry = self._member_table.active.get(probe.name)
        is_direct = probe.direct_until is not None
        if entry is not None and is_direct:
            entry.round_trip.add(now - probe.started)
        if entry is not None and (is_direct or in_stream):
            # Nobody else can have answered: those who were asked to try know the number too.
            self._member_table.confirm_alive(entry, ack.incarnation, now)
        return True

    def on_nack(self, nack: ProbeNackPacket) -> None:
        """A member that was asked to try is well, but did not reach the other."""
        probe = self._probes.get(nack.nonce)
        if probe is not None:
            probe.relays_answered = min(probe.relays_answered + 1, probe.relays)

    def on_request(
        self, request: ProbeRequestPacket, requester: Address, now: float, *, bytes_max: int
    ) -> None:
        """Ask a member for somebody else; only one that is known here, where it is known to be.

        Args:
            asker: where the answer goes.
            bytes_max: how long that may be.
        """
        entry = self._member_table.active.get(request.target)
        if entry is None or len(self._relays) >= _RELAYS_MAX:
            self._context.send(requester, ProbeNackPacket(nonce=request.nonce))
            return
        nonce = self._context.new_nonce()
        timeout_s = (self._config.probe_timeout_s - self._config.indirect_after_s) * _RELAY_SHARE
        self._relays[nonce] = _RelayedProbe(requester, request.nonce, now + timeout_s, bytes_max)
        self._send_probe_packet(nonce, entry)
