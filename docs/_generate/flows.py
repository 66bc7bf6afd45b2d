"""What the page of flows takes from the code: its machines, errors, hospital, fault points."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from enum import StrEnum
from typing import TypeVar

from postroad import flows
from postroad.core import fault_points as faults
from postroad.core.errors import PostroadError
from postroad.flows import FlowError
from postroad.flows.machine.failure_policy import FAILURE_RULES, FailureAction
from postroad.flows.machine.status import (
    STATUS_TRANSITIONS,
    TERMINAL_STATUSES,
    FlowStatus,
    FlowTrigger,
)
from postroad.flows.schedules import scheduler
from postroad.flows.sessions import session
from postroad.flows.sessions.session import SessionState, SessionTrigger

from .tables import table

E = TypeVar("E", bound=StrEnum)

# Members of the enumerations that have no docstring in the code.
_PLAIN_STATUSES = {
    FlowStatus.RUNNING: "It runs or waits.",
    FlowStatus.COMPLETED: "It has returned.",
    FlowStatus.FAILED: "It has failed: by a `FlowError`, or because of its timeout.",
    FlowStatus.KILLED: "An operator killed it.",
}
_PLAIN_HAPPENINGS = {
    FlowTrigger.FINISH: "Its code returned.",
    FlowTrigger.RETRY: "The delay is over, an operator retries it, or the node starts.",
    FlowTrigger.PAUSE: "An operator pauses it.",
    FlowTrigger.RESUME: "An operator resumes it.",
    FlowTrigger.KILL: "An operator kills it.",
    FlowTrigger.CONTINUE: "Its code continues as new.",
}
_FAULT_POINTS = {
    "flows.commit.durable": "a commit of a flow is durable and not processed yet",
    "flows.commit.lost": "a commit of a flow has failed, which is not processed yet",
    "flows.event.handled": "the code has handled an event; its commit is not submitted yet",
    "flows.loaded": "a flow was loaded from the store; its code has not started",
    "flows.recovery.claimed": "a node that starts has claimed its flows and loaded none",
    "flows.recovery.counted": "a node that starts has counted its flows and resumed none",
    "flows.result.resolved": "the end of a flow is durable; its clients are not notified yet",
    "flows.schedule.due": "a schedule is due; nothing is written yet",
    "flows.schedule.started": "a schedule has started a flow, which is not resumed yet",
    "flows.session.received": "a session message was taken out of the inbox",
    "flows.session.rejected": "a session is being rejected; nothing is committed yet",
    "flows.step.completed": "a step function has returned; nothing is committed yet",
    "flows.step.started": "a step function is about to be called",
}


def statuses_table() -> str:
    """Every status of a flow."""
    meanings = _PLAIN_STATUSES | _docstrings(FlowStatus)
    return table(
        ("status", "meaning"), ((f"`{status}`", meanings[status]) for status in FlowStatus)
    )


def life_table() -> str:
    """What becomes of a flow in each status when something happens to it."""
    live = [
        status
        for status in FlowStatus
        if status not in TERMINAL_STATUSES and status is not FlowStatus.UNREADABLE
    ]
    meanings = _PLAIN_HAPPENINGS | _docstrings(FlowTrigger)
    rows = (
        (trigger.value, meanings[trigger], *(_after(status, trigger) for status in live))
        for trigger in FlowTrigger
    )
    return table(("what happens", "why", *live), rows)


def _after(status: FlowStatus, trigger: FlowTrigger) -> str:
    transition = STATUS_TRANSITIONS.get((status, trigger))
    return "-" if transition is None else transition.status.value


def session_table() -> str:
    """What becomes of one end of a session, and what is done."""
    rows = ((it.value, *(_moved(state, it) for state in SessionState)) for it in SessionTrigger)
    return table(("cause", *SessionState), rows)


def _moved(state: SessionState, trigger: SessionTrigger) -> str:
    move = session.SESSION_TRANSITIONS.get((state, trigger))
    if move is None:
        return "-"
    return move.action.value if move.state is state else f"{move.action}, then {move.state}"


def hospital_table() -> str:
    """What is done about an error, by the first line that fits."""
    meanings = _docstrings(FailureAction)
    rows = [(error, action.value, meanings[action]) for error, _, action in FAILURE_RULES]
    rows.append(("anything else", FailureAction.PARK, meanings[FailureAction.PARK]))
    return table(("error", "action", "what is done"), rows)


def errors_table() -> str:
    """Every error of flows that users may meet."""
    kinds = [getattr(flows, name) for name in flows.__all__]
    found = [it for it in kinds if isinstance(it, type) and issubclass(it, PostroadError)]
    rows = ((f"`{it.__name__}`", _kin(it), _meaning(it)) for it in sorted(found, key=_code))
    return table(("error", "is also", "what happened"), rows)


def _code(kind: type[PostroadError]) -> int:
    return kind.code


def _kin(kind: type[PostroadError]) -> str:
    """What else it can be caught as."""
    kin = [it for it in kind.__mro__[1:] if it is FlowError or not issubclass(it, PostroadError)]
    plain = (Exception, BaseException, object, OSError)
    return ", ".join(f"`{it.__name__}`" for it in kin if it not in plain)


def _meaning(kind: type[PostroadError]) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


def fault_points_table() -> str:
    """Where a test can stop, fail or kill a node with flows."""
    assert scheduler.DUE.name in faults.fault_point_names()
    names = [it for it in faults.fault_point_names() if it.startswith("flows.")]
    for name in names:
        if name not in _FAULT_POINTS:
            raise LookupError(f"fault point {name} is not explained: say what it is at")
    return table(("fault point", "there"), ((f"`{it}`", _FAULT_POINTS[it]) for it in names))


def _docstrings(kind: type[E]) -> dict[E, str]:
    """What stands below each value that has something below it."""
    return {kind[name]: text for name, text in _texts(kind)}


def _texts(kind: type[StrEnum]) -> Iterator[tuple[str, str]]:
    tree = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(tree, ast.ClassDef)
    for value, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(value, ast.Assign) and isinstance(text, ast.Expr):
            yield ast.unparse(value.targets[0]), " ".join(ast.literal_eval(text.value).split())
