"""Every state with every cause, driven through the roster: the table says all that happens."""

import itertools
from collections.abc import Callable

import pytest

from postroad.cluster.membership import TRANSITIONS, MembershipConfig, MemberState, StateChangeCause
from postroad.cluster.membership.member_table import MemberTable
from postroad.cluster.membership.members import GOSSIP_CAUSES
from tests.support.cluster.membership import INCARNATION, instance_of, make_record, make_roster

NOW = 100.0
LATER = NOW + MembershipConfig().tombstone_s + MembershipConfig().failure_timeout_s

STATES: list[MemberState | None] = [None, *MemberState]


def hear(state: MemberState) -> Callable[[MemberTable], object]:
    news = make_record("b", state, incarnation=INCARNATION + 1, reported_by="c")
    return lambda roster: roster.merge(news, NOW)


EVENTS: dict[StateChangeCause, Callable[[MemberTable], object]] = {
    **{cause: hear(state) for state, cause in GOSSIP_CAUSES.items()},
    StateChangeCause.PROBE_FAILED: lambda roster: roster.suspect("b", INCARNATION, since=NOW),
    StateChangeCause.TIMED_OUT: lambda roster: roster.expire_suspects(LATER),
    StateChangeCause.ANSWERED: lambda roster: roster.admit(
        make_record("b", incarnation=INCARNATION + 1), NOW
    ),
    StateChangeCause.REPLACED: lambda roster: roster.admit(make_record("b", start=1), NOW),
    StateChangeCause.REAPED: lambda roster: roster.reap_tombstones(LATER),
}


def bring_about(state: MemberState | None) -> MemberTable:
    """A roster that thinks so of the process b."""
    roster = make_roster()
    if state is not None:
        roster.add(make_record("b", state, reported_by="c"), NOW)
    return roster


def thought_of_process(roster: MemberTable) -> MemberState | None:
    """What is thought of the process that was there first."""
    entry = roster.entries.get("b")
    if entry is None or entry.record.instance != instance_of("b"):
        return None
    return entry.state


def test_every_cause_has_an_event_and_every_state_a_roster() -> None:
    assert set(EVENTS) == set(StateChangeCause)
    assert set(GOSSIP_CAUSES) == set(MemberState)

    assert set(TRANSITIONS) <= set(itertools.product(STATES, StateChangeCause))

    for before in STATES:
        assert thought_of_process(bring_about(before)) is before, before

    assert [state for state in MemberState if state.is_active] == [
        MemberState.ALIVE,
        MemberState.SUSPECT,
    ]


def test_the_table_says_what_happens(subtests: pytest.Subtests) -> None:
    for before, cause in list(itertools.product(STATES, StateChangeCause)):
        with subtests.test(before=before):
            roster = bring_about(before)
            EVENTS[cause](roster)
            assert thought_of_process(roster) is TRANSITIONS.get((before, cause), before)

    for cause in list(GOSSIP_CAUSES.values()):
        with subtests.test(cause=cause):
            roster = bring_about(MemberState.LEFT)
            known = roster.entries["b"].record
            EVENTS[cause](roster)
            assert roster.entries["b"].record == known

    removals = [
        pair
        for pair, after in TRANSITIONS.items()
        if pair[1] is StateChangeCause.GOSSIP_DEAD
        and pair[0] in (MemberState.ALIVE, MemberState.SUSPECT)
        if after is None or not after.is_active
    ]
    assert removals == []
