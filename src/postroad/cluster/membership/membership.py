"""The membership machine: packets and time in, packets and changes out.

It follows SWIM: each node asks the others in turn whether they live, has others ask before it
suspects anybody, and passes on what it learns with whatever it says. Whoever runs it does three
things after every call: send what `take_outgoing` gives, tell of what `take_changes` and
`take_refusals` give, and call `tick` at `deadline()`. Time is an argument, chance is passed in,
nothing here waits.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

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
    NameConflictDetected,
    NameConflictLost,
    to_member,
)
from postroad.cluster.membership.name_conflicts import NameConflictResolver, NameResolution
from postroad.cluster.membership.prober import Prober
from postroad.cluster.membership.state_sync import StateSync
from postroad.cluster.membership.vetting import Vetting
from postroad.core import Address
from postroad.core.errors import MalformedPayloadError
from postroad.core.timing import NEVER

MembershipUpdate: TypeAlias = MembershipEvent | NameConflictDetected | NameConflictLost

# Whoever wakes up later than this after its deadline has stood still.
_STANDSTILL_S = 0.25
# More news than this come of many nodes at once, and should not queue for datagrams.
_CROWD_OF_NEWS = 32
# Members asked at once about a process that has this node's name.
_INQUIRIES = 3


class MembershipPhase(enum.Enum):
    """The life of a node in its cluster."""

    NEW = "not started"
    JOINING = "joining"
    MEMBER = "member"
    LEFT = "left"
    NAME_LOST = "refused"

    @property
    def is_running(self) -> bool:
        """Whether packets and time mean anything."""
        return self in (MembershipPhase.JOINING, MembershipPhase.MEMBER)


class Membership:
    """One node's view of its cluster.

    Args:
        name: this node's name.
        address: where others reach it.
        instance: a number higher than that of any process that began earlier.
        incarnation: where to begin counting; the wall clock in milliseconds is a good place.
        secret: what this node proves with that it leaves of its own will.
        chance: random numbers.
        proves_names: whether nodes prove who they are before they are listened to.
        properties: what others shall know of this node.
        config: all times and sizes.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        *,
        instance: int,
        incarnation: int,
        secret: bytes,
        chance: RandomSource,
        proves_names: bool = False,
        properties: Mapping[str, str] | None = None,
        config: MembershipConfig | None = None,
    ) -> None:
        self.config = config or MembershipConfig()
        self.phase = MembershipPhase.NEW
        own = new_local_record(
            name,
            address,
            instance=instance,
            incarnation=incarnation,
            secret=secret,
            properties=validate_properties(properties or {}, self.config),
        )
        rumours = GossipQueue()
        self._roster = MemberTable(self.config, own, rumours)
        self._voice = MembershipContext(self.config, self._roster, rumours, chance)
        self._own = LocalMember(self._voice, secret)
        self._prober = Prober(self._voice)
        self._contacts = StateSync(self._voice)
        self._vetting = Vetting(self._voice)
        self._naming = NameConflictResolver(self._voice, self._vetting, proves_names=proves_names)
        self._hearing = GossipHandler(
            self._voice, self._own, self._prober, self._contacts, self._naming, self._vetting
        )
        self._news_of_names: list[NameConflictDetected | NameConflictLost] = []
        # Until when an answer is awaited before going on alone; None once there is one.
        self._join_deadline: float | None = None
        # Until when those whom a contact told of may answer before this node joins.
        self._settle_deadline = 0.0
        # When members may be asked again about this node's name.
        self._next_inquiry = 0.0
        self._next_gossip = 0.0
        self._next_cleaning = 0.0
        # When somebody was told to call `tick`.
        self._due = NEVER
        self._handlers: dict[type, Callable[[Any, Arrival], MembershipPacket | None]] = {
            ProbePacket: self._on_ping,
            ProbeAckPacket: self._on_ack,
            ProbeRequestPacket: self._on_ping_request,
            ProbeNackPacket: self._on_nack,
            GossipPacket: self._on_news,
            SyncRequestPacket: self._on_sync_request,
            SyncReplyPacket: self._on_sync,
            PropertiesRequestPacket: self._on_pull,
        }

    # What is known.

    @property
    def local_member(self) -> Member:
        """This node."""
        return to_member(self._roster.local)

    def members(self) -> list[Member]:
        """Everybody, this node first."""
        return [self.local_member, *(entry.member for entry in self._roster.active.values())]

    def member(self, name: str) -> Member | None:
        """One member by its name."""
        if name == self._roster.local.name:
            return self.local_member
        entry = self._roster.active.get(name)
        return None if entry is None else entry.member

    def names_at(self, address: Address) -> list[str]:
        """Who claims the address, usually one."""
        if address == self._roster.local.address:
            return [self._roster.local.name]
        return self._roster.names_at(address)

    @property
    def counters(self) -> MembershipCounters:
        """What was done so far."""
        return self._voice.counters

    @property
    def health(self) -> int:
        """How much this node doubts itself; 0 is well."""
        return self._voice.health.score

    def round_trips_s(self) -> dict[str, float]:
        """Time to members and back, where it was measured."""
        trips = {it.record.name: it.round_trip.smoothed_s for it in self._roster.active.values()}
        return {name: trip for name, trip in trips.items() if trip is not None}

    # What is to be done.

    def drain_outgoing(self) -> list[OutgoingPacket]:
        """Packets to be sent."""
        outgoing, self._voice.outgoing = self._voice.outgoing, []
        return outgoing

    def drain_events(self) -> list[MembershipUpdate]:
        """What changed since the last call."""
        changes: list[MembershipUpdate] = [*self._roster.changes, *self._news_of_names]
        self._roster.changes.clear()
        self._news_of_names.clear()
        return changes

    def drain_rejections(self) -> list[str]:
        """Why something was not believed since the last call."""
        refusals, self._voice.refusals = self._voice.refusals, []
        return refusals

    def deadline(self) -> float:
        """When `tick` must be called."""
        return self._due

    # The life of the node.

    def start(self, now: float) -> None:
        """Begin to join: contacts are asked for the view, and whether the name is free."""
        self.phase = MembershipPhase.JOINING
        self._join_deadline = now + self.config.join_timeout_s
        self._next_cleaning = now + self.config.sync_interval_s
        self._prober.start(now)
        self._contacts.start(now)
        self._schedule_next(now)

    def set_contacts(self, addresses: Iterable[Address], now: float) -> None:
        """These are the places where others may be found."""
        if not self.phase.is_running:
            return
        self._detect_stall(now)
        if not self._contacts.set_seeds(addresses, now):
            self._join_deadline = None
        self._schedule_next(now)

    def set_properties(self, changes: Mapping[str, str | None], now: float) -> None:
        """Change what others know of this node; None removes a property."""
        self._own.change_properties(changes)
        self._schedule_next(now)

    def leave(self) -> None:
        """Say goodbye. What is sent now is the last."""
        if self.phase.is_running:
            self._own.send_leave()
            self._leave(MembershipPhase.LEFT)

    def contact(self, address: Address, now: float) -> None:
        """Somebody who is not known here speaks from there: find out who it is."""
        if not self.phase.is_running:
            return
        self._detect_stall(now)
        self._contacts.query_unknown(address, now)
        self._schedule_next(now)

    def receive(
        self,
        data: bytes,
        source: Address,
        now: float,
        *,
        in_stream: bool = False,
        is_answer: bool = False,
        origin: Address | None = None,
    ) -> bytes | None:
        """Take a packet from a node; the answer, if there is one.

        Args:
            source: the address the node advertises.
            in_stream: whether it came over a stream; else by datagram.
            is_answer: whether it answers a packet of this node over the stream.
            origin: where a datagram really came from, and where its answer will go.
        """
        if not self.phase.is_running:
            return None
        self._detect_stall(now)
        self._voice.counters.packets_received += 1
        self._voice.counters.bytes_received += len(data)
        try:
            packet = decode_packet(data, news_max=self.config.members_max)
        except MalformedPayloadError:
            self._voice.count_rejection("malformed packet")
            return None
        if not in_stream and isinstance(
            packet, SyncRequestPacket | SyncReplyPacket | PropertiesRequestPacket
        ):
            # Their answers are long, and honest nodes ask over streams only.
            self._voice.count_rejection("sent by datagram")
            return None
        arrival = Arrival(source, origin or source, now, in_stream, is_answer, len(data))
        self._hearing.hear_all(packet, arrival)
        answer = self._handlers[type(packet)](packet, arrival)
        self._hearing.tick(now)
        self._schedule_next(now)
        return None if answer is None else self._voice.encode(answer)

    def on_duplicate_name_peer(
        self, address: Address, instance: int, now: float, *, is_member: bool
    ) -> None:
        """This node called the address, and a process with its own name answered."""
        if not self.phase.is_running:
            return
        self._detect_stall(now)
        ruling = self._naming.on_same_name(
            address,
            instance,
            now,
            is_member=is_member,
            is_vouched=self._contacts.is_contact(address),
        )
        self._apply_name_resolution(ruling, now)
        self._schedule_next(now)

    def on_duplicate_name_caller(self, address: Address, instance: int, now: float) -> None:
        """A process that says it has this node's name called from the address."""
        if not self.phase.is_running:
            return
        self._detect_stall(now)
        self._hearing.on_duplicate_name_caller(address, instance, now)
        self._schedule_next(now)

    def tick(self, now: float) -> None:
        """Do what is due."""
        if not self.phase.is_running:
            return
        self._detect_stall(now)
        self._naming.tick(now)
        self._vetting.tick(now)
        self._contacts.tick(now)
        self._prober.tick(now)
        self._hearing.tick(now)
        self._roster.expire_suspects(now)
        if self._join_deadline is not None and self._join_deadline <= now:
            self._join_deadline = None
        if self._next_cleaning <= now:
            self._next_cleaning = now + self.config.sync_interval_s
            self._roster.reap_tombstones(now)
        if self._next_gossip <= now:
            self._gossip(now)
        self._schedule_next(now)

    # Time.

    def _detect_stall(self, now: float) -> None:
        """Notice if this node stood still: then others had no chance to be heard."""
        stood_still_s = now - self._due
        if stood_still_s <= _STANDSTILL_S:
            return
        self._voice.counters.standstills += 1
        self._voice.health.worsen()
        self._prober.extend_deadlines(stood_still_s)
        self._naming.postpone(stood_still_s)
        self._vetting.postpone(stood_still_s)
        self._roster.extend_deadlines(stood_still_s)
        self._due = now

    def _schedule_next(self, now: float) -> None:
        """Join if nothing speaks against it, and find out what is due next."""
        if not self.phase.is_running:
            return
        if self.phase is MembershipPhase.JOINING and self._join_deadline is None:
            self._join_unless_contested(now)
        if self._own.gossip_now:
            self._own.gossip_now = False
            self._next_gossip = now
        is_settling = self.phase is MembershipPhase.JOINING and now < self._settle_deadline
        soonest = min(
            self._next_cleaning,
            NEVER if self._join_deadline is None else self._join_deadline,
            self._settle_deadline if is_settling else NEVER,
            self._next_gossip if len(self._voice.rumours) and self._roster.active else NEVER,
            self._prober.deadline(),
            self._contacts.deadline(),
            self._naming.deadline(),
            self._vetting.deadline(),
            self._hearing.deadline(),
            self._roster.deadline(),
        )
        # What is overdue is due now, and not a sign that this node stood still.
        self._due = max(soonest, now)

    def _gossip(self, now: float) -> None:
        """Pass on news to a few members; by stream if there are more than datagrams can carry."""
        rumours = self._voice.rumours
        if not len(rumours):
            return
        self._next_gossip = now + self.config.gossip_interval_s
        in_stream = len(rumours) > _CROWD_OF_NEWS
        for entry in self._voice.sample_members(self.config.gossip_fanout, with_suspects=True):
            if news := self._voice.gossip_records(in_stream=in_stream):
                self._voice.send(
                    entry.record.address, GossipPacket(records=news), in_stream=in_stream
                )

    # Names.

    def _join_unless_contested(self, now: float) -> None:
        is_settled = now >= self._settle_deadline or not self._vetting.is_busy
        if is_settled and not self._naming.has_rivals:
            self.phase = MembershipPhase.MEMBER
            self._voice.is_member = True
            self._own.announce()

    def _apply_name_resolution(self, ruling: NameResolution | None, now: float) -> None:
        """Two live nodes have this name; one of them keeps it."""
        if ruling is None:
            return
        if not ruling.is_known and self._next_inquiry <= now:
            # If it is a node of this cluster, some member knows it by this name.
            self._next_inquiry = now + self.config.probe_interval_s
            self._contacts.ask_around(_INQUIRIES)
        if ruling.must_leave:
            self._own.send_leave()
            self._news_of_names.append(NameConflictLost(ruling.rival))
            self._leave(MembershipPhase.NAME_LOST)
        else:
            self._news_of_names.append(NameConflictDetected(ruling.rival))

    def _leave(self, phase: MembershipPhase) -> None:
        self.phase = phase
        self._voice.is_member = False
        self._due = NEVER

    # Packets.

    def _on_ping(self, ping: ProbePacket, arrival: Arrival) -> MembershipPacket | None:
        own, sender = self._roster.local, self._roster.entries.get(ping.name)
        if ping.name == own.name:
            self._on_ping_of_namesake(ping, arrival.source, arrival.now)
        elif sender is None and not ping.is_joining:
            self._contacts.query_unknown(arrival.source, arrival.now)
        # Whoever is thought dead must hear of it, to be able to object.
        doubted = [sender.record] if sender is not None and sender.is_doubted(ping.instance) else []
        ack = ProbeAckPacket(
            nonce=ping.nonce,
            name=own.name,
            instance=own.instance,
            leave_digest=own.leave_digest,
            incarnation=own.incarnation,
            is_member=self._voice.is_member,
        )
        room_max = None
        if not arrival.in_stream:
            room_max = arrival.answer_bytes_max - len(encode_packet(ack))
            if room_max < 0:
                self._voice.count_rejection("too short a question")
                return None
        news = self._voice.gossip_records(*doubted, in_stream=arrival.in_stream, room_max=room_max)
        return msgspec.structs.replace(ack, records=news)

    def _on_ping_of_namesake(self, ping: ProbePacket, source: Address, now: float) -> None:
        if ping.is_joining and ping.instance != self._roster.local.instance:
            self._voice.counters.names_contested += 1
            self._news_of_names.append(NameConflictDetected(source))
        else:
            self._hearing.on_duplicate_name_caller(source, ping.instance, now)

    def _on_ack(self, ack: ProbeAckPacket, arrival: Arrival) -> None:
        if self._prober.on_ack(ack, arrival.now, in_stream=arrival.is_answer):
            return
        is_vetting, record = self._vetting.on_ack(ack, arrival.now)
        if record is not None:
            self._hearing.meet(record, arrival.now)
        elif not is_vetting:
            self._apply_name_resolution(self._naming.on_ack(ack, arrival.now), arrival.now)

    def _on_ping_request(self, request: ProbeRequestPacket, arrival: Arrival) -> None:
        self._prober.on_request(
            request, arrival.origin, arrival.now, bytes_max=arrival.answer_bytes_max
        )

    def _on_nack(self, nack: ProbeNackPacket, arrival: Arrival) -> None:
        self._prober.on_nack(nack)

    def _on_news(self, news: GossipPacket, arrival: Arrival) -> None:
        """All news have been heard by now."""

    def _on_sync_request(self, request: SyncRequestPacket, arrival: Arrival) -> MembershipPacket:
        return self._contacts.on_request(request)

    def _on_sync(self, sync: SyncReplyPacket, arrival: Arrival) -> None:
        if self._contacts.on_reply(sync) and self._join_deadline is not None:
            self._join_deadline = None
            self._settle_deadline = arrival.now + self.config.indirect_after_s

    def _on_pull(self, pull: PropertiesRequestPacket, arrival: Arrival) -> MembershipPacket | None:
        if not self._voice.is_member or not 0 <= pull.version <= CLAIM_MAX:
            return None
        if pull.instance == self._roster.local.instance:
            self._own.raise_properties_version(pull.version)
        return GossipPacket(records=[self._roster.local])
