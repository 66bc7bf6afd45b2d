"""Functions that end the process they run in."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable

import pytest

from postroad.pipeline import Segment
from postroad.pipeline.task_functions import ArrowFunction
from postroad.pipeline.vectorized.isolation import find_crashing_segments
from postroad.pipeline.vectorized.task_calls import call_isolated

SEGMENTS: list[Segment] = [{"n": n} for n in range(20)]


def crash() -> None:
    faulthandler.disable()
    ctypes.string_at(0)


def die(how: Callable[[], object]) -> Callable[[Segment], Segment]:
    def work(segment: Segment) -> Segment:
        if segment["n"] in (0, 7, 19):
            how()
        if segment["n"] == 8:
            raise ValueError("eight")
        segment["n"] += 100
        return segment

    return work


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (lambda: os._exit(3), "exit code 3"),
        (lambda: os._exit(0), "exit code 0"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "signal 9"),
        (crash, "signal 11"),
        (lambda: sys.exit(), "exit code 1"),
    ],
)
def test_they_are_not_called_with_what_is_deadly(how: Callable[[], object], told: str) -> None:
    segments = [dict(it) for it in SEGMENTS]
    results, raised = call_isolated(die(how), segments)
    assert sorted(raised) == [0, 7, 8, 19]
    assert str(raised[7]) == f"it ended the process that ran it ({told})"
    assert str(raised[8]) == "eight"
    assert [it["n"] for it in results if it] == [
        n + 100 for n in range(20) if n not in (0, 7, 8, 19)
    ]


def test_what_is_tried_changes_nothing() -> None:
    segments = [dict(it) for it in SEGMENTS]
    assert find_crashing_segments(die(lambda: None), segments) == {}
    assert segments == SEGMENTS


def test_functions_on_record_batches_are_tried_one_by_one() -> None:
    def work(batch: object) -> object:
        if 7 in batch["n"].to_pylist():  # type: ignore[index]
            os._exit(1)
        return batch

    results, raised = call_isolated(ArrowFunction(work), SEGMENTS)
    assert list(raised) == [7]
    assert [it["n"] for it in results if it] == [n for n in range(20) if n != 7]
