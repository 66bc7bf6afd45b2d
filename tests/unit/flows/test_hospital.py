"""What an error means for a flow."""

import sqlite3

from postroad.core.errors import (
    ReplyTimeoutError,
    StoreUnavailableError,
    TransactionAbortedError,
    UsageError,
)
from postroad.flows.errors import (
    Draining,
    FlowError,
    FlowMismatch,
    FlowTimeout,
    Nondeterminism,
    PeerFailed,
    StepFailed,
    Unrecordable,
)
from postroad.flows.hospital import HAPPENINGS, STAFF, Diagnosis, diagnose
from postroad.flows.life import TABLE, Status
from tests.support.cases import each

TERMINAL, TRANSIENT, OBSERVATION = Diagnosis


class OperationalError(Exception):
    """As drivers of databases call it."""


class Deadlock(OperationalError):
    """A kind of it."""


@each(
    (FlowError("no money"), TERMINAL),
    (PeerFailed("it failed", "beta", "e1", None), TERMINAL),
    # Both a FlowError and a TimeoutError: what the flow says itself comes first.
    (FlowTimeout("late"), TERMINAL),
    (StoreUnavailableError("away"), TRANSIENT),
    (TransactionAbortedError("lost"), TRANSIENT),
    (Draining("later"), TRANSIENT),
    (ReplyTimeoutError("late"), TRANSIENT),
    (ConnectionResetError(), TRANSIENT),
    (TimeoutError(), TRANSIENT),
    (sqlite3.OperationalError("database is locked"), TRANSIENT),
    (Deadlock(), TRANSIENT),
    (ValueError("x"), OBSERVATION),
    (KeyboardInterrupt(), OBSERVATION),
    (UsageError("x"), OBSERVATION),
    (Unrecordable("x"), OBSERVATION),
    (Nondeterminism("x"), OBSERVATION),
    (FlowMismatch("x"), OBSERVATION),
    (StepFailed("x", "k"), OBSERVATION),
    (sqlite3.IntegrityError("x"), OBSERVATION),
)
def test_diagnoses(error: BaseException, diagnosis: Diagnosis) -> None:
    assert diagnose(error, 0, 10) is diagnosis


def test_diagnoses_are_complete_and_follow_attempts() -> None:
    for attempts, diagnosis in ((0, TRANSIENT), (2, TRANSIENT), (3, OBSERVATION), (9, OBSERVATION)):
        assert diagnose(ConnectionError(), attempts, 3) is diagnosis, (attempts, diagnosis)
    assert diagnose(FlowError("no"), 100, 3) is TERMINAL
    assert set(HAPPENINGS) == set(Diagnosis)
    assert all((Status.RUNNING, it) in TABLE for it in HAPPENINGS.values())
    assert len({name for name, _, _ in STAFF}) == len(STAFF)
