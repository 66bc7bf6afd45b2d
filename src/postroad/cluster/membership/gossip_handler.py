"""Handling of received member records: merge, refute, verify, or reject and count."""

from __future__ import annotations

import msgspec

from postroad.cluster.membership.candidates import CandidateVerifier, GossipSource
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

# Interval between two requests for the missing properties of one member.
_PROPERTIES_RETRY_S = 1.0
# Nodes notified per probe interval; others are notified later.
_NOTIFIED_MAX = 16


class GossipHandler:
    """Applies received member records, one after another."""

    def __init__(
        self,
        context: MembershipContext,
        local: LocalMember,
        prober: Prober,
        state_sync: StateSync,
        name_conflicts: NameConflictResolver,
        verifier: CandidateVerifier,
    ) -> None:
        self._context = context
        self._member_table = context.member_table
        self._local_member = local
        self._prober = prober
        self._state_sync = state_sync
        self._name_conflicts = name_conflicts
        self._verifier = verifier
        # Nodes notified that they were declared dead, and when they may be notified again.
        self._notified: dict[str, float] = {}
        # Members whose properties were requested, and when to request them again.
        self._properties_requests: dict[str, float] = {}

    def apply_records(self, packet: MembershipPacket, arrival: Arrival) -> None:
        """Apply the records of a packet, as far as its sender can be trusted."""
        requested_address, is_trusted = None, False
        if isinstance(packet, SyncReplyPacket):
            requested_address = self._state_sync.requested_address(packet.nonce)
            is_trusted = self._state_sync.is_trusted(packet.nonce)
            if requested_address is not None and is_trusted:
                # Which process holds this name according to the replying member.
                local = self._member_table.local
                holders = [local.instance] if packet.agrees else []
                holders += [
                    record.instance
                    for record in packet.records
                    if record.name == local.name and record.state.is_active
                ]
                for instance in holders:
                    self._name_conflicts.record_name_holder(
                        requested_address, instance, arrival.now
                    )
        elif isinstance(packet, ProbeAckPacket):
            is_trusted = self._prober.is_pending(packet.nonce)
        source = GossipSource(arrival.origin, arrival.in_stream, is_trusted)
        for record in packet.records:
            if (
                isinstance(packet, SyncReplyPacket)
                and packet.is_member
                and (record.name, record.instance) == (packet.name, packet.instance)
                and record.address == requested_address
                and record.state is MemberState.ALIVE
            ):
                # The sender replied at the address of its own record.
                self.admit(record, arrival.now)
            else:
                self.apply_record(record, arrival.now, source)

    def apply_record(self, record: MemberRecord, now: float, source: GossipSource) -> None:
        """Apply a record of any node, received from any source."""
        entry = self._member_table.entries.get(record.name)
        if entry is not None and entry.record == record:
            # Most records have been received before.
            return
        if not self._is_well_formed(record):
            return
        local = self._member_table.local
        if record.name != local.name:
            self._apply_other(record, now, source)
        elif record.incarnation > max(CLAIM_MAX, local.incarnation) or record.version > max(
            CLAIM_MAX, local.version
        ):
            # Too high to be outranked.
            self._context.count_rejection(MergeResult.INCARNATION_OUT_OF_RANGE.value)
        elif record.instance == local.instance:
            self._refute(record)
        else:
            self._on_duplicate_name(record, now, is_vouched=source.is_trusted)

    def _is_well_formed(self, record: MemberRecord) -> bool:
        try:
            check_record(record, properties_bytes_max=self._context.config.properties_bytes_max)
        except MalformedPayloadError:
            self._context.count_rejection("malformed record")
            return False
        return True

    def admit(self, record: MemberRecord, now: float) -> None:
        """Admit a node that replied to this node, with the record it sent of itself."""
        if record.name == self._member_table.local.name or not self._is_well_formed(record):
            return
        entry = self._member_table.entries.get(record.name)
        holder = None if entry is None or not entry.state.is_active else entry.record
        is_other = holder is not None and holder.identity != record.identity
        if is_other and not self._name_conflicts.is_silent(record):
            self._name_conflicts.challenge(record, now)
            return
        result = self._member_table.admit(record, now)
        if result.is_rejection:
            self._context.count_rejection(result.value)

    def _apply_other(self, record: MemberRecord, now: float, source: GossipSource) -> None:
        result = self._member_table.merge(record, now)
        if result.is_rejection:
            self._context.count_rejection(result.value)
        elif result is MergeResult.UNPROVEN:
            if self._check_address_conflict(record, now):
                self._verifier.submit(record, source, now)
        elif result is MergeResult.NAME_CONFLICT:
            self._name_conflicts.challenge(record, now)
        elif result is not MergeResult.APPLIED and record.state.is_active:
            self._notify_declared_dead(record, now)

    def _notify_declared_dead(self, record: MemberRecord, now: float) -> None:
        """Notify a node that is reported alive but dead here, so that it can refute."""
        entry = self._member_table.entries[record.name]
        is_gone = entry.state is MemberState.LEFT and entry.record.instance == record.instance
        if entry.state.is_active or is_gone or self._notified.get(record.name, 0.0) > now:
            return
        if len(self._notified) >= _NOTIFIED_MAX:
            self._notified = {name: due for name, due in self._notified.items() if due > now}
            if len(self._notified) >= _NOTIFIED_MAX:
                return
        self._notified[record.name] = now + self._context.config.probe_interval_s
        is_same = entry.record.instance == record.instance
        address = entry.record.address if is_same else record.address
        # Over TCP unless the address is known: a forged record must not start datagrams to others.
        packet = GossipPacket(records=[entry.record.without_properties()])
        self._context.send(address, packet, in_stream=not is_same)

    def _refute(self, record: MemberRecord) -> None:
        """Refute a record of this node that it did not send itself."""
        local = self._member_table.local
        is_forged = record.identity != local.identity and record.incarnation >= local.incarnation
        if record.state is MemberState.LEFT:
            self._context.count_rejection(MergeResult.FORGED_LEAVE.value)
        if is_forged or (
            record.precedence > local.precedence and record.state is not MemberState.LEFT
        ):
            self._context.counters.refutations += 1
            self._context.health.worsen()
            self._local_member.refute(record)
        elif record.state is MemberState.ALIVE:
            self._local_member.refute_properties(record)
        elif record.state is not MemberState.LEFT:
            # A newer incarnation exists already, but the sender has not received it yet.
            self._local_member.requeue()

    def _on_duplicate_name(self, record: MemberRecord, now: float, *, is_vouched: bool) -> None:
        """Outrank another process with this name, and probe whether it is alive."""
        local = self._member_table.local
        is_newer = record.incarnation >= local.incarnation
        is_remote = record.state.is_active and record.address != local.address
        if is_remote and (is_newer or is_vouched or not self._context.is_member):
            self._name_conflicts.probe_rival(record, now, is_vouched=is_vouched)
        if is_newer:
            self._local_member.refute(record)

    def on_duplicate_name_caller(self, address: Address, instance: int, now: float) -> None:
        """Probe a process that claims this name and connected from the address."""
        local = self._member_table.local
        if instance != local.instance and address != local.address:
            caller = msgspec.structs.replace(
                local, instance=instance, host=address.host, port=address.port
            )
            self._name_conflicts.probe_rival(caller, now, is_vouched=False)

    def _check_address_conflict(self, record: MemberRecord, now: float) -> bool:
        """Reject a claim to this node's address; probe the member whose address is claimed."""
        if record.address == self._member_table.local.address:
            self._context.count_rejection("claims this node's address")
            return False
        other = self._member_table.first_at(record.address)
        if other is not None and other.record.name != record.name:
            self._context.count_rejection("claims another member's address")
            self._prober.probe(other, now)
        return True

    # Properties that did not fit into the packet with their record.

    def deadline(self) -> float:
        """Return when `tick` has something to do."""
        missing = self._member_table.missing_properties
        return min(
            (self._properties_requests.get(name, 0.0) for name in missing), default=float("inf")
        )

    def tick(self, now: float) -> None:
        """Request missing properties, again and again until they arrive."""
        missing = self._member_table.missing_properties
        if len(self._properties_requests) > len(missing):
            self._properties_requests = {
                name: due for name, due in self._properties_requests.items() if name in missing
            }
        for name, entry in missing.items():
            if self._properties_requests.get(name, 0.0) <= now:
                self._properties_requests[name] = now + _PROPERTIES_RETRY_S
                request = PropertiesRequestPacket(
                    version=entry.newest_properties_version, instance=entry.record.instance
                )
                self._context.send(entry.record.address, request, to=name, in_stream=True)
