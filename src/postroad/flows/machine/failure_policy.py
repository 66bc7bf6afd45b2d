"""What happens to a flow whose code raised, or that was running when its process died.

An error fails the flow, retries it later, or parks it for an operator (`FAILURE_RULES`).

When a process dies, any flow that was running may be the cause: it used up all memory, or called
something that crashed. A crash is counted for each of them, and the count is cleared as soon as the
flow makes progress. Flows with too many crashes are suspects: at the next start they wait, and are
then tried a few at a time, one group after the other. If the process survives a trial, its group is
cleared. If it dies, only that group can contain the cause; at the next start the group comes last
and is split, so that the cause is tried alone in the end.

A flow is parked when the process died three times while it was the only suspect running. It waits
longer before each trial, because a process that is killed from outside has another cause.
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
from postroad.flows.machine.state import FlowFailure, FlowState
from postroad.flows.machine.status import FlowStatus, FlowTrigger

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


CRASHES_ALONE_MAX = 3
"""How often the process may end while a flow is tried alone; then it is parked."""
_DOUBLINGS_MAX = 6


class Trial(NamedTuple):
    """Flows that are tried at the same time."""

    starts_ms: int
    ends_ms: int
    states: Sequence[FlowState]


def count_crash(at_work: Sequence[FlowState]) -> None:
    """Count that the process was killed for those flows at work that may be the cause."""
    suspects = [state for state in at_work if state.is_suspect]
    for state in suspects or at_work:
        state.crash_recoveries += 1
    if len(suspects) == 1:
        suspects[0].crashes_alone += 1


def needs_trial(state: FlowState, recoveries_max: int) -> bool:
    """Whether a flow that is at work, is tried again later or is parked has to be tried apart."""
    if state.status is FlowStatus.RETRYING:
        return state.is_suspect
    is_open = state.status in (FlowStatus.RUNNING, FlowStatus.PARKED)
    return is_open and state.crash_recoveries > recoveries_max and not is_convicted(state)


def is_convicted(state: FlowState) -> bool:
    """Whether it is parked for good, until an operator wants it tried."""
    return state.crashes_alone >= CRASHES_ALONE_MAX


def plan_trials(suspects: Iterable[FlowState], now_ms: int, trial_ms: int) -> list[Trial]:
    """Who is tried when: those that the least speaks against first, in groups that grow."""
    trials: list[Trial] = []
    free_ms = now_ms
    for (strikes, tried, _), alike in groupby(sorted(suspects, key=_by_suspicion), _suspicion):
        waiting, size = list(alike), 1
        # To begin with nobody is: a process that ends then has another reason.
        free_ms = max(free_ms, now_ms + trial_ms * 4**strikes)
        while waiting:
            group, waiting = waiting[:size], waiting[size:]
            # One that kills slowly survives a short trial, so the next one is longer.
            ends_ms = free_ms + trial_ms * 2 ** min(tried, _DOUBLINGS_MAX)
            trials.append(Trial(free_ms, ends_ms, group))
            free_ms = ends_ms
            size = 1 if strikes else size * 2
    return trials


def _suspicion(state: FlowState) -> tuple[int, int, int]:
    return state.crashes_alone, state.trials, state.crash_recoveries


def _by_suspicion(state: FlowState) -> tuple[int, int, int, int]:
    return (*_suspicion(state), state.id)


def defer_to_trial(state: FlowState, begins_ms: int, now_ms: int) -> None:
    """Have a flow wait until it is tried."""
    state.is_suspect = True
    state.status, state.wake_ms = FlowStatus.RETRYING, begins_ms
    _set_failure(state, "it is tried again apart from others", now_ms)


def park_convicted(state: FlowState, now_ms: int) -> None:
    """Have a flow wait for an operator."""
    state.status, state.wake_ms = FlowStatus.PARKED, None
    _set_failure(
        state, f"the last {state.crashes_alone} times it was tried apart from others", now_ms
    )


def _set_failure(state: FlowState, what: str, now_ms: int) -> None:
    text = (
        f"the process ended {state.crash_recoveries} times while this flow came no further: {what}"
    )
    state.failure = build_flow_failure(FlowParkedError(text), text, state, 0, now_ms)
