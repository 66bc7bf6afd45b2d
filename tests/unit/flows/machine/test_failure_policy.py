"""What an error means for a flow."""

import sqlite3

from postroad.core.errors import (
    ReplyTimeoutError,
    StoreUnavailableError,
    TransactionAbortedError,
    UsageError,
)
from postroad.flows.errors import (
    DrainingError,
    FlowError,
    FlowTimeoutError,
    NondeterminismError,
    PeerFlowFailedError,
    SerializationError,
    StepFailedError,
    UnrecordedAwaitError,
)
from postroad.flows.machine.failure_policy import (
    FAILURE_RULES,
    TRIGGER_OF_ACTION,
    FailureAction,
    classify_failure,
)
from postroad.flows.machine.status import STATUS_TRANSITIONS, FlowStatus
from tests.support.cases import each

TERMINAL, TRANSIENT, OBSERVATION = FailureAction


class OperationalError(Exception):
    """As drivers of databases call it."""


class Deadlock(OperationalError):
    """A kind of it."""


@each(
    (FlowError("no money"), TERMINAL),
    (PeerFlowFailedError("it failed", "beta", "e1", None), TERMINAL),
    # Both a FlowError and a TimeoutError: what the flow says itself comes first.
    (FlowTimeoutError("late"), TERMINAL),
    (StoreUnavailableError("away"), TRANSIENT),
    (TransactionAbortedError("lost"), TRANSIENT),
    (DrainingError("later"), TRANSIENT),
    (ReplyTimeoutError("late"), TRANSIENT),
    (ConnectionResetError(), TRANSIENT),
    (TimeoutError(), TRANSIENT),
    (sqlite3.OperationalError("database is locked"), TRANSIENT),
    (Deadlock(), TRANSIENT),
    (ValueError("x"), OBSERVATION),
    (KeyboardInterrupt(), OBSERVATION),
    (UsageError("x"), OBSERVATION),
    (SerializationError("x"), OBSERVATION),
    (UnrecordedAwaitError("x"), OBSERVATION),
    (NondeterminismError("x"), OBSERVATION),
    (StepFailedError("x", "k"), OBSERVATION),
    (sqlite3.IntegrityError("x"), OBSERVATION),
)
def test_diagnoses(error: BaseException, action: FailureAction) -> None:
    assert classify_failure(error, 1, 10) is action


def test_diagnoses_are_complete_and_follow_attempts() -> None:
    for attempts, action in ((1, TRANSIENT), (2, TRANSIENT), (3, OBSERVATION), (9, OBSERVATION)):
        assert classify_failure(ConnectionError(), attempts, 3) is action, (attempts, action)
    assert classify_failure(FlowError("no"), 100, 3) is TERMINAL
    assert set(TRIGGER_OF_ACTION) == set(FailureAction)
    assert all(
        (FlowStatus.RUNNING, trigger) in STATUS_TRANSITIONS
        for trigger in TRIGGER_OF_ACTION.values()
    )
    assert len({name for name, _, _ in FAILURE_RULES}) == len(FAILURE_RULES)
