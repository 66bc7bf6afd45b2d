"""The life of a flow: the whole table."""

from itertools import product

import pytest

from postroad.core.errors import UsageError
from postroad.flows.life import ENDED, TABLE, Effect, Happening, Status, move

# A flow may be in one of these when it is made.
FIRST = {Status.QUEUED, Status.HELD, Status.RUNNING}


@pytest.mark.parametrize("status", sorted(ENDED))
def test_there_is_no_way_out_of_an_end(status: Status) -> None:
    assert not [it for it in TABLE if it[0] is status]
    for happening in Happening:
        with pytest.raises(UsageError, match=f"is {status} cannot {happening}: it has ended"):
            move(status, happening)


def test_every_status_but_the_first_ones_is_reached() -> None:
    reached, rising = set(FIRST), True
    while rising:
        more = {turn.status for (status, _), turn in TABLE.items() if status in reached}
        rising = not more <= reached
        reached |= more
    assert reached == set(Status)


@pytest.mark.parametrize("status", sorted(set(Status) - ENDED))
def test_every_other_status_can_be_left_and_ended_by_an_operator(status: Status) -> None:
    assert move(status, Happening.KILL).status is Status.KILLED
    assert {turn.status for (it, _), turn in TABLE.items() if it is status} - {status}


@pytest.mark.parametrize("happening", Happening)
def test_everything_happens_somewhere(happening: Happening) -> None:
    assert [it for it in TABLE if it[1] is happening]


@pytest.mark.parametrize(("status", "happening"), [*product(Status, Happening)])
def test_a_move_is_in_the_table_or_refused(status: Status, happening: Happening) -> None:
    turn = TABLE.get((status, happening))
    if turn is not None:
        assert move(status, happening) == turn
        return
    with pytest.raises(UsageError, match=f"a flow that is {status} cannot {happening}"):
        move(status, happening)


def test_a_refusal_says_what_is_possible() -> None:
    with pytest.raises(UsageError) as refusal:
        move(Status.PAUSED, Happening.PAUSE)
    assert str(refusal.value) == "a flow that is paused cannot pause; it can resume, kill"


def test_whoever_waits_is_told_of_every_end_and_of_nothing_else() -> None:
    for turn in TABLE.values():
        assert (Effect.TELL_CLIENT in turn.effects) == (turn.status in ENDED)


def test_sessions_end_with_the_flow() -> None:
    closing = {Effect.END_SESSIONS, Effect.FAIL_SESSIONS}
    for (_, happening), turn in TABLE.items():
        ends = turn.status in ENDED or happening is Happening.CONTINUE
        assert len(closing.intersection(turn.effects)) == int(ends)


def test_code_runs_where_the_flow_does() -> None:
    for (status, happening), turn in TABLE.items():
        assert (Effect.RUN_CODE in turn.effects) == (turn.status is Status.RUNNING)
        leaves = status is Status.RUNNING and turn.status not in (Status.DONE, Status.FAILED)
        assert (Effect.DROP_CODE in turn.effects) == (leaves or turn.status is Status.KILLED), (
            status,
            happening,
        )
