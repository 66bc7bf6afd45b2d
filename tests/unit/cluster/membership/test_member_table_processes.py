"""Successors, tombstones, addresses and digests of a member table."""

import pytest

from postroad.cluster.membership import MembershipConfig, MembershipEventType, MemberState
from postroad.cluster.membership.gossip import GossipQueue
from postroad.cluster.membership.member_table import MemberTable, MergeResult
from tests.support.cluster.membership import (
    INCARNATION,
    address_of,
    instance_of,
    make_full_table,
    make_record,
    pop_events,
)

CONFIG = MembershipConfig()
NOW = 100.0


def test_later_process_of_an_active_member_is_a_name_conflict(subtests: pytest.Subtests) -> None:
    table = make_full_table(make_record("b"))
    later = make_record("b", start=1, incarnation=INCARNATION + 1)
    assert table.merge(later, NOW) is MergeResult.NAME_CONFLICT
    assert table.entries["b"].record == make_record("b")
    assert pop_events(table) == []

    for incarnation in [INCARNATION, INCARNATION - 1]:
        with subtests.test(incarnation=incarnation):
            table = make_full_table(make_record("b", start=1))
            assert table.merge(make_record("b", incarnation=incarnation), NOW) is MergeResult.STALE


@pytest.mark.parametrize("state", [MemberState.DEAD, MemberState.LEFT])
def test_later_process_of_a_dead_member_is_admitted(state: MemberState) -> None:
    table = make_full_table(make_record("b", state))
    later = make_record("b", start=1, incarnation=INCARNATION + 1)
    assert table.merge(later, NOW) is MergeResult.UNPROVEN
    assert table.admit(later, NOW) is MergeResult.APPLIED
    assert table.entries["b"].record == later
    assert pop_events(table) == [(MembershipEventType.ADDED, "b")]

    table = make_full_table(make_record("b", state))
    forged = make_record("b", MemberState.LEFT, start=1, secret=b"guess")
    assert table.merge(forged, NOW) is MergeResult.FORGED_LEAVE
    assert table.merge(make_record("b"), NOW) is MergeResult.STALE
    assert pop_events(table) == []


def test_admit_of_a_successor_removes_the_old_process() -> None:
    table = make_full_table(make_record("b"))
    there = address_of("elsewhere")
    assert table.admit(make_record("b", start=1, address=there), NOW) is MergeResult.APPLIED
    assert pop_events(table) == [
        (MembershipEventType.REMOVED, "b"),
        (MembershipEventType.ADDED, "b"),
    ]
    assert table.names_at(address_of("b")) == []
    assert table.names_at(there) == ["b"]
    assert table.revision == 3

    table = make_full_table(make_record("b"))
    alive = make_record("b", incarnation=INCARNATION + 1)
    assert table.admit(alive, NOW) is MergeResult.APPLIED
    assert pop_events(table) == []
    assert table.entries["b"].record == alive

    table = make_full_table()
    assert table.admit(make_record("b"), NOW) is MergeResult.APPLIED
    assert pop_events(table) == [(MembershipEventType.ADDED, "b")]


def test_reap_tombstones_removes_expired_ones_and_never_the_living() -> None:
    table = make_full_table(make_record("b"), make_record("c", MemberState.DEAD), make_record("d"))
    table.merge(make_record("d", MemberState.LEFT), NOW + 10)
    table.events.clear()
    table.reap_tombstones(NOW + CONFIG.tombstone_ttl_s - 1)
    assert [entry.record.name for entry in table.tombstones.values()] == ["c", "d"]
    table.reap_tombstones(NOW + CONFIG.tombstone_ttl_s)
    assert list(table.entries) == ["b", "d"]
    table.reap_tombstones(NOW + 10 + CONFIG.tombstone_ttl_s)
    assert list(table.entries) == ["b"]
    assert pop_events(table) == []

    table = make_full_table(make_record("b", MemberState.DEAD))
    table.merge(make_record("b", MemberState.DEAD, incarnation=INCARNATION + 1), NOW + 100)
    table.reap_tombstones(NOW + CONFIG.tombstone_ttl_s)
    assert table.entries == {}

    table = make_full_table(make_record("b", MemberState.DEAD))
    assert table.merge(make_record("b", start=1), NOW) is MergeResult.UNPROVEN


def test_full_table_evicts_the_oldest_tombstone() -> None:
    config = MembershipConfig(members_max=2)
    table = make_full_table(make_record("b"), make_record("c"), config=config)
    assert table.merge(make_record("d"), NOW) is MergeResult.TABLE_FULL
    assert sorted(table.active) == ["b", "c"]
    config = MembershipConfig(members_max=3)
    table = make_full_table(make_record("b", MemberState.DEAD), make_record("c"), config=config)
    table.add(make_record("d", MemberState.DEAD), NOW + 1)
    assert table.admit(make_record("e"), NOW + 2) is MergeResult.APPLIED
    assert sorted(table.entries) == ["c", "d", "e"]

    config = MembershipConfig(members_max=100)
    dead = [make_record(f"dead-{number}", MemberState.DEAD) for number in range(100)]
    table = make_full_table(*dead, config=config)
    results = [table.admit(make_record(f"live-{number}"), NOW) for number in range(101)]
    assert results == [MergeResult.APPLIED] * 100 + [MergeResult.TABLE_FULL]
    assert table.tombstones == {}
    config = MembershipConfig(members_max=3)
    gossip_queue = GossipQueue()
    table = MemberTable(config, make_record("self"), gossip_queue)
    for number in range(100):
        table.merge(make_record(f"dead-{number}", MemberState.DEAD), NOW + number)
    assert (len(table.entries), len(gossip_queue)) == (0, 0)


@pytest.mark.parametrize("state", [MemberState.DEAD, MemberState.LEFT])
def test_merge_of_an_unknown_dead_node_keeps_no_tombstone(state: MemberState) -> None:
    table = make_full_table(make_record("b", MemberState.DEAD), make_record("c"))
    assert table.merge(make_record("d", state), NOW) is MergeResult.STALE
    assert list(table.entries) == ["b", "c"]
    assert table.merge(make_record("c", state), NOW) is MergeResult.APPLIED, "it is known"


def test_tombstones_are_in_the_order_of_removal() -> None:
    table = make_full_table(*(make_record(name) for name in "bcde"))
    for name in "dbec":
        table.merge(make_record(name, MemberState.LEFT), NOW)
    assert list(table.tombstones) == ["d", "b", "e", "c"]

    config = MembershipConfig(members_max=3)
    dead = [make_record(name, MemberState.DEAD) for name in "bcd"]
    table = make_full_table(*dead, config=config)
    table.admit(make_record("b", incarnation=INCARNATION + 1), NOW)
    assert list(table.tombstones) == ["c", "d"]
    table.merge(make_record("b", MemberState.LEFT), NOW)
    table.merge(make_record("c", MemberState.LEFT), NOW)
    assert list(table.tombstones) == ["c", "d", "b"], "another death of c is no burial"
    assert table.admit(make_record("e"), NOW) is MergeResult.APPLIED
    assert list(table.tombstones) == ["d", "b"]
    assert pop_events(table) == [
        (MembershipEventType.ADDED, "b"),
        (MembershipEventType.REMOVED, "b"),
        (MembershipEventType.ADDED, "e"),
    ]


def test_names_at_an_address_are_in_the_order_of_arrival() -> None:
    table = make_full_table(make_record("b"), make_record("c", address=address_of("b")))
    assert table.names_at(address_of("b")) == ["b", "c"]
    table.merge(make_record("b", MemberState.LEFT), NOW)
    assert table.names_at(address_of("b")) == ["c"]

    place = address_of("b")
    table = make_full_table(make_record("b"), make_record("c", address=place))
    assert table.first_at(place) is table.entries["b"]
    table.merge(make_record("b", MemberState.LEFT), NOW)
    assert table.first_at(place) is table.entries["c"]
    table.merge(make_record("c", MemberState.LEFT, address=place), NOW)
    assert table.first_at(place) is None

    table = make_full_table(make_record("b"), make_record("c", MemberState.SUSPECT))
    assert not table.entries["b"].is_doubted(instance_of("b"))
    assert table.entries["c"].is_doubted(instance_of("c"))
    assert not table.entries["c"].is_doubted(instance_of("c", start=1))


def test_digest_is_equal_for_equal_views_and_differs_otherwise(subtests: pytest.Subtests) -> None:
    ours = make_full_table(make_record("b"), make_record("c"))
    theirs = MemberTable(CONFIG, make_record("b"), GossipQueue())
    theirs.admit(make_record("c"), NOW)
    assert ours.digest() != theirs.digest()
    theirs.admit(make_record("self"), NOW)
    assert ours.digest() == theirs.digest()
    table = make_full_table(make_record("b"))
    before = table.digest()
    table.merge(make_record("c", MemberState.DEAD), NOW)
    assert table.digest() == before

    for change in [
        make_record("b", incarnation=INCARNATION + 1),
        make_record("b", MemberState.SUSPECT),
        make_record("b", MemberState.LEFT),
        make_record("b", version=1, properties={"role": "x"}),
        make_record("c"),
    ]:
        with subtests.test(change=change):
            table = make_full_table(make_record("b"))
            before = table.digest()
            (table.admit if change.name == "c" else table.merge)(change, NOW)
            assert table.digest() != before
    table = make_full_table()
    before = table.digest()
    table.set_local(make_record("self", incarnation=INCARNATION + 1))
    assert table.digest() != before
    records = [
        make_record("b"),
        make_record("c", MemberState.DEAD),
        make_record("d", MemberState.LEFT),
    ]
    table = make_full_table(*records)
    assert table.records() == records
    assert [entry.record for entry in table.tombstones.values()] == records[1:]
