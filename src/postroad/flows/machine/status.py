"""The life of a flow, as a table: what can happen to it in each status. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from postroad.core.errors import UsageError


class FlowStatus(StrEnum):
    """Where a flow is in its life."""

    QUEUED = "queued"
    """Others of its kind run, as many as may at the same time."""
    HELD = "held"
    """Nobody here knows this flow, or no new ones are started: it waits for that to change."""
    RUNNING = "running"
    RETRYING = "retrying"
    """It met an error that may pass, and is retried after a pause."""
    PARKED = "parked"
    """It met an error that will not pass, and waits for an operator."""
    PAUSED = "paused"
    """An operator stopped it for now."""
    COMPLETED = "done"
    FAILED = "failed"
    KILLED = "killed"
    UNREADABLE = "unreadable"
    """It was written by a newer version of Postroad, or is damaged: it is left as it is."""


TERMINAL_STATUSES = frozenset({FlowStatus.COMPLETED, FlowStatus.FAILED, FlowStatus.KILLED})
"""Nothing happens any more."""


class FlowTrigger(StrEnum):
    """What can happen to a flow as a whole."""

    START = "start"
    """There is room for it, or code that knows it."""
    FINISH = "finish"
    FAIL = "fail"
    """Its code raised a FlowError."""
    RETRYABLE_ERROR = "retry later"
    """Its code raised an error that may pass."""
    PARK = "park"
    """Its code raised another error, or does not fit what was recorded."""
    RETRY = "retry"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    """Its code gets an error, wherever it waits; without code it fails."""
    KILL = "kill"
    CONTINUE = "continue as new"


OPERATOR_TRIGGERS = (
    FlowTrigger.RETRY,
    FlowTrigger.PAUSE,
    FlowTrigger.RESUME,
    FlowTrigger.CANCEL,
    FlowTrigger.KILL,
)
"""What operators can do with a flow; everything else happens by itself."""


class FlowEffect(StrEnum):
    """What follows from it."""

    RUN_CODE = "run code"
    STOP_CODE = "stop code"
    END_SESSIONS = "end sessions"
    FAIL_SESSIONS = "fail sessions"
    CLEAR_HISTORY = "clear history"
    SCHEDULE_RETRY = "schedule retry"
    RESOLVE_RESULT = "resolve result"


class StatusTransition(NamedTuple):
    """A row of the table."""

    status: FlowStatus
    effects: tuple[FlowEffect, ...] = ()


_S, _H, _E = FlowStatus, FlowTrigger, FlowEffect
_KILLED = StatusTransition(_S.KILLED, (_E.STOP_CODE, _E.FAIL_SESSIONS, _E.RESOLVE_RESULT))
_RUNNING = StatusTransition(_S.RUNNING, (_E.RUN_CODE,))
_FAILED = StatusTransition(_S.FAILED, (_E.FAIL_SESSIONS, _E.RESOLVE_RESULT))

STATUS_TRANSITIONS: dict[tuple[FlowStatus, FlowTrigger], StatusTransition] = {
    (_S.QUEUED, _H.START): _RUNNING,
    (_S.QUEUED, _H.PAUSE): StatusTransition(_S.PAUSED),
    (_S.QUEUED, _H.CANCEL): _FAILED,
    (_S.QUEUED, _H.KILL): _KILLED,
    (_S.HELD, _H.START): _RUNNING,
    (_S.HELD, _H.CANCEL): _FAILED,
    (_S.HELD, _H.KILL): _KILLED,
    (_S.RUNNING, _H.FINISH): StatusTransition(_S.COMPLETED, (_E.END_SESSIONS, _E.RESOLVE_RESULT)),
    (_S.RUNNING, _H.FAIL): _FAILED,
    (_S.RUNNING, _H.RETRYABLE_ERROR): StatusTransition(
        _S.RETRYING, (_E.STOP_CODE, _E.SCHEDULE_RETRY)
    ),
    (_S.RUNNING, _H.PARK): StatusTransition(_S.PARKED, (_E.STOP_CODE,)),
    (_S.RUNNING, _H.PAUSE): StatusTransition(_S.PAUSED, (_E.STOP_CODE,)),
    (_S.RUNNING, _H.CANCEL): StatusTransition(_S.RUNNING),
    (_S.RUNNING, _H.KILL): _KILLED,
    (_S.RUNNING, _H.CONTINUE): StatusTransition(
        _S.RUNNING, (_E.END_SESSIONS, _E.STOP_CODE, _E.CLEAR_HISTORY, _E.RUN_CODE)
    ),
    (_S.RETRYING, _H.RETRY): _RUNNING,
    (_S.RETRYING, _H.PAUSE): StatusTransition(_S.PAUSED),
    (_S.RETRYING, _H.CANCEL): _RUNNING,
    (_S.RETRYING, _H.KILL): _KILLED,
    (_S.PARKED, _H.RETRY): _RUNNING,
    (_S.PARKED, _H.PAUSE): StatusTransition(_S.PAUSED),
    (_S.PARKED, _H.CANCEL): _RUNNING,
    (_S.PARKED, _H.KILL): _KILLED,
    (_S.PAUSED, _H.RESUME): _RUNNING,
    (_S.PAUSED, _H.CANCEL): _RUNNING,
    (_S.PAUSED, _H.KILL): _KILLED,
}
"""Everything that can happen to a flow; nothing happens to one that has ended."""


def apply_trigger(status: FlowStatus, trigger: FlowTrigger) -> StatusTransition:
    """What becomes of a flow; raises UsageError if that cannot happen to it now."""
    transition = STATUS_TRANSITIONS.get((status, trigger))
    if transition is None:
        able = [each.value for each in OPERATOR_TRIGGERS if (status, each) in STATUS_TRANSITIONS]
        end = ": it has ended" if status in TERMINAL_STATUSES else ""
        raise UsageError(
            f"a flow that is {status} cannot {trigger}"
            + (f"; it can {', '.join(able)}" if able else end)
        )
    return transition
