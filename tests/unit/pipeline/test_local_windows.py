"""Windows of a job in this process: they are in the store, and count each segment once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import StoreUnavailableError
from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import Job, LocalRunner, MemoryInput, MemoryOutput, RetryPolicy, Segment
from postroad.pipeline.windows import Extent
from tests.support.deadlines import DEADLINE_S
from tests.support.pipeline.desk_jobs import dead_in

QUICK = {"attempts": 3, "first_s": 0.001, "max_s": 0.01}
TASKS: list[dict[str, Any]] = [
    {"name": "in", "type": "input", "connector": "memory", "batch_size": 10, "retry": QUICK},
    {"name": "add", "type": "function", "fn": "add", "group_by": "k"},
    {"name": "out", "type": "output", "connector": "memory"},
]
WINDOW: dict[str, Any] = {
    "name": "w",
    "task": "add",
    "type": "fixed",
    "aggregation": "sum",
    "key": "n",
    "time_key": "t",
    "range_s": 50,
}


def job_of(trigger: dict[str, Any]) -> Job:
    """A job that sums numbers, for each group."""

    return msgspec.convert(
        {
            "name": "job",
            "workflow": [["in", "add"], ["add", "out"]],
            "catalog": TASKS,
            "windows": [WINDOW],
            "triggers": [{"window": "w", **trigger}],
        },
        Job,
    )


def segments(count: int) -> list[Segment]:
    return [{"n": n, "t": n, "k": n % 2} for n in range(count)]


def expected(count: int) -> list[tuple[int, int, int]]:
    """Group, beginning and sum of each window."""
    sums: dict[tuple[int, int], int] = {}
    for n in range(count):
        sums[n % 2, n // 50 * 50] = sums.get((n % 2, n // 50 * 50), 0) + n
    return sorted((group, lower, total) for (group, lower), total in sums.items())


def sums_in(output: MemoryOutput) -> list[tuple[int, int, int]]:
    return sorted((it["group"], int(it["lower"]), it["value"]) for it in output.segments)


async def run(
    job: Job,
    source: MemoryInput,
    output: MemoryOutput,
    disk: MemoryDisk,
    **functions: Callable[..., Any],
) -> None:
    functions.setdefault("add", lambda segment: segment)
    store = MemoryStore(disk)
    async with asyncio.timeout(DEADLINE_S):
        await LocalRunner(
            job, {"in": source}, {"out": output}, store, find=functions.__getitem__
        ).run()


async def test_everything_is_summed_when_all_is_seen() -> None:
    output = MemoryOutput()
    await run(job_of({"on": "drained"}), MemoryInput(segments(120)), output, MemoryDisk())
    assert sums_in(output) == expected(120)


async def test_a_segment_that_fails_at_first_is_counted_once() -> None:
    seen: set[int] = set()

    def fail_at_first(segment: Segment) -> Segment:
        if segment["n"] not in seen:
            seen.add(segment["n"])
            raise ValueError("not yet")
        return segment

    output = MemoryOutput()
    job = job_of({"on": "drained"})
    await run(job, MemoryInput(segments(60)), output, MemoryDisk(), add=fail_at_first)
    assert sums_in(output) == expected(60)


@pytest.mark.parametrize("nth", range(3, 24, 2))
@pytest.mark.parametrize("point", ["durable.commit.before", "durable.commit.after"])
async def test_a_commit_that_fails_counts_nothing_twice(point: str, nth: int) -> None:
    disk, output, source = MemoryDisk(), MemoryOutput(), MemoryInput(segments(60))
    visits = 0

    def fail_once(**facts: object) -> None:
        nonlocal visits
        visits += 1
        if visits == nth:
            raise StoreUnavailableError("the disk is away")

    job = job_of({"on": "drained"})
    with faults.arm_fault_point(point, fail_once):
        for _ in range(2):
            try:
                await run(job, source, output, disk)
            except StoreUnavailableError:
                continue
    await run(job, source, output, disk)
    assert sums_in(output) == expected(60)


async def test_a_segment_without_time_is_dead_and_the_others_count() -> None:
    disk, output = MemoryDisk(), MemoryOutput()
    source = MemoryInput([*segments(20), {"n": 1, "k": 0}])
    await run(job_of({"on": "drained"}), source, output, disk)
    assert sums_in(output) == expected(20)
    (dead,) = await dead_in(disk)
    assert dead.history[-1].task == "add"


async def test_a_trigger_may_make_its_own_segments_and_its_failures_are_kept() -> None:
    def emit(extent: Extent) -> list[Segment]:
        if extent.group == 1:
            raise ValueError("not that one")
        return [{"sum": extent.value}, {"count": extent.segments}]

    disk, output = MemoryDisk(), MemoryOutput()
    job = job_of({"on": "drained", "emit": "emit"})
    await run(job, MemoryInput(segments(10)), output, disk, emit=emit)
    assert sorted(map(str, output.segments)) == ["{'count': 5}", "{'sum': 20}"]
    (dead,) = await dead_in(disk)
    assert (dead.task, dead.history[0].error) == ("add", "ValueError: not that one")
    assert RetryPolicy().attempts > len(dead.history)


async def test_segments_set_off_a_trigger_while_the_job_runs() -> None:
    output = MemoryOutput()
    job = job_of({"on": "segments", "threshold": 25})
    await run(job, MemoryInput(segments(50)), output, MemoryDisk())
    assert [it["segments"] for it in output.segments] == [25, 25]
