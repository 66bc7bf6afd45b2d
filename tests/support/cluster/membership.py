"""Membership machines for tests: records, single machines, and clusters without sockets.

There are no tasks and no waiting: a `Wire` carries packets at once and in a fixed order, and time
passes when a test says so. A node's address, secret and process number follow from its name, so a
test can forge what another node would say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple

import msgspec

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
)
from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import (
    GossipPacket,
    GossipQueue,
    MembershipPacket,
    ProbeAckPacket,
    ProbePacket,
    PropertiesRequestPacket,
    SyncReplyPacket,
    SyncRequestPacket,
    decode_packet,
    encode_packet,
    padding_for,
)
from postroad.cluster.membership.member_table import MemberTable
from postroad.cluster.membership.members import leave_digest
from postroad.core import Address
from postroad.testing import ManualClock

START = 1_000.0
"""When a wire's clock begins: late enough for a time of zero to be long ago."""
# Beyond what any clock shows, so that leaps are counted from here.
INCARNATION = (1 << 42) + 1_000
NEWS_MAX = 5_000

# Two machines that answer each other for ever would hang a test.
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
    """What somebody says of the node of that name; goodbyes are genuine unless a secret is given.

    Properties that are not given are empty, as they are for a node that has none.
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
    """The machine of the node of that name, not started."""
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
    return MemberTable(config or MembershipConfig(), make_record(name), GossipQueue())


def make_context(
    name: str = "self", config: MembershipConfig | None = None, seed: int = 0
) -> MembershipContext:
    """What the parts of a machine speak with; its node is a member."""
    config = config or MembershipConfig()
    gossip_queue = GossipQueue()
    context = MembershipContext(
        config, MemberTable(config, make_record(name), gossip_queue), gossip_queue, Random(seed)
    )
    context.is_member = True
    return context


class SentPacket(NamedTuple):
    address: Address
    packet: MembershipPacket
    is_stream: bool
    peer: str | None = None


def decode_outgoing(send: OutgoingPacket) -> SentPacket:
    packet = decode_packet(send.payload, records_max=NEWS_MAX)
    return SentPacket(send.address, packet, send.is_stream, send.peer)


def pop_sent(source: Membership | MembershipContext) -> list[SentPacket]:
    """What a machine, or a part of it, has said since the last call."""
    if isinstance(source, Membership):
        outgoing = source.drain_outgoing()
    else:
        outgoing, source.outgoing = source.outgoing, []
    return [decode_outgoing(send) for send in outgoing]


def tell(
    machine: Membership, *records: MemberRecord, now: float, source: Address | None = None
) -> bytes | None:
    """Let a machine hear news, from somebody whom it does not ask back."""
    assert len({it.name for it in records}) == len(records), "or the packet would be malformed"
    payload = encode_packet(GossipPacket(records=list(records)))
    answer = machine.receive(payload, source or Address("somewhere", 1), now)
    answer_for(machine, *records, now=now)
    if any(record.state is MemberState.SUSPECT for record in records):
        # Who has just answered is suspected only by who says so once more.
        machine.receive(payload, source or Address("somewhere", 1), now)
    return answer


def answer_for(machine: Membership, *records: MemberRecord, now: float) -> None:
    """Have those that the machine was just told of answer, as they would if they existed."""
    known = {record.name: record for record in records}
    for number, question in list(machine._verifier._probes.items()):
        record = known.get(question.record.name)
        if record is None or record.identity != question.record.identity:
            continue
        asked = [it for it in machine._context.outgoing if number == _number_of(it)]
        for send in asked:
            machine._context.outgoing.remove(send)
        machine.receive(encode_packet(ack_of(record, number)), record.address, now)


def ack_of(record: MemberRecord, number: int) -> ProbeAckPacket:
    """What the node of the record answers."""
    return ProbeAckPacket(
        nonce=number,
        name=record.name,
        instance=record.instance,
        leave_digest=record.leave_digest,
        incarnation=record.incarnation,
        is_member=True,
    )


def _number_of(send: OutgoingPacket) -> int | None:
    return getattr(decode_outgoing(send).packet, "nonce", None)


def ask(
    machine: Membership, packet: MembershipPacket, *, now: float = START, name: str = "b"
) -> MembershipPacket | None:
    """Hand a machine a packet from the node of that name, as such a node sends it; its answer."""
    in_stream = isinstance(packet, SyncRequestPacket | SyncReplyPacket | PropertiesRequestPacket)
    if isinstance(packet, ProbePacket) and not packet.padding:
        packet = msgspec.structs.replace(packet, padding=padding_for(machine.local_member.name))
    answer = machine.receive(encode_packet(packet), address_of(name), now, in_stream=in_stream)
    return None if answer is None else decode_packet(answer, records_max=NEWS_MAX)


def join_alone(name: str = "a", *, config: MembershipConfig | None = None) -> Membership:
    """A machine that is a member of a cluster of its own."""
    machine = make_machine(name, config=config)
    machine.start(START)
    machine.set_seeds([], START)
    return machine


class Leg(NamedTuple):
    """One packet on its way, from name to name."""

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
    `loses` says that one gets lost. Whatever a machine reports is kept in `changes`.
    """

    def __init__(self) -> None:
        self.clock = ManualClock(START)
        self.nodes: dict[Address, Membership] = {}
        self.changes: dict[str, list[MembershipUpdate]] = {}
        self.loses: Callable[[Leg], bool] = lambda leg: False
        self._on_their_way: deque[_Parcel] = deque()

    # Nodes come and go.

    def add(self, machine: Membership, contacts: Iterable[str | Membership] = ()) -> Membership:
        """Start a machine that knows these others by name or by themselves, and let it join."""
        self.nodes[machine.local_member.address] = machine
        self.changes.setdefault(machine.local_member.name, [])
        machine.start(self.clock())
        places = [
            it.local_member.address if isinstance(it, Membership) else address_of(it)
            for it in contacts
        ]
        machine.set_seeds(places, self.clock())
        self.tick()
        return machine

    def stop(self, machine: Membership) -> None:
        """Take a machine away without a word, as when its process is killed."""
        self.nodes.pop(machine.local_member.address, None)
        machine.drain_outgoing()

    def cut(self, *names: str) -> None:
        """Let nobody among these names hear anybody else, and nobody else hear them."""
        self.loses = lambda leg: (leg.sender in names) is not (leg.receiver in names)

    def isolate(self, *names: str) -> None:
        """Let these hear nobody at all, and nobody hear them."""
        self.loses = lambda leg: leg.sender in names or leg.receiver in names

    def heal(self) -> None:
        self.loses = lambda leg: False

    # Time passes.

    def pump(self) -> None:
        """Carry packets until nobody has anything to say at this moment."""
        self._collect()
        for _ in range(_STEPS_MAX):
            if not self._on_their_way:
                return
            self._deliver(self._on_their_way.popleft())
            self._collect()
        raise AssertionError("the machines do not come to rest")

    def run(self, seconds: float) -> None:
        """Let time pass; every machine gets its ticks when it wants them."""
        self.run_until(lambda: False, limit_s=seconds)

    def run_until(self, is_so: Callable[[], bool], *, limit_s: float = 120.0) -> bool:
        """Let time pass until something is so, but not for ever; whether it is."""
        end = self.clock() + limit_s
        self.pump()
        for _ in range(_STEPS_MAX):
            if is_so():
                return True
            due = min((it.deadline() for it in self.nodes.values()), default=end)
            self.clock.now = max(self.clock(), min(due, end))
            if due > end:
                return is_so()
            self.tick()
        raise AssertionError("the machines do not let time pass")

    def tick(self) -> None:
        for machine in list(self.nodes.values()):
            if machine.deadline() <= self.clock():
                machine.tick(self.clock())
        self.pump()

    # Packets.

    def _collect(self) -> None:
        for machine in list(self.nodes.values()):
            self._on_their_way.extend(_Parcel(machine, it) for it in machine.drain_outgoing())
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
            # The messaging service connects no two nodes of one name.
            is_member = receiver.phase is MembershipPhase.MEMBER
            sender.on_duplicate_name_peer(
                send.address, receiver.local_member.instance, self.clock(), is_member=is_member
            )
            receiver.on_duplicate_name_caller(
                sender.local_member.address, sender.local_member.instance, self.clock()
            )
            return
        if send.is_stream and send.peer not in (None, receiver.local_member.name):
            # The messaging service delivers nothing to another than who was meant.
            return
        answer = receiver.receive(
            send.payload, sender.local_member.address, self.clock(), in_stream=send.is_stream
        )
        if answer is None or self._is_lost(receiver, sender, answer, send.is_stream):
            return
        if sender.local_member.address in self.nodes:
            sender.receive(
                answer,
                send.address,
                self.clock(),
                in_stream=send.is_stream,
                is_reply=send.is_stream,
            )

    def _is_lost(
        self, sender: Membership, receiver: Membership, payload: bytes, is_stream: bool
    ) -> bool:
        return self.loses(
            Leg(sender.local_member.name, receiver.local_member.name, payload, is_stream)
        )

    # Looking.

    def removals(self, name: str) -> list[str]:
        """Nodes that saw the member of that name removed, one entry each time."""
        return [
            observer
            for observer, changes in self.changes.items()
            for change in changes
            if isinstance(change, MembershipEvent)
            and change.kind is MembershipEventType.REMOVED
            and change.member.name == name
        ]

    def agree(self) -> bool:
        """Whether all nodes think the same of the same members."""
        views = {self.view(machine) for machine in self.nodes.values()}
        return len(views) == 1

    def view(self, machine: Membership) -> frozenset[tuple[object, ...]]:
        """Everything a node knows of members, comparable."""
        return frozenset(
            (
                *(it.name, it.address, it.state, it.incarnation, it.instance, it.version),
                *sorted(it.properties.items()),
            )
            for it in machine.members()
        )


def make_cluster(
    *names: str, config: MembershipConfig | None = None, seed: int = 0
) -> tuple[Wire, dict[str, Membership]]:
    """A wire with nodes that know each other and have nothing left to tell."""
    wire = Wire()
    machines: dict[str, Membership] = {}
    for name in names:
        machine = make_machine(name, config=config, seed=seed)
        machines[name] = wire.add(machine, machines.values())
    wire.run(30.0)
    return wire, machines


def names_of(machine: Membership) -> list[str]:
    return sorted(member.name for member in machine.members())


def state_of(machine: Membership, name: str) -> MemberState | None:
    member = machine.member(name)
    return None if member is None else member.state


def pop_gossip(table: MemberTable) -> list[MemberRecord]:
    """What the roster wants to be passed on, once."""
    return table._gossip_queue.pop_batch(1_000_000, transmits_max=1, full_bytes_max=1_000_000)


def make_full_table(
    *records: MemberRecord, config: MembershipConfig | None = None, now: float = 100.0
) -> MemberTable:
    """A roster that knows of these and has told all of them."""
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
