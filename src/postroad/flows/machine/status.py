"""The statuses of a flow, and the table of transitions between them. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from postroad.core.errors import UsageError


class FlowStatus(StrEnum):
    """The status of a flow."""

    QUEUED = "queued"
    """Waiting for a concurrency slot."""
    HELD = "held"
    """No code registered for it here, or the node is draining."""
    RUNNING = "running"
    RETRYING = "retrying"
    """It had a transient error, and is retried after a delay."""
    PARKED = "parked"
    """It had a permanent error, and waits for an operator."""
    PAUSED = "paused"
    """Paused by an operator."""
    COMPLETED = "done"
    FAILED = "failed"
    KILLED = "killed"
    UNREADABLE = "unreadable"
    """Written by a newer version of Postroad, or damaged: left unchanged."""


TERMINAL_STATUSES = frozenset({FlowStatus.COMPLETED, FlowStatus.FAILED, FlowStatus.KILLED})
"""Statuses of flows that have ended."""


class FlowTrigger(StrEnum):
    """What changes the status of a flow."""

    START = "start"
    """There is a concurrency slot, or code, for it now."""
    FINISH = "finish"
    FAIL = "fail"
    """Its code raised a FlowError."""
    RETRYABLE_ERROR = "retry later"
    """Its code raised a transient error."""
    PARK = "park"
    """Its code raised another error, or does not match the history."""
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
"""Triggers of operators; all others come from the engine."""


class FlowEffect(StrEnum):
    """What the state machine does after a change of status."""

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
"""All triggers by status; a flow that has ended has none."""


def apply_trigger(status: FlowStatus, trigger: FlowTrigger) -> StatusTransition:
    """Return the transition of a trigger; raises UsageError if the status does not allow it."""
    transition = STATUS_TRANSITIONS.get((status, trigger))
    if transition is None:
        able = [each.value for each in OPERATOR_TRIGGERS if (status, each) in STATUS_TRANSITIONS]
        end = ": it has ended" if status in TERMINAL_STATUSES else ""
        raise UsageError(
            f"a flow that is {status} cannot {trigger}"
            + (f"; it can {', '.join(able)}" if able else end)
        )
    return transition
