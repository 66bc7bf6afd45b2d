"""What a roster keeps: properties, tombstones, other processes of a name, digests, room."""

import pytest

from postroad.cluster.membership import ChangeKind, MembershipConfig, Record, State
from postroad.cluster.membership.roster import Entry, Roster, Verdict
from postroad.cluster.membership.rumours import Rumours
from tests.support.cluster.membership import (
    INCARNATION,
    address_of,
    instance_of,
    make_record,
    make_roster,
)

CONFIG = MembershipConfig()
NOW = 100.0


def make_crowd(*records: Record, config: MembershipConfig | None = None) -> Roster:
    roster = make_roster(config=config)
    for record in records:
        roster.merge(record, NOW)
    roster.changes.clear()
    return roster


def take_changes(roster: Roster) -> list[tuple[ChangeKind, str]]:
    changes = [(change.kind, change.member.name) for change in roster.changes]
    roster.changes.clear()
    return changes


def test_a_newer_version_of_the_properties_is_news_and_an_older_stale(
    subtests: pytest.Subtests,
) -> None:
    roster = make_crowd(make_record("b", properties={"role": "idle"}))
    newer = make_record("b", version=1, properties={"role": "busy"})
    assert roster.merge(newer, NOW) is Verdict.NEWS
    change = roster.changes[0]
    assert change.kind is ChangeKind.METADATA
    assert change.previous is not None
    assert dict(change.previous.properties) == {"role": "idle"}
    assert dict(change.member.properties) == {"role": "busy"}

    roster = make_crowd(make_record("b", properties={"role": "idle"}))
    roster.merge(make_record("b", version=1, properties={}), NOW)
    assert dict(roster.entries["b"].member.properties) == {}

    for version in [3, 2]:
        with subtests.test(version=version):
            known = make_record("b", version=3, properties={"role": "idle"})
            roster = make_crowd(known)
            other = make_record("b", version=version, properties={"role": "other"})
            assert roster.merge(other, NOW) is Verdict.STALE
            assert roster.entries["b"].record == known


def test_properties_are_taken_whatever_the_state() -> None:
    roster = make_crowd(make_record("b", State.SUSPECT, witness="c"))
    assert roster.merge(make_record("b", version=1, properties={"role": "x"}), NOW) is Verdict.NEWS
    assert roster.entries["b"].state is State.SUSPECT
    assert dict(roster.entries["b"].member.properties) == {"role": "x"}

    roster = make_crowd(make_record("b", State.DEAD))
    assert roster.merge(make_record("b", version=1, properties={"role": "x"}), NOW) is Verdict.NEWS
    assert take_changes(roster) == []


def test_a_version_without_its_text_is_remembered_as_missing() -> None:
    roster = make_crowd(make_record("b", properties={"role": "idle"}))
    entry = roster.entries["b"]
    assert not entry.lacks_properties
    bare = make_record("b", version=2).without_properties()
    assert roster.merge(bare, NOW) is Verdict.STALE
    assert entry.lacks_properties
    assert dict(entry.member.properties) == {"role": "idle"}, "the old ones until the new come"
    roster.merge(make_record("b", version=1, properties={"role": "between"}), NOW)
    assert entry.lacks_properties
    roster.merge(make_record("b", version=2, properties={"role": "busy"}), NOW)
    assert not entry.lacks_properties

    entry = Entry(make_record("b").without_properties(), NOW)
    assert entry.lacks_properties
    assert entry.take_properties(make_record("b", properties={"role": "x"}))
    assert not entry.lacks_properties

    roster = make_crowd(make_record("b"))
    entry = roster.entries["b"]
    assert entry.member is entry.member
    roster.suspect("b", INCARNATION, since=NOW)
    assert entry.member.state is State.SUSPECT


def test_a_later_process_of_an_active_member_is_contested_and_an_earlier_stale(
    subtests: pytest.Subtests,
) -> None:
    roster = make_crowd(make_record("b"))
    later = make_record("b", start=1, incarnation=INCARNATION + 1)
    assert roster.merge(later, NOW) is Verdict.CONTESTED
    assert roster.entries["b"].record == make_record("b")
    assert take_changes(roster) == []

    for incarnation in [INCARNATION, INCARNATION - 1]:
        with subtests.test(incarnation=incarnation):
            roster = make_crowd(make_record("b", start=1))
            assert roster.merge(make_record("b", incarnation=incarnation), NOW) is Verdict.STALE


@pytest.mark.parametrize("state", [State.DEAD, State.LEFT])
def test_a_process_of_one_that_went_is_believed_unless_its_goodbye_is_forged(state: State) -> None:
    roster = make_crowd(make_record("b", state))
    later = make_record("b", start=1, incarnation=INCARNATION + 1)
    assert roster.merge(later, NOW) is Verdict.NEWS
    assert roster.entries["b"].record == later
    assert take_changes(roster) == [(ChangeKind.ADDED, "b")]

    roster = make_crowd(make_record("b", state))
    forged = make_record("b", State.LEFT, start=1, secret=b"guess")
    assert roster.merge(forged, NOW) is Verdict.FORGED
    assert roster.merge(make_record("b"), NOW) is Verdict.STALE
    assert take_changes(roster) == []


def test_replacing_a_process_removes_it_and_adds_the_other() -> None:
    roster = make_crowd(make_record("b"))
    there = address_of("elsewhere")
    assert roster.replace(make_record("b", start=1, address=there), NOW) is Verdict.NEWS
    assert take_changes(roster) == [(ChangeKind.REMOVED, "b"), (ChangeKind.ADDED, "b")]
    assert roster.names_at(address_of("b")) == []
    assert roster.names_at(there) == ["b"]
    assert roster.revision == 3

    roster = make_crowd(make_record("b"))
    alive = make_record("b", incarnation=INCARNATION + 1)
    assert roster.replace(alive, NOW) is Verdict.NEWS
    assert take_changes(roster) == []
    assert roster.entries["b"].record == alive

    roster = make_crowd()
    assert roster.replace(make_record("b"), NOW) is Verdict.NEWS
    assert take_changes(roster) == [(ChangeKind.ADDED, "b")]


def test_a_tombstone_is_forgotten_after_a_while_and_the_living_never() -> None:
    roster = make_crowd(make_record("b"), make_record("c", State.DEAD), make_record("d"))
    roster.merge(make_record("d", State.LEFT), NOW + 10)
    roster.changes.clear()
    roster.forget_old(NOW + CONFIG.tombstone_s - 1)
    assert [entry.record.name for entry in roster.tombstones.values()] == ["c", "d"]
    roster.forget_old(NOW + CONFIG.tombstone_s)
    assert list(roster.entries) == ["b", "d"]
    roster.forget_old(NOW + 10 + CONFIG.tombstone_s)
    assert list(roster.entries) == ["b"]
    assert take_changes(roster) == []

    roster = make_crowd(make_record("b", State.DEAD))
    roster.merge(make_record("b", State.DEAD, incarnation=INCARNATION + 1), NOW + 100)
    roster.forget_old(NOW + CONFIG.tombstone_s)
    assert roster.entries == {}

    roster = make_crowd(make_record("b", State.DEAD))
    assert roster.merge(make_record("b", start=1), NOW) is Verdict.NEWS


def test_the_oldest_tombstone_makes_room_in_a_crowd() -> None:
    config = MembershipConfig(members_max=2)
    roster = make_crowd(make_record("b"), make_record("c"), config=config)
    assert roster.merge(make_record("d"), NOW) is Verdict.CROWDED
    assert sorted(roster.active) == ["b", "c"]

    config = MembershipConfig(members_max=3)
    roster = make_crowd(make_record("b", State.DEAD), make_record("c"), config=config)
    roster.merge(make_record("d", State.DEAD), NOW + 1)
    assert roster.merge(make_record("e"), NOW + 2) is Verdict.NEWS
    assert sorted(roster.entries) == ["c", "d", "e"]


@pytest.mark.parametrize("state", [State.DEAD, State.LEFT])
def test_a_full_roster_takes_no_tombstones_of_strangers(state: State) -> None:
    config = MembershipConfig(members_max=2)
    roster = make_crowd(make_record("b", State.DEAD), make_record("c"), config=config)
    assert roster.merge(make_record("d", state), NOW) is Verdict.CROWDED
    assert list(roster.entries) == ["b", "c"]
    assert roster.merge(make_record("c", state), NOW) is Verdict.NEWS, "it is known"


def test_tombstones_are_in_the_order_of_burial() -> None:
    roster = make_crowd(*(make_record(name) for name in "bcde"))
    for name in "dbec":
        roster.merge(make_record(name, State.LEFT), NOW)
    assert list(roster.tombstones) == ["d", "b", "e", "c"]

    config = MembershipConfig(members_max=3)
    dead = [make_record(name, State.DEAD) for name in "bcd"]
    roster = make_crowd(*dead, config=config)
    roster.merge(make_record("b", incarnation=INCARNATION + 1), NOW)
    assert list(roster.tombstones) == ["c", "d"]
    roster.merge(make_record("b", State.LEFT), NOW)
    roster.merge(make_record("c", State.LEFT), NOW)
    assert list(roster.tombstones) == ["c", "d", "b"], "another death of c is no burial"
    assert roster.merge(make_record("e"), NOW) is Verdict.NEWS
    assert list(roster.tombstones) == ["d", "b"]
    assert take_changes(roster) == [
        (ChangeKind.ADDED, "b"),
        (ChangeKind.REMOVED, "b"),
        (ChangeKind.ADDED, "e"),
    ]


def test_floods_of_the_living_and_the_dead_are_bounded() -> None:
    config = MembershipConfig(members_max=100)
    dead = [make_record(f"dead-{number}", State.DEAD) for number in range(100)]
    roster = make_crowd(*dead, config=config)
    verdicts = [roster.merge(make_record(f"live-{number}"), NOW) for number in range(101)]
    assert verdicts == [Verdict.NEWS] * 100 + [Verdict.CROWDED]
    assert roster.tombstones == {}

    config = MembershipConfig(members_max=3)
    rumours = Rumours()
    roster = Roster(config, make_record("self"), rumours)
    for number in range(100):
        roster.merge(make_record(f"dead-{number}", State.DEAD), NOW + number)
    assert len(roster.entries) == 3
    assert len(rumours) <= 3


def test_names_at_an_address_are_in_the_order_they_came() -> None:
    roster = make_crowd(make_record("b"), make_record("c", address=address_of("b")))
    assert roster.names_at(address_of("b")) == ["b", "c"]
    roster.merge(make_record("b", State.LEFT), NOW)
    assert roster.names_at(address_of("b")) == ["c"]

    place = address_of("b")
    roster = make_crowd(make_record("b"), make_record("c", address=place))
    assert roster.first_at(place) is roster.entries["b"]
    roster.merge(make_record("b", State.LEFT), NOW)
    assert roster.first_at(place) is roster.entries["c"]
    roster.merge(make_record("c", State.LEFT, address=place), NOW)
    assert roster.first_at(place) is None

    roster = make_crowd(make_record("b"), make_record("c", State.SUSPECT))
    assert not roster.entries["b"].doubts(instance_of("b"))
    assert roster.entries["c"].doubts(instance_of("c"))
    assert not roster.entries["c"].doubts(instance_of("c", start=1))


def test_equal_views_have_equal_digests_whatever_tombstones_they_have() -> None:
    ours = make_crowd(make_record("b"), make_record("c"))
    theirs = Roster(CONFIG, make_record("b"), Rumours())
    theirs.merge(make_record("c"), NOW)
    assert ours.digest() != theirs.digest()
    theirs.merge(make_record("self"), NOW)
    assert ours.digest() == theirs.digest()

    roster = make_crowd(make_record("b"))
    before = roster.digest()
    roster.merge(make_record("c", State.DEAD), NOW)
    assert roster.digest() == before


def test_whatever_differs_changes_the_digest(subtests: pytest.Subtests) -> None:
    for change in [
        make_record("b", incarnation=INCARNATION + 1),
        make_record("b", State.SUSPECT),
        make_record("b", State.LEFT),
        make_record("b", version=1, properties={"role": "x"}),
        make_record("c"),
    ]:
        with subtests.test(change=change):
            roster = make_crowd(make_record("b"))
            before = roster.digest()
            roster.merge(change, NOW)
            assert roster.digest() != before

    roster = make_crowd()
    before = roster.digest()
    roster.change_own(make_record("self", incarnation=INCARNATION + 1))
    assert roster.digest() != before

    records = [make_record("b"), make_record("c", State.DEAD), make_record("d", State.LEFT)]
    roster = make_crowd(*records)
    assert roster.records() == records
    assert [entry.record for entry in roster.tombstones.values()] == records[1:]
