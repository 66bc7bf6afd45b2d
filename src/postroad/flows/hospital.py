"""What to do about a flow whose code raised: fail it, try again later, or call an operator."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from enum import StrEnum

from postroad.core.errors import PostroadError, StoreUnavailableError, TransactionAbortedError

from . import values
from .errors import FlowError, PeerFailed
from .head import Head, Trouble
from .life import Happening

_TRACE_CHARS_MAX = 4_000


class Diagnosis(StrEnum):
    """What an error means for the flow."""

    TERMINAL = "terminal"
    """The flow says itself that it has failed: it ends, and everybody in it is told."""
    TRANSIENT = "transient"
    """It may pass: the flow is tried again from its last step, after a pause."""
    OBSERVATION = "observation"
    """Nobody knows better: the flow keeps what it has and waits for an operator."""


def _is_of(*kinds: type[BaseException]) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, kinds)


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, PostroadError) and error.retryable


def _is_database_trouble(error: BaseException) -> bool:
    """Drivers share no base class, but the standard gives them this name."""
    return any(kind.__name__ == "OperationalError" for kind in type(error).__mro__)


STAFF: tuple[tuple[str, Callable[[BaseException], bool], Diagnosis], ...] = (
    ("a FlowError", _is_of(FlowError), Diagnosis.TERMINAL),
    (
        "the store is away",
        _is_of(StoreUnavailableError, TransactionAbortedError),
        Diagnosis.TRANSIENT,
    ),
    ("an error that says it is retryable", _is_retryable, Diagnosis.TRANSIENT),
    ("a connection or a time-out", _is_of(ConnectionError, TimeoutError), Diagnosis.TRANSIENT),
    ("an OperationalError of a database", _is_database_trouble, Diagnosis.TRANSIENT),
)
"""Who is asked, in this order; what none of them knows is observed."""

HAPPENINGS = {
    Diagnosis.TERMINAL: Happening.FAIL,
    Diagnosis.TRANSIENT: Happening.AIL,
    Diagnosis.OBSERVATION: Happening.OBSERVE,
}


def diagnose(error: BaseException, attempts: int, attempts_max: int) -> Diagnosis:
    """What to do, after so many attempts without any progress."""
    for _, knows, diagnosis in STAFF:
        if knows(error):
            if diagnosis is Diagnosis.TRANSIENT and attempts >= attempts_max:
                return Diagnosis.OBSERVATION
            return diagnosis
    return Diagnosis.OBSERVATION


def write_up(error: BaseException, detail: str, head: Head, steps: int, now_ms: int) -> Trouble:
    """What is written down of an error, for people."""
    # What another node called it is what everybody calls it.
    error_id = error.error_id if isinstance(error, PeerFailed) else ""
    if not error_id:
        # The same whenever the same thing goes wrong at the same place.
        place = f"{head.id:x}/{head.run}/{steps}".encode()
        error_id = values.digest(head.entropy, place).hex()
    return Trouble(error_id, values.describe_error(error), now_ms, detail)


def trace(error: BaseException) -> str:
    """Where an error comes from, for people."""
    return values.clean("".join(traceback.format_exception(error))[-_TRACE_CHARS_MAX:])
