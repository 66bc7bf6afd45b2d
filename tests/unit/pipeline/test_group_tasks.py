"""Functions of groups: each key once a batch, everything counted once, state with the commit."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import InvalidJobError
from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import Job, JobBuilder, LocalRunner, MemoryInput, MemoryOutput, Segment
from postroad.pipeline.explain import explain_text
from tests.support.deadlines import DEADLINE_S
from tests.support.pipeline.desk_jobs import JOB, dead_in

QUICK = {"attempts": 4, "first_s": 0.001, "max_s": 0.01}
SEGMENTS: list[Segment] = [{"n": n, "key": "abc"[n % 3], "half": n % 2} for n in range(30)]


def total(key: Any, segments: list[Segment]) -> Segment:
    return {"key": key, "sum": sum(it["n"] for it in segments), "count": len(segments)}


def running(key: Any, segments: list[Segment], state: Any) -> tuple[Segment, Any]:
    state = {"sum": (state or {"sum": 0})["sum"] + sum(it["n"] for it in segments)}
    return {"key": key, **state}, state


async def running_later(key: Any, segments: list[Segment], state: Any) -> Any:
    await asyncio.sleep(0)
    return running(key, segments, state)


def job_of(
    fn: Any, *, before: Any = None, after: Any = None, batch_size: int = 100, **keys: Any
) -> Job:
    builder = JobBuilder(JOB).input(
        "in", connector="memory", retry=QUICK, batch_size=batch_size, max_pending=1000
    )
    if before is not None:
        builder = builder.function("before", before)
    builder = builder.function("total", fn, kind="group", **{"group_by": "key", **keys})
    if after is not None:
        builder = builder.function("after", after)
    return builder.output("out", connector="memory").build()


async def run(
    job: Job,
    segments: Iterable[Segment] = SEGMENTS,
    disk: MemoryDisk | None = None,
    size: int = 100,
) -> tuple[list[Segment], MemoryDisk]:
    output, disk = MemoryOutput(), disk or MemoryDisk()
    runner = LocalRunner(
        job, {"in": MemoryInput(segments, size)}, {"out": output}, MemoryStore(disk)
    )
    async with asyncio.timeout(DEADLINE_S):
        await runner.run()
    return output.segments, disk


def by_key(segments: list[Segment], name: str = "sum") -> dict[Any, int]:
    sums: Counter[Any] = Counter()
    for it in segments:
        sums[it["key"]] += it[name]
    return dict(sums)


SUMS = {key: sum(it["n"] for it in SEGMENTS if it["key"] == key) for key in "abc"}


async def test_a_function_is_called_once_for_each_key_of_a_batch() -> None:
    threads: set[int] = set()

    def work(key: Any, segments: list[Segment]) -> Segment:
        threads.add(threading.get_ident())
        return total(key, segments)

    made, _ = await run(job_of(work))
    assert sorted(made, key=lambda it: it["key"]) == [
        {"key": key, "sum": SUMS[key], "count": 10} for key in "abc"
    ]
    assert threading.get_ident() not in threads


async def test_keys_of_several_values_are_tuples() -> None:
    made, _ = await run(
        job_of(lambda key, _: {"key": key[0], "half": key[1]}, group_by=["key", "half"])
    )
    assert sorted((it["key"], it["half"]) for it in made) == [
        (key, half) for key in "abc" for half in (0, 1)
    ]


async def test_several_batches_are_several_calls_and_state_goes_on() -> None:
    made, _ = await run(job_of(total, batch_size=6), size=6)
    assert len(made) == 15
    assert by_key(made) == SUMS
    for fn in (running, running_later):
        made, _ = await run(job_of(fn, batch_size=6, state=True), size=6)
        assert {key: max(it["sum"] for it in made if it["key"] == key) for key in "abc"} == SUMS


async def test_state_outlives_the_process() -> None:
    disk = MemoryDisk()
    await run(job_of(running, state=True), SEGMENTS[:15], disk)
    made, _ = await run(job_of(running, state=True), SEGMENTS, disk)
    assert by_key(made) == SUMS


async def test_a_root_that_fails_on_the_way_is_counted_once() -> None:
    calls: Counter[int] = Counter()

    def fail_first(segment: Segment) -> Segment:
        calls[segment["n"]] += 1
        if segment["n"] % 4 == 0 and calls[segment["n"]] < 3:
            raise ValueError("not yet")
        return segment

    made, disk = await run(job_of(total, before=fail_first))
    assert by_key(made) == SUMS
    assert await dead_in(disk) == []


async def test_what_fails_behind_it_comes_again_without_calling_it_again() -> None:
    keys: list[Any] = []
    failures: Counter[Any] = Counter()

    def work(key: Any, segments: list[Segment]) -> Segment:
        keys.append(key)
        return total(key, segments)

    def fail_first(segment: Segment) -> Segment:
        failures[segment["key"]] += 1
        if failures[segment["key"]] < 3:
            raise ValueError("not yet")
        return segment

    made, _ = await run(job_of(work, after=fail_first))
    assert by_key(made) == SUMS
    assert sorted(keys) == ["a", "b", "c"]


async def test_a_group_that_fails_comes_again_and_others_do_not() -> None:
    calls: Counter[Any] = Counter()

    def work(key: Any, segments: list[Segment], state: Any) -> Any:
        calls[key] += 1
        if key == "b" and calls[key] < 3:
            raise ValueError("not yet")
        return running(key, segments, state)

    made, _ = await run(job_of(work, state=True))
    # What failed comes again after pauses that differ, so perhaps not all at once.
    assert {key: max(it["sum"] for it in made if it["key"] == key) for key in "abc"} == SUMS
    assert (calls["a"], calls["c"]) == (1, 1)


async def test_a_group_that_always_fails_is_dead_with_its_reason() -> None:
    def work(key: Any, segments: list[Segment]) -> Any:
        return 7 if key == "b" else total(key, segments)

    made, disk = await run(job_of(work))
    assert by_key(made) == {key: SUMS[key] for key in "ac"}
    dead = await dead_in(disk)
    assert len(dead) == 10
    assert dead[0].history[-1].task == "total"
    assert "InvalidResultError" in dead[0].history[-1].error


async def test_a_root_in_two_groups_of_which_one_fails_counts_once_in_each() -> None:
    failures = 0

    def work(key: Any, segments: list[Segment]) -> Segment:
        nonlocal failures
        if key == "even" and failures < 2:
            failures += 1
            raise ValueError("not yet")
        return {"key": key, "sum": sum(it["n"] for it in segments)}

    def split(segment: Segment) -> list[Segment]:
        n = segment["n"]
        return [{"n": n, "key": "all"}, {"n": n, "key": "odd" if n % 2 else "even"}]

    made, _ = await run(job_of(work, before=split))
    numbers = range(30)
    assert by_key(made) == {
        "all": sum(numbers),
        "odd": sum(n for n in numbers if n % 2),
        "even": sum(n for n in numbers if n % 2 == 0),
    }


async def test_state_that_is_none_is_forgotten_and_nonsense_fails() -> None:
    def work(key: Any, segments: list[Segment], state: Any) -> Any:
        if key == "c":
            return segments, object()
        return [{"key": key, "sum": state or 0}], None if state else 5

    made, disk = await run(job_of(work, state=True, batch_size=10), size=10)
    # Batch by batch: none, 5, none.
    assert by_key(made) == {"a": 5, "b": 5}
    assert len(await dead_in(disk)) == 10


@pytest.mark.parametrize("point", ["durable.commit.before", "durable.commit.after"])
@pytest.mark.parametrize("at", range(2, 14, 3))
async def test_a_commit_that_fails_counts_nothing_twice(point: str, at: int) -> None:
    disk = MemoryDisk()
    count = 0

    def fail(units: object) -> None:
        nonlocal count
        count += 1
        if count == at:
            raise OSError("the disk is gone")

    job = job_of(running, state=True, batch_size=6)
    written: list[Segment] = []
    with faults.arm_fault_point(point, fail):
        try:
            written += (await run(job, SEGMENTS, disk, 6))[0]
        except OSError:
            pass
    written += (await run(job, SEGMENTS, disk, 6))[0]
    sums = {key: max((it["sum"] for it in written if it["key"] == key), default=0) for key in "abc"}
    # Outputs in memory do not outlive a run; state does, and one more batch shows it.
    last, _ = await run(job, [*SEGMENTS, *({"n": 0, "key": key} for key in "abc")], disk, 6)
    assert {it["key"]: it["sum"] for it in last} == SUMS
    assert all(sums[key] <= SUMS[key] for key in "abc")


@pytest.mark.slow
async def test_a_group_that_hangs_or_ends_its_process_fails_alone() -> None:
    def work(key: Any, segments: list[Segment]) -> Segment:
        if key == "b":
            threading.Event().wait()
        return total(key, segments)

    made, disk = await run(job_of(work, time_limit_s=0.05))
    assert by_key(made) == {key: SUMS[key] for key in "ac"}
    dead = await dead_in(disk)
    assert {it.history[-1].error.partition(":")[0] for it in dead} == {"FunctionTimeoutError"}


def test_it_is_drawn() -> None:
    assert "a group at a time, with state" in explain_text(job_of(running, state=True))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: job_of(total, group_by=None), "kind 'group' needs group_by"),
        (
            lambda: JobBuilder(JOB).input("in", connector="memory", kind="group", fn=total),
            "kind 'group' is for functions only",
        ),
        (
            lambda: JobBuilder(JOB).input("in", connector="memory").function("f", len, state=True),
            "state is for kind 'group' only",
        ),
    ],
)
def test_mistakes_are_told(make: Any, complaint: str) -> None:
    with pytest.raises(InvalidJobError, match=complaint):
        built = make()
        built.output("out", connector="memory").build()
