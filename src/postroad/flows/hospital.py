"""What to do about a flow whose code raised: fail it, try again later, or call an operator."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from enum import StrEnum

from postroad.core.errors import PostroadError, StoreUnavailableError, TransactionAbortedError

from . import values
from .errors import FlowError, PeerFlowFailedError
from .head import FlowFailure, FlowState
from .life import FlowTrigger

_TRACE_CHARS_MAX = 4_000


class FailureAction(StrEnum):
    """What an error means for the flow."""

    FAIL = "terminal"
    """The flow says itself that it has failed: it ends, and everybody in it is told."""
    RETRY = "transient"
    """It may pass: the flow is tried again from its last step, after a pause."""
    PARK = "observation"
    """Nobody knows better: the flow keeps what it has and waits for an operator."""


def _is_of(*kinds: type[BaseException]) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, kinds)


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, PostroadError) and error.retryable


def _is_operational_error(error: BaseException) -> bool:
    """Drivers share no base class, but the standard gives them this name."""
    return any(kind.__name__ == "OperationalError" for kind in type(error).__mro__)


FAILURE_RULES: tuple[tuple[str, Callable[[BaseException], bool], FailureAction], ...] = (
    ("a FlowError", _is_of(FlowError), FailureAction.FAIL),
    (
        "the store is away",
        _is_of(StoreUnavailableError, TransactionAbortedError),
        FailureAction.RETRY,
    ),
    ("an error that says it is retryable", _is_retryable, FailureAction.RETRY),
    ("a connection or a time-out", _is_of(ConnectionError, TimeoutError), FailureAction.RETRY),
    ("an OperationalError of a database", _is_operational_error, FailureAction.RETRY),
)
"""Who is asked, in this order; what none of them knows is observed."""

TRIGGER_OF_ACTION = {
    FailureAction.FAIL: FlowTrigger.FAIL,
    FailureAction.RETRY: FlowTrigger.RETRYABLE_ERROR,
    FailureAction.PARK: FlowTrigger.PARK,
}


def classify_failure(error: BaseException, attempts: int, attempts_max: int) -> FailureAction:
    """What to do, after so many attempts without any progress."""
    for _, knows, action in FAILURE_RULES:
        if knows(error):
            if action is FailureAction.RETRY and attempts >= attempts_max:
                return FailureAction.PARK
            return action
    return FailureAction.PARK


def build_flow_failure(
    error: BaseException, detail: str, state: FlowState, steps: int, now_ms: int
) -> FlowFailure:
    """What is written down of an error, for people."""
    # What another node called it is what everybody calls it.
    error_id = error.error_id if isinstance(error, PeerFlowFailedError) else ""
    if not error_id:
        # The same whenever the same thing goes wrong at the same place.
        place = f"{state.id:x}/{state.run_number}/{steps}".encode()
        error_id = values.digest(state.seed, place).hex()
    return FlowFailure(error_id, values.record_error(error), now_ms, detail)


def format_traceback(error: BaseException) -> str:
    """Where an error comes from, for people."""
    return values.sanitize_text("".join(traceback.format_exception(error))[-_TRACE_CHARS_MAX:])
