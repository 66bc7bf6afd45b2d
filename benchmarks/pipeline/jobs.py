"""The measured job: in -> first -> {left, right} -> {out_a, out_b}."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import BenchmarkFailed
from benchmarks.pipeline.bare import INPUT_SCHEMA, OUTPUT_SCHEMA
from postroad.durable import DurableQueues, SqliteStore, Store
from postroad.pipeline import Job, JobBuilder, make_input, make_output
from postroad.pipeline.spark.runner import SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from postroad.pipeline.spark.batches import BatchProcessor
    from postroad.pipeline.spark.queries import QueryRunner
    from postroad.pipeline.spark.worker_context import WorkerContext

FUNCTIONS = "benchmarks.pipeline.functions"
LIMIT_S = 300.0
_LOOK_S = 0.005
_FEW = 50_000
_numbers = itertools.count()


def write_lines(path: Path, count: int) -> Path:
    """Make the input, if it is not there: lines of 100 bytes."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for number in range(count):
                start = b'{"n":%d,"text":"' % number
                file.write(start + b"x" * (97 - len(start)) + b'"}\n')
    return path


def _read_lines(source: Path, batch_size: int) -> JobBuilder:
    return JobBuilder("bench").input(
        "in",
        connector="jsonl",
        options={"path": str(source), "split_bytes": 2 << 20},
        batch_size=batch_size,
        max_pending=4 * batch_size,
        retry={"attempts": 1},
    )


def _first(unlucky: int | None) -> dict[str, Any]:
    if unlucky is None:
        return {"fn": f"{FUNCTIONS}:first"}
    return {"fn": f"{FUNCTIONS}:first_or_fail", "params": {"unlucky": unlucky}}


def make_runner(
    job: Job,
    store: Store,
    checkpoint: Path | None,
    mail: DurableQueues | None = None,
    runner_class: type[SparkRunner] = SparkRunner,
    **session: Any,
) -> SparkRunner:
    """A runner with the connectors of a job, and a session or settings for one."""
    inputs = {it.name: make_input(it, mail) for it in job.catalog if it.type == "input"}
    outputs = {it.name: make_output(it, mail) for it in job.catalog if it.type == "output"}
    return runner_class(job, inputs, outputs, store, checkpoint, **session)


def make_job(source: Path, target: Path, *, batch_size: int, unlucky: int | None = None) -> Job:
    """Files of lines to Parquet; with a number that segments may fail with, if one is given."""
    return (
        _read_lines(source, batch_size)
        .function("first", **_first(unlucky))
        .function("left", f"{FUNCTIONS}:left", after="first")
        .function("right", f"{FUNCTIONS}:right", after="first")
        .output("out_a", connector="parquet", options={"path": str(target / "a")}, after="left")
        .output("out_b", connector="parquet", options={"path": str(target / "b")}, after="right")
        .build()
    )


def make_spark_job(
    source: Path,
    target: Path,
    *,
    formats: tuple[str, str] = ("parquet", "parquet"),
    unlucky: int | None = None,
) -> Job:
    """The same with Spark's reader and writers."""
    a, b = (
        {"options": {"format": name, "path": str(target / place)}, "schema": OUTPUT_SCHEMA}
        for name, place in zip(formats, ("a", "b"), strict=True)
    )
    return (
        JobBuilder("bench")
        .input(
            "in",
            connector="spark",
            options={"format": "json", "path": str(source)},
            schema=INPUT_SCHEMA,
            id=["n"],
            retry={"attempts": 1},
        )
        .function("first", **_first(unlucky))
        .function("left", f"{FUNCTIONS}:left", after="first")
        .function("right", f"{FUNCTIONS}:right", after="first")
        .output("out_a", connector="spark", after="left", **a)  # type: ignore[arg-type]
        .output("out_b", connector="spark", after="right", **b)  # type: ignore[arg-type]
        .build()
    )


def make_shuffled_job(source: Path, target: Path, *, batch_size: int) -> Job:
    """Files of lines to Parquet, shuffled on the way."""
    return (
        _read_lines(source, batch_size)
        .function("with_key", f"{FUNCTIONS}:with_key")
        .function("first", f"{FUNCTIONS}:first", group_by="key")
        .function("left", f"{FUNCTIONS}:left")
        .output("out_a", connector="parquet", options={"path": str(target / "a")})
        .build()
    )


@cache
def warm_up(session: SparkSession, scratch: Path) -> None:
    """The first job has workers to start and code to compile."""
    few = write_lines(scratch / "few" / "lines.jsonl", _FEW)
    job = make_job(few, scratch / "out", batch_size=_FEW)
    measure_job(SparkRunner, session, scratch, job, is_stream=False, count=_FEW)


class _Stopwatch:
    """Notes when a job is at its first batch."""

    def __init__(self, processor: BatchProcessor) -> None:
        self._processor = processor
        self.started_s: float | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        if self.started_s is None:
            self.started_s = time.perf_counter()
        self._processor(rows, batch)


def _watch(runner: SparkRunner) -> list[_Stopwatch]:
    """Have a runner's batches noted; those of Spark's readers have no deliveries before."""
    make_queries, watches = runner._make_queries, []

    def make(session: SparkSession, context: WorkerContext) -> QueryRunner:
        queries: Any = make_queries(session, context)
        queries._processor = _Stopwatch(queries._processor)
        watches.append(queries._processor)
        return queries  # type: ignore[no-any-return]

    runner._make_queries = make  # type: ignore[method-assign]
    return watches


def measure_job(
    runner_class: type[SparkRunner],
    session: SparkSession,
    scratch: Path,
    job: Job,
    *,
    is_stream: bool,
    count: int,
) -> float:
    """Segments per second."""
    place = scratch / f"run-{next(_numbers)}"
    place.mkdir()
    try:
        runner = make_runner(
            job,
            SqliteStore(place / "job.db"),
            place / "checkpoint" if is_stream else None,
            runner_class=runner_class,
            session=session,
        )
        elapsed_s = asyncio.run(asyncio.wait_for(run_timed(runner, count), LIMIT_S))
        if runner.restarts or _done(runner) != count:
            raise BenchmarkFailed(
                f"{runner.coordinator.counts} of {count}, {runner.restarts} restarts"
            )
        return count / elapsed_s
    finally:
        shutil.rmtree(place, ignore_errors=True)
        for path in {Path(it.options["path"]) for it in job.catalog if it.type == "output"}:
            shutil.rmtree(path, ignore_errors=True)


def _done(runner: SparkRunner) -> int:
    return runner.coordinator.counts.acked + runner.coordinator.counts.failed


async def run_timed(runner: SparkRunner, count: int) -> float:
    """Run a job; returns seconds from the first delivery until all is settled and written.

    So without what Spark takes to start and to stop a query, which is the same for all.
    """
    watches = _watch(runner)
    running = asyncio.ensure_future(runner.run())
    delivered_s = await moment(
        lambda: (
            runner.coordinator.counts.delivered > 0
            or any(it.started_s is not None for it in watches)
            or running.done()
        )
    )
    started_s = min([delivered_s, *(it.started_s for it in watches if it.started_s is not None)])
    ended_s = await moment(lambda: _done(runner) >= count or running.done())
    while not running.done() and await runner.coordinator.pending_writes():
        await asyncio.sleep(_LOOK_S)
        ended_s = time.perf_counter()
    await running
    return ended_s - started_s


async def moment(has_come: Callable[[], bool]) -> float:
    """Wait for something; returns when it came."""
    while True:
        if has_come():
            return time.perf_counter()
        await asyncio.sleep(_LOOK_S)
