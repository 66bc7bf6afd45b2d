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

from .errors import FlowParked
from .head import Head
from .hospital import write_up
from .life import Status

STRIKES_MAX = 3
"""How often the process may end while a flow is tried alone; then it is parked."""
_DOUBLINGS_MAX = 6


class Trial(NamedTuple):
    """Flows that are tried at the same time."""

    begins_ms: int
    ends_ms: int
    heads: Sequence[Head]


def charge(at_work: Sequence[Head]) -> None:
    """Count that the process was killed for those flows at work that may be the cause."""
    suspects = [it for it in at_work if it.is_suspect]
    for head in suspects or at_work:
        head.recoveries += 1
    if len(suspects) == 1:
        suspects[0].strikes += 1


def is_to_be_tried(head: Head, recoveries_max: int) -> bool:
    """Whether a flow that is at work, is tried again later or is parked has to be tried apart."""
    if head.status is Status.RETRYING:
        return head.is_suspect
    is_open = head.status in (Status.RUNNING, Status.PARKED)
    return is_open and head.recoveries > recoveries_max and not is_guilty(head)


def is_guilty(head: Head) -> bool:
    """Whether it is parked for good, until an operator wants it tried."""
    return head.strikes >= STRIKES_MAX


def plan(suspects: Iterable[Head], now_ms: int, trial_ms: int) -> list[Trial]:
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


def _suspicion(head: Head) -> tuple[int, int, int]:
    return head.strikes, head.trials, head.recoveries


def _by_suspicion(head: Head) -> tuple[int, int, int, int]:
    return (*_suspicion(head), head.id)


def put_off(head: Head, begins_ms: int, now_ms: int) -> None:
    """Have a flow wait until it is tried."""
    head.is_suspect = True
    head.status, head.wake_ms = Status.RETRYING, begins_ms
    _write_up(head, "it is tried again apart from others", now_ms)


def convict(head: Head, now_ms: int) -> None:
    """Have a flow wait for an operator."""
    head.status, head.wake_ms = Status.PARKED, None
    _write_up(head, f"the last {head.strikes} times it was tried apart from others", now_ms)


def _write_up(head: Head, what: str, now_ms: int) -> None:
    text = f"the process ended {head.recoveries} times while this flow came no further: {what}"
    head.trouble = write_up(FlowParked(text), text, head, 0, now_ms)
