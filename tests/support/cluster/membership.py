"""Membership state machines for tests: records, single machines, clusters without sockets.

There are no tasks and no waiting: a `Wire` delivers packets at once and in a fixed order, and the
test advances the clock. A node's address, secret and process number follow from its name, so that a
test can forge records of any node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple

import msgspec

from postroad.cluster import Member
from postroad.cluster.membership import (
    MemberRecord,
    Membership,
    MembershipConfig,
    MembershipEvent,
    MembershipEventType,
    MembershipPhase,
    MembershipUpdate,
    MemberState,
    OutgoingPacket,
    gossip,
)
from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.member_table import MemberTable
from postroad.cluster.membership.members import leave_digest
from postroad.core import Address
from postroad.testing import ManualClock

START = 1_000.0
"""Start of the clock of a wire, long after time zero."""
# Above what any clock shows, so that jumps are measured from here.
INCARNATION = (1 << 42) + 1_000
RECORDS_MAX = 5_000

# Two machines that reply to each other for ever would hang a test.
_STEPS_MAX = 200_000


def address_of(name: str) -> Address:
    return Address(f"{name}.example", 26_502)


def secret_of(name: str) -> bytes:
    return f"secret of {name}".encode()


def instance_of(name: str, *, start: int = 0) -> int:
    """The process number of the node of that name, after so many restarts; -1 is one before."""
    return sum(name.encode()) + (start + 1) * 1_000_000


def make_record(
    name: str,
    state: MemberState = MemberState.ALIVE,
    *,
    incarnation: int = INCARNATION,
    start: int = 0,
    address: Address | None = None,
    version: int = 0,
    properties: dict[str, str] | None = None,
    reported_by: str = "",
    secret: bytes | None = None,
) -> MemberRecord:
    """Return a record of the node of that name; a leave is authentic unless a secret is passed.

    The default of the properties is empty, as for a node that has none.
    """
    address = address or address_of(name)
    if secret is None:
        secret = secret_of(name) if state is MemberState.LEFT else b""
    return MemberRecord(
        name=name,
        instance=instance_of(name, start=start),
        host=address.host,
        port=address.port,
        incarnation=incarnation,
        state=state,
        version=version,
        leave_digest=leave_digest(secret_of(name)),
        properties={} if properties is None else properties,
        reported_by=reported_by,
        leave_secret=secret,
    )


def make_machine(
    name: str,
    *,
    start: int = 0,
    incarnation: int = INCARNATION,
    address: Address | None = None,
    seed: int = 0,
    properties: dict[str, str] | None = None,
    config: MembershipConfig | None = None,
) -> Membership:
    """Return the state machine of the node of that name, not started."""
    return Membership(
        name,
        address or address_of(name),
        instance=instance_of(name, start=start),
        incarnation=incarnation,
        secret=secret_of(name),
        rng=Random(f"{seed} {name}"),
        properties=properties,
        config=config,
    )


def make_member_table(name: str = "self", config: MembershipConfig | None = None) -> MemberTable:
    return MemberTable(config or MembershipConfig(), make_record(name), gossip.GossipQueue())


def make_context(
    name: str = "self", config: MembershipConfig | None = None, seed: int = 0
) -> MembershipContext:
    """Return the context of a state machine whose node is a member."""
    config = config or MembershipConfig()
    gossip_queue = gossip.GossipQueue()
    context = MembershipContext(
        config, MemberTable(config, make_record(name), gossip_queue), gossip_queue, Random(seed)
    )
    context.is_member = True
    return context


class SentPacket(NamedTuple):
    address: Address
    packet: gossip.MembershipPacket
    is_stream: bool
    peer: str | None = None


def decode_outgoing(send: OutgoingPacket) -> SentPacket:
    packet = gossip.decode_packet(send.payload, records_max=RECORDS_MAX)
    return SentPacket(send.address, packet, send.is_stream, send.peer)


def pop_sent(source: Membership | MembershipContext) -> list[SentPacket]:
    """Return the packets that a machine or a context has sent since the last call."""
    if isinstance(source, Membership):
        outgoing = source.drain_outgoing()
    else:
        outgoing, source.outgoing = source.outgoing, []
    return [decode_outgoing(send) for send in outgoing]


def receive_gossip(
    machine: Membership, *records: MemberRecord, now: float, source: Address | None = None
) -> bytes | None:
    """Have a machine receive gossip from an address that it does not query."""
    assert len({record.name for record in records}) == len(records), (
        "or the packet would be malformed"
    )
    payload = gossip.encode_packet(gossip.GossipPacket(records=list(records)))
    reply = machine.receive(payload, source or Address("somewhere", 1), now)
    acknowledge_probes(machine, *records, now=now)
    if any(record.state is MemberState.SUSPECT for record in records):
        # The node has just acknowledged; only a repeated record makes it suspected.
        machine.receive(payload, source or Address("somewhere", 1), now)
    return reply


def acknowledge_probes(machine: Membership, *records: MemberRecord, now: float) -> None:
    """Have the reported candidates acknowledge their probes, as if they existed."""
    records_by_name = {record.name: record for record in records}
    for number, probe in list(machine._verifier._probes.items()):
        record = records_by_name.get(probe.record.name)
        if record is None or record.identity != probe.record.identity:
            continue
        probes = [packet for packet in machine._context.outgoing if number == _number_of(packet)]
        for send in probes:
            machine._context.outgoing.remove(send)
        machine.receive(gossip.encode_packet(ack_of(record, number)), record.address, now)


def ack_of(record: MemberRecord, number: int) -> gossip.ProbeAckPacket:
    """Return the ack of the node of the record."""
    return gossip.ProbeAckPacket(
        nonce=number,
        name=record.name,
        instance=record.instance,
        leave_digest=record.leave_digest,
        incarnation=record.incarnation,
        is_member=True,
    )


def _number_of(send: OutgoingPacket) -> int | None:
    return getattr(decode_outgoing(send).packet, "nonce", None)


def exchange(
    machine: Membership, packet: gossip.MembershipPacket, *, now: float = START, name: str = "b"
) -> gossip.MembershipPacket | None:
    """Have a machine receive a packet from the node of that name, and return its reply."""
    in_stream = isinstance(
        packet, gossip.SyncRequestPacket | gossip.SyncReplyPacket | gossip.PropertiesRequestPacket
    )
    if isinstance(packet, gossip.ProbePacket) and not packet.padding:
        packet = msgspec.structs.replace(
            packet, padding=gossip.padding_for(machine.local_member.name)
        )
    reply = machine.receive(
        gossip.encode_packet(packet), address_of(name), now, in_stream=in_stream
    )
    return None if reply is None else gossip.decode_packet(reply, records_max=RECORDS_MAX)


def join_alone(name: str = "a", *, config: MembershipConfig | None = None) -> Membership:
    """Return a machine that is the only member of its cluster."""
    machine = make_machine(name, config=config)
    machine.start(START)
    machine.set_seeds([], START)
    return machine


class Leg(NamedTuple):
    """A packet in flight, from name to name."""

    sender: str
    receiver: str
    payload: bytes
    is_stream: bool


class _Parcel(NamedTuple):
    sender: Membership
    send: OutgoingPacket


class Wire:
    """Machines connected to each other, and a clock.

    Packets arrive in the order in which they were sent, at the moment they were sent, unless
    `loses` drops one. The events of each machine are collected in `changes`.
    """

    def __init__(self) -> None:
        self.clock = ManualClock(START)
        self.nodes: dict[Address, Membership] = {}
        self.changes: dict[str, list[MembershipUpdate]] = {}
        self.loses: Callable[[Leg], bool] = lambda leg: False
        self._in_flight: deque[_Parcel] = deque()

    # Nodes come and go.

    def add(self, machine: Membership, seeds: Iterable[str | Membership] = ()) -> Membership:
        """Start a machine with these seeds, names or machines, and let it join."""
        self.nodes[machine.local_member.address] = machine
        self.changes.setdefault(machine.local_member.name, [])
        machine.start(self.clock())
        places = [
            seed.local_member.address if isinstance(seed, Membership) else address_of(seed)
            for seed in seeds
        ]
        machine.set_seeds(places, self.clock())
        self.tick()
        return machine

    def stop(self, machine: Membership) -> None:
        """Remove a machine without a leave, as when its process is killed."""
        self.nodes.pop(machine.local_member.address, None)
        machine.drain_outgoing()

    def cut(self, *names: str) -> None:
        """Drop all packets between these names and all others."""
        self.loses = lambda leg: (leg.sender in names) is not (leg.receiver in names)

    def isolate(self, *names: str) -> None:
        """Drop all packets from and to these names."""
        self.loses = lambda leg: leg.sender in names or leg.receiver in names

    def heal(self) -> None:
        self.loses = lambda leg: False

    # Time passes.

    def pump(self) -> None:
        """Deliver packets until no machine has more to send at this moment."""
        self._collect()
        for _ in range(_STEPS_MAX):
            if not self._in_flight:
                return
            self._deliver(self._in_flight.popleft())
            self._collect()
        raise AssertionError("the machines do not stop sending packets")

    def run(self, seconds: float) -> None:
        """Advance the clock; every machine is ticked at its deadlines."""
        self.run_until(lambda: False, limit_s=seconds)

    def run_until(self, is_so: Callable[[], bool], *, limit_s: float = 120.0) -> bool:
        """Advance the clock until the condition holds or the limit is reached; return which."""
        end = self.clock() + limit_s
        self.pump()
        for _ in range(_STEPS_MAX):
            if is_so():
                return True
            due = min((node.deadline() for node in self.nodes.values()), default=end)
            self.clock.now = max(self.clock(), min(due, end))
            if due > end:
                return is_so()
            self.tick()
        raise AssertionError("the deadlines of the machines do not advance")

    def tick(self) -> None:
        for machine in list(self.nodes.values()):
            if machine.deadline() <= self.clock():
                machine.tick(self.clock())
        self.pump()

    # Packets.

    def _collect(self) -> None:
        for machine in list(self.nodes.values()):
            self._in_flight.extend(_Parcel(machine, packet) for packet in machine.drain_outgoing())
            self.changes[machine.local_member.name] += machine.drain_events()

    def _deliver(self, parcel: _Parcel) -> None:
        sender, send = parcel
        receiver = self.nodes.get(send.address)
        if receiver is None or self._is_lost(sender, receiver, send.payload, send.is_stream):
            return
        if (
            send.is_stream
            and sender is not receiver
            and sender.local_member.name == receiver.local_member.name
        ):
            # The messaging service does not connect two nodes of one name.
            is_member = receiver.phase is MembershipPhase.MEMBER
            sender.on_duplicate_name_peer(
                send.address, receiver.local_member.instance, self.clock(), is_member=is_member
            )
            receiver.on_duplicate_name_caller(
                sender.local_member.address, sender.local_member.instance, self.clock()
            )
            return
        if send.is_stream and send.peer not in (None, receiver.local_member.name):
            # The messaging service delivers a message only to the node it is addressed to.
            return
        reply = receiver.receive(
            send.payload, sender.local_member.address, self.clock(), in_stream=send.is_stream
        )
        if reply is None or self._is_lost(receiver, sender, reply, send.is_stream):
            return
        if sender.local_member.address in self.nodes:
            sender.receive(
                reply, send.address, self.clock(), in_stream=send.is_stream, is_reply=send.is_stream
            )

    def _is_lost(
        self, sender: Membership, receiver: Membership, payload: bytes, is_stream: bool
    ) -> bool:
        return self.loses(
            Leg(sender.local_member.name, receiver.local_member.name, payload, is_stream)
        )

    # Looking.

    def removals(self, name: str) -> list[str]:
        """Return the nodes that saw the member of that name removed, once per event."""
        return [
            observer
            for observer, changes in self.changes.items()
            for change in changes
            if isinstance(change, MembershipEvent)
            and change.kind is MembershipEventType.REMOVED
            and change.member.name == name
        ]

    def agree(self) -> bool:
        """Return whether all nodes have the same view of the same members."""
        views = {self.view(machine) for machine in self.nodes.values()}
        return len(views) == 1

    def view(self, machine: Membership) -> frozenset[tuple[object, ...]]:
        """Return everything a node knows of members, in a comparable form."""
        return frozenset(
            (
                *(
                    member.name,
                    member.address,
                    member.state,
                    member.incarnation,
                    member.instance,
                    member.version,
                ),
                *sorted(member.properties.items()),
            )
            for member in machine.members()
        )


def make_cluster(
    *names: str, config: MembershipConfig | None = None, seed: int = 0
) -> tuple[Wire, dict[str, Membership]]:
    """Return a wire with nodes that know each other and have no gossip queued."""
    wire = Wire()
    machines: dict[str, Membership] = {}
    for name in names:
        machine = make_machine(name, config=config, seed=seed)
        machines[name] = wire.add(machine, machines.values())
    wire.run(30.0)
    return wire, machines


def member_of(machine: Membership, name: str) -> Member:
    """A member as another one sees it, which must know it."""
    member = machine.member(name)
    assert member is not None
    return member


def names_of(machine: Membership) -> list[str]:
    return sorted(member.name for member in machine.members())


def state_of(machine: Membership, name: str) -> MemberState | None:
    member = machine.member(name)
    return None if member is None else member.state


def pop_gossip(table: MemberTable) -> list[MemberRecord]:
    """Return and clear the records that the table has queued for gossip."""
    return table._gossip_queue.pop_batch(1_000_000, transmits_max=1, full_bytes_max=1_000_000)


def make_full_table(
    *records: MemberRecord, config: MembershipConfig | None = None, now: float = 100.0
) -> MemberTable:
    """Return a table with these records and an empty gossip queue."""
    table = make_member_table(config=config)
    for record in records:
        table.add(record, now)
    table.events.clear()
    pop_gossip(table)
    return table


def pop_events(table: MemberTable) -> list[tuple[MembershipEventType, str]]:
    changes = [(change.kind, change.member.name) for change in table.events]
    table.events.clear()
    return changes
