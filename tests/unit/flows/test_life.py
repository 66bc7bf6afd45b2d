"""The life of a flow: where everything that can happen leads, and what follows from it."""

from itertools import product

import pytest

from postroad.core.errors import UsageError
from postroad.flows.life import ENDED, Effect, Happening, Status, Turn, move

# By status: what can happen, and where it leads.
LIFE = {
    "queued": {"begin": "running", "pause": "paused", "kill": "killed"},
    "held": {"begin": "running", "kill": "killed"},
    "running": {
        "finish": "done",
        "fail": "failed",
        "ail": "retrying",
        "observe": "parked",
        "pause": "paused",
        "kill": "killed",
        "continue as new": "running",
    },
    "retrying": {"retry": "running", "pause": "paused", "kill": "killed"},
    "parked": {"retry": "running", "pause": "paused", "kill": "killed"},
    "paused": {"resume": "running", "kill": "killed"},
    "done": {},
    "failed": {},
    "killed": {},
    "unreadable": {},
}
TURNS: dict[tuple[Status, Happening], Turn] = {
    (Status(status), Happening(happening)): move(Status(status), Happening(happening))
    for status, moves in LIFE.items()
    for happening in moves
}


def test_move_leads_where_the_life_of_a_flow_says_or_is_refused() -> None:
    assert {*LIFE} == {*Status}
    for status, happening in product(Status, Happening):
        expected = LIFE[status].get(happening)
        if expected is not None:
            assert move(status, happening).status == expected, (status, happening)
            continue
        with pytest.raises(UsageError) as refusal:
            move(status, happening)
        able = ", ".join(it for it in Happening if it in LIFE[status])
        end = ": it has ended" if status in ENDED else ""
        reason = f"; it can {able}" if able else end
        assert str(refusal.value) == f"a flow that is {status} cannot {happening}{reason}"
    assert {it for it in Status if not LIFE[it]} == {*ENDED, Status.UNREADABLE}


def test_client_sessions_and_code_follow_the_flow() -> None:
    closing = {Effect.END_SESSIONS, Effect.FAIL_SESSIONS}
    for (status, happening), turn in TURNS.items():
        ends = turn.status in ENDED
        assert (Effect.TELL_CLIENT in turn.effects) == ends, (status, happening)
        ends_sessions = ends or happening is Happening.CONTINUE
        assert len(closing.intersection(turn.effects)) == int(ends_sessions), (status, happening)
    assert Effect.END_SESSIONS in TURNS[Status.RUNNING, Happening.FINISH].effects
    assert Effect.END_SESSIONS in TURNS[Status.RUNNING, Happening.CONTINUE].effects
    assert Effect.FORGET_STEPS in TURNS[Status.RUNNING, Happening.CONTINUE].effects
    assert Effect.SLEEP in TURNS[Status.RUNNING, Happening.AIL].effects
    for (status, happening), turn in TURNS.items():
        assert (Effect.RUN_CODE in turn.effects) == (turn.status is Status.RUNNING)
        leaves = status is Status.RUNNING and turn.status not in (Status.DONE, Status.FAILED)
        drops = leaves or turn.status is Status.KILLED
        assert (Effect.DROP_CODE in turn.effects) == drops, (status, happening)
