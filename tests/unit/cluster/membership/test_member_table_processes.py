"""Successors, tombstones, addresses and digests of a member table."""

import pytest

from postroad.cluster.membership import (
    MembershipConfig,
    MembershipEventType,
    MemberState,
)
from postroad.cluster.membership.gossip import GossipQueue
from postroad.cluster.membership.member_table import MemberTable, MergeResult
from tests.support.cluster.membership import (
    INCARNATION,
    address_of,
    instance_of,
    make_crowd,
    make_record,
    take_changes,
)

CONFIG = MembershipConfig()
NOW = 100.0


def test_a_later_process_of_an_active_member_is_contested_and_an_earlier_stale(
    subtests: pytest.Subtests,
) -> None:
    roster = make_crowd(make_record("b"))
    later = make_record("b", start=1, incarnation=INCARNATION + 1)
    assert roster.merge(later, NOW) is MergeResult.NAME_CONFLICT
    assert roster.entries["b"].record == make_record("b")
    assert take_changes(roster) == []

    for incarnation in [INCARNATION, INCARNATION - 1]:
        with subtests.test(incarnation=incarnation):
            roster = make_crowd(make_record("b", start=1))
            assert roster.merge(make_record("b", incarnation=incarnation), NOW) is MergeResult.STALE


@pytest.mark.parametrize("state", [MemberState.DEAD, MemberState.LEFT])
def test_a_process_of_one_that_went_is_believed_unless_its_goodbye_is_forged(
    state: MemberState,
) -> None:
    roster = make_crowd(make_record("b", state))
    later = make_record("b", start=1, incarnation=INCARNATION + 1)
    assert roster.merge(later, NOW) is MergeResult.UNPROVEN
    assert roster.admit(later, NOW) is MergeResult.APPLIED
    assert roster.entries["b"].record == later
    assert take_changes(roster) == [(MembershipEventType.ADDED, "b")]

    roster = make_crowd(make_record("b", state))
    forged = make_record("b", MemberState.LEFT, start=1, secret=b"guess")
    assert roster.merge(forged, NOW) is MergeResult.FORGED_LEAVE
    assert roster.merge(make_record("b"), NOW) is MergeResult.STALE
    assert take_changes(roster) == []


def test_replacing_a_process_removes_it_and_adds_the_other() -> None:
    roster = make_crowd(make_record("b"))
    there = address_of("elsewhere")
    assert roster.admit(make_record("b", start=1, address=there), NOW) is MergeResult.APPLIED
    assert take_changes(roster) == [
        (MembershipEventType.REMOVED, "b"),
        (MembershipEventType.ADDED, "b"),
    ]
    assert roster.names_at(address_of("b")) == []
    assert roster.names_at(there) == ["b"]
    assert roster.revision == 3

    roster = make_crowd(make_record("b"))
    alive = make_record("b", incarnation=INCARNATION + 1)
    assert roster.admit(alive, NOW) is MergeResult.APPLIED
    assert take_changes(roster) == []
    assert roster.entries["b"].record == alive

    roster = make_crowd()
    assert roster.admit(make_record("b"), NOW) is MergeResult.APPLIED
    assert take_changes(roster) == [(MembershipEventType.ADDED, "b")]


def test_a_tombstone_is_forgotten_after_a_while_and_the_living_never() -> None:
    roster = make_crowd(make_record("b"), make_record("c", MemberState.DEAD), make_record("d"))
    roster.merge(make_record("d", MemberState.LEFT), NOW + 10)
    roster.changes.clear()
    roster.reap_tombstones(NOW + CONFIG.tombstone_s - 1)
    assert [entry.record.name for entry in roster.tombstones.values()] == ["c", "d"]
    roster.reap_tombstones(NOW + CONFIG.tombstone_s)
    assert list(roster.entries) == ["b", "d"]
    roster.reap_tombstones(NOW + 10 + CONFIG.tombstone_s)
    assert list(roster.entries) == ["b"]
    assert take_changes(roster) == []

    roster = make_crowd(make_record("b", MemberState.DEAD))
    roster.merge(make_record("b", MemberState.DEAD, incarnation=INCARNATION + 1), NOW + 100)
    roster.reap_tombstones(NOW + CONFIG.tombstone_s)
    assert roster.entries == {}

    roster = make_crowd(make_record("b", MemberState.DEAD))
    assert roster.merge(make_record("b", start=1), NOW) is MergeResult.UNPROVEN


def test_the_oldest_tombstone_makes_room_and_floods_are_bounded() -> None:
    config = MembershipConfig(members_max=2)
    roster = make_crowd(make_record("b"), make_record("c"), config=config)
    assert roster.merge(make_record("d"), NOW) is MergeResult.TABLE_FULL
    assert sorted(roster.active) == ["b", "c"]
    config = MembershipConfig(members_max=3)
    roster = make_crowd(make_record("b", MemberState.DEAD), make_record("c"), config=config)
    roster.add(make_record("d", MemberState.DEAD), NOW + 1)
    assert roster.admit(make_record("e"), NOW + 2) is MergeResult.APPLIED
    assert sorted(roster.entries) == ["c", "d", "e"]

    config = MembershipConfig(members_max=100)
    dead = [make_record(f"dead-{number}", MemberState.DEAD) for number in range(100)]
    roster = make_crowd(*dead, config=config)
    verdicts = [roster.admit(make_record(f"live-{number}"), NOW) for number in range(101)]
    assert verdicts == [MergeResult.APPLIED] * 100 + [MergeResult.TABLE_FULL]
    assert roster.tombstones == {}
    config = MembershipConfig(members_max=3)
    rumours = GossipQueue()
    roster = MemberTable(config, make_record("self"), rumours)
    for number in range(100):
        roster.merge(make_record(f"dead-{number}", MemberState.DEAD), NOW + number)
    assert (len(roster.entries), len(rumours)) == (0, 0)


@pytest.mark.parametrize("state", [MemberState.DEAD, MemberState.LEFT])
def test_nobody_keeps_tombstones_of_strangers(state: MemberState) -> None:
    roster = make_crowd(make_record("b", MemberState.DEAD), make_record("c"))
    assert roster.merge(make_record("d", state), NOW) is MergeResult.STALE
    assert list(roster.entries) == ["b", "c"]
    assert roster.merge(make_record("c", state), NOW) is MergeResult.APPLIED, "it is known"


def test_tombstones_are_in_the_order_of_burial() -> None:
    roster = make_crowd(*(make_record(name) for name in "bcde"))
    for name in "dbec":
        roster.merge(make_record(name, MemberState.LEFT), NOW)
    assert list(roster.tombstones) == ["d", "b", "e", "c"]

    config = MembershipConfig(members_max=3)
    dead = [make_record(name, MemberState.DEAD) for name in "bcd"]
    roster = make_crowd(*dead, config=config)
    roster.admit(make_record("b", incarnation=INCARNATION + 1), NOW)
    assert list(roster.tombstones) == ["c", "d"]
    roster.merge(make_record("b", MemberState.LEFT), NOW)
    roster.merge(make_record("c", MemberState.LEFT), NOW)
    assert list(roster.tombstones) == ["c", "d", "b"], "another death of c is no burial"
    assert roster.admit(make_record("e"), NOW) is MergeResult.APPLIED
    assert list(roster.tombstones) == ["d", "b"]
    assert take_changes(roster) == [
        (MembershipEventType.ADDED, "b"),
        (MembershipEventType.REMOVED, "b"),
        (MembershipEventType.ADDED, "e"),
    ]


def test_names_at_an_address_are_in_the_order_they_came() -> None:
    roster = make_crowd(make_record("b"), make_record("c", address=address_of("b")))
    assert roster.names_at(address_of("b")) == ["b", "c"]
    roster.merge(make_record("b", MemberState.LEFT), NOW)
    assert roster.names_at(address_of("b")) == ["c"]

    place = address_of("b")
    roster = make_crowd(make_record("b"), make_record("c", address=place))
    assert roster.first_at(place) is roster.entries["b"]
    roster.merge(make_record("b", MemberState.LEFT), NOW)
    assert roster.first_at(place) is roster.entries["c"]
    roster.merge(make_record("c", MemberState.LEFT, address=place), NOW)
    assert roster.first_at(place) is None

    roster = make_crowd(make_record("b"), make_record("c", MemberState.SUSPECT))
    assert not roster.entries["b"].is_doubted(instance_of("b"))
    assert roster.entries["c"].is_doubted(instance_of("c"))
    assert not roster.entries["c"].is_doubted(instance_of("c", start=1))


def test_equal_views_have_equal_digests_and_whatever_differs_changes_them(
    subtests: pytest.Subtests,
) -> None:
    ours = make_crowd(make_record("b"), make_record("c"))
    theirs = MemberTable(CONFIG, make_record("b"), GossipQueue())
    theirs.admit(make_record("c"), NOW)
    assert ours.digest() != theirs.digest()
    theirs.admit(make_record("self"), NOW)
    assert ours.digest() == theirs.digest()
    roster = make_crowd(make_record("b"))
    before = roster.digest()
    roster.merge(make_record("c", MemberState.DEAD), NOW)
    assert roster.digest() == before

    for change in [
        make_record("b", incarnation=INCARNATION + 1),
        make_record("b", MemberState.SUSPECT),
        make_record("b", MemberState.LEFT),
        make_record("b", version=1, properties={"role": "x"}),
        make_record("c"),
    ]:
        with subtests.test(change=change):
            roster = make_crowd(make_record("b"))
            before = roster.digest()
            (roster.admit if change.name == "c" else roster.merge)(change, NOW)
            assert roster.digest() != before
    roster = make_crowd()
    before = roster.digest()
    roster.set_local(make_record("self", incarnation=INCARNATION + 1))
    assert roster.digest() != before
    records = [
        make_record("b"),
        make_record("c", MemberState.DEAD),
        make_record("d", MemberState.LEFT),
    ]
    roster = make_crowd(*records)
    assert roster.records() == records
    assert [entry.record for entry in roster.tombstones.values()] == records[1:]
