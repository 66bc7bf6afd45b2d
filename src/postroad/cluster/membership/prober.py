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
        "next_try",
        "relays",
        "relays_answered",
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
        self.next_try = self.until = started + timeout_s
        self.relays = 0
        self.relays_answered = 0

    @property
    def deadline(self) -> float:
        """When something must be done about it."""
        return min(self.until, self.next_try if self.direct_until is None else self.direct_until)


class _RelayedProbe:
    """A question asked for somebody else."""

    __slots__ = ("asker", "bytes_max", "number", "until")

    def __init__(self, asker: Address, number: int, until: float, bytes_max: int) -> None:
        self.asker = asker
        self.number = number
        self.until = until
        # How long the answer may be.
        self.bytes_max = bytes_max


class Prober:
    """All questions under way, and whose turn is next."""

    def __init__(self, voice: MembershipContext) -> None:
        self._voice = voice
        self._config = voice.config
        self._roster = voice.roster
        self._turns: list[str] = []
        self._probes: dict[int, Probe] = {}
        self._relays: dict[int, _RelayedProbe] = {}
        self._next_turn = 0.0

    def start(self, now: float) -> None:
        """Nodes that start together should not all ask at the same moments."""
        self._next_turn = now + self._config.probe_interval_s * self._voice.chance.random()

    def deadline(self) -> float:
        """When `tick` has something to do."""
        pending = [probe.deadline for probe in self._probes.values()]
        pending += [relay.until for relay in self._relays.values()]
        suspicions = [entry.suspicion for entry in self._roster.suspects.values()]
        pending += [suspicion.renotify_at for suspicion in suspicions if suspicion is not None]
        return min(self._next_turn, *pending) if pending else self._next_turn

    def tick(self, now: float) -> None:
        """Go on with what is due."""
        for number, relay in list(self._relays.items()):
            if relay.until <= now:
                del self._relays[number]
                self._voice.send(relay.asker, ProbeNackPacket(nonce=relay.number))
        for number, probe in list(self._probes.items()):
            if probe.until <= now:
                del self._probes[number]
                self._fail(probe, now)
            elif probe.direct_until is not None and probe.direct_until <= now:
                probe.direct_until = None
                self._probe_indirectly(number, probe, now)
            elif probe.direct_until is None and probe.next_try <= now:
                self._retry(number, probe, now)
        self._notify_suspects(now)
        if self._next_turn <= now:
            self._next_turn = (
                now + self._config.probe_interval_s * self._voice.health.timeout_multiplier
            )
            entry = self._next_target()
            if entry is not None:
                self.probe(entry, now)

    def extend_deadlines(self, seconds: float) -> None:
        """This node stood still: nobody is to blame for not being heard meanwhile."""
        for probe in self._probes.values():
            probe.started += seconds
            probe.until += seconds
            probe.next_try += seconds
            if probe.direct_until is not None:
                probe.direct_until += seconds
        for relay in self._relays.values():
            relay.until += seconds

    def _next_target(self) -> MemberEntry | None:
        """Everybody comes once before anybody comes twice."""
        active = self._roster.active
        while True:
            if not self._turns:
                if not active:
                    return None
                self._turns = list(active)
                self._voice.chance.shuffle(self._turns)
            entry = active.get(self._turns.pop())
            if entry is not None:
                return entry

    def probe(self, entry: MemberEntry, now: float) -> None:
        """Ask a member, unless it is being asked."""
        is_asked = any(probe.name == entry.record.name for probe in self._probes.values())
        if is_asked or len(self._probes) >= _PROBES_MAX:
            return
        bound_s = entry.round_trip.upper_bound_s
        patience = self._voice.health.timeout_multiplier
        probe = Probe(
            entry,
            now,
            max(self._config.indirect_after_s * patience, bound_s),
            max(self._config.probe_timeout_s * patience, _ROUND_TRIPS * bound_s),
        )
        number = self._voice.new_nonce()
        self._probes[number] = probe
        self._voice.counters.probes += 1
        self._send_ping(number, entry)

    def _send_ping(self, number: int, entry: MemberEntry, *, in_stream: bool = False) -> None:
        own, record = self._roster.local, entry.record
        # Whoever is suspected must hear of it, to be able to object.
        first = () if record.state is MemberState.ALIVE else (record,)
        ping = ProbePacket(
            nonce=number,
            name=own.name,
            instance=own.instance,
            records=self._voice.gossip_records(*first, in_stream=in_stream),
            padding=padding_for(record.name),
        )
        self._voice.send(record.address, ping, to=record.name, in_stream=in_stream)

    def _retry(self, number: int, probe: Probe, now: float) -> None:
        """Patience is of use only if the question does not get lost once and for all."""
        probe.next_try = now + self._config.probe_timeout_s
        entry = self._roster.active.get(probe.name)
        if entry is not None:
            self._send_ping(number, entry)
            self._send_ping(number, entry, in_stream=True)

    def _probe_indirectly(self, number: int, probe: Probe, now: float) -> None:
        """The direct way is silent: try the stream, and have others try."""
        probe.next_try = now + self._config.probe_timeout_s
        entry = self._roster.active.get(probe.name)
        if entry is None:
            return
        self._send_ping(number, entry, in_stream=True)
        relays = self._voice.sample_members(self._config.indirect_probes, but=probe.name)
        probe.relays = len(relays)
        for relay in relays:
            request = ProbeRequestPacket(
                nonce=number,
                target=probe.name,
                records=self._voice.gossip_records(),
                padding=padding_for(probe.name),
            )
            self._voice.send(relay.record.address, request, to=relay.record.name)

    def _fail(self, probe: Probe, now: float) -> None:
        """Nobody reached it. If not even those who were asked answer, the trouble may be here."""
        self._voice.counters.probes_failed += 1
        entry = self._roster.active.get(probe.name)
        if entry is not None and entry.state is MemberState.ALIVE:
            is_confirmed = probe.relays > 0 and probe.relays_answered == probe.relays
            if not is_confirmed:
                self._voice.health.worsen()
        # It has been silent since the question; but whatever more patience cost is not its fault.
        since = max(probe.started, now - self._config.probe_timeout_s)
        if self._roster.suspect(probe.name, probe.incarnation, since=since):
            self._voice.counters.suspicions += 1

    def _notify_suspects(self, now: float) -> None:
        """Tell suspects of their suspicion once more: the way by others may have failed."""
        for entry in self._roster.suspects.values():
            if entry.suspicion is not None and entry.suspicion.is_reminder_due(now):
                self._send_ping(self._voice.new_nonce(), entry)

    # Answers.

    def has_asked(self, number: int) -> bool:
        """Whether a question of that number to a member may be answered yet."""
        return number in self._probes

    def on_ack(self, ack: ProbeAckPacket, now: float, *, in_stream: bool) -> bool:
        """An answer to a question of this node; False if there is no such question."""
        relay = self._relays.pop(ack.nonce, None)
        if relay is not None:
            answer = ProbeAckPacket(
                nonce=relay.number,
                name=ack.name,
                instance=ack.instance,
                leave_digest=ack.leave_digest,
                incarnation=ack.incarnation,
                is_member=ack.is_member,
            )
            if len(encode_packet(answer)) <= relay.bytes_max:
                self._voice.send(relay.asker, answer)
            return True
        probe = self._probes.pop(ack.nonce, None)
        if probe is None:
            return False
        if (ack.name, ack.instance) != (probe.name, probe.instance):
            # The member is not there any more; somebody else is.
            self._roster.suspect(probe.name, probe.incarnation, since=probe.started)
            return True
        self._voice.health.improve()
        self._voice.counters.probes_by_stream += in_stream and probe.direct_until is None
        entry = self._roster.active.get(probe.name)
        is_direct = probe.direct_until is not None
        if entry is not None and is_direct:
            entry.round_trip.add(now - probe.started)
        if entry is not None and (is_direct or in_stream):
            # Nobody else can have answered: those who were asked to try know the number too.
            self._roster.confirm_alive(entry, ack.incarnation, now)
        return True

    def on_nack(self, nack: ProbeNackPacket) -> None:
        """A member that was asked to try is well, but did not reach the other."""
        probe = self._probes.get(nack.nonce)
        if probe is not None:
            probe.relays_answered = min(probe.relays_answered + 1, probe.relays)

    def on_request(
        self, request: ProbeRequestPacket, asker: Address, now: float, *, bytes_max: int
    ) -> None:
        """Ask a member for somebody else; only one that is known here, where it is known to be.

        Args:
            asker: where the answer goes.
            bytes_max: how long that may be.
        """
        entry = self._roster.active.get(request.target)
        if entry is None or len(self._relays) >= _RELAYS_MAX:
            self._voice.send(asker, ProbeNackPacket(nonce=request.nonce))
            return
        number = self._voice.new_nonce()
        wait_s = (self._config.probe_timeout_s - self._config.indirect_after_s) * _RELAY_SHARE
        self._relays[number] = _RelayedProbe(asker, request.nonce, now + wait_s, bytes_max)
        self._send_ping(number, entry)
