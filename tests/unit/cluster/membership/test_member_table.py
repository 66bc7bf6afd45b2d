"""Records merged into a member table: precedence, suspicion, properties."""

import pytest

from postroad.cluster.membership import (
    MemberRecord,
    MembershipConfig,
    MembershipEventType,
    MemberState,
)
from postroad.cluster.membership.member_table import LEAP_MAX, MemberEntry, MemberTable, MergeResult
from tests.support.cluster.membership import (
    INCARNATION,
    address_of,
    make_crowd,
    make_record,
    make_roster,
    take_changes,
    take_news,
)

CONFIG = MembershipConfig()


NOW = 100.0


def merge(roster: MemberTable, *records: MemberRecord, now: float = NOW) -> MergeResult:
    """Merge all; the verdict on the last."""
    return [roster.merge(record, now) for record in records][-1]


def take_kinds(roster: MemberTable) -> list[MembershipEventType]:
    kinds = [change.kind for change in roster.changes]
    roster.changes.clear()
    return kinds


@pytest.mark.parametrize("state", MemberState)
def test_a_stranger_is_unproven_and_one_that_is_gone_nothing_new(state: MemberState) -> None:
    roster = make_roster()
    verdict = merge(roster, make_record("b", state, reported_by="c"))
    assert verdict is (MergeResult.UNPROVEN if state.is_active else MergeResult.STALE)
    assert roster.entries == {}
    assert (take_news(roster), take_kinds(roster)) == ([], [])


def test_a_stranger_that_answered_is_added_and_told_on() -> None:
    roster = make_roster()
    record = make_record("b")
    assert roster.admit(record, NOW) is MergeResult.APPLIED
    assert roster.entries["b"].record == record
    assert take_news(roster) == [record]
    assert take_kinds(roster) == [MembershipEventType.ADDED]
    assert list(roster.active) == roster.names_at(address_of("b")) == ["b"]
    assert (roster.size, roster.revision) == (2, 1)
    assert roster.admit(record, NOW) is MergeResult.STALE
    assert take_news(roster) == []


def test_a_suspect_is_given_time_and_no_stranger_leaves_without_its_secret() -> None:
    roster = make_crowd(make_record("b", MemberState.SUSPECT, reported_by="c"))
    assert roster.deadline() == NOW + CONFIG.failure_timeout_s
    roster.expire_suspects(roster.deadline() - 0.01)
    assert "b" in roster.active
    roster.expire_suspects(roster.deadline())
    assert roster.entries["b"].state is MemberState.DEAD

    roster = make_roster()
    assert (
        merge(roster, make_record("b", MemberState.LEFT, secret=b"guess"))
        is MergeResult.FORGED_LEAVE
    )
    assert roster.entries == {}


@pytest.mark.parametrize("state", [MemberState.ALIVE, MemberState.SUSPECT, MemberState.DEAD])
def test_the_same_or_an_older_incarnation_is_stale(state: MemberState) -> None:
    record = make_record("b", state, reported_by="c")
    roster = make_crowd(record)
    assert merge(roster, record) is MergeResult.STALE
    assert take_kinds(roster) == []
    assert take_news(roster) == []

    roster = make_crowd(make_record("b"))
    older = make_record("b", state, incarnation=INCARNATION - 1, reported_by="c")
    assert merge(roster, older) is MergeResult.STALE
    assert roster.entries["b"].record == make_record("b")


def test_a_suspected_or_dead_member_that_speaks_up_is_alive_again() -> None:
    roster = make_crowd(make_record("b", MemberState.SUSPECT, reported_by="c"))
    alive = make_record("b", incarnation=INCARNATION + 1)
    assert merge(roster, make_record("b")) is MergeResult.STALE
    assert merge(roster, alive) is MergeResult.APPLIED
    assert take_kinds(roster) == [MembershipEventType.REACHABILITY]
    assert take_news(roster) == [alive]
    assert roster.suspects == {}
    assert roster.deadline() == float("inf")

    roster = make_crowd(make_record("b", MemberState.DEAD))
    assert merge(roster, make_record("b")) is MergeResult.STALE
    assert roster.admit(make_record("b"), NOW) is MergeResult.STALE, "it must object first"
    for state in (MemberState.ALIVE, MemberState.SUSPECT):
        rumour = make_record("b", state, incarnation=INCARNATION + 1)
        assert merge(roster, rumour) is MergeResult.UNPROVEN
        assert take_kinds(roster) == []
    assert roster.admit(make_record("b", incarnation=INCARNATION + 1), NOW) is MergeResult.APPLIED
    assert take_kinds(roster) == [MembershipEventType.ADDED]
    assert roster.names_at(address_of("b")) == ["b"]


def test_an_incarnation_out_of_range_is_refused() -> None:
    roster = make_crowd(make_record("b"))
    highest = INCARNATION + LEAP_MAX
    for name in ("b", "stranger"):
        leap = make_record(name, MemberState.DEAD, incarnation=highest + 1)
        assert merge(roster, leap) is MergeResult.INCARNATION_OUT_OF_RANGE
    assert take_kinds(roster) == []
    assert merge(roster, make_record("b", incarnation=highest)) is MergeResult.APPLIED

    refusals = [verdict for verdict in MergeResult if verdict.is_rejection]
    assert refusals == [
        MergeResult.INCARNATION_OUT_OF_RANGE,
        MergeResult.FORGED_LEAVE,
        MergeResult.TABLE_FULL,
    ]

    roster = make_crowd(make_record("b"))
    moved = make_record("b", incarnation=INCARNATION + 1, address=address_of("evil"))
    merge(roster, moved)
    assert roster.entries["b"].record.address == address_of("b")
    assert roster.names_at(address_of("evil")) == []


def test_what_a_member_says_itself_needs_no_proof_and_goodbye_is_final() -> None:
    roster = make_crowd(make_record("b", MemberState.SUSPECT, reported_by="c"))
    entry = roster.entries["b"]
    roster.confirm_alive(entry, INCARNATION, NOW)
    assert entry.state is MemberState.SUSPECT, "that is what was suspected"
    roster.confirm_alive(entry, INCARNATION + 9 * LEAP_MAX, NOW)
    assert (entry.state, entry.record.incarnation) == (
        MemberState.ALIVE,
        INCARNATION + 9 * LEAP_MAX,
    )
    roster.confirm_alive(entry, 1 << 63, NOW)
    assert entry.record.incarnation == INCARNATION + 9 * LEAP_MAX

    roster = make_crowd(make_record("b", MemberState.LEFT))
    for state in MemberState:
        again = make_record("b", state, incarnation=INCARNATION + 9)
        assert merge(roster, again) is MergeResult.STALE
    assert take_kinds(roster) == []
    assert take_news(roster) == []
    roster.set_local(make_record("self", incarnation=1 << 62))
    assert merge(roster, make_record("b", incarnation=(1 << 62) + 1)) is MergeResult.STALE
    assert roster.entries["b"].state is MemberState.LEFT
    roster = make_crowd(make_record("b"))
    assert (
        merge(roster, make_record("b", MemberState.LEFT, secret=b"guess"))
        is MergeResult.FORGED_LEAVE
    )
    assert take_kinds(roster) == []
    assert take_news(roster) == []


def test_a_failed_probe_makes_suspected_unless_it_is_of_an_earlier_incarnation() -> None:
    roster = make_crowd(make_record("b"))
    assert roster.suspect("b", INCARNATION, since=NOW - 2)
    assert roster.entries["b"].record.reported_by == "self"
    assert take_kinds(roster) == [MembershipEventType.REACHABILITY]
    assert take_news(roster) == [make_record("b", MemberState.SUSPECT, reported_by="self")]
    assert roster.deadline() == NOW - 2 + CONFIG.failure_timeout_s

    roster = make_crowd(make_record("b", incarnation=INCARNATION + 1))
    assert not roster.suspect("b", INCARNATION, since=NOW)
    assert not roster.suspect("stranger", INCARNATION, since=NOW)
    assert roster.suspects == {}


def test_other_witnesses_shorten_the_time_and_are_told_on() -> None:
    strangers = [make_record(name) for name in "cdefg"]
    roster = make_crowd(make_record("b"), *strangers)
    roster.suspect("b", INCARNATION, since=NOW)
    deadlines = [roster.deadline()]
    take_news(roster)
    for reported_by in ("c", "d", "e"):
        accusation = make_record("b", MemberState.SUSPECT, reported_by=reported_by)
        assert merge(roster, accusation) is MergeResult.APPLIED
        assert take_news(roster) == [accusation]
        assert merge(roster, accusation) is MergeResult.STALE
        deadlines.append(roster.deadline())
    assert deadlines == sorted(set(deadlines), reverse=True)
    assert deadlines[-1] == pytest.approx(NOW + CONFIG.confirmed_failure_timeout_s)
    assert (
        merge(roster, make_record("b", MemberState.SUSPECT, reported_by="f")) is MergeResult.STALE
    )


def test_accusations_confirm_a_suspicion_of_their_incarnation() -> None:
    roster = make_crowd(*(make_record(name) for name in "bcdef"))
    merge(roster, make_record("b", MemberState.SUSPECT, reported_by="c"))
    before = roster.deadline()
    assert roster.suspect("b", INCARNATION, since=NOW)
    assert roster.deadline() < before
    assert not roster.suspect("b", INCARNATION, since=NOW), "once is enough"

    roster = make_crowd(*(make_record(name) for name in "bcdef"))
    merge(
        roster, make_record("b", MemberState.SUSPECT, incarnation=INCARNATION + 1, reported_by="c")
    )
    assert (
        merge(roster, make_record("b", MemberState.SUSPECT, reported_by="d")) is MergeResult.STALE
    )
    assert roster.deadline() == NOW + CONFIG.failure_timeout_s

    roster = make_crowd(make_record("b", MemberState.SUSPECT, reported_by="c"))
    later = make_record("b", MemberState.SUSPECT, incarnation=INCARNATION + 1, reported_by="d")
    assert merge(roster, later, now=NOW + 5) is MergeResult.APPLIED
    assert roster.deadline() == NOW + 5 + CONFIG.failure_timeout_s
    assert take_kinds(roster) == []


def test_a_rumour_of_death_makes_suspected_and_hastens_but_never_removes() -> None:
    roster = make_crowd(make_record("b"))
    death = make_record("b", MemberState.DEAD, reported_by="c")
    assert merge(roster, death) is MergeResult.APPLIED
    assert take_kinds(roster) == [MembershipEventType.REACHABILITY]
    assert roster.deadline() == NOW + CONFIG.confirmed_failure_timeout_s
    assert take_news(roster) == [death], "told on as it was heard"
    assert merge(roster, death) is MergeResult.STALE
    assert take_kinds(roster) == []

    roster = make_crowd(make_record("b", MemberState.SUSPECT, reported_by="c"))
    assert (
        merge(roster, make_record("b", MemberState.DEAD, reported_by="d"), now=NOW + 1)
        is MergeResult.APPLIED
    )
    assert roster.deadline() == NOW + CONFIG.confirmed_failure_timeout_s

    roster = make_crowd(make_record("b", MemberState.SUSPECT, reported_by="c"))
    death = make_record("b", MemberState.DEAD, incarnation=INCARNATION + 1, reported_by="d")
    assert merge(roster, death, now=NOW + 4) is MergeResult.APPLIED
    assert roster.deadline() == NOW + 4 + CONFIG.confirmed_failure_timeout_s


def test_a_suspect_that_does_not_speak_up_in_time_is_dead_and_that_is_told() -> None:
    roster = make_crowd(make_record("b", MemberState.SUSPECT, reported_by="c"), make_record("d"))
    roster.extend_deadlines(7.0)
    assert roster.deadline() == NOW + CONFIG.failure_timeout_s + 7.0

    roster.expire_suspects(NOW + CONFIG.failure_timeout_s)
    assert take_kinds(roster) == []
    roster.expire_suspects(NOW + CONFIG.failure_timeout_s + 7.0)
    assert take_kinds(roster) == [MembershipEventType.REMOVED]
    assert take_news(roster) == [make_record("b", MemberState.DEAD, reported_by="self")]
    assert list(roster.active) == ["d"]


@pytest.mark.parametrize("before", [MemberState.ALIVE, MemberState.SUSPECT, MemberState.DEAD])
def test_goodbye_with_the_secret_is_believed_at_any_incarnation(before: MemberState) -> None:
    roster = make_crowd(make_record("b", before, incarnation=INCARNATION + 5, reported_by="c"))
    goodbye = make_record("b", MemberState.LEFT)
    assert merge(roster, goodbye) is MergeResult.APPLIED
    assert roster.entries["b"].state is MemberState.LEFT
    assert take_kinds(roster) == ([MembershipEventType.REMOVED] if before.is_active else [])
    assert take_news(roster)[0].leave_secret == goodbye.leave_secret, (
        "so that others believe it too"
    )


def test_properties_are_taken_in_the_order_of_their_versions_whatever_the_state(
    subtests: pytest.Subtests,
) -> None:
    roster = make_crowd(make_record("b", properties={"role": "idle"}))
    newer = make_record("b", version=1, properties={"role": "busy"})
    assert roster.merge(newer, NOW) is MergeResult.APPLIED
    change = roster.changes[0]
    assert change.kind is MembershipEventType.METADATA
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
            assert roster.merge(other, NOW) is MergeResult.STALE
            assert roster.entries["b"].record == known

    roster = make_crowd(make_record("b", MemberState.SUSPECT, reported_by="c"))
    assert (
        roster.merge(make_record("b", version=1, properties={"role": "x"}), NOW)
        is MergeResult.APPLIED
    )
    assert roster.entries["b"].state is MemberState.SUSPECT
    assert dict(roster.entries["b"].member.properties) == {"role": "x"}
    roster = make_crowd(make_record("b", MemberState.DEAD))
    assert (
        roster.merge(make_record("b", version=1, properties={"role": "x"}), NOW)
        is MergeResult.APPLIED
    )
    assert take_changes(roster) == []


def test_a_version_without_its_text_is_remembered_as_missing() -> None:
    roster = make_crowd(make_record("b", properties={"role": "idle"}))
    entry = roster.entries["b"]
    assert not entry.lacks_properties
    bare = make_record("b", version=2).without_properties()
    assert roster.merge(bare, NOW) is MergeResult.STALE
    assert entry.lacks_properties
    assert dict(entry.member.properties) == {"role": "idle"}, "the old ones until the new come"
    roster.merge(make_record("b", version=1, properties={"role": "between"}), NOW)
    assert entry.lacks_properties
    roster.merge(make_record("b", version=2, properties={"role": "busy"}), NOW)
    assert not entry.lacks_properties

    entry = MemberEntry(make_record("b").without_properties(), NOW)
    assert entry.lacks_properties
    assert entry.update_properties(make_record("b", properties={"role": "x"}))
    assert not entry.lacks_properties

    roster = make_crowd(make_record("b"))
    entry = roster.entries["b"]
    assert entry.member is entry.member
    roster.suspect("b", INCARNATION, since=NOW)
    assert entry.member.state is MemberState.SUSPECT
