"""One name, one live process: what happens when a second one turns up.

Another member's name: the process that is known is asked. If it answers, the newcomer is not
believed; if the newcomer answers in its place, or nobody does in time, the newcomer takes over.

This node's own name: the other process is asked. If it answers, both live. A member goes before one
that is still joining; else the one that began earlier keeps the name, unless all members that were
asked lately take the later one for the node of that name. A node yields only to an
answer to its own question, so a forged packet cannot make it. And it yields only to whom a contact
or a member vouches for, or who has proven who it is: anybody can answer under any name.
"""

from __future__ import annotations

from typing import NamedTuple

from postroad.cluster.membership.candidates import Teller, Vetting
from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import ProbeAckPacket, ProbePacket, padding_for
from postroad.cluster.membership.members import MemberRecord
from postroad.core import Address

# Questions under way at one time; what is dropped will be heard of again.
_OPEN_MAX = 64
# A view is believed for so many times the interval of comparing views.
_FRESH_SYNCS = 3


class _NameProbe(NamedTuple):
    """A process that claims a name, and until when whoever was asked may answer."""

    claimant: MemberRecord
    until: float
    is_vouched: bool = False
    """Whether a contact or a member says that it has the name."""


class NameResolution(NamedTuple):
    """How a question about this node's own name was answered."""

    rival: Address
    must_leave: bool
    """Whether this node must give up its name."""
    is_known: bool = True
    """Whether anybody vouches for the rival; else this node goes on whatever it says."""


class NameConflictResolver:
    """Questions about names under way, by the number of their ping.

    Args:
        proves_names: whether all who answer have proven who they are.
    """

    def __init__(
        self, voice: MembershipContext, vetting: Vetting, *, proves_names: bool = False
    ) -> None:
        self._voice = voice
        self._vetting = vetting
        self._proves_names = proves_names
        self._roster = voice.roster
        # About the names of others, and about this node's own.
        self._contests: dict[int, _NameProbe] = {}
        self._rivals: dict[int, _NameProbe] = {}
        # Challengers that are asked because the holder of their name was silent, and until when.
        self._successors: dict[str, tuple[MemberRecord, float]] = {}
        # Rivals nobody vouches for that have answered, and until when they are not asked again.
        self._unknown: dict[Address, float] = {}
        # Which process has this node's name in the view of members, and when they said so.
        self._holders: dict[Address, tuple[int, float]] = {}

    @property
    def has_rivals(self) -> bool:
        """Whether somebody may have this node's own name, to whom it would yield."""
        return any(it.is_vouched or self._proves_names for it in self._rivals.values())

    def deadline(self) -> float:
        """When `tick` has something to do."""
        questions = (*self._contests.values(), *self._rivals.values())
        return min((it.until for it in questions), default=float("inf"))

    def tick(self, now: float) -> None:
        """Nobody answered: a challenger takes over if it does, a rival does not exist."""
        for claimant in _take_due(self._contests, now):
            self._ask_challenger(claimant, now)
        _take_due(self._rivals, now)
        for name in [it for it, (_, until) in self._successors.items() if until <= now]:
            del self._successors[name]

    def postpone(self, seconds: float) -> None:
        """This node stood still meanwhile."""
        for questions in (self._contests, self._rivals):
            for number, question in questions.items():
                questions[number] = question._replace(until=question.until + seconds)

    # The name of another member.

    def challenge(self, challenger: MemberRecord, now: float) -> None:
        """Ask the known process of that name whether it lives."""
        for number, contest in self._contests.items():
            if contest.claimant.name == challenger.name:
                if challenger.supersedes(contest.claimant):
                    self._contests[number] = contest._replace(claimant=challenger)
                return
        if len(self._contests) >= _OPEN_MAX:
            return
        self._voice.counters.names_contested += 1
        holder = self._roster.active[challenger.name].record
        self._send_probe(self._contests, challenger, now, holder, about=challenger)

    def _resolve_challenge(self, challenger: MemberRecord, ack: ProbeAckPacket, now: float) -> None:
        """Ask the challenger unless the holder answered, or somebody nobody told of."""
        holder = self._roster.entries.get(challenger.name)
        if ack.name == challenger.name:
            if holder is not None and _is_from(ack, holder.record):
                return
            if not _is_from(ack, challenger):
                return
        self._ask_challenger(challenger, now)

    def is_silent(self, successor: MemberRecord) -> bool:
        """Whether the holder of its name was asked, and was not there."""
        known = self._successors.get(successor.name)
        return known is not None and known[0].identity == successor.identity

    def _ask_challenger(self, challenger: MemberRecord, now: float) -> None:
        """The holder is not there: the name goes to the challenger if that answers."""
        entry = self._roster.entries.get(challenger.name)
        if entry is None or challenger.supersedes(entry.record):
            until = (
                now + 2 * self._voice.config.probe_timeout_s * self._voice.health.timeout_multiplier
            )
            self._successors[challenger.name] = (challenger, until)
            self._vetting.consider(challenger, Teller(challenger.address, in_stream=True), now)

    # This node's own name.

    def probe_rival(self, rival: MemberRecord, now: float, *, is_vouched: bool) -> None:
        """Ask a process that is said to have this node's name whether it lives."""
        for number, known in self._rivals.items():
            if known.claimant.address == rival.address:
                vouched = known.is_vouched or is_vouched
                self._rivals[number] = known._replace(is_vouched=vouched)
                return
        if not is_vouched and self._unknown.get(rival.address, now) > now:
            return
        if len(self._rivals) < _OPEN_MAX:
            about = self._roster.local if self._voice.is_member else None
            self._send_probe(self._rivals, rival, now, rival, about=about, is_vouched=is_vouched)

    def _remember(self, address: Address, now: float) -> None:
        """Let a rival that nobody vouches for be, or the two would call each other for ever."""
        self._unknown = {at: until for at, until in self._unknown.items() if until > now}
        if len(self._unknown) < _OPEN_MAX:
            self._unknown[address] = now + self._voice.config.sync_interval_s

    def on_ack(self, ack: ProbeAckPacket, now: float) -> NameResolution | None:
        """An answer, perhaps to one of these questions; a ruling if the own name is concerned."""
        contest = self._contests.pop(ack.nonce, None)
        if contest is not None:
            self._resolve_challenge(contest.claimant, ack, now)
        rival = self._rivals.pop(ack.nonce, None)
        own = self._roster.local
        if rival is None or ack.name != own.name or ack.instance == own.instance:
            return None
        address = rival.claimant.address
        is_vouched = rival.is_vouched
        return self._resolve_own_name(
            address, ack.instance, now, is_member=ack.is_member, is_vouched=is_vouched
        )

    def on_same_name(
        self, address: Address, instance: int, now: float, *, is_member: bool, is_vouched: bool
    ) -> NameResolution | None:
        """A process with this node's name answered at an address this node called."""
        for number, rival in list(self._rivals.items()):
            if rival.claimant.address == address:
                is_vouched |= rival.is_vouched
                del self._rivals[number]
        if instance == self._roster.local.instance:
            return None
        return self._resolve_own_name(
            address, instance, now, is_member=is_member, is_vouched=is_vouched
        )

    def _resolve_own_name(
        self, address: Address, instance: int, now: float, *, is_member: bool, is_vouched: bool
    ) -> NameResolution:
        self._voice.counters.names_contested += 1
        if not (is_vouched or self._proves_names):
            self._remember(address, now)
            return NameResolution(address, must_leave=False, is_known=False)
        if is_member is not self._voice.is_member:
            return NameResolution(address, must_leave=is_member)
        is_elder = instance < self._roster.local.instance
        return NameResolution(address, must_leave=is_elder or self._is_displaced_by(instance, now))

    def note_holder(self, member: Address, instance: int, now: float) -> None:
        """A member was asked for its view, in which that process has this node's name."""
        fresh_s = _FRESH_SYNCS * self._voice.config.sync_interval_s
        self._holders.pop(member, None)
        self._holders[member] = (instance, now)
        self._holders = {at: it for at, it in self._holders.items() if now - it[1] <= fresh_s}

    def _is_displaced_by(self, instance: int, now: float) -> bool:
        """Whether members take that process for the node of this name, and none takes this one."""
        fresh_s = _FRESH_SYNCS * self._voice.config.sync_interval_s
        holders = {it for it, since in self._holders.values() if now - since <= fresh_s}
        return instance in holders and self._roster.local.instance not in holders

    # Both.

    def _send_probe(
        self,
        questions: dict[int, _NameProbe],
        claimant: MemberRecord,
        now: float,
        whom: MemberRecord,
        *,
        about: MemberRecord | None,
        is_vouched: bool = False,
    ) -> None:
        """Ask a member by both ways: one may be blocked, and the answer matters.

        A rival is asked over a stream only, because anybody may be where it is said to be.
        """
        voice, own = self._voice, self._roster.local
        number = voice.new_nonce()
        timeout_s = voice.config.probe_timeout_s * voice.health.timeout_multiplier
        questions[number] = _NameProbe(claimant, now + timeout_s, is_vouched)
        first = () if about is None else (about,)
        for in_stream in (False, True) if questions is self._contests else (True,):
            ping = ProbePacket(
                nonce=number,
                name=own.name,
                instance=own.instance,
                is_joining=not voice.is_member,
                records=voice.gossip_records(*first, in_stream=in_stream),
                padding=padding_for(whom.name),
            )
            voice.send(whom.address, ping, to=whom.name, in_stream=in_stream)


def _is_from(ack: ProbeAckPacket, record: MemberRecord) -> bool:
    return (ack.instance, ack.leave_digest) == (record.instance, record.leave_digest)


def _take_due(questions: dict[int, _NameProbe], now: float) -> list[MemberRecord]:
    due = [number for number, question in questions.items() if question.until <= now]
    return [questions.pop(number).claimant for number in due]
