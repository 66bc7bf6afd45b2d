"""What holds for all news, in any order, and for all bytes a membership machine may receive."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.cluster.membership import (
    MemberRecord,
    Membership,
    MembershipConfig,
    MembershipEvent,
    MembershipEventType,
    MemberState,
    gossip,
)
from postroad.core import Address
from postroad.core.errors import MalformedPayloadError
from tests.support.cluster.membership import (
    INCARNATION,
    RECORDS_MAX,
    START,
    Wire,
    address_of,
    instance_of,
    join_alone,
    make_machine,
    make_member_table,
    make_record,
    names_of,
    receive_gossip,
)
from tests.support.tiers import by_tier

# The thorough profile lets thousands of clusters grow old.
pytestmark = pytest.mark.timeout(600)

# Nobody is forgotten while a test looks.
CONFIG = MembershipConfig(tombstone_ttl_s=1e9)
OTHERS = ("b", "c", "d")

states = st.sampled_from(MemberState)
ages = st.integers(0, 3)
others = st.sampled_from(OTHERS)


@st.composite
def tales(
    draw: st.DrawFn, *, states: st.SearchStrategy[MemberState] = states, starts: int = 0
) -> MemberRecord:
    """What an honest node may say of another: a version always means the same properties."""
    version = draw(ages)
    record = make_record(
        draw(others),
        draw(states),
        incarnation=INCARNATION + draw(ages),
        start=draw(st.integers(0, starts)),
        version=version,
        properties={"version": str(version)} if version else {},
        reported_by=draw(others),
    )
    return record if draw(st.booleans()) else record.without_properties()


@st.composite
def orders(draw: st.DrawFn, records: st.SearchStrategy[MemberRecord]) -> list[list[MemberRecord]]:
    """The same tales as two nodes hear them: in any order, some of them twice."""
    reported = draw(st.lists(records, min_size=1, max_size=8))
    again = st.lists(st.sampled_from(reported), max_size=4)
    return [draw(st.permutations([*reported, *draw(again)])) for _ in range(2)]


def let_time_pass(machine: Membership, now: float = START) -> None:
    """Let nobody answer for so long that nobody is thought alive any more."""
    for _ in range(20_000):
        if names_of(machine) == ["a"]:
            return
        now = machine.deadline()
        machine.tick(now)
        machine.drain_outgoing()
    raise AssertionError(f"still members: {names_of(machine)}")


def hear_all(records: Sequence[MemberRecord]) -> Membership:
    machine = join_alone(config=CONFIG)
    for name in {record.name for record in records}:
        # It has answered once, before anything was told of it.
        machine._member_table.add(make_record(name, incarnation=INCARNATION - 1), START)
    for record in records:
        receive_gossip(machine, record, now=START)
    return machine


def end(records: Sequence[MemberRecord]) -> dict[str, tuple[object, ...]]:
    """Who is thought dead or gone at last, at which rank, with which properties."""
    machine = hear_all(records)
    let_time_pass(machine)
    return {
        name: (
            entry.record.instance,
            entry.state,
            entry.record.precedence,
            entry.record.properties or {},
        )
        for name, entry in machine._member_table.entries.items()
    }


@settings(max_examples=by_tier(test=50, nightly=1_000, quick=10))
@given(orders(tales()))
def test_records_in_any_order_lead_to_the_same_view(reported: list[list[MemberRecord]]) -> None:
    first, second = map(end, reported)
    assert first == second


@settings(max_examples=by_tier(test=50, nightly=1_000, quick=10))
@given(orders(tales(states=st.sampled_from([MemberState.ALIVE, MemberState.SUSPECT]), starts=2)))
def test_processes_in_any_order_are_not_admitted_without_a_reply(
    reported: list[list[MemberRecord]],
) -> None:
    for records in reported:
        believed = {name: view[0] for name, view in end(records).items()}
        assert believed == {name: instance_of(name) for name in {record.name for record in records}}


@given(st.lists(tales(), max_size=12))
def test_final_view_follows_from_the_records(reported: list[MemberRecord]) -> None:
    machine = hear_all(reported)
    let_time_pass(machine)
    for name, entry in machine._member_table.entries.items():
        tales_of = [record for record in reported if record.name == name]
        has_left = any(record.state is MemberState.LEFT for record in tales_of)
        assert entry.state is (MemberState.LEFT if has_left else MemberState.DEAD)
        if not has_left:
            assert entry.record.incarnation == max(record.incarnation for record in tales_of)
        versions = [record.version for record in tales_of if record.properties is not None]
        newest = max(versions, default=0)
        assert (entry.record.properties or {}) == ({"version": str(newest)} if newest else {})


@given(st.lists(tales(starts=1), max_size=12))
def test_record_merged_twice_changes_nothing(reported: list[MemberRecord]) -> None:
    table = make_member_table("a")
    for record in reported:
        table.merge(record, START)
        table.events.clear()
        before = (table.records(), table.digest(), table.deadline(), table.revision)
        table.merge(record, START)
        assert (table.records(), table.digest(), table.deadline(), table.revision) == before
        assert table.events == []


@given(st.lists(tales(starts=1), max_size=12))
def test_added_and_removed_alternate_and_gossip_is_bounded(reported: list[MemberRecord]) -> None:
    machine = join_alone(config=CONFIG)
    for record in reported:
        receive_gossip(machine, record, now=START)
        assert len(machine._context.gossip_queue) <= len(machine._member_table.entries) + 1
    let_time_pass(machine)
    present: dict[str, bool] = {}
    for change in machine.drain_events():
        assert isinstance(change, MembershipEvent)
        name = change.member.name
        assert present.get(name, False) is (change.kind is not MembershipEventType.ADDED)
        present[name] = change.kind is not MembershipEventType.REMOVED
    assert not any(present.values())


living = st.sampled_from([MemberState.ALIVE, MemberState.SUSPECT, MemberState.LEFT])


@given(st.lists(tales(states=living), max_size=8), st.lists(tales(states=living), max_size=8))
def test_two_nodes_after_sync_agree(ours: list[MemberRecord], theirs: list[MemberRecord]) -> None:
    ours, theirs = ([record for record in tale if record.name != "b"] for tale in (ours, theirs))
    wire = Wire()
    first = wire.add(make_machine("a", config=CONFIG))
    second = make_machine("b", config=CONFIG)
    second.start(wire.clock())
    for name in {record.name for record in (*ours, *theirs)}:
        for machine in (first, second):
            # It has answered both, before anything was told of it.
            record = make_record(name, incarnation=INCARNATION - 1)
            machine._member_table.add(record, wire.clock())
    for record in ours:
        receive_gossip(first, record, now=wire.clock())
    for record in theirs:
        receive_gossip(second, record, now=wire.clock())
    wire.add(second, ["a"])
    assert wire.run_until(lambda: names_of(first) == names_of(second), limit_s=0.5)
    assert wire.run_until(lambda: thought(first) == thought(second), limit_s=0.5)


def thought(machine: Membership) -> dict[str, tuple[object, ...]]:
    """What a node thinks of members, apart from properties nobody could tell."""
    return {
        member.name: (member.state, member.incarnation, tuple(member.properties.items()))
        for member in machine.members()
    }


@given(st.lists(tales(), max_size=12), st.integers(0, 600), st.integers(1, 600))
def test_fit_records_returns_no_more_than_fits(
    reported: list[MemberRecord], room: int, full: int
) -> None:
    fitting = gossip.fit_records(reported, room, full_bytes_max=full)
    assert sum(map(gossip.record_size, fitting)) <= room
    assert [record.name for record in fitting] == [
        record.name for record in reported[: len(fitting)]
    ]


@given(st.lists(st.tuples(others, st.integers(0, 400)), max_size=30), st.integers(1, 4))
def test_gossip_queue_sends_each_record_up_to_the_limit(
    steps: list[tuple[str, int]], transmits_max: int
) -> None:
    gossip_queue = gossip.GossipQueue()
    reported = dict.fromkeys(OTHERS, 0)
    added = set()
    for name, room in steps:
        if name not in added:
            gossip_queue.add(make_record(name))
            added.add(name)
        for record in gossip_queue.pop_batch(room, transmits_max=transmits_max, full_bytes_max=400):
            reported[record.name] += 1
    while taken := gossip_queue.pop_batch(10_000, transmits_max=transmits_max, full_bytes_max=400):
        for record in taken:
            reported[record.name] += 1
    assert all(reported[name] == transmits_max for name in added)
    assert len(gossip_queue) == 0


# Bytes.

numbers = st.integers(-(2**63), 2**64 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
any_records = st.builds(
    MemberRecord,
    name=others | st.just("a") | texts,
    instance=numbers,
    host=texts,
    port=numbers,
    incarnation=numbers,
    state=states,
    version=numbers,
    leave_digest=st.binary(max_size=20),
    properties=st.none() | st.dictionaries(texts, texts, max_size=3),
    reported_by=texts,
    leave_secret=st.binary(max_size=20),
)
news = st.lists(any_records | tales(starts=1), max_size=4, unique_by=lambda record: record.name)
packets: st.SearchStrategy[gossip.MembershipPacket] = st.one_of(
    st.builds(
        gossip.ProbePacket,
        nonce=numbers,
        name=texts,
        instance=numbers,
        is_joining=st.booleans(),
        records=news,
    ),
    st.builds(
        gossip.ProbeAckPacket,
        nonce=numbers,
        name=texts,
        instance=numbers,
        leave_digest=st.binary(max_size=20),
        incarnation=numbers,
        is_member=st.booleans(),
        records=news,
    ),
    st.builds(gossip.ProbeRequestPacket, nonce=numbers, target=others | texts, records=news),
    st.builds(gossip.ProbeNackPacket, nonce=numbers, records=news),
    st.builds(gossip.GossipPacket, records=news),
    st.builds(gossip.SyncRequestPacket, nonce=numbers, digest=st.binary(), records=news),
    st.builds(
        gossip.SyncReplyPacket,
        nonce=numbers,
        agrees=st.booleans(),
        name=texts,
        instance=numbers,
        is_member=st.booleans(),
        records=news,
    ),
    st.builds(gossip.PropertiesRequestPacket, version=numbers, instance=numbers, records=news),
)


@given(st.binary(max_size=200))
def test_decode_packet_of_any_bytes_returns_or_raises_malformed(data: bytes) -> None:
    try:
        packet = gossip.decode_packet(data, records_max=10)
    except MalformedPayloadError:
        return
    assert gossip.decode_packet(gossip.encode_packet(packet), records_max=10) == packet


@given(packets, st.data())
def test_packet_round_trips_and_truncated_is_malformed(
    packet: gossip.MembershipPacket, data: st.DataObject
) -> None:
    encoded = gossip.encode_packet(packet)
    assert gossip.decode_packet(encoded, records_max=10) == packet
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(MalformedPayloadError):
        gossip.decode_packet(encoded[:cut], records_max=10)


@settings(max_examples=by_tier(test=50, nightly=1_000, quick=10))
@given(st.lists(st.binary(max_size=60) | packets, max_size=12), st.booleans())
def test_membership_survives_any_packet(
    received: list[bytes | gossip.MembershipPacket], in_stream: bool
) -> None:
    machine = join_alone()
    receive_gossip(machine, *map(make_record, OTHERS), now=START)
    now = START
    for packet in received:
        data = packet if isinstance(packet, bytes) else gossip.encode_packet(packet)
        answer = machine.receive(data, Address("evil", 1), now, in_stream=in_stream)
        if answer is not None:
            gossip.decode_packet(answer, records_max=RECORDS_MAX)
        assert machine.deadline() >= now
        now = max(now, min(machine.deadline(), now + 0.1))
        machine.tick(now)
        for send in machine.drain_outgoing():
            gossip.decode_packet(send.payload, records_max=RECORDS_MAX)
    assert machine.local_member.state is MemberState.ALIVE
    assert machine.local_member.address == address_of("a")


@given(packets)
def test_one_packet_without_the_secret_removes_no_live_member(
    packet: gossip.MembershipPacket,
) -> None:
    machine = join_alone()
    receive_gossip(machine, *map(make_record, OTHERS), now=START)
    honest = [record for record in packet.records if record.leave_secret == b""]
    tell_all = msgspec.structs.replace(packet, records=honest)
    machine.receive(gossip.encode_packet(tell_all), Address("evil", 1), START)
    assert set(OTHERS) <= set(names_of(machine))
