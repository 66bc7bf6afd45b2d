"""The life of a flow, as a table: what can happen to it in each status. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from postroad.core.errors import UsageError


class Status(StrEnum):
    """Where a flow is in its life."""

    QUEUED = "queued"
    """Others of its kind run, as many as may at the same time."""
    HELD = "held"
    """Nobody here knows this flow, or no new ones are begun: it waits for that to change."""
    RUNNING = "running"
    RETRYING = "retrying"
    """It met an error that may pass, and is tried again after a pause."""
    PARKED = "parked"
    """It met an error that will not pass, and waits for an operator."""
    PAUSED = "paused"
    """An operator stopped it for now."""
    DONE = "done"
    FAILED = "failed"
    KILLED = "killed"
    UNREADABLE = "unreadable"
    """It was written by a newer version of Postroad, or is damaged: it is left as it is."""


ENDED = frozenset({Status.DONE, Status.FAILED, Status.KILLED})
"""Nothing happens any more."""


class Happening(StrEnum):
    """What can happen to a flow as a whole."""

    BEGIN = "begin"
    """There is room for it, or code that knows it."""
    FINISH = "finish"
    FAIL = "fail"
    """Its code raised a FlowError."""
    AIL = "ail"
    """Its code raised an error that may pass."""
    OBSERVE = "observe"
    """Its code raised another error, or does not fit what was recorded."""
    RETRY = "retry"
    PAUSE = "pause"
    RESUME = "resume"
    KILL = "kill"
    CONTINUE = "continue as new"


class Effect(StrEnum):
    """What follows from it."""

    RUN_CODE = "run code"
    DROP_CODE = "drop code"
    END_SESSIONS = "end sessions"
    FAIL_SESSIONS = "fail sessions"
    FORGET_STEPS = "forget steps"
    SLEEP = "sleep"
    TELL_CLIENT = "tell client"


class Turn(NamedTuple):
    """A row of the table."""

    status: Status
    effects: tuple[Effect, ...] = ()


_S, _H, _E = Status, Happening, Effect
_KILLED = Turn(_S.KILLED, (_E.DROP_CODE, _E.FAIL_SESSIONS, _E.TELL_CLIENT))
_RUNNING = Turn(_S.RUNNING, (_E.RUN_CODE,))

TABLE: dict[tuple[Status, Happening], Turn] = {
    (_S.QUEUED, _H.BEGIN): _RUNNING,
    (_S.QUEUED, _H.PAUSE): Turn(_S.PAUSED),
    (_S.QUEUED, _H.KILL): _KILLED,
    (_S.HELD, _H.BEGIN): _RUNNING,
    (_S.HELD, _H.KILL): _KILLED,
    (_S.RUNNING, _H.FINISH): Turn(_S.DONE, (_E.END_SESSIONS, _E.TELL_CLIENT)),
    (_S.RUNNING, _H.FAIL): Turn(_S.FAILED, (_E.FAIL_SESSIONS, _E.TELL_CLIENT)),
    (_S.RUNNING, _H.AIL): Turn(_S.RETRYING, (_E.DROP_CODE, _E.SLEEP)),
    (_S.RUNNING, _H.OBSERVE): Turn(_S.PARKED, (_E.DROP_CODE,)),
    (_S.RUNNING, _H.PAUSE): Turn(_S.PAUSED, (_E.DROP_CODE,)),
    (_S.RUNNING, _H.KILL): _KILLED,
    (_S.RUNNING, _H.CONTINUE): Turn(
        _S.RUNNING, (_E.END_SESSIONS, _E.DROP_CODE, _E.FORGET_STEPS, _E.RUN_CODE)
    ),
    (_S.RETRYING, _H.RETRY): _RUNNING,
    (_S.RETRYING, _H.PAUSE): Turn(_S.PAUSED),
    (_S.RETRYING, _H.KILL): _KILLED,
    (_S.PARKED, _H.RETRY): _RUNNING,
    (_S.PARKED, _H.PAUSE): Turn(_S.PAUSED),
    (_S.PARKED, _H.KILL): _KILLED,
    (_S.PAUSED, _H.RESUME): _RUNNING,
    (_S.PAUSED, _H.KILL): _KILLED,
}
"""Everything that can happen to a flow; nothing happens to one that has ended."""


def move(status: Status, happening: Happening) -> Turn:
    """What becomes of a flow; raises UsageError if that cannot happen to it now."""
    turn = TABLE.get((status, happening))
    if turn is None:
        able = [it.value for it in Happening if (status, it) in TABLE]
        end = ": it has ended" if status in ENDED else ""
        raise UsageError(
            f"a flow that is {status} cannot {happening}"
            + (f"; it can {', '.join(able)}" if able else end)
        )
    return turn
