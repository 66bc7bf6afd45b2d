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

from postroad.cluster.membership.candidates import CandidateVerifier, GossipSource
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
        self, context: MembershipContext, verifier: CandidateVerifier, *, proves_names: bool = False
    ) -> None:
        self._context = context
        self._verifier = verifier
        self._proves_names = proves_names
        self._member_table = context.member_table
        # About the names of others, and about this node's own.
        self._claim_probes: dict[int, _NameProbe] = {}
        self._rival_probes: dict[int, _NameProbe] = {}
        # Challengers that are asked because the holder of their name was silent, and until when.
        self._successors: dict[str, tuple[MemberRecord, float]] = {}
        # Rivals nobody vouches for that have answered, and until when they are not asked again.
        self._ignored_rivals: dict[Address, float] = {}
        # Which process has this node's name in the view of members, and when they said so.
        self._holders: dict[Address, tuple[int, float]] = {}

    @property
    def has_rivals(self) -> bool:
        """Whether somebody may have this node's own name, to whom it would yield."""
        return any(probe.is_vouched or self._proves_names for probe in self._rival_probes.values())

    def deadline(self) -> float:
        """When `tick` has something to do."""
        probes = (*self._claim_probes.values(), *self._rival_probes.values())
        return min((probe.until for probe in probes), default=float("inf"))

    def tick(self, now: float) -> None:
        """Nobody answered: a challenger takes over if it does, a rival does not exist."""
        for claimant in _pop_due(self._claim_probes, now):
            self._verify_claimant(claimant, now)
        _pop_due(self._rival_probes, now)
        for name in [name for name, (_, until) in self._successors.items() if until <= now]:
            del self._successors[name]

    def extend_deadlines(self, seconds: float) -> None:
        """This node stood still meanwhile."""
        for probes in (self._claim_probes, self._rival_probes):
            for nonce, probe in probes.items():
                probes[nonce] = probe._replace(until=probe.until + seconds)

    # The name of another member.

    def challenge(self, claimant: MemberRecord, now: float) -> None:
        """Ask the known process of that name whether it lives."""
        for nonce, probe in self._claim_probes.items():
            if probe.claimant.name == claimant.name:
                if claimant.supersedes(probe.claimant):
                    self._claim_probes[nonce] = probe._replace(claimant=claimant)
                return
        if len(self._claim_probes) >= _OPEN_MAX:
            return
        self._context.counters.names_contested += 1
        holder = self._member_table.active[claimant.name].record
        self._send_probe(self._claim_probes, claimant, now, holder, about=claimant)

    def _resolve_challenge(self, claimant: MemberRecord, ack: ProbeAckPacket, now: float) -> None:
        """Ask the challenger unless the holder answered, or somebody nobody told of."""
        holder = self._member_table.entries.get(claimant.name)
        if ack.name == claimant.name:
            if holder is not None and _is_from(ack, holder.record):
                return
            if not _is_from(ack, claimant):
                return
        self._verify_claimant(claimant, now)

    def is_silent(self, successor: MemberRecord) -> bool:
        """Whether the holder of its name was asked, and was not there."""
        accepted = self._successors.get(successor.name)
        return accepted is not None and accepted[0].identity == successor.identity

    def _verify_claimant(self, claimant: MemberRecord, now: float) -> None:
        """The holder is not there: the name goes to the challenger if that answers."""
        entry = self._member_table.entries.get(claimant.name)
        if entry is None or claimant.supersedes(entry.record):
            until = (
                now
                + 2 * self._context.config.probe_timeout_s * self._context.health.timeout_multiplier
            )
            self._successors[claimant.name] = (claimant, until)
            self._verifier.submit(claimant, GossipSource(claimant.address, in_stream=True), now)

    # This node's own name.

    def probe_rival(self, rival: MemberRecord, now: float, *, is_vouched: bool) -> None:
        """Ask a process that is said to have this node's name whether it lives."""
        for nonce, probe in self._rival_probes.items():
            if probe.claimant.address == rival.address:
                vouched = probe.is_vouched or is_vouched
                self._rival_probes[nonce] = probe._replace(is_vouched=vouched)
                return
        if not is_vouched and self._ignored_rivals.get(rival.address, now) > now:
            return
        if len(self._rival_probes) < _OPEN_MAX:
            about = self._member_table.local if self._context.is_member else None
            self._send_probe(
                self._rival_probes, rival, now, rival, about=about, is_vouched=is_vouched
            )

    def _ignore_rival(self, address: Address, now: float) -> None:
        """Let a rival that nobody vouches for be, or the two would call each other for ever."""
        self._ignored_rivals = {
            rival: until for rival, until in self._ignored_rivals.items() if until > now
        }
        if len(self._ignored_rivals) < _OPEN_MAX:
            self._ignored_rivals[address] = now + self._context.config.sync_interval_s

    def on_ack(self, ack: ProbeAckPacket, now: float) -> NameResolution | None:
        """An answer, perhaps to one of these questions; a ruling if the own name is concerned."""
        probe = self._claim_probes.pop(ack.nonce, None)
        if probe is not None:
            self._resolve_challenge(probe.claimant, ack, now)
        rival = self._rival_probes.pop(ack.nonce, None)
        local = self._member_table.local
        if rival is None or ack.name != local.name or ack.instance == local.instance:
            return None
        address = rival.claimant.address
        is_vouched = rival.is_vouched
        return self._resolve_own_name(
            address, ack.instance, now, is_member=ack.is_member, is_vouched=is_vouched
        )

    def on_duplicate_name_peer(
        self, address: Address, instance: int, now: float, *, is_member: bool, is_vouched: bool
    ) -> NameResolution | None:
        """A process with this node's name answered at an address this node called."""
        for nonce, rival in list(self._rival_probes.items()):
            if rival.claimant.address == address:
                is_vouched |= rival.is_vouched
                del self._rival_probes[nonce]
        if instance == self._member_table.local.instance:
            return None
        return self._resolve_own_name(
            address, instance, now, is_member=is_member, is_vouched=is_vouched
        )

    def _resolve_own_name(
        self, address: Address, instance: int, now: float, *, is_member: bool, is_vouched: bool
    ) -> NameResolution:
        self._context.counters.names_contested += 1
        if not (is_vouched or self._proves_names):
            self._ignore_rival(address, now)
            return NameResolution(address, must_leave=False, is_known=False)
        if is_member is not self._context.is_member:
            return NameResolution(address, must_leave=is_member)
        is_elder = instance < self._member_table.local.instance
        return NameResolution(address, must_leave=is_elder or self._is_displaced_by(instance, now))

    def record_name_holder(self, member: Address, instance: int, now: float) -> None:
        """A member was asked for its view, in which that process has this node's name."""
        fresh_s = _FRESH_SYNCS * self._context.config.sync_interval_s
        self._holders.pop(member, None)
        self._holders[member] = (instance, now)
        self._holders = {
            reporter: holder
            for reporter, holder in self._holders.items()
            if now - holder[1] <= fresh_s
        }

    def _is_displaced_by(self, instance: int, now: float) -> bool:
        """Whether members take that process for the node of this name, and none takes this one."""
        fresh_s = _FRESH_SYNCS * self._context.config.sync_interval_s
        holders = {holder for holder, since in self._holders.values() if now - since <= fresh_s}
        return instance in holders and self._member_table.local.instance not in holders

    # Both.

    def _send_probe(
        self,
        probes: dict[int, _NameProbe],
        claimant: MemberRecord,
        now: float,
        target: MemberRecord,
        *,
        about: MemberRecord | None,
        is_vouched: bool = False,
    ) -> None:
        """Ask a member by both ways: one may be blocked, and the answer matters.

        A rival is asked over a stream only, because anybody may be where it is said to be.
        """
        context, local = self._context, self._member_table.local
        nonce = context.new_nonce()
        timeout_s = context.config.probe_timeout_s * context.health.timeout_multiplier
        probes[nonce] = _NameProbe(claimant, now + timeout_s, is_vouched)
        first = () if about is None else (about,)
        for in_stream in (False, True) if probes is self._claim_probes else (True,):
            packet = ProbePacket(
                nonce=nonce,
                name=local.name,
                instance=local.instance,
                is_joining=not context.is_member,
                records=context.gossip_records(*first, in_stream=in_stream),
                padding=padding_for(target.name),
            )
            context.send(target.address, packet, to=target.name, in_stream=in_stream)


def _is_from(ack: ProbeAckPacket, record: MemberRecord) -> bool:
    return (ack.instance, ack.leave_digest) == (record.instance, record.leave_digest)


def _pop_due(probes: dict[int, _NameProbe], now: float) -> list[MemberRecord]:
    due = [nonce for nonce, probe in probes.items() if probe.until <= now]
    return [probes.pop(nonce).claimant for nonce in due]
