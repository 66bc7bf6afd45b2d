"""The SWIM membership state machine: packets and time in, packets and events out.

Each node probes the other members in turn, asks others for indirect probes before it suspects a
member, and gossips records with every packet. After every call, the caller sends
`drain_outgoing()`, publishes `drain_events()` and `drain_rejections()`, and calls `tick` at
`deadline()`. Time and randomness are passed in; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from postroad.cluster.membership.candidates import CandidateVerifier
from postroad.cluster.membership.config import MembershipConfig
from postroad.cluster.membership.context import (
    MembershipContext,
    MembershipCounters,
    OutgoingPacket,
    RandomSource,
)
from postroad.cluster.membership.gossip import (
    Arrival,
    GossipPacket,
    GossipQueue,
    MembershipPacket,
    ProbeAckPacket,
    ProbeNackPacket,
    ProbePacket,
    ProbeRequestPacket,
    PropertiesRequestPacket,
    SyncReplyPacket,
    SyncRequestPacket,
    decode_packet,
    encode_packet,
)
from postroad.cluster.membership.gossip_handler import GossipHandler
from postroad.cluster.membership.local_member import (
    LocalMember,
    new_local_record,
    validate_properties,
)
from postroad.cluster.membership.member_table import MemberTable
from postroad.cluster.membership.members import (
    CLAIM_MAX,
    Member,
    MembershipEvent,
    MembershipPhase,
    NameConflictDetected,
    NameConflictLost,
    to_member,
)
from postroad.cluster.membership.name_conflicts import NameConflictResolver, NameResolution
from postroad.cluster.membership.prober import Prober
from postroad.cluster.membership.state_sync import StateSync
from postroad.core import Address
from postroad.core.errors import MalformedPayloadError
from postroad.core.timing import NEVER

MembershipUpdate: TypeAlias = MembershipEvent | NameConflictDetected | NameConflictLost

# A call this much later than the announced deadline means that the process stalled.
_STALL_S = 0.25
# More queued records than this come from many nodes at once and are gossiped over TCP.
_STREAM_GOSSIP_RECORDS = 32
# Members that are synced with when another process has this node's name.
_NAME_SYNCS = 3


class Membership:
    """One node's view of its cluster.

    Args:
        instance: process number, higher than that of any process that started earlier.
        incarnation: first incarnation, usually the wall clock in milliseconds.
        secret: proof that this node leaves by itself.
        proves_names: whether every node proves its name before it can connect.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        *,
        instance: int,
        incarnation: int,
        secret: bytes,
        rng: RandomSource,
        proves_names: bool = False,
        properties: Mapping[str, str] | None = None,
        config: MembershipConfig | None = None,
    ) -> None:
        self.config = config or MembershipConfig()
        self.phase = MembershipPhase.NEW
        local = new_local_record(
            name,
            address,
            instance=instance,
            incarnation=incarnation,
            secret=secret,
            properties=validate_properties(properties or {}, self.config),
        )
        gossip_queue = GossipQueue()
        self._member_table = MemberTable(self.config, local, gossip_queue)
        self._context = MembershipContext(self.config, self._member_table, gossip_queue, rng)
        self._local_member = LocalMember(self._context, secret)
        self._prober = Prober(self._context)
        self._state_sync = StateSync(self._context)
        self._verifier = CandidateVerifier(self._context)
        self._name_conflicts = NameConflictResolver(
            self._context, self._verifier, proves_names=proves_names
        )
        self._gossip_handler = GossipHandler(
            self._context,
            self._local_member,
            self._prober,
            self._state_sync,
            self._name_conflicts,
            self._verifier,
        )
        self._name_events: list[NameConflictDetected | NameConflictLost] = []
        # How long to wait for a seed before this node joins alone; None once one has replied.
        self._join_deadline: float | None = None
        # How long candidates from the first sync may take to reply before this node joins.
        self._settle_deadline = 0.0
        # Earliest time of the next sync about this node's name.
        self._next_name_sync = 0.0
        self._next_gossip = 0.0
        self._next_reap = 0.0
        # The deadline announced to the caller.
        self._due = NEVER
        self._handlers: dict[type, Callable[[Any, Arrival], MembershipPacket | None]] = {
            ProbePacket: self._on_probe,
            ProbeAckPacket: self._on_ack,
            ProbeRequestPacket: self._on_probe_request,
            ProbeNackPacket: self._on_nack,
            # The records of every packet were applied before.
            GossipPacket: lambda _, __: None,
            SyncRequestPacket: lambda request, _: self._state_sync.on_request(request),
            SyncReplyPacket: self._on_sync_reply,
            PropertiesRequestPacket: self._on_properties_request,
        }

    # Queries.

    @property
    def local_member(self) -> Member:
        return to_member(self._member_table.local)

    def members(self) -> list[Member]:
        """Return all members, this node first."""
        return [self.local_member, *(entry.member for entry in self._member_table.active.values())]

    def member(self, name: str) -> Member | None:
        if name == self._member_table.local.name:
            return self.local_member
        entry = self._member_table.active.get(name)
        return None if entry is None else entry.member

    def names_at(self, address: Address) -> list[str]:
        """Return the members at this address, usually one or none."""
        if address == self._member_table.local.address:
            return [self._member_table.local.name]
        return self._member_table.names_at(address)

    @property
    def counters(self) -> MembershipCounters:
        return self._context.counters

    @property
    def health(self) -> int:
        """Local health score; 0 is healthy, higher values lengthen timeouts."""
        return self._context.health.score

    def round_trips_s(self) -> dict[str, float]:
        """Return the smoothed round-trip time of members, where it was measured."""
        trips = {
            name: entry.round_trip.smoothed_s for name, entry in self._member_table.active.items()
        }
        return {name: trip for name, trip in trips.items() if trip is not None}

    # Outputs.

    def drain_outgoing(self) -> list[OutgoingPacket]:
        outgoing, self._context.outgoing = self._context.outgoing, []
        return outgoing

    def drain_events(self) -> list[MembershipUpdate]:
        """Return and clear the events since the last call."""
        changes: list[MembershipUpdate] = [*self._member_table.events, *self._name_events]
        self._member_table.events.clear()
        self._name_events.clear()
        return changes

    def drain_rejections(self) -> list[str]:
        """Return and clear the reasons of rejections since the last call."""
        rejections, self._context.rejections = self._context.rejections, []
        return rejections

    def deadline(self) -> float:
        """Return when `tick` must be called."""
        return self._due

    # Lifecycle.

    def start(self, now: float) -> None:
        """Start joining: query the seeds for the state, and whether the name is free."""
        self.phase = MembershipPhase.JOINING
        self._join_deadline = now + self.config.join_timeout_s
        self._next_reap = now + self.config.sync_interval_s
        self._prober.start(now)
        self._state_sync.start(now)
        self._schedule_next(now)

    def set_seeds(self, addresses: Iterable[Address], now: float) -> None:
        """Replace the seeds: addresses where other nodes may be."""
        if not self.phase.is_running:
            return
        self._detect_stall(now)
        if not self._state_sync.set_seeds(addresses, now):
            self._join_deadline = None
        self._schedule_next(now)

    def set_properties(self, changes: Mapping[str, str | None], now: float) -> None:
        """Merge changes into this node's properties; None removes a property."""
        self._local_member.change_properties(changes)
        self._schedule_next(now)

    def leave(self) -> None:
        """Leave the cluster. The packets queued now are the last."""
        if self.phase.is_running:
            self._local_member.send_leave()
            self._leave(MembershipPhase.LEFT)

    def contact(self, address: Address, now: float) -> None:
        """Query an unknown node at the address for its name and state."""
        if not self.phase.is_running:
            return
        self._detect_stall(now)
        self._state_sync.query_unknown(address, now)
        self._schedule_next(now)

    def receive(
        self,
        data: bytes,
        source: Address,
        now: float,
        *,
        in_stream: bool = False,
        is_reply: bool = False,
        origin: Address | None = None,
    ) -> bytes | None:
        """Process a packet and return the reply, or None.

        Args:
            source: address that the sender advertises.
            in_stream: whether the packet came over TCP; otherwise by datagram.
            is_reply: whether the packet replies to a request of this node over TCP.
            origin: address that a datagram was really sent from; the reply goes there.
        """
        if not self.phase.is_running:
            return None
        self._detect_stall(now)
        self._context.counters.packets_received += 1
        self._context.counters.bytes_received += len(data)
        try:
            packet = decode_packet(data, records_max=self.config.members_max)
        except MalformedPayloadError:
            self._context.count_rejection("malformed packet")
            return None
        if not in_stream and isinstance(
            packet, SyncRequestPacket | SyncReplyPacket | PropertiesRequestPacket
        ):
            # Their replies are long, and correct nodes send such requests over TCP only.
            self._context.count_rejection("sent by datagram")
            return None
        arrival = Arrival(source, origin or source, now, in_stream, is_reply, len(data))
        self._gossip_handler.apply_records(packet, arrival)
        reply = self._handlers[type(packet)](packet, arrival)
        self._gossip_handler.tick(now)
        self._schedule_next(now)
        return None if reply is None else self._context.encode(reply)

    def on_duplicate_name_peer(
        self, address: Address, instance: int, now: float, *, is_member: bool
    ) -> None:
        """Handle a process with this node's name that replied at an address this node dialed."""
        if not self.phase.is_running:
            return
        self._detect_stall(now)
        resolution = self._name_conflicts.on_duplicate_name_peer(
            address,
            instance,
            now,
            is_member=is_member,
            is_vouched=self._state_sync.is_seed(address),
        )
        self._apply_name_resolution(resolution, now)
        self._schedule_next(now)

    def on_duplicate_name_caller(self, address: Address, instance: int, now: float) -> None:
        """Handle a process that connected from the address with this node's name."""
        if not self.phase.is_running:
            return
        self._detect_stall(now)
        self._gossip_handler.on_duplicate_name_caller(address, instance, now)
        self._schedule_next(now)

    def tick(self, now: float) -> None:
        """Run everything that is due."""
        if not self.phase.is_running:
            return
        self._detect_stall(now)
        self._name_conflicts.tick(now)
        self._verifier.tick(now)
        self._state_sync.tick(now)
        self._prober.tick(now)
        self._gossip_handler.tick(now)
        self._member_table.expire_suspects(now)
        if self._join_deadline is not None and self._join_deadline <= now:
            self._join_deadline = None
        if self._next_reap <= now:
            self._next_reap = now + self.config.sync_interval_s
            self._member_table.reap_tombstones(now)
        if self._next_gossip <= now:
            self._gossip(now)
        self._schedule_next(now)

    # Time.

    def _detect_stall(self, now: float) -> None:
        """Detect that this node stalled, and extend the deadlines of others by that time."""
        stalled_s = now - self._due
        if stalled_s <= _STALL_S:
            return
        self._context.counters.stalls += 1
        self._context.health.worsen()
        self._prober.extend_deadlines(stalled_s)
        self._name_conflicts.extend_deadlines(stalled_s)
        self._verifier.extend_deadlines(stalled_s)
        self._member_table.extend_deadlines(stalled_s)
        self._due = now

    def _schedule_next(self, now: float) -> None:
        """Join if that is possible now, and compute the next deadline."""
        if not self.phase.is_running:
            return
        if self.phase is MembershipPhase.JOINING and self._join_deadline is None:
            self._try_join(now)
        if self._local_member.gossip_now:
            self._local_member.gossip_now = False
            self._next_gossip = now
        is_settling = self.phase is MembershipPhase.JOINING and now < self._settle_deadline
        soonest = min(
            self._next_reap,
            NEVER if self._join_deadline is None else self._join_deadline,
            self._settle_deadline if is_settling else NEVER,
            self._next_gossip
            if len(self._context.gossip_queue) and self._member_table.active
            else NEVER,
            self._prober.deadline(),
            self._state_sync.deadline(),
            self._name_conflicts.deadline(),
            self._verifier.deadline(),
            self._gossip_handler.deadline(),
            self._member_table.deadline(),
        )
        # Overdue work is due now; it does not mean that this node stalled.
        self._due = max(soonest, now)

    def _gossip(self, now: float) -> None:
        """Send queued records to a few members; over TCP if there are too many for datagrams."""
        gossip_queue = self._context.gossip_queue
        if not len(gossip_queue):
            return
        self._next_gossip = now + self.config.gossip_interval_s
        in_stream = len(gossip_queue) > _STREAM_GOSSIP_RECORDS
        for entry in self._context.sample_members(self.config.gossip_fanout, with_suspects=True):
            if records := self._context.gossip_records(in_stream=in_stream):
                self._context.send(
                    entry.record.address, GossipPacket(records=records), in_stream=in_stream
                )

    # Names.

    def _try_join(self, now: float) -> None:
        is_settled = now >= self._settle_deadline or not self._verifier.is_busy
        if is_settled and not self._name_conflicts.has_rivals:
            self.phase = MembershipPhase.MEMBER
            self._context.is_member = True
            self._local_member.publish()

    def _apply_name_resolution(self, resolution: NameResolution | None, now: float) -> None:
        """Apply the result of a conflict about this node's name."""
        if resolution is None:
            return
        if not resolution.is_known and self._next_name_sync <= now:
            # If the rival belongs to this cluster, some member knows it under this name.
            self._next_name_sync = now + self.config.probe_interval_s
            self._state_sync.sync_with_members(_NAME_SYNCS)
        if resolution.must_leave:
            self._local_member.send_leave()
            self._name_events.append(NameConflictLost(resolution.rival))
            self._leave(MembershipPhase.NAME_LOST)
        else:
            self._name_events.append(NameConflictDetected(resolution.rival))

    def _leave(self, phase: MembershipPhase) -> None:
        self.phase = phase
        self._context.is_member = False
        self._due = NEVER

    # Packets.

    def _on_probe(self, probe: ProbePacket, arrival: Arrival) -> MembershipPacket | None:
        local, sender = self._member_table.local, self._member_table.entries.get(probe.name)
        if probe.name == local.name:
            self._on_duplicate_name_probe(probe, arrival.source, arrival.now)
        elif sender is None and not probe.is_joining:
            self._state_sync.query_unknown(arrival.source, arrival.now)
        # A sender that is suspected or dead here must learn that to be able to refute.
        doubted = (
            [sender.record] if sender is not None and sender.is_doubted(probe.instance) else []
        )
        ack = ProbeAckPacket(
            nonce=probe.nonce,
            name=local.name,
            instance=local.instance,
            leave_digest=local.leave_digest,
            incarnation=local.incarnation,
            is_member=self._context.is_member,
        )
        capacity_max = None
        if not arrival.in_stream:
            capacity_max = arrival.reply_bytes_max - len(encode_packet(ack))
            if capacity_max < 0:
                self._context.count_rejection("probe too short")
                return None
        records = self._context.gossip_records(
            *doubted, in_stream=arrival.in_stream, capacity_max=capacity_max
        )
        return msgspec.structs.replace(ack, records=records)

    def _on_duplicate_name_probe(self, probe: ProbePacket, source: Address, now: float) -> None:
        if probe.is_joining and probe.instance != self._member_table.local.instance:
            self._context.counters.name_conflicts += 1
            self._name_events.append(NameConflictDetected(source))
        else:
            self._gossip_handler.on_duplicate_name_caller(source, probe.instance, now)

    def _on_ack(self, ack: ProbeAckPacket, arrival: Arrival) -> None:
        if self._prober.on_ack(ack, arrival.now, in_stream=arrival.is_reply):
            return
        is_candidate, record = self._verifier.on_ack(ack, arrival.now)
        if record is not None:
            self._gossip_handler.admit(record, arrival.now)
        elif not is_candidate:
            self._apply_name_resolution(self._name_conflicts.on_ack(ack, arrival.now), arrival.now)

    def _on_probe_request(self, request: ProbeRequestPacket, arrival: Arrival) -> None:
        self._prober.on_request(
            request, arrival.origin, arrival.now, bytes_max=arrival.reply_bytes_max
        )

    def _on_nack(self, nack: ProbeNackPacket, arrival: Arrival) -> None:
        self._prober.on_nack(nack)

    def _on_sync_reply(self, sync: SyncReplyPacket, arrival: Arrival) -> None:
        if self._state_sync.on_reply(sync) and self._join_deadline is not None:
            self._join_deadline = None
            self._settle_deadline = arrival.now + self.config.indirect_probe_delay_s

    def _on_properties_request(
        self, request: PropertiesRequestPacket, arrival: Arrival
    ) -> MembershipPacket | None:
        if not self._context.is_member or not 0 <= request.version <= CLAIM_MAX:
            return None
        if request.instance == self._member_table.local.instance:
            self._local_member.raise_properties_version(request.version)
        return GossipPacket(records=[self._member_table.local])
