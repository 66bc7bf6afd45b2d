"""Decides about retries: of a step, of a flow whose code raised, of a flow whose process died.

A step that raised is retried by its own `RetryPolicy` (`step_retry_delay_s`); then its error is
raised in the flow. An error of the flow fails it, retries it later, or parks it for an operator
(`FAILURE_RULES`).

When a process dies, any flow that was running may be the cause: it used up all memory, or called
something that crashed. A crash is counted for each of them, and the count is cleared as soon as the
flow makes progress. Flows with too many crashes are suspects: at the next start they wait, and are
then tried a few at a time, one group after the other. If the process survives a trial, its group is
cleared. If it dies, only that group can contain the cause; at the next start the group comes last
and is split, so that the cause is tried alone in the end.

A flow is parked when the process died three times while it was the only suspect running. It waits
longer before each trial, because a process that is killed from outside has another cause.

Not decided here: an operator's kill, a flow's own deadline, and what `FlowLifecycle` parks at once
because code and history do not fit, a result cannot be recorded, or the history is full.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from postroad.core.errors import PostroadError, StoreUnavailableError, TransactionAbortedError
from postroad.flows.errors import FlowError, FlowParkedError, PeerFlowFailedError
from postroad.flows.machine import values
from postroad.flows.machine.commands import RunStep
from postroad.flows.machine.state import FlowFailure, FlowState
from postroad.flows.machine.status import FlowStatus, FlowTrigger

_TRACE_CHARS_MAX = 4_000
# A transaction that was aborted by others is not a fault of its step.
_ABORTED_ATTEMPTS = 3
_ABORTED_DELAY_S = 0.05


def step_retry_delay_s(
    step: RunStep, error: BaseException, failures: int, jitter: float
) -> float | None:
    """Return the seconds until a step that failed is retried; None if it is not."""
    if not isinstance(error, Exception):
        return None
    if step.retry is not None and not step.retry.allows(error):
        return None
    if isinstance(error, TransactionAbortedError) and failures < _ABORTED_ATTEMPTS:
        return _ABORTED_DELAY_S * failures
    if step.retry is None or failures >= step.retry.max_attempts:
        return None
    return step.retry.delay_s(failures, jitter)


class FailureAction(StrEnum):
    """The action on a flow whose code raised an error."""

    FAIL = "fail"
    """The flow ends with its error, which is sent to its sessions."""
    RETRY = "retry"
    """The flow is retried from its last recorded step after a delay."""
    PARK = "park"
    """The flow keeps its history and waits for an operator."""


def _is_of(*kinds: type[BaseException]) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, kinds)


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, PostroadError) and error.retryable


def _is_operational_error(error: BaseException) -> bool:
    """Tell a DB-API 2 OperationalError by its name, as drivers share no base class."""
    return any(kind.__name__ == "OperationalError" for kind in type(error).__mro__)


FAILURE_RULES: tuple[tuple[str, Callable[[BaseException], bool], FailureAction], ...] = (
    ("a FlowError", _is_of(FlowError), FailureAction.FAIL),
    (
        "the store is unavailable",
        _is_of(StoreUnavailableError, TransactionAbortedError),
        FailureAction.RETRY,
    ),
    ("an error that says it is retryable", _is_retryable, FailureAction.RETRY),
    ("a connection error or a timeout", _is_of(ConnectionError, TimeoutError), FailureAction.RETRY),
    ("an OperationalError of a database", _is_operational_error, FailureAction.RETRY),
)
"""The first rule that matches an error decides; an error that none matches parks the flow."""

TRIGGER_OF_ACTION = {
    FailureAction.FAIL: FlowTrigger.FAIL,
    FailureAction.RETRY: FlowTrigger.RETRYABLE_ERROR,
    FailureAction.PARK: FlowTrigger.PARK,
}


def classify_failure(error: BaseException, attempts: int, max_attempts: int) -> FailureAction:
    """Return the action on a flow after so many attempts without progress."""
    for _, matches, action in FAILURE_RULES:
        if matches(error):
            if action is FailureAction.RETRY and attempts >= max_attempts:
                return FailureAction.PARK
            return action
    return FailureAction.PARK


def build_flow_failure(
    error: BaseException, detail: str, state: FlowState, steps: int, now_ms: int
) -> FlowFailure:
    """Return the failure that is stored with a flow and shown to operators."""
    # An error of a peer keeps its id on all nodes.
    error_id = error.error_id if isinstance(error, PeerFlowFailedError) else ""
    if not error_id:
        # The same id whenever the flow fails at the same step.
        place = f"{state.id:x}/{state.run_number}/{steps}".encode()
        error_id = values.digest(state.seed, place).hex()
    return FlowFailure(error_id, values.record_error(error), now_ms, detail)


def format_traceback(error: BaseException) -> str:
    """Return the end of an error's traceback, as text that can be stored."""
    return values.sanitize_text("".join(traceback.format_exception(error))[-_TRACE_CHARS_MAX:])


CRASHES_ALONE_MAX = 3
"""Number of crashes during trials of a flow alone after which it is parked."""
_DOUBLINGS_MAX = 6


class Trial(NamedTuple):
    """A group of suspects that run at the same time."""

    starts_ms: int
    ends_ms: int
    states: Sequence[FlowState]


def count_crash(active: Sequence[FlowState]) -> None:
    """Count a crash for the flows that may have caused it, of those that were running."""
    suspects = [state for state in active if state.is_suspect]
    for state in suspects or active:
        state.crash_recoveries += 1
    if len(suspects) == 1:
        suspects[0].crashes_alone += 1


def needs_trial(state: FlowState, crash_recoveries_max: int) -> bool:
    """Tell whether a flow that is running, retrying or parked must be tried apart from others."""
    if state.status is FlowStatus.RETRYING:
        return state.is_suspect
    is_open = state.status in (FlowStatus.RUNNING, FlowStatus.PARKED)
    return is_open and state.crash_recoveries > crash_recoveries_max and not is_convicted(state)


def is_convicted(state: FlowState) -> bool:
    """Tell whether the process died so often with this flow that only an operator retries it."""
    return state.crashes_alone >= CRASHES_ALONE_MAX


def plan_trials(suspects: Iterable[FlowState], now_ms: int, trial_ms: int) -> list[Trial]:
    """Return when each suspect is tried: the least suspicious first, in groups that grow."""
    trials: list[Trial] = []
    starts_ms = now_ms
    by_suspicion = groupby(sorted(suspects, key=_sort_key), _suspicion)
    for (crashes_alone, earlier_trials, _), group in by_suspicion:
        waiting, size = list(group), 1
        # No trial at first: a process that dies then has another reason.
        starts_ms = max(starts_ms, now_ms + trial_ms * 4**crashes_alone)
        while waiting:
            # A flow that kills slowly survives a short trial, so each next one is longer.
            ends_ms = starts_ms + trial_ms * 2 ** min(earlier_trials, _DOUBLINGS_MAX)
            trials.append(Trial(starts_ms, ends_ms, waiting[:size]))
            waiting, starts_ms = waiting[size:], ends_ms
            size = 1 if crashes_alone else size * 2
    return trials


def _suspicion(state: FlowState) -> tuple[int, int, int]:
    return state.crashes_alone, state.trials, state.crash_recoveries


def _sort_key(state: FlowState) -> tuple[int, int, int, int]:
    return (*_suspicion(state), state.id)


def defer_to_trial(state: FlowState, starts_ms: int, now_ms: int) -> None:
    """Make a flow wait for its trial."""
    state.is_suspect = True
    state.status, state.wake_ms = FlowStatus.RETRYING, starts_ms
    _set_failure(state, "it is retried apart from others", now_ms)


def park_convicted(state: FlowState, now_ms: int) -> None:
    """Park a flow that killed the process whenever it ran alone."""
    state.status, state.wake_ms = FlowStatus.PARKED, None
    _set_failure(state, f"the last {state.crashes_alone} times no other suspect ran", now_ms)


def _set_failure(state: FlowState, reason: str, now_ms: int) -> None:
    crashes = state.crash_recoveries
    text = f"the process died {crashes} times while this flow made no progress: {reason}"
    state.failure = build_flow_failure(FlowParkedError(text), text, state, 0, now_ms)
