"""The life of a flow: where everything that can happen leads, and what follows from it."""

from itertools import product

import pytest

from postroad.core.errors import UsageError
from postroad.flows.machine.status import (
    OPERATOR_TRIGGERS,
    TERMINAL_STATUSES,
    FlowEffect,
    FlowStatus,
    FlowTrigger,
    StatusTransition,
    apply_trigger,
)

# By status: what can happen, and where it leads.
LIFE = {
    "queued": {"start": "running", "pause": "paused", "cancel": "failed", "kill": "killed"},
    "held": {"start": "running", "cancel": "failed", "kill": "killed"},
    "running": {
        "finish": "done",
        "fail": "failed",
        "retry later": "retrying",
        "park": "parked",
        "pause": "paused",
        "cancel": "running",
        "kill": "killed",
        "continue as new": "running",
    },
    "retrying": {"retry": "running", "pause": "paused", "cancel": "running", "kill": "killed"},
    "parked": {"retry": "running", "pause": "paused", "cancel": "running", "kill": "killed"},
    "paused": {"resume": "running", "cancel": "running", "kill": "killed"},
    "done": {},
    "failed": {},
    "killed": {},
    "unreadable": {},
}
TURNS: dict[tuple[FlowStatus, FlowTrigger], StatusTransition] = {
    (FlowStatus(status), FlowTrigger(happening)): apply_trigger(
        FlowStatus(status), FlowTrigger(happening)
    )
    for status, moves in LIFE.items()
    for happening in moves
}


def test_apply_trigger_follows_transition_table_or_raises() -> None:
    assert {*LIFE} == {*FlowStatus}
    for status, trigger in product(FlowStatus, FlowTrigger):
        expected = LIFE[status].get(trigger)
        if expected is not None:
            assert apply_trigger(status, trigger).status == expected, (status, trigger)
            continue
        with pytest.raises(UsageError) as refusal:
            apply_trigger(status, trigger)
        able = ", ".join(trigger for trigger in OPERATOR_TRIGGERS if trigger in LIFE[status])
        end = ": it has ended" if status in TERMINAL_STATUSES else ""
        reason = f"; it can {able}" if able else end
        assert str(refusal.value) == f"a flow that is {status} cannot {trigger}{reason}"
    assert {status for status in FlowStatus if not LIFE[status]} == {
        *TERMINAL_STATUSES,
        FlowStatus.UNREADABLE,
    }


def test_client_sessions_and_code_follow_the_flow() -> None:
    closing = {FlowEffect.END_SESSIONS, FlowEffect.FAIL_SESSIONS}
    for (status, trigger), transition in TURNS.items():
        ends = transition.status in TERMINAL_STATUSES
        assert (FlowEffect.RESOLVE_RESULT in transition.effects) == ends, (status, trigger)
        ends_sessions = ends or trigger is FlowTrigger.CONTINUE
        assert len(closing.intersection(transition.effects)) == int(ends_sessions), (
            status,
            trigger,
        )
    assert FlowEffect.END_SESSIONS in TURNS[FlowStatus.RUNNING, FlowTrigger.FINISH].effects
    assert FlowEffect.END_SESSIONS in TURNS[FlowStatus.RUNNING, FlowTrigger.CONTINUE].effects
    assert FlowEffect.CLEAR_HISTORY in TURNS[FlowStatus.RUNNING, FlowTrigger.CONTINUE].effects
    assert (
        FlowEffect.SCHEDULE_RETRY in TURNS[FlowStatus.RUNNING, FlowTrigger.RETRYABLE_ERROR].effects
    )
    for (status, trigger), transition in TURNS.items():
        if (status, trigger) == (FlowStatus.RUNNING, FlowTrigger.CANCEL):
            assert transition == StatusTransition(status), "the code itself says what follows"
            continue
        assert (FlowEffect.RUN_CODE in transition.effects) == (
            transition.status is FlowStatus.RUNNING
        )
        leaves = status is FlowStatus.RUNNING and transition.status not in (
            FlowStatus.COMPLETED,
            FlowStatus.FAILED,
        )
        drops = leaves or transition.status is FlowStatus.KILLED
        assert (FlowEffect.STOP_CODE in transition.effects) == drops, (status, trigger)
