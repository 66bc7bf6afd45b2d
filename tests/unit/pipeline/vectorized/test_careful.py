"""Functions that end the process they run in."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from postroad.pipeline import Segment
from postroad.pipeline.coordinator.records import describe_exception
from postroad.pipeline.functions import InvalidResultError
from postroad.pipeline.task_functions import ArrowFunction
from postroad.pipeline.vectorized.isolation import call_isolated
from tests.support.deadlines import eventually

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


def test_functions_are_called_once_for_each(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def work(segment: Segment) -> Segment:
        # A side effect that other processes can see.
        with calls.open("a") as file:
            file.write(f"{segment['n']} ")
        if segment["n"] == 7:
            os._exit(1)
        return segment

    segments = [{"n": n} for n in range(1500)]
    _, raised = call_isolated(work, segments)
    assert list(raised) == [7]
    assert sorted(map(int, calls.read_text().split())) == list(range(1500))


class OddError(Exception):
    """One that cannot be made again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def test_odd_results_and_errors_come_back() -> None:
    def work(segment: Segment) -> object:
        match segment["n"]:
            case 0:
                raise OddError("very", "odd")
            case 1:
                return ({"n": n} for n in range(3))
            case 2:
                return {"f": lambda: None}
            case 3:
                return 7
            case 4:
                return None
            case 5:
                return [segment, segment]
            case 6:
                return {"n": "x" * 1_000_000}
        return segment

    results, raised = call_isolated(work, SEGMENTS)
    assert sorted(raised) == [0, 2, 3]
    assert describe_exception(raised[0]) == "OddError: very odd"
    assert isinstance(raised[3], InvalidResultError)
    assert results[1] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert results[4] is None
    assert results[5] == [{"n": 5}, {"n": 5}]
    assert len(results[6]["n"]) == 1_000_000


def test_functions_on_record_batches_are_tried_one_by_one() -> None:
    def work(batch: object) -> object:
        if 7 in batch["n"].to_pylist():  # type: ignore[index]
            os._exit(1)
        return batch

    results, raised = call_isolated(ArrowFunction(work), SEGMENTS)
    assert list(raised) == [7]
    assert [it["n"] for it in results if it] == [n for n in range(20) if n != 7]


HANGS = """
import ctypes, os, sys
from pathlib import Path
from postroad.pipeline.vectorized.isolation import call_isolated

def hang(segment):
    Path(sys.argv[1], "pid").write_text(str(os.getpid()))
    ctypes.CDLL(None).pause()

call_isolated(hang, [{"n": 1}])
"""


async def test_copy_that_hangs_ends_with_the_process_that_made_it(tmp_path: Path) -> None:
    """A worker is killed when its task is; a busy copy of it would take a core for ever."""
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", HANGS, str(tmp_path))
    note = tmp_path / "pid"
    try:
        await eventually(lambda: note.exists() and note.read_text(), "the function is called")
    finally:
        worker.kill()
        await worker.wait()
    pid = int(note.read_text())
    try:
        await eventually(lambda: not is_running(pid), "its copy ends")
    finally:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        # A dead one that nobody asks for is still there.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
