"""Member records, member states and membership events."""

import itertools
from collections.abc import Callable

import msgspec
import pytest

from postroad.cluster.membership import (
    TRANSITIONS,
    MemberRecord,
    MembershipConfig,
    MembershipEvent,
    MembershipEventType,
    MemberState,
    StateChangeCause,
)
from postroad.cluster.membership.member_table import MemberTable
from postroad.cluster.membership.members import (
    GOSSIP_CAUSES,
    check_record,
    is_authentic_leave,
    leave_digest,
    properties_size,
    to_member,
)
from postroad.core import Address
from postroad.core.errors import MalformedPayloadError
from tests.support.cluster.membership import (
    INCARNATION,
    instance_of,
    make_member_table,
    make_record,
    secret_of,
)


def check(record: MemberRecord) -> None:
    check_record(record, properties_bytes_max=100)


def test_precedence_orders_incarnation_then_state_with_left_highest() -> None:
    newer = make_record("a", MemberState.ALIVE, incarnation=INCARNATION + 1)
    assert newer.precedence > make_record("a", MemberState.DEAD).precedence

    ranks = [make_record("a", state).precedence for state in MemberState]
    assert ranks == sorted(set(ranks))

    left_record = make_record("a", MemberState.LEFT, incarnation=1)
    assert left_record.precedence > make_record("a", MemberState.DEAD, incarnation=2**61).precedence
    assert left_record.precedence == make_record("a", MemberState.LEFT, incarnation=5).precedence


def test_to_member_copies_the_record() -> None:
    member = to_member(
        make_record("a", MemberState.SUSPECT, properties={"key": "value"}, version=2)
    )
    assert member.name == "a"
    assert member.address == Address("a.example", 26_502)
    assert dict(member.properties) == {"key": "value"}
    assert (member.version, member.incarnation) == (2, INCARNATION)
    assert str(member) == "a at a.example:26502, suspect"

    member = to_member(make_record("a").without_properties())
    assert dict(member.properties) == {}
    with pytest.raises(TypeError):
        member.properties["key"] = "value"  # type: ignore[index]  # It must fail at run time too.

    for state in MemberState:
        assert to_member(make_record("a", state)).is_reachable is (state is MemberState.ALIVE), (
            state
        )

    record = make_record("a", properties={"key": "value"}, version=4)
    bare = record.without_properties()
    assert bare.properties is None
    assert msgspec.structs.replace(bare, properties=record.properties) == record


def test_valid_records_pass_and_leave_with_their_secret(subtests: pytest.Subtests) -> None:
    for state in MemberState:
        with subtests.test(state=state):
            check(make_record("a", state, properties={"key": "x" * 90}))
            check(make_record("a", state).without_properties())

    digest = leave_digest(secret_of("a"))
    assert is_authentic_leave(make_record("a", MemberState.LEFT), digest)
    assert not is_authentic_leave(make_record("a", MemberState.LEFT, secret=b"guess"), digest)
    assert not is_authentic_leave(make_record("a", MemberState.LEFT, secret=b""), digest)

    assert properties_size({}) == 0
    assert properties_size({"ö": "日本"}) == 2 + 6 + 4


def test_check_record_of_an_invalid_record_raises(subtests: pytest.Subtests) -> None:
    impossible: dict[str, list[object]] = {
        "name": ["", "local", "a/b", "n" * 256],
        "host": ["", "h" * 256],
        "port": [0, -1, 65_536],
        "incarnation": [-1, 1 << 63],
        "version": [-1, 1 << 63],
        "instance": [-1, 1 << 63],
        "leave_digest": [b"", b"x" * 17],
        "properties": [{"key": "x" * 100}],
    }
    # Such a record would block the head of the gossip queue for ever.
    too_long_for_a_datagram: dict[str, list[object]] = {
        "reported_by": ["w" * 2_000],
        "leave_secret": [b"s" * 2_000],
        "host": ["\N{SNOWMAN}" * 255],
    }
    longest_name = make_record("n" * 255, address=Address("10.0.0.1", 26_502))
    check(longest_name)
    tables = [(make_record("a"), impossible), (longest_name, too_long_for_a_datagram)]
    for valid, table in tables:
        for field, values in table.items():
            for value in values:
                record = msgspec.structs.replace(valid, **{field: value})
                with subtests.test(field=field, value=value), pytest.raises(MalformedPayloadError):
                    check(record)


NOW = 100.0
LATER = NOW + MembershipConfig().tombstone_ttl_s + MembershipConfig().failure_timeout_s

STATES: list[MemberState | None] = [None, *MemberState]


def gossip(state: MemberState) -> Callable[[MemberTable], object]:
    records = make_record("b", state, incarnation=INCARNATION + 1, reported_by="c")
    return lambda table: table.merge(records, NOW)


EVENTS: dict[StateChangeCause, Callable[[MemberTable], object]] = {
    **{cause: gossip(state) for state, cause in GOSSIP_CAUSES.items()},
    StateChangeCause.PROBE_FAILED: lambda table: table.suspect("b", INCARNATION, since=NOW),
    StateChangeCause.TIMED_OUT: lambda table: table.expire_suspects(LATER),
    StateChangeCause.REPLIED: lambda table: table.admit(
        make_record("b", incarnation=INCARNATION + 1), NOW
    ),
    StateChangeCause.REPLACED: lambda table: table.admit(make_record("b", start=1), NOW),
    StateChangeCause.REAPED: lambda table: table.reap_tombstones(LATER),
}


def make_table_in_state(state: MemberState | None) -> MemberTable:
    """A table with the process b in this state."""
    table = make_member_table()
    if state is not None:
        table.add(make_record("b", state, reported_by="c"), NOW)
    return table


def state_of_first_process(table: MemberTable) -> MemberState | None:
    """State of the process that was there first; None if it is gone."""
    entry = table.entries.get("b")
    if entry is None or entry.record.instance != instance_of("b"):
        return None
    return entry.state


def test_every_cause_and_state_is_covered() -> None:
    assert set(EVENTS) == set(StateChangeCause)
    assert set(GOSSIP_CAUSES) == set(MemberState)

    assert set(TRANSITIONS) <= set(itertools.product(STATES, StateChangeCause))

    for before in STATES:
        assert state_of_first_process(make_table_in_state(before)) is before, before

    assert [state for state in MemberState if state.is_active] == [
        MemberState.ALIVE,
        MemberState.SUSPECT,
    ]


def test_transitions_match_the_member_table(subtests: pytest.Subtests) -> None:
    for before, cause in list(itertools.product(STATES, StateChangeCause)):
        with subtests.test(before=before):
            table = make_table_in_state(before)
            EVENTS[cause](table)
            assert state_of_first_process(table) is TRANSITIONS.get((before, cause), before)

    for cause in list(GOSSIP_CAUSES.values()):
        with subtests.test(cause=cause):
            table = make_table_in_state(MemberState.LEFT)
            previous = table.entries["b"].record
            EVENTS[cause](table)
            assert table.entries["b"].record == previous

    removals = [
        pair
        for pair, after in TRANSITIONS.items()
        if pair[1] is StateChangeCause.GOSSIP_DEAD
        and pair[0] in (MemberState.ALIVE, MemberState.SUSPECT)
        if after is None or not after.is_active
    ]
    assert removals == []


def test_event_as_text_names_kind_member_and_state() -> None:
    change = MembershipEvent(
        MembershipEventType.REMOVED, to_member(make_record("b", MemberState.LEFT))
    )
    assert str(change) == "removed b at b.example:26502, left"
    assert MembershipEvent(MembershipEventType.ADDED, to_member(make_record("b"))).previous is None
