"""What a node does with the news it hears: believe, object, ask back, or refuse and count."""

from __future__ import annotations

import msgspec

from postroad.cluster.membership.candidates import Teller, Vetting
from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import (
    Arrival,
    GossipPacket,
    MembershipPacket,
    ProbeAckPacket,
    PropertiesRequestPacket,
    SyncReplyPacket,
)
from postroad.cluster.membership.local_member import LocalMember
from postroad.cluster.membership.member_table import MergeResult
from postroad.cluster.membership.members import CLAIM_MAX, MemberRecord, MemberState, check_record
from postroad.cluster.membership.name_conflicts import NameConflictResolver
from postroad.cluster.membership.prober import Prober
from postroad.cluster.membership.state_sync import StateSync
from postroad.core import Address
from postroad.core.errors import MalformedPayloadError

# Properties that came without their text are asked for again after so long.
_PULL_PAUSE_S = 1.0
# Nodes told within the interval of probes; the others hear of it another time.
_INFORMED_MAX = 16


class GossipHandler:
    """Takes in one record after another."""

    def __init__(
        self,
        voice: MembershipContext,
        own: LocalMember,
        prober: Prober,
        contacts: StateSync,
        naming: NameConflictResolver,
        vetting: Vetting,
    ) -> None:
        self._voice = voice
        self._roster = voice.roster
        self._own = own
        self._prober = prober
        self._contacts = contacts
        self._naming = naming
        self._vetting = vetting
        # Nodes that were told that they are thought dead, and when that may be done again.
        self._informed: dict[str, float] = {}
        # Members whose properties were asked for, and when that may be done again.
        self._pulls: dict[str, float] = {}

    def hear_all(self, packet: MembershipPacket, arrival: Arrival) -> None:
        """Take in the news of a packet, as far as whoever tells them is to be believed."""
        asked_at, is_trusted = None, False
        if isinstance(packet, SyncReplyPacket):
            asked_at = self._contacts.asked_at(packet.nonce)
            is_trusted = self._contacts.is_trusted(packet.nonce)
            if asked_at is not None and is_trusted:
                self._note_holder(packet, asked_at, arrival.now)
        elif isinstance(packet, ProbeAckPacket):
            is_trusted = self._prober.has_asked(packet.nonce)
        teller = Teller(arrival.origin, arrival.in_stream, is_trusted)
        for record in packet.records:
            if isinstance(packet, SyncReplyPacket) and _is_of_sender(record, packet, asked_at):
                self.meet(record, arrival.now)
            else:
                self.apply_record(record, arrival.now, teller)

    def _note_holder(self, sync: SyncReplyPacket, asked_at: Address, now: float) -> None:
        """See whom a member takes for the node of this name."""
        own = self._roster.local
        if sync.agrees:
            self._naming.note_holder(asked_at, own.instance, now)
        for record in sync.records:
            if record.name == own.name and record.state.is_active:
                self._naming.note_holder(asked_at, record.instance, now)

    def apply_record(self, record: MemberRecord, now: float, teller: Teller) -> None:
        """Take in what somebody says of a node."""
        known = self._roster.entries.get(record.name)
        if known is not None and known.record == record:
            # Most news have been heard before.
            return
        if not self._is_well_formed(record):
            return
        own = self._roster.local
        if record.name != own.name:
            self._apply_other(record, now, teller)
        elif _exceeds_claim_limit(record.incarnation, own.incarnation) or _exceeds_claim_limit(
            record.version, own.version
        ):
            self._voice.count_rejection(MergeResult.INCARNATION_OUT_OF_RANGE.value)
        elif record.instance == own.instance:
            self._refute(record)
        else:
            self._on_duplicate_name(record, now, is_vouched=teller.is_trusted)

    def _is_well_formed(self, record: MemberRecord) -> bool:
        try:
            check_record(record, properties_bytes_max=self._voice.config.properties_bytes_max)
        except MalformedPayloadError:
            self._voice.count_rejection("malformed record")
            return False
        return True

    def meet(self, record: MemberRecord, now: float) -> None:
        """Take in a node that has answered a question of this one, and says this of itself."""
        if record.name == self._roster.local.name or not self._is_well_formed(record):
            return
        known = self._roster.entries.get(record.name)
        holder = None if known is None or not known.state.is_active else known.record
        is_other = holder is not None and holder.identity != record.identity
        if is_other and not self._naming.is_silent(record):
            self._naming.challenge(record, now)
            return
        verdict = self._roster.admit(record, now)
        if verdict.is_rejection:
            self._voice.count_rejection(verdict.value)

    def _apply_other(self, record: MemberRecord, now: float, teller: Teller) -> None:
        verdict = self._roster.merge(record, now)
        if verdict.is_rejection:
            self._voice.count_rejection(verdict.value)
        elif verdict is MergeResult.UNPROVEN:
            if self._check_address_conflict(record, now):
                self._vetting.consider(record, teller, now)
        elif verdict is MergeResult.NAME_CONFLICT:
            self._naming.challenge(record, now)
        elif verdict is not MergeResult.APPLIED and record.state.is_active:
            self._notify_declared_dead(record, now)

    def _notify_declared_dead(self, record: MemberRecord, now: float) -> None:
        """Tell a node that is said to live, but thought dead here, so that it can object."""
        entry = self._roster.entries[record.name]
        is_gone = entry.state is MemberState.LEFT and entry.record.instance == record.instance
        if entry.state.is_active or is_gone or self._informed.get(record.name, 0.0) > now:
            return
        if len(self._informed) >= _INFORMED_MAX:
            self._informed = {name: due for name, due in self._informed.items() if due > now}
            if len(self._informed) >= _INFORMED_MAX:
                return
        self._informed[record.name] = now + self._voice.config.probe_interval_s
        is_same = entry.record.instance == record.instance
        address = entry.record.address if is_same else record.address
        # Over a stream where anybody may be: what somebody says starts no datagrams to others.
        news = GossipPacket(records=[entry.record.without_properties()])
        self._voice.send(address, news, in_stream=not is_same)

    def _refute(self, record: MemberRecord) -> None:
        """Object to whatever is said of this node that it did not say."""
        own = self._roster.local
        is_false = record.identity != own.identity and record.incarnation >= own.incarnation
        if record.state is MemberState.LEFT:
            self._voice.count_rejection(MergeResult.FORGED_LEAVE.value)
        if is_false or (
            record.precedence > own.precedence and record.state is not MemberState.LEFT
        ):
            self._voice.counters.refutations += 1
            self._voice.health.worsen()
            self._own.refute(record)
        elif record.state is MemberState.ALIVE:
            self._own.refute_properties(record)
        elif record.state is not MemberState.LEFT:
            # Outranked already, but whoever said it has not heard so.
            self._own.requeue()

    def _on_duplicate_name(self, record: MemberRecord, now: float, *, is_vouched: bool) -> None:
        """Another process has this name, or had it: outrank it, and find out whether it lives."""
        own = self._roster.local
        is_newer = record.incarnation >= own.incarnation
        is_elsewhere = record.state.is_active and record.address != own.address
        if is_elsewhere and (is_newer or is_vouched or not self._voice.is_member):
            self._naming.probe_rival(record, now, is_vouched=is_vouched)
        if is_newer:
            self._own.refute(record)

    def on_duplicate_name_caller(self, address: Address, instance: int, now: float) -> None:
        """A process calls from the address that says it has this name: ask there."""
        own = self._roster.local
        if instance != own.instance and address != own.address:
            caller = msgspec.structs.replace(
                own, instance=instance, host=address.host, port=address.port
            )
            self._naming.probe_rival(caller, now, is_vouched=False)

    def _check_address_conflict(self, record: MemberRecord, now: float) -> bool:
        """Two names at one address cannot both be right: ask who is there, unless it is here."""
        if record.address == self._roster.local.address:
            self._voice.count_rejection("claims this node's address")
            return False
        other = self._roster.first_at(record.address)
        if other is not None and other.record.name != record.name:
            self._voice.count_rejection("claims another member's address")
            self._prober.probe(other, now)
        return True

    # Properties that are too large for the packet that told of them.

    def deadline(self) -> float:
        """When `tick` has something to do."""
        lacking = self._roster.missing_properties
        return min((self._pulls.get(name, 0.0) for name in lacking), default=float("inf"))

    def tick(self, now: float) -> None:
        """Ask for what did not come, again and again."""
        lacking = self._roster.missing_properties
        if len(self._pulls) > len(lacking):
            self._pulls = {name: due for name, due in self._pulls.items() if name in lacking}
        for name, entry in lacking.items():
            if self._pulls.get(name, 0.0) <= now:
                self._pulls[name] = now + _PULL_PAUSE_S
                pull = PropertiesRequestPacket(
                    version=entry.newest_properties_version, instance=entry.record.instance
                )
                self._voice.send(entry.record.address, pull, to=name, in_stream=True)


def _is_of_sender(record: MemberRecord, sync: SyncReplyPacket, asked_at: Address | None) -> bool:
    """Whether a member says that of itself, that has just answered where it says it is."""
    is_itself = (record.name, record.instance) == (sync.name, sync.instance)
    is_there = record.address == asked_at and sync.is_member
    return is_itself and is_there and record.state is MemberState.ALIVE


def _exceeds_claim_limit(claim: int, own: int) -> bool:
    """Whether a number claimed of this node is higher than it could outrank."""
    return claim > max(CLAIM_MAX, own)
