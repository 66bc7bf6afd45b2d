"""Functions of groups on Spark: the same as in plain Python, and everything counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import Job, JobBuilder, LocalRunner, MemoryInput, Segment
from postroad.pipeline.coordinator.batch_result import BatchResult, CommitResult
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.state_store import StateStore
from postroad.pipeline.spark.runner import SparkRunner
from postroad.pipeline.windows import encode_group
from postroad.pipeline.windows.encoding import decode_plain
from tests.integration.spark.spark_jobs import LIMIT_S, dead_of, outputs_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RETRY = {"attempts": 2, "first_s": 0.02, "max_s": 0.05}
SEGMENTS: list[Segment] = [{"n": n, "key": "abcde"[n % 5]} for n in range(300)]
SUMS = {key: sum(it["n"] for it in SEGMENTS if it["key"] == key) for key in "abcde"}


def remember(key: str, segments: list[Segment], state: Any) -> tuple[list[Segment], Any]:
    """One for each segment, whichever of them come together; the sum of all is the state."""
    if key == "d":
        raise ValueError("never d")
    made = [{"n": it["n"], "of": key} for it in segments]
    return made, (state or 0) + sum(it["n"] for it in segments)


def count_all(key: str, segments: list[Segment]) -> list[Segment]:
    return [{"n": it["n"], "counted": True} for it in segments]


def refuse_elevens(segment: Segment) -> Segment:
    if segment["n"] % 11 == 0:
        raise ValueError(f"{segment['n']} is a multiple of eleven")
    return segment


def twice(segment: Segment) -> list[Segment]:
    """For two groups: if one of them fails, the other has it only once."""
    return [segment, segment | {"key": "all"}]


def begin(name: str) -> JobBuilder:
    job = JobBuilder(name).input("in", connector="memory", retry=RETRY, batch_size=100)
    return job.function("refuse", refuse_elevens).function("twice", twice)


def one_shuffle() -> Job:
    job = begin("one_shuffle").output("aside", connector="memory", after="twice")
    job = job.function(
        "remember", remember, kind="group", group_by="key", state=True, after="twice"
    )
    return job.output("out", connector="memory", after="remember").build()


def many_shuffles() -> Job:
    """A shuffle before and behind it, a group of what a group made, and a window."""
    job = begin("many_shuffles").function("shuffled", refuse_elevens, group_by="n", after="twice")
    job = job.function(
        "remember", remember, kind="group", group_by="key", state=True, after="shuffled"
    )
    job = job.function("count", count_all, kind="group", group_by="of", after="remember")
    job = job.function("behind", refuse_elevens, group_by="n", after="count")
    job = job.output("out", connector="memory", after="behind")
    job = job.function("summed", refuse_elevens, group_by="key", after="twice")
    job = job.output("sums", connector="memory", after="summed")
    job = job.window("w", task="summed", type="global", aggregation="sum", key="n")
    return job.trigger("w", on="drained").build()


def count_in(segments: list[Segment]) -> dict[str, MemoryInput]:
    return {"in": MemoryInput(segments, split_segments=40)}


Look = tuple[dict[str, list[str]], list[Any], dict[str, Any]]


async def look(job: Job, disk: MemoryDisk, outputs: Any) -> Look:
    """Outputs, dead letters and states."""
    dead = [(it.root, it.segment, len(it.history), it.published) for it in await dead_of(job, disk)]
    store = MemoryStore(disk)
    await store.open(job.name)
    keys = {key: encode_group(key) for key in (*"abcde", "all")}
    try:
        states = await store.read(
            lambda database: StateStore(database, job.name).read("remember", [*keys.values()])
        )
    finally:
        await store.close()
    known = {key: decode_plain(states[it]) for key, it in keys.items() if it in states}
    written = {name: sorted(map(repr, it.segments)) for name, it in outputs.items()}
    return written, sorted(dead), known


async def run_here(job: Job, segments: list[Segment]) -> Look:
    disk, outputs = MemoryDisk(), outputs_of(job)
    runner = LocalRunner(job, count_in(segments), outputs, MemoryStore(disk))
    await asyncio.wait_for(runner.run(), LIMIT_S)
    return await look(job, disk, outputs)


@pytest.mark.parametrize("make", [one_shuffle, many_shuffles])
async def test_groups_on_spark_have_outputs_dead_letters_and_states_of_plain_python(
    make: Callable[[], Job], spark: SparkSession, tmp_path: Path
) -> None:
    job, disk = make(), MemoryDisk()
    outputs = outputs_of(job)
    runner = SparkRunner(
        job, count_in(SEGMENTS), outputs, MemoryStore(disk), tmp_path / "c", session=spark
    )
    await asyncio.wait_for(runner.run(), LIMIT_S)
    assert runner.restarts == 0
    there = await look(job, disk, outputs)
    assert there == await run_here(job, SEGMENTS)
    good = [it for it in SEGMENTS if it["n"] % 11]
    assert there[2] == {
        key: sum(it["n"] for it in good if key in ("all", it["key"])) for key in ("all", *"abce")
    }
    assert len(there[1]) == len(SEGMENTS) - len(good) + sum(it["key"] == "d" for it in good)


class Forgetful(JobCoordinator):
    """Loses the connection before some commits, and after others."""

    commits = 0

    async def commit_batch(self, run: str, batch: int, outcome: BatchResult) -> CommitResult:
        self.commits += 1
        if self.commits == 2:
            raise OSError("the connection is lost before the commit")
        settled = await super().commit_batch(run, batch, outcome)
        if self.commits == 4:
            raise OSError("the connection is lost after the commit")
        return settled


async def test_batch_that_is_done_again_has_each_segment_in_its_group_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    job, disk = one_shuffle(), MemoryDisk()
    inputs, outputs = count_in(SEGMENTS), outputs_of(job)
    runner = SparkRunner(job, inputs, outputs, MemoryStore(disk), tmp_path / "c", session=spark)
    runner.coordinator = Forgetful(runner._program, runner._store, inputs, outputs)
    await asyncio.wait_for(runner.run(), LIMIT_S)
    assert runner.restarts == 2
    assert await look(job, disk, outputs) == await run_here(job, SEGMENTS)


async def test_groups_without_checkpoint_and_states_of_an_earlier_run(
    spark: SparkSession,
) -> None:
    job, disk = one_shuffle(), MemoryDisk()
    outputs = outputs_of(job)
    for upto in (150, 300):
        runner = SparkRunner(
            job, count_in(SEGMENTS[:upto]), outputs, MemoryStore(disk), None, session=spark
        )
        await asyncio.wait_for(runner.run(), LIMIT_S)
    assert (await look(job, disk, outputs))[2] == (await run_here(job, SEGMENTS))[2]
