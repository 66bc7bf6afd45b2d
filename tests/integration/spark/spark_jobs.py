"""Jobs run on Spark and in plain Python, and what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import InputConnector, Job, JobCounters, LocalRunner, MemoryOutput, TaskType
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import StoredRoot
from postroad.pipeline.spark.runner import SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FUNCTIONS = "tests.support.pipeline.spark_functions:"
LIMIT_S = 120.0


class Came(NamedTuple):
    """What came of a job."""

    outputs: dict[str, list[str]]
    """What each output has, in no order."""
    dead: list[tuple[object, ...]]
    """The dead letters, without times."""
    counts: JobCounters
    states: list[tuple[object, ...]]
    """What functions of groups keep."""


async def run_here(job: Job, inputs: Mapping[str, InputConnector]) -> Came:
    disk, outputs = MemoryDisk(), outputs_of(job)
    runner = LocalRunner(job, inputs, outputs, MemoryStore(disk))
    await asyncio.wait_for(runner.run(), LIMIT_S)
    return await _look(job, disk, outputs, runner.coordinator.counts)


async def run_on_spark(
    job: Job,
    inputs: Mapping[str, InputConnector],
    session: SparkSession,
    checkpoint: Path | None,
) -> Came:
    disk, outputs = MemoryDisk(), outputs_of(job)
    runner = SparkRunner(job, inputs, outputs, MemoryStore(disk), checkpoint, session=session)
    await asyncio.wait_for(runner.run(), LIMIT_S)
    assert runner.restarts == 0
    return await _look(job, disk, outputs, runner.coordinator.counts)


def outputs_of(job: Job) -> dict[str, MemoryOutput]:
    return {task.name: MemoryOutput() for task in job.catalog if task.type == TaskType.OUTPUT}


async def _look(
    job: Job, disk: MemoryDisk, outputs: Mapping[str, MemoryOutput], counts: JobCounters
) -> Came:
    written = {name: sorted(map(repr, it.segments)) for name, it in outputs.items()}
    dead = await dead_of(job, disk)
    return Came(written, sorted(map(_without_times, dead)), counts, await _states_of(job, disk))


async def _states_of(job: Job, disk: MemoryDisk) -> list[tuple[object, ...]]:
    store, query = MemoryStore(disk), "SELECT task, key, state FROM postroad_pipeline_states"
    await store.open(job.name)
    try:
        return sorted(await store.read(lambda database: list(database.execute(query))))
    finally:
        await store.close()


async def dead_of(job: Job, disk: MemoryDisk) -> list[StoredRoot]:
    store = MemoryStore(disk)
    await store.open(job.name)
    try:
        return await store.read(lambda database: JobStore(database, job.name).list_dead(100_000))
    finally:
        await store.close()


def _without_times(root: StoredRoot) -> tuple[object, ...]:
    tasks = [sorted(attempt.missing) for attempt in root.history]
    return (root.root, root.task, root.segment, root.generation, tasks, sorted(root.published))
