"""What a node does with the news it hears: believe, object, ask back, or refuse and count."""

from __future__ import annotations

import msgspec

from postroad.core import Address
from postroad.core.errors import MalformedPayloadError

from .contacts import StateSync
from .naming import NameConflictResolver
from .own import LocalMember
from .packets import (
    Arrival,
    GossipPacket,
    MembershipPacket,
    ProbeAckPacket,
    PropertiesRequestPacket,
    SyncReplyPacket,
)
from .probing import Prober
from .records import CLAIM_MAX, MemberRecord, check_record
from .roster import MergeResult
from .states import MemberState
from .vetting import Teller, Vetting
from .voice import MembershipContext

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
            asked_at = self._contacts.asked_at(packet.number)
            is_trusted = self._contacts.is_trusted(packet.number)
            if asked_at is not None and is_trusted:
                self._note_holder(packet, asked_at, arrival.now)
        elif isinstance(packet, ProbeAckPacket):
            is_trusted = self._prober.has_asked(packet.number)
        teller = Teller(arrival.origin, arrival.in_stream, is_trusted)
        for record in packet.news:
            if isinstance(packet, SyncReplyPacket) and _is_of_sender(record, packet, asked_at):
                self.meet(record, arrival.now)
            else:
                self.hear(record, arrival.now, teller)

    def _note_holder(self, sync: SyncReplyPacket, asked_at: Address, now: float) -> None:
        """See whom a member takes for the node of this name."""
        own = self._roster.own
        if sync.agrees:
            self._naming.note_holder(asked_at, own.instance, now)
        for record in sync.news:
            if record.name == own.name and record.state.is_active:
                self._naming.note_holder(asked_at, record.instance, now)

    def hear(self, record: MemberRecord, now: float, teller: Teller) -> None:
        """Take in what somebody says of a node."""
        known = self._roster.entries.get(record.name)
        if known is not None and known.record == record:
            # Most news have been heard before.
            return
        if not self._is_well_formed(record):
            return
        own = self._roster.own
        if record.name != own.name:
            self._hear_of_another(record, now, teller)
        elif _exceeds_claim_limit(record.incarnation, own.incarnation) or _exceeds_claim_limit(
            record.version, own.version
        ):
            self._voice.refuse(MergeResult.LEAPED.value)
        elif record.instance == own.instance:
            self._hear_of_self(record)
        else:
            self._hear_of_namesake(record, now, is_vouched=teller.is_trusted)

    def _is_well_formed(self, record: MemberRecord) -> bool:
        try:
            check_record(record, properties_bytes_max=self._voice.config.properties_bytes_max)
        except MalformedPayloadError:
            self._voice.refuse("malformed record")
            return False
        return True

    def meet(self, record: MemberRecord, now: float) -> None:
        """Take in a node that has answered a question of this one, and says this of itself."""
        if record.name == self._roster.own.name or not self._is_well_formed(record):
            return
        known = self._roster.entries.get(record.name)
        holder = None if known is None or not known.state.is_active else known.record
        is_other = holder is not None and holder.identity != record.identity
        if is_other and not self._naming.is_silent(record):
            self._naming.contest(record, now)
            return
        verdict = self._roster.admit(record, now)
        if verdict.is_refusal:
            self._voice.refuse(verdict.value)

    def _hear_of_another(self, record: MemberRecord, now: float, teller: Teller) -> None:
        verdict = self._roster.merge(record, now)
        if verdict.is_refusal:
            self._voice.refuse(verdict.value)
        elif verdict is MergeResult.UNPROVEN:
            if self._check_address(record, now):
                self._vetting.consider(record, teller, now)
        elif verdict is MergeResult.CONTESTED:
            self._naming.contest(record, now)
        elif verdict is not MergeResult.NEWS and record.state.is_active:
            self._inform(record, now)

    def _inform(self, record: MemberRecord, now: float) -> None:
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
        news = GossipPacket(news=[entry.record.without_properties()])
        self._voice.say(address, news, in_stream=not is_same)

    def _hear_of_self(self, record: MemberRecord) -> None:
        """Object to whatever is said of this node that it did not say."""
        own = self._roster.own
        is_false = record.identity != own.identity and record.incarnation >= own.incarnation
        if record.state is MemberState.LEFT:
            self._voice.refuse(MergeResult.FORGED.value)
        if is_false or (record.rank > own.rank and record.state is not MemberState.LEFT):
            self._voice.counters.refutations += 1
            self._voice.health.worsen()
            self._own.outrank(record)
        elif record.state is MemberState.ALIVE:
            self._own.correct(record)
        elif record.state is not MemberState.LEFT:
            # Outranked already, but whoever said it has not heard so.
            self._own.repeat()

    def _hear_of_namesake(self, record: MemberRecord, now: float, *, is_vouched: bool) -> None:
        """Another process has this name, or had it: outrank it, and find out whether it lives."""
        own = self._roster.own
        is_newer = record.incarnation >= own.incarnation
        is_elsewhere = record.state.is_active and record.address != own.address
        if is_elsewhere and (is_newer or is_vouched or not self._voice.is_member):
            self._naming.look_into(record, now, is_vouched=is_vouched)
        if is_newer:
            self._own.outrank(record)

    def hear_of_caller(self, address: Address, instance: int, now: float) -> None:
        """A process calls from the address that says it has this name: ask there."""
        own = self._roster.own
        if instance != own.instance and address != own.address:
            caller = msgspec.structs.replace(
                own, instance=instance, host=address.host, port=address.port
            )
            self._naming.look_into(caller, now, is_vouched=False)

    def _check_address(self, record: MemberRecord, now: float) -> bool:
        """Two names at one address cannot both be right: ask who is there, unless it is here."""
        if record.address == self._roster.own.address:
            self._voice.refuse("claims this node's address")
            return False
        other = self._roster.first_at(record.address)
        if other is not None and other.record.name != record.name:
            self._voice.refuse("claims another member's address")
            self._prober.probe(other, now)
        return True

    # Properties that are too large for the packet that told of them.

    def deadline(self) -> float:
        """When `tick` has something to do."""
        lacking = self._roster.lacking
        return min((self._pulls.get(name, 0.0) for name in lacking), default=float("inf"))

    def tick(self, now: float) -> None:
        """Ask for what did not come, again and again."""
        lacking = self._roster.lacking
        if len(self._pulls) > len(lacking):
            self._pulls = {name: due for name, due in self._pulls.items() if name in lacking}
        for name, entry in lacking.items():
            if self._pulls.get(name, 0.0) <= now:
                self._pulls[name] = now + _PULL_PAUSE_S
                pull = PropertiesRequestPacket(version=entry.wanted, instance=entry.record.instance)
                self._voice.say(entry.record.address, pull, to=name, in_stream=True)


def _is_of_sender(record: MemberRecord, sync: SyncReplyPacket, asked_at: Address | None) -> bool:
    """Whether a member says that of itself, that has just answered where it says it is."""
    is_itself = (record.name, record.instance) == (sync.name, sync.instance)
    is_there = record.address == asked_at and sync.is_member
    return is_itself and is_there and record.state is MemberState.ALIVE


def _exceeds_claim_limit(claim: int, own: int) -> bool:
    """Whether a number claimed of this node is higher than it could outrank."""
    return claim > max(CLAIM_MAX, own)
