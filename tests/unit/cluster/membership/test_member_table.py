"""Records merged into a member table: precedence, suspicion, properties."""

import pytest

from postroad.cluster.membership import (
    MemberRecord,
    MembershipConfig,
    MembershipEventType,
    MemberState,
)
from postroad.cluster.membership.member_table import (
    INCARNATION_JUMP_MAX,
    MemberEntry,
    MemberTable,
    MergeResult,
)
from tests.support.cluster.membership import (
    INCARNATION,
    address_of,
    make_full_table,
    make_member_table,
    make_record,
    pop_events,
    pop_gossip,
)

CONFIG = MembershipConfig()


NOW = 100.0


def merge(table: MemberTable, *records: MemberRecord, now: float = NOW) -> MergeResult:
    """Merge all; the verdict on the last."""
    return [table.merge(record, now) for record in records][-1]


def pop_event_types(table: MemberTable) -> list[MembershipEventType]:
    kinds = [change.kind for change in table.events]
    table.events.clear()
    return kinds


@pytest.mark.parametrize("state", MemberState)
def test_merge_of_an_unknown_node_is_unproven_or_stale_if_dead(state: MemberState) -> None:
    table = make_member_table()
    result = merge(table, make_record("b", state, reported_by="c"))
    assert result is (MergeResult.UNPROVEN if state.is_active else MergeResult.STALE)
    assert table.entries == {}
    assert (pop_gossip(table), pop_event_types(table)) == ([], [])


def test_admit_of_an_unknown_node_adds_and_gossips_it() -> None:
    table = make_member_table()
    record = make_record("b")
    assert table.admit(record, NOW) is MergeResult.APPLIED
    assert table.entries["b"].record == record
    assert pop_gossip(table) == [record]
    assert pop_event_types(table) == [MembershipEventType.ADDED]
    assert list(table.active) == table.names_at(address_of("b")) == ["b"]
    assert (table.size, table.revision) == (2, 1)
    assert table.admit(record, NOW) is MergeResult.STALE
    assert pop_gossip(table) == []


def test_added_suspect_has_a_deadline_and_leave_needs_the_secret() -> None:
    table = make_full_table(make_record("b", MemberState.SUSPECT, reported_by="c"))
    assert table.deadline() == NOW + CONFIG.failure_timeout_s
    table.expire_suspects(table.deadline() - 0.01)
    assert "b" in table.active
    table.expire_suspects(table.deadline())
    assert table.entries["b"].state is MemberState.DEAD

    table = make_member_table()
    assert (
        merge(table, make_record("b", MemberState.LEFT, secret=b"guess"))
        is MergeResult.FORGED_LEAVE
    )
    assert table.entries == {}


@pytest.mark.parametrize("state", [MemberState.ALIVE, MemberState.SUSPECT, MemberState.DEAD])
def test_merge_of_the_same_or_an_older_incarnation_is_stale(state: MemberState) -> None:
    record = make_record("b", state, reported_by="c")
    table = make_full_table(record)
    assert merge(table, record) is MergeResult.STALE
    assert pop_event_types(table) == []
    assert pop_gossip(table) == []

    table = make_full_table(make_record("b"))
    older = make_record("b", state, incarnation=INCARNATION - 1, reported_by="c")
    assert merge(table, older) is MergeResult.STALE
    assert table.entries["b"].record == make_record("b")


def test_suspected_or_dead_member_with_higher_incarnation_is_alive_again() -> None:
    table = make_full_table(make_record("b", MemberState.SUSPECT, reported_by="c"))
    alive = make_record("b", incarnation=INCARNATION + 1)
    assert merge(table, make_record("b")) is MergeResult.STALE
    assert merge(table, alive) is MergeResult.APPLIED
    assert pop_event_types(table) == [MembershipEventType.REACHABILITY]
    assert pop_gossip(table) == [alive]
    assert table.suspects == {}
    assert table.deadline() == float("inf")

    table = make_full_table(make_record("b", MemberState.DEAD))
    assert merge(table, make_record("b")) is MergeResult.STALE
    assert table.admit(make_record("b"), NOW) is MergeResult.STALE, "it must object first"
    for state in (MemberState.ALIVE, MemberState.SUSPECT):
        claim = make_record("b", state, incarnation=INCARNATION + 1)
        assert merge(table, claim) is MergeResult.UNPROVEN
        assert pop_event_types(table) == []
    assert table.admit(make_record("b", incarnation=INCARNATION + 1), NOW) is MergeResult.APPLIED
    assert pop_event_types(table) == [MembershipEventType.ADDED]
    assert table.names_at(address_of("b")) == ["b"]


def test_record_with_incarnation_out_of_range_is_rejected() -> None:
    table = make_full_table(make_record("b"))
    highest = INCARNATION + INCARNATION_JUMP_MAX
    for name in ("b", "unknown"):
        leap = make_record(name, MemberState.DEAD, incarnation=highest + 1)
        assert merge(table, leap) is MergeResult.INCARNATION_OUT_OF_RANGE
    assert pop_event_types(table) == []
    assert merge(table, make_record("b", incarnation=highest)) is MergeResult.APPLIED

    refusals = [result for result in MergeResult if result.is_rejection]
    assert refusals == [
        MergeResult.INCARNATION_OUT_OF_RANGE,
        MergeResult.FORGED_LEAVE,
        MergeResult.TABLE_FULL,
    ]

    table = make_full_table(make_record("b"))
    moved = make_record("b", incarnation=INCARNATION + 1, address=address_of("evil"))
    merge(table, moved)
    assert table.entries["b"].record.address == address_of("b")
    assert table.names_at(address_of("evil")) == []


def test_confirm_alive_applies_any_incarnation_except_after_leave() -> None:
    table = make_full_table(make_record("b", MemberState.SUSPECT, reported_by="c"))
    entry = table.entries["b"]
    table.confirm_alive(entry, INCARNATION, NOW)
    assert entry.state is MemberState.SUSPECT, "that is what was suspected"
    table.confirm_alive(entry, INCARNATION + 9 * INCARNATION_JUMP_MAX, NOW)
    assert (entry.state, entry.record.incarnation) == (
        MemberState.ALIVE,
        INCARNATION + 9 * INCARNATION_JUMP_MAX,
    )
    table.confirm_alive(entry, 1 << 63, NOW)
    assert entry.record.incarnation == INCARNATION + 9 * INCARNATION_JUMP_MAX

    table = make_full_table(make_record("b", MemberState.LEFT))
    for state in MemberState:
        again = make_record("b", state, incarnation=INCARNATION + 9)
        assert merge(table, again) is MergeResult.STALE
    assert pop_event_types(table) == []
    assert pop_gossip(table) == []
    table.set_local(make_record("self", incarnation=1 << 62))
    assert merge(table, make_record("b", incarnation=(1 << 62) + 1)) is MergeResult.STALE
    assert table.entries["b"].state is MemberState.LEFT
    table = make_full_table(make_record("b"))
    assert (
        merge(table, make_record("b", MemberState.LEFT, secret=b"guess"))
        is MergeResult.FORGED_LEAVE
    )
    assert pop_event_types(table) == []
    assert pop_gossip(table) == []


def test_suspect_ignores_a_probe_of_an_earlier_incarnation() -> None:
    table = make_full_table(make_record("b"))
    assert table.suspect("b", INCARNATION, since=NOW - 2)
    assert table.entries["b"].record.reported_by == "self"
    assert pop_event_types(table) == [MembershipEventType.REACHABILITY]
    assert pop_gossip(table) == [make_record("b", MemberState.SUSPECT, reported_by="self")]
    assert table.deadline() == NOW - 2 + CONFIG.failure_timeout_s

    table = make_full_table(make_record("b", incarnation=INCARNATION + 1))
    assert not table.suspect("b", INCARNATION, since=NOW)
    assert not table.suspect("unknown", INCARNATION, since=NOW)
    assert table.suspects == {}


def test_further_reporters_shorten_the_suspicion_and_are_gossiped() -> None:
    others = [make_record(name) for name in "cdefg"]
    table = make_full_table(make_record("b"), *others)
    table.suspect("b", INCARNATION, since=NOW)
    deadlines = [table.deadline()]
    pop_gossip(table)
    for reported_by in ("c", "d", "e"):
        accusation = make_record("b", MemberState.SUSPECT, reported_by=reported_by)
        assert merge(table, accusation) is MergeResult.APPLIED
        assert pop_gossip(table) == [accusation]
        assert merge(table, accusation) is MergeResult.STALE
        deadlines.append(table.deadline())
    assert deadlines == sorted(set(deadlines), reverse=True)
    assert deadlines[-1] == pytest.approx(NOW + CONFIG.confirmed_failure_timeout_s)
    assert merge(table, make_record("b", MemberState.SUSPECT, reported_by="f")) is MergeResult.STALE


def test_suspect_record_confirms_only_its_own_incarnation() -> None:
    table = make_full_table(*(make_record(name) for name in "bcdef"))
    merge(table, make_record("b", MemberState.SUSPECT, reported_by="c"))
    before = table.deadline()
    assert table.suspect("b", INCARNATION, since=NOW)
    assert table.deadline() < before
    assert not table.suspect("b", INCARNATION, since=NOW), "once is enough"

    table = make_full_table(*(make_record(name) for name in "bcdef"))
    merge(
        table, make_record("b", MemberState.SUSPECT, incarnation=INCARNATION + 1, reported_by="c")
    )
    assert merge(table, make_record("b", MemberState.SUSPECT, reported_by="d")) is MergeResult.STALE
    assert table.deadline() == NOW + CONFIG.failure_timeout_s

    table = make_full_table(make_record("b", MemberState.SUSPECT, reported_by="c"))
    later = make_record("b", MemberState.SUSPECT, incarnation=INCARNATION + 1, reported_by="d")
    assert merge(table, later, now=NOW + 5) is MergeResult.APPLIED
    assert table.deadline() == NOW + 5 + CONFIG.failure_timeout_s
    assert pop_event_types(table) == []


def test_gossip_of_death_shortens_the_suspicion_but_never_removes() -> None:
    table = make_full_table(make_record("b"))
    death = make_record("b", MemberState.DEAD, reported_by="c")
    assert merge(table, death) is MergeResult.APPLIED
    assert pop_event_types(table) == [MembershipEventType.REACHABILITY]
    assert table.deadline() == NOW + CONFIG.confirmed_failure_timeout_s
    assert pop_gossip(table) == [death], "gossiped as it was received"
    assert merge(table, death) is MergeResult.STALE
    assert pop_event_types(table) == []

    table = make_full_table(make_record("b", MemberState.SUSPECT, reported_by="c"))
    assert (
        merge(table, make_record("b", MemberState.DEAD, reported_by="d"), now=NOW + 1)
        is MergeResult.APPLIED
    )
    assert table.deadline() == NOW + CONFIG.confirmed_failure_timeout_s

    table = make_full_table(make_record("b", MemberState.SUSPECT, reported_by="c"))
    death = make_record("b", MemberState.DEAD, incarnation=INCARNATION + 1, reported_by="d")
    assert merge(table, death, now=NOW + 4) is MergeResult.APPLIED
    assert table.deadline() == NOW + 4 + CONFIG.confirmed_failure_timeout_s


def test_expire_suspects_declares_dead_and_gossips_it() -> None:
    table = make_full_table(
        make_record("b", MemberState.SUSPECT, reported_by="c"), make_record("d")
    )
    table.extend_deadlines(7.0)
    assert table.deadline() == NOW + CONFIG.failure_timeout_s + 7.0

    table.expire_suspects(NOW + CONFIG.failure_timeout_s)
    assert pop_event_types(table) == []
    table.expire_suspects(NOW + CONFIG.failure_timeout_s + 7.0)
    assert pop_event_types(table) == [MembershipEventType.REMOVED]
    assert pop_gossip(table) == [make_record("b", MemberState.DEAD, reported_by="self")]
    assert list(table.active) == ["d"]


@pytest.mark.parametrize("before", [MemberState.ALIVE, MemberState.SUSPECT, MemberState.DEAD])
def test_leave_with_the_secret_is_applied_at_any_incarnation(before: MemberState) -> None:
    table = make_full_table(make_record("b", before, incarnation=INCARNATION + 5, reported_by="c"))
    leave_record = make_record("b", MemberState.LEFT)
    assert merge(table, leave_record) is MergeResult.APPLIED
    assert table.entries["b"].state is MemberState.LEFT
    assert pop_event_types(table) == ([MembershipEventType.REMOVED] if before.is_active else [])
    assert pop_gossip(table)[0].leave_secret == leave_record.leave_secret, (
        "so that others believe it too"
    )


def test_merge_applies_properties_by_version_in_any_state(subtests: pytest.Subtests) -> None:
    table = make_full_table(make_record("b", properties={"role": "idle"}))
    newer = make_record("b", version=1, properties={"role": "busy"})
    assert table.merge(newer, NOW) is MergeResult.APPLIED
    change = table.events[0]
    assert change.kind is MembershipEventType.METADATA
    assert change.previous is not None
    assert dict(change.previous.properties) == {"role": "idle"}
    assert dict(change.member.properties) == {"role": "busy"}
    table = make_full_table(make_record("b", properties={"role": "idle"}))
    table.merge(make_record("b", version=1, properties={}), NOW)
    assert dict(table.entries["b"].member.properties) == {}
    for version in [3, 2]:
        with subtests.test(version=version):
            record = make_record("b", version=3, properties={"role": "idle"})
            table = make_full_table(record)
            other = make_record("b", version=version, properties={"role": "other"})
            assert table.merge(other, NOW) is MergeResult.STALE
            assert table.entries["b"].record == record

    table = make_full_table(make_record("b", MemberState.SUSPECT, reported_by="c"))
    assert (
        table.merge(make_record("b", version=1, properties={"role": "x"}), NOW)
        is MergeResult.APPLIED
    )
    assert table.entries["b"].state is MemberState.SUSPECT
    assert dict(table.entries["b"].member.properties) == {"role": "x"}
    table = make_full_table(make_record("b", MemberState.DEAD))
    assert (
        table.merge(make_record("b", version=1, properties={"role": "x"}), NOW)
        is MergeResult.APPLIED
    )
    assert pop_events(table) == []


def test_version_without_properties_is_recorded_as_missing() -> None:
    table = make_full_table(make_record("b", properties={"role": "idle"}))
    entry = table.entries["b"]
    assert not entry.lacks_properties
    bare = make_record("b", version=2).without_properties()
    assert table.merge(bare, NOW) is MergeResult.STALE
    assert entry.lacks_properties
    assert dict(entry.member.properties) == {"role": "idle"}, "the old ones until the new come"
    table.merge(make_record("b", version=1, properties={"role": "between"}), NOW)
    assert entry.lacks_properties
    table.merge(make_record("b", version=2, properties={"role": "busy"}), NOW)
    assert not entry.lacks_properties

    entry = MemberEntry(make_record("b").without_properties(), NOW)
    assert entry.lacks_properties
    assert entry.update_properties(make_record("b", properties={"role": "x"}))
    assert not entry.lacks_properties

    table = make_full_table(make_record("b"))
    entry = table.entries["b"]
    assert entry.member is entry.member
    table.suspect("b", INCARNATION, since=NOW)
    assert entry.member.state is MemberState.SUSPECT
