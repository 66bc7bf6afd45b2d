"""Every state with every cause, driven through the roster: the table says all that happens."""

import itertools
from collections.abc import Callable

import pytest

from postroad.cluster.membership import TRANSITIONS, Cause, MembershipConfig, State
from postroad.cluster.membership.roster import Roster
from postroad.cluster.membership.states import HEARD
from tests.support.cluster.membership import INCARNATION, instance_of, make_record, make_roster

NOW = 100.0
LATER = NOW + MembershipConfig().tombstone_s + MembershipConfig().failure_timeout_s

STATES: list[State | None] = [None, *State]


def hear(state: State) -> Callable[[Roster], object]:
    news = make_record("b", state, incarnation=INCARNATION + 1, witness="c")
    return lambda roster: roster.merge(news, NOW)


EVENTS: dict[Cause, Callable[[Roster], object]] = {
    **{cause: hear(state) for state, cause in HEARD.items()},
    Cause.PROBE_FAILED: lambda roster: roster.suspect("b", INCARNATION, since=NOW),
    Cause.TIMED_OUT: lambda roster: roster.bury_silent(LATER),
    Cause.ANSWERED: lambda roster: roster.admit(make_record("b", incarnation=INCARNATION + 1), NOW),
    Cause.REPLACED: lambda roster: roster.admit(make_record("b", start=1), NOW),
    Cause.FORGOTTEN: lambda roster: roster.forget_old(LATER),
}


def bring_about(state: State | None) -> Roster:
    """A roster that thinks so of the process b."""
    roster = make_roster()
    if state is not None:
        roster.add(make_record("b", state, witness="c"), NOW)
    return roster


def thought_of_process(roster: Roster) -> State | None:
    """What is thought of the process that was there first."""
    entry = roster.entries.get("b")
    if entry is None or entry.record.instance != instance_of("b"):
        return None
    return entry.state


def test_every_cause_has_an_event_and_every_state_a_roster() -> None:
    assert set(EVENTS) == set(Cause)
    assert set(HEARD) == set(State)

    assert set(TRANSITIONS) <= set(itertools.product(STATES, Cause))

    for before in STATES:
        assert thought_of_process(bring_about(before)) is before, before

    assert [state for state in State if state.is_active] == [State.ALIVE, State.SUSPECT]


def test_the_table_says_what_happens(subtests: pytest.Subtests) -> None:
    for before, cause in list(itertools.product(STATES, Cause)):
        with subtests.test(before=before):
            roster = bring_about(before)
            EVENTS[cause](roster)
            assert thought_of_process(roster) is TRANSITIONS.get((before, cause), before)

    for cause in list(HEARD.values()):
        with subtests.test(cause=cause):
            roster = bring_about(State.LEFT)
            known = roster.entries["b"].record
            EVENTS[cause](roster)
            assert roster.entries["b"].record == known

    removals = [
        pair
        for pair, after in TRANSITIONS.items()
        if pair[1] is Cause.HEARD_DEAD and pair[0] in (State.ALIVE, State.SUSPECT)
        if after is None or not after.is_active
    ]
    assert removals == []
