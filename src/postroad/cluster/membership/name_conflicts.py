"""Name conflicts: one name belongs to one live process.

Conflict about another member's name: the known process is probed. If it acknowledges, the claimant
is ignored. If the claimant acknowledges in its place, or no ack comes in time, the claimant is
verified and takes the name over.

Conflict about this node's own name: the other process (the rival) is probed. If it acknowledges,
both are alive. A member wins over a node that is still joining; otherwise the process that started
earlier keeps the name, unless all members synced with lately take the later one for the holder of
the name. This node gives up its name only after an ack to its own probe, so a forged packet cannot
evict it, and only to a rival that a seed or a member vouches for, or that has proven its name: any
host can reply under any name.
"""

from __future__ import annotations

from typing import NamedTuple

from postroad.cluster.membership.candidates import CandidateVerifier, GossipSource
from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import ProbeAckPacket
from postroad.cluster.membership.members import MemberRecord
from postroad.core import Address

# Probes in flight per kind; a conflict that is dropped will be reported again.
_OPEN_MAX = 64
# A holder reported by a member is used for this many sync intervals.
_FRESH_SYNCS = 3


class _NameProbe(NamedTuple):
    """A probe about a name: who claims it, and how long the probed process may take to reply."""

    claimant: MemberRecord
    until: float
    is_vouched: bool = False
    """Whether a seed or a member reported the claimant."""


class NameResolution(NamedTuple):
    """Result of a conflict about this node's own name."""

    rival: Address
    must_leave: bool
    """Whether this node must leave the cluster."""
    is_known: bool = True
    """Whether the rival is vouched for; otherwise this node stays in any case."""


class NameConflictResolver:
    """Resolves name conflicts; holds the probes in flight by their nonces."""

    def __init__(
        self, context: MembershipContext, verifier: CandidateVerifier, *, proves_names: bool = False
    ) -> None:
        self._context = context
        self._verifier = verifier
        # Whether every node that replies has proven its name.
        self._proves_names = proves_names
        self._member_table = context.member_table
        # Probes about names of other members, and about this node's own name.
        self._claim_probes: dict[int, _NameProbe] = {}
        self._rival_probes: dict[int, _NameProbe] = {}
        # Claimants being verified because the holder did not reply, and until when.
        self._successors: dict[str, tuple[MemberRecord, float]] = {}
        # Rivals that replied but are not vouched for, and until when they are not probed again.
        self._ignored_rivals: dict[Address, float] = {}
        # The process that holds this node's name according to each member, and as of when.
        self._holders: dict[Address, tuple[int, float]] = {}

    @property
    def has_rivals(self) -> bool:
        """Whether a rival is being probed to which this node would give up its name."""
        return any(probe.is_vouched or self._proves_names for probe in self._rival_probes.values())

    def deadline(self) -> float:
        """Return when `tick` has something to do."""
        probes = (*self._claim_probes.values(), *self._rival_probes.values())
        return min((probe.until for probe in probes), default=float("inf"))

    def tick(self, now: float) -> None:
        """Drop probes that timed out: a claimant is verified, a rival does not exist."""
        for claimant in _pop_due(self._claim_probes, now):
            self._verify_claimant(claimant, now)
        _pop_due(self._rival_probes, now)
        for name in [name for name, (_, until) in self._successors.items() if until <= now]:
            del self._successors[name]

    def extend_deadlines(self, seconds: float) -> None:
        """Extend all deadlines by the time that this node stalled."""
        for probes in (self._claim_probes, self._rival_probes):
            for nonce, probe in probes.items():
                probes[nonce] = probe._replace(until=probe.until + seconds)

    # Names of other members.

    def challenge(self, claimant: MemberRecord, now: float) -> None:
        """Probe the known holder of the name, to see whether it is alive."""
        for nonce, probe in self._claim_probes.items():
            if probe.claimant.name == claimant.name:
                if claimant.supersedes(probe.claimant):
                    self._claim_probes[nonce] = probe._replace(claimant=claimant)
                return
        if len(self._claim_probes) >= _OPEN_MAX:
            return
        self._context.counters.name_conflicts += 1
        holder = self._member_table.active[claimant.name].record
        self._send_probe(self._claim_probes, claimant, now, holder, about=claimant)

    def _resolve_challenge(self, claimant: MemberRecord, ack: ProbeAckPacket, now: float) -> None:
        """Verify the claimant unless the holder, or an unknown third process, sent the ack."""
        holder = self._member_table.entries.get(claimant.name)
        if ack.name == claimant.name:
            if holder is not None and _is_from(ack, holder.record):
                return
            if not _is_from(ack, claimant):
                return
        self._verify_claimant(claimant, now)

    def is_silent(self, successor: MemberRecord) -> bool:
        """Return whether the holder of the successor's name was probed and did not reply."""
        accepted = self._successors.get(successor.name)
        return accepted is not None and accepted[0].identity == successor.identity

    def _verify_claimant(self, claimant: MemberRecord, now: float) -> None:
        """Verify the claimant as a candidate: it gets the name once it acknowledges a probe."""
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
        """Probe a process that is reported to have this node's name."""
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
        """Ignore a rival for a while; otherwise two nodes would dial each other for ever."""
        self._ignored_rivals = {
            rival: until for rival, until in self._ignored_rivals.items() if until > now
        }
        if len(self._ignored_rivals) < _OPEN_MAX:
            self._ignored_rivals[address] = now + self._context.config.sync_interval_s

    def on_ack(self, ack: ProbeAckPacket, now: float) -> NameResolution | None:
        """Handle an ack; return a resolution if it concerns this node's own name."""
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
        """Resolve a conflict with a process that replied at an address this node dialed."""
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
        self._context.counters.name_conflicts += 1
        if not (is_vouched or self._proves_names):
            self._ignore_rival(address, now)
            return NameResolution(address, must_leave=False, is_known=False)
        if is_member is not self._context.is_member:
            return NameResolution(address, must_leave=is_member)
        local_instance = self._member_table.local.instance
        fresh_s = _FRESH_SYNCS * self._context.config.sync_interval_s
        holders = {holder for holder, since in self._holders.values() if now - since <= fresh_s}
        # Members know that process under this name, and none knows this one.
        is_displaced = instance in holders and local_instance not in holders
        return NameResolution(address, must_leave=instance < local_instance or is_displaced)

    def record_name_holder(self, member: Address, instance: int, now: float) -> None:
        """Record which process holds this node's name according to a member's sync reply."""
        fresh_s = _FRESH_SYNCS * self._context.config.sync_interval_s
        self._holders.pop(member, None)
        self._holders[member] = (instance, now)
        self._holders = {
            reporter: holder
            for reporter, holder in self._holders.items()
            if now - holder[1] <= fresh_s
        }

    # Shared.

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
        """Probe the holder by datagram and over TCP: one of them may be blocked.

        A rival is probed over TCP only, because any host may be at the reported address.
        """
        context = self._context
        nonce = context.new_nonce()
        timeout_s = context.config.probe_timeout_s * context.health.timeout_multiplier
        probes[nonce] = _NameProbe(claimant, now + timeout_s, is_vouched)
        first = () if about is None else (about,)
        for in_stream in (False, True) if probes is self._claim_probes else (True,):
            records = context.gossip_records(*first, in_stream=in_stream)
            is_joining = not context.is_member
            context.send_probe(nonce, target, records, is_joining=is_joining, in_stream=in_stream)


def _is_from(ack: ProbeAckPacket, record: MemberRecord) -> bool:
    return (ack.instance, ack.leave_digest) == (record.instance, record.leave_digest)


def _pop_due(probes: dict[int, _NameProbe], now: float) -> list[MemberRecord]:
    due = [nonce for nonce, probe in probes.items() if probe.until <= now]
    return [probes.pop(nonce).claimant for nonce in due]
