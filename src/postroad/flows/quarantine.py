"""Finds the flow that ends the process, if one does, and blames none of those that ran beside it.

A process that is killed had many flows at work, and perhaps one of them is the cause: it used up
all memory, or called something that crashed. That is counted for all of them, and forgotten as soon
as one comes further. Those that did not for too often are suspects: at the next start they wait,
and are then tried a few at a time, each group for a while before the next begins. If the process
goes on, they are suspects no more. If it ends, only the group that was tried can be the cause; at
the next start it comes last, in smaller groups, so that the cause is alone in the end.

A flow is parked when the process ended three times while it was the only suspect at work. Each time
it has to wait for longer before it is tried: what kills processes from outside does not. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from .errors import FlowParkedError
from .head import FlowState
from .hospital import build_flow_failure
from .life import FlowStatus

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
