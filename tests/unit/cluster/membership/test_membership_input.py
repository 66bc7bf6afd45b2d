"""Replies to each packet; forged and malformed packets remove no live member."""

import msgspec
import pytest

from postroad.cluster.membership import (
    MemberRecord,
    Membership,
    MembershipConfig,
    MembershipPhase,
    MemberState,
)
from postroad.cluster.membership.gossip import (
    GossipPacket,
    MembershipPacket,
    ProbeAckPacket,
    ProbeNackPacket,
    ProbePacket,
    ProbeRequestPacket,
    PropertiesRequestPacket,
    SyncReplyPacket,
    SyncRequestPacket,
    encode_packet,
)
from postroad.cluster.membership.members import CLAIM_MAX, leave_digest
from postroad.core import Address
from tests.support.cluster.membership import (
    INCARNATION,
    START,
    Wire,
    address_of,
    exchange,
    instance_of,
    join_alone,
    make_cluster,
    make_machine,
    make_record,
    member_of,
    names_of,
    pop_sent,
    receive_gossip,
)


def test_probe_is_acknowledged_and_an_unknown_sender_is_queried() -> None:
    machine = join_alone()
    reply = exchange(machine, ProbePacket(nonce=7, name="b", instance=1))
    assert isinstance(reply, ProbeAckPacket)
    assert (reply.nonce, reply.name, reply.instance) == (7, "a", instance_of("a"))
    (sent,) = pop_sent(machine)
    assert sent.address == address_of("b")
    assert isinstance(sent.packet, SyncRequestPacket)


@pytest.mark.parametrize("state", [MemberState.SUSPECT, MemberState.DEAD])
def test_probe_of_a_suspected_sender_is_acknowledged_with_its_record(state: MemberState) -> None:
    machine = join_alone()
    doubt = make_record("b", state, reported_by="c")
    machine._member_table.add(doubt, START)
    reply = exchange(machine, ProbePacket(nonce=7, name="b", instance=instance_of("b")))
    assert isinstance(reply, ProbeAckPacket)
    assert doubt in reply.records


def test_properties_request_returns_the_record_with_a_higher_version() -> None:
    machine = join_alone()
    reply = exchange(machine, PropertiesRequestPacket(version=0, instance=instance_of("a")))
    assert reply == GossipPacket(records=[make_record("a")])
    earlier_process = PropertiesRequestPacket(version=99, instance=instance_of("a", start=-1))
    assert exchange(machine, earlier_process) == reply
    machine.set_properties({"role": "x"}, START)
    reply = exchange(machine, PropertiesRequestPacket(version=99, instance=instance_of("a")))
    assert reply == GossipPacket(records=[make_record("a", version=100, properties={"role": "x"})])
    assert (
        exchange(machine, PropertiesRequestPacket(version=99, instance=instance_of("a"))) == reply
    ), "once is enough"


@pytest.mark.parametrize("version", [-1, CLAIM_MAX + 1, 2**64 - 1])
def test_properties_request_out_of_range_gets_no_reply(version: int) -> None:
    machine = join_alone()
    assert (
        exchange(machine, PropertiesRequestPacket(version=version, instance=instance_of("a")))
        is None
    )
    assert machine.local_member.version == 0


@pytest.mark.parametrize("is_member", [True, False])
def test_ack_says_whether_this_node_is_a_member(is_member: bool) -> None:
    machine = make_machine("a")
    machine.start(START)
    if is_member:
        machine.set_seeds([], START)
    ack = exchange(machine, ProbePacket(nonce=7, name="b", instance=1))
    sync = exchange(machine, SyncRequestPacket(nonce=8, digest=b""))
    assert isinstance(ack, ProbeAckPacket)
    assert isinstance(sync, SyncReplyPacket)
    assert ack.is_member is sync.is_member is is_member
    assert ack.leave_digest == make_record("a").leave_digest


def test_joining_node_replies_but_does_not_gossip_itself() -> None:
    machine = make_machine("a")
    machine.start(START)
    assert exchange(machine, PropertiesRequestPacket(version=0, instance=instance_of("a"))) is None
    reply = exchange(machine, SyncRequestPacket(nonce=3, digest=b""))
    assert isinstance(reply, SyncReplyPacket)
    assert reply.records == []
    assert isinstance(exchange(machine, ProbePacket(nonce=7, name="b", instance=1)), ProbeAckPacket)
    exchange(machine, SyncReplyPacket(nonce=1, agrees=True, name="b", instance=1, is_member=True))
    assert machine.phase is MembershipPhase.JOINING


@pytest.mark.parametrize(
    "packet",
    [
        ProbeAckPacket(
            nonce=1, name="b", instance=1, leave_digest=b"f", incarnation=0, is_member=True
        ),
        ProbeNackPacket(nonce=1),
        GossipPacket(),
        ProbeRequestPacket(nonce=1, target="b"),
        SyncReplyPacket(nonce=1, agrees=False, name="b", instance=1, is_member=True),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_unsolicited_packets_get_no_reply(packet: MembershipPacket) -> None:
    assert exchange(join_alone(), packet) is None


def test_gossip_reaches_suspects_and_uses_tcp_for_many_records() -> None:
    machine = join_alone()
    suspected = make_record("b", MemberState.SUSPECT, reported_by="c")
    receive_gossip(machine, suspected, now=START)
    machine.tick(START)
    (sent,) = [packet for packet in pop_sent(machine) if isinstance(packet.packet, GossipPacket)]
    assert sent.address == address_of("b")
    assert suspected in sent.packet.records

    wire, machines = make_cluster("a", "b")
    for number in range(100):
        receive_gossip(machines["a"], make_record(f"node-{number}"), now=wire.clock())
    machines["a"].tick(wire.clock())
    first, *_ = [
        packet for packet in pop_sent(machines["a"]) if isinstance(packet.packet, GossipPacket)
    ]
    assert first.is_stream
    assert len(first.packet.records) == 100


def test_packets_sent_and_received_are_counted() -> None:
    _wire, machines = make_cluster("a", "b")
    ours, theirs = machines["a"].counters, machines["b"].counters
    assert ours.packets_sent == theirs.packets_received > 0
    assert ours.bytes_sent == theirs.bytes_received > 0
    assert ours.probes > 0
    assert ours.rejected == {}


NAMES = ("a", "b", "c", "d")


EVIL = Address("evil.example", 666)


def assert_all_live(wire: Wire, machines: dict[str, Membership]) -> None:
    for name, machine in machines.items():
        assert wire.removals(name) == []
        assert set(NAMES) <= set(names_of(machine))


def live_through(*lies: MemberRecord, to: str = "a") -> tuple[Wire, dict[str, Membership]]:
    """A cluster in which one node receives forged records one by one, long after: all live."""
    wire, machines = make_cluster(*NAMES)
    for lie in lies:
        receive_gossip(machines[to], lie, now=wire.clock())
    wire.run(60)
    assert_all_live(wire, machines)
    return wire, machines


def rejections(machine: Membership) -> dict[str, int]:
    return machine.counters.rejected


@pytest.mark.parametrize("ahead", [0, 1, 1_000_000])
@pytest.mark.parametrize("state", [MemberState.SUSPECT, MemberState.DEAD])
def test_forged_death_is_refuted(state: MemberState, ahead: int) -> None:
    lie = make_record("b", state, incarnation=INCARNATION + ahead, reported_by="c")
    wire, machines = live_through(lie)
    assert machines["b"].counters.refutations >= 1
    assert machines["b"].local_member.incarnation > lie.incarnation
    assert wire.agree()


def test_forged_deaths_sent_to_all_or_repeatedly_are_refuted() -> None:
    wire, machines = make_cluster(*NAMES)
    for name in "acd":
        lie = make_record("b", MemberState.DEAD, reported_by=name)
        receive_gossip(machines[name], lie, now=wire.clock())
    wire.run(60)
    assert_all_live(wire, machines)

    wire, machines = make_cluster(*NAMES)
    for _ in range(30):
        member = machines["a"].member("b")
        assert member is not None
        lie = make_record(
            "b", MemberState.DEAD, incarnation=member.incarnation + 3, reported_by="c"
        )
        receive_gossip(machines["a"], lie, now=wire.clock())
        wire.run(1)
    assert_all_live(wire, machines)


def test_forged_leave_is_rejected(subtests: pytest.Subtests) -> None:
    for secret in [b"", b"guess", b"x" * 64]:
        with subtests.test(secret=secret):
            lie = make_record("b", MemberState.LEFT, incarnation=INCARNATION + 5, secret=secret)
            wire, machines = live_through(lie)
            assert rejections(machines["a"]) == {"forged leave": 1}

    # Of an unknown node it means nothing.
    wire, machines = make_cluster("a", "b")
    forged = msgspec.structs.replace(
        make_record("c", MemberState.LEFT, incarnation=INCARNATION + 9, secret=b"forged"),
        leave_digest=leave_digest(b"forged"),
    )
    for machine in machines.values():
        receive_gossip(machine, forged, now=wire.clock())
    late = wire.add(make_machine("c"), ["a"])
    assert wire.run_until(lambda: wire.agree() and names_of(late) == ["a", "b", "c"], limit_s=30)
    assert late.local_member.incarnation < forged.incarnation


@pytest.mark.parametrize("state", MemberState)
@pytest.mark.parametrize("place", [EVIL, address_of("b"), address_of("c")])
def test_forged_successor_is_not_admitted(state: MemberState, place: Address) -> None:
    lie = make_record("b", state, start=1, incarnation=INCARNATION + 5, address=place)
    wire, machines = live_through(lie)
    # The claim of a process that is gone needs no probe.
    assert machines["a"].counters.name_conflicts == state.is_active
    assert member_of(machines["a"], "b").instance == instance_of("b")
    assert wire.agree()


def test_forged_successor_of_an_unreachable_holder_is_not_admitted() -> None:
    wire, machines = make_cluster(*NAMES)
    wire.loses = lambda leg: {leg.sender, leg.receiver} == {"a", "b"}
    lie = make_record("b", start=1, incarnation=INCARNATION + 5, address=EVIL)
    receive_gossip(machines["a"], lie, now=wire.clock())
    wire.run(60)
    assert_all_live(wire, machines)


@pytest.mark.parametrize("ahead", [0, 5])
def test_forged_properties_are_refuted(ahead: int) -> None:
    lie = make_record(
        "b", incarnation=INCARNATION + ahead, version=99, properties={"role": "forged"}
    )
    wire, machines = live_through(lie)
    assert wire.agree()
    assert dict(member_of(machines["a"], "b").properties) == {}


def test_forged_version_or_address_of_a_member_is_refuted() -> None:
    lie = make_record("b", version=99).without_properties()
    wire, machines = live_through(lie)
    assert not any(machine._member_table.missing_properties for machine in machines.values())
    assert machines["b"].local_member.version == 100
    assert wire.agree()

    wire, machines = live_through(make_record("b", incarnation=INCARNATION + 1, address=EVIL))
    assert member_of(machines["a"], "b").address == address_of("b")


@pytest.mark.parametrize("name", ["b", "a", "unknown"])
@pytest.mark.parametrize("state", [MemberState.ALIVE, MemberState.DEAD])
def test_record_with_incarnation_out_of_range_is_rejected(name: str, state: MemberState) -> None:
    lie = make_record(name, state, incarnation=CLAIM_MAX + 1)
    _wire, machines = live_through(lie)
    assert rejections(machines["a"]) == {"incarnation out of range": 1}
    assert all(len(machine.members()) == 4 for machine in machines.values())


@pytest.mark.parametrize("state", [MemberState.ALIVE, MemberState.SUSPECT, MemberState.DEAD])
def test_stale_records_change_nothing(state: MemberState) -> None:
    wire, machines = make_cluster(*NAMES)
    before = wire.view(machines["a"])
    for name in NAMES:
        old = make_record(name, state, incarnation=INCARNATION - 1, reported_by="c")
        receive_gossip(machines["a"], old, now=wire.clock())
    wire.run(30)
    assert_all_live(wire, machines)
    assert wire.view(machines["a"]) == before
    assert rejections(machines["a"]) == {}


def test_forged_claims_to_this_name_do_not_evict_the_node() -> None:
    lies = [
        make_record("a", start=start, incarnation=INCARNATION + 7, address=place)
        for start in (-1, 1)
        for place in (EVIL, address_of("b"), address_of("absent"))
    ]
    wire, machines = live_through(*lies)
    assert machines["a"].local_member.incarnation > INCARNATION + 7

    wire, machines = make_cluster(*NAMES)
    for number in range(100):
        ack = ProbeAckPacket(
            nonce=number, name="a", instance=1, leave_digest=b"", incarnation=0, is_member=True
        )
        exchange(machines["a"], ack, now=wire.clock())
    assert_all_live(wire, machines)

    wire, machines = live_through(make_record("a", MemberState.LEFT))
    assert rejections(machines["a"]) == {"forged leave": 1}


def test_unknown_node_at_a_members_address_is_not_admitted() -> None:
    _wire, machines = live_through(make_record("liar", address=address_of("b")))
    assert rejections(machines["a"])["claims another member's address"] >= 1
    assert names_of(machines["a"]) == list(NAMES)

    _wire, machines = live_through(make_record("liar", address=address_of("a")))
    assert rejections(machines["a"])["claims this node's address"] >= 1
    assert names_of(machines["a"]) == list(NAMES)

    _wire, machines = live_through(make_record("ghost", address=EVIL))
    assert all(names_of(machine) == list(NAMES) for machine in machines.values())


def oversized_records() -> dict[str, MemberRecord]:
    record = make_record("big", address=Address("10.0.0.9", 9))
    changes: dict[str, dict[str, object]] = {
        "host": {"host": "h" * 1_000},
        "wide host": {"host": "\N{SNOWMAN}" * 255},
        "name": {"name": "n" * 300},
        "reported_by": {"reported_by": "w" * 5_000},
        "leave_secret": {"leave_secret": b"s" * 5_000},
        "properties": {"properties": {"key": "x" * 20_000}},
        "leave_digest": {"leave_digest": b"f" * 1_000},
        "version": {"version": -1},
    }
    return {name: msgspec.structs.replace(record, **fields) for name, fields in changes.items()}


def assert_passes_on(wire: Wire, machines: dict[str, Membership], *names: str) -> None:
    """All receive these records, and no queue keeps any of them."""
    all_machines = list(machines.values())
    assert wire.run_until(
        lambda: all(set(names) <= set(names_of(machine)) for machine in all_machines)
    )
    # Long enough to detect and gossip that they do not exist.
    wire.run(30)
    assert [len(machine._context.gossip_queue) for machine in all_machines] == [0] * len(
        all_machines
    )


@pytest.mark.parametrize("which", oversized_records())
def test_oversized_record_is_rejected_and_blocks_nothing(which: str) -> None:
    wire, machines = make_cluster(*NAMES)
    receive_gossip(machines["a"], oversized_records()[which], now=wire.clock())
    wire.add(make_machine("e"), ["a"])
    assert rejections(machines["a"]) == {"malformed record": 1}
    assert_passes_on(wire, machines, "e")
    assert_all_live(wire, machines)


def test_longest_valid_record_blocks_nothing() -> None:
    wire, machines = make_cluster(*NAMES)
    longest = make_machine(
        "n" * 255, address=Address("h" * 255, 65_535), properties={"key": "x" * 10_000}
    )
    wire.add(longest, ["a"])
    wire.add(make_machine("e"), ["a"])
    accusation = make_record(
        "n" * 255, MemberState.SUSPECT, address=longest.local_member.address, reported_by="w" * 255
    )
    receive_gossip(machines["a"], accusation, now=wire.clock())
    assert_passes_on(wire, machines, "e", "n" * 255)


def test_flood_of_unknown_nodes_is_rejected_and_evicts_no_member() -> None:
    config = MembershipConfig(members_max=10)
    wire, machines = make_cluster(*NAMES, config=config)
    for state in (MemberState.ALIVE, MemberState.DEAD):
        for number in range(100):
            unknown_node = make_record(f"{state.name}-{number}", state, address=EVIL)
            receive_gossip(machines["a"], unknown_node, now=wire.clock())
    assert rejections(machines["a"])["too many members"] >= 90
    assert len(machines["a"]._member_table.entries) <= 10
    assert len(machines["a"]._context.gossip_queue) <= 11
    wire.run(60)
    assert_all_live(wire, machines)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x00" * 100, b"\x92\x05" + b"\x91" * 5_000, bytes(range(256))],
    ids=lambda data: data[:4].hex() or "empty",
)
def test_garbage_is_counted_as_malformed(data: bytes) -> None:
    wire, machines = make_cluster(*NAMES)
    for in_stream in (False, True):
        reply = machines["a"].receive(data, EVIL, wire.clock(), in_stream=in_stream)
        assert reply is None
    assert rejections(machines["a"]) == {"malformed packet": 2}
    assert_all_live(wire, machines)


def test_packet_with_duplicate_or_too_many_records_is_rejected() -> None:
    machine = join_alone()
    twice = [make_record("b"), make_record("c"), make_record("b", incarnation=INCARNATION + 1)]
    machine.receive(encode_packet(GossipPacket(records=twice)), EVIL, START)
    assert rejections(machine) == {"malformed packet": 1}
    assert names_of(machine) == ["a"]

    machine = join_alone(config=MembershipConfig(members_max=5))
    records = [make_record(f"node-{number}") for number in range(7)]
    receive_gossip(machine, *records, now=machine.deadline())
    assert rejections(machine) == {"malformed packet": 1}
    assert names_of(machine) == ["a"]


@pytest.mark.parametrize(
    "packet",
    [
        ProbePacket(nonce=1, name="unknown", instance=1),
        SyncRequestPacket(nonce=1, digest=b""),
        SyncReplyPacket(nonce=1, agrees=False, name="unknown", instance=1, is_member=True),
        GossipPacket(),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_small_packet_causes_few_datagrams(packet: MembershipPacket) -> None:
    wire, machines = make_cluster(*NAMES)
    for _ in range(50):
        machines["a"].receive(encode_packet(packet), EVIL, wire.clock())
    assert len(machines["a"].drain_outgoing()) <= 1


def test_largest_numbers_are_handled() -> None:
    machine = join_alone()
    for number in (2**64 - 1, -(2**63), 0):
        reply = exchange(machine, ProbePacket(nonce=number, name="", instance=number))
        assert isinstance(reply, ProbeAckPacket)
        assert reply.nonce == number
