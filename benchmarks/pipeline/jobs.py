"""The measured job: in -> first -> {left, right} -> {out_a, out_b}."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import BenchmarkFailed
from postroad.durable import SqliteStore
from postroad.pipeline import Job, JobBuilder, make_input, make_output
from postroad.pipeline.spark.runner import SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FUNCTIONS = "benchmarks.pipeline.functions"
LIMIT_S = 300.0
_LOOK_S = 0.005
_numbers = itertools.count()


def write_lines(path: Path, count: int) -> Path:
    """Make the input, if it is not there: lines of 100 bytes."""
    if not path.exists():
        with path.open("wb") as file:
            for number in range(count):
                start = b'{"n":%d,"text":"' % number
                file.write(start + b"x" * (97 - len(start)) + b'"}\n')
    return path


def make_job(source: Path, target: Path, *, batch_size: int, unlucky: int | None = None) -> Job:
    """Files of lines to Parquet; with a number that segments may fail with, if one is given."""
    first: dict[str, Any] = {"fn": f"{FUNCTIONS}:first"}
    if unlucky is not None:
        first = {"fn": f"{FUNCTIONS}:first_or_fail", "params": {"unlucky": unlucky}}
    return (
        JobBuilder("bench")
        .input(
            "in",
            connector="jsonl",
            options={"path": str(source), "split_bytes": 2 << 20},
            batch_size=batch_size,
            max_pending=4 * batch_size,
            retry={"attempts": 1},
        )
        .function("first", **first)
        .function("left", f"{FUNCTIONS}:left", after="first")
        .function("right", f"{FUNCTIONS}:right", after="first")
        .output("out_a", connector="parquet", options={"path": str(target / "a")}, after="left")
        .output("out_b", connector="parquet", options={"path": str(target / "b")}, after="right")
        .build()
    )


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
        runner = runner_class(
            job,
            {it.name: make_input(it) for it in job.catalog if it.type == "input"},
            {it.name: make_output(it) for it in job.catalog if it.type == "output"},
            SqliteStore(place / "job.db"),
            place / "checkpoint" if is_stream else None,
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
    """Run a job; returns seconds from the first delivery to the last settlement.

    So without what Spark takes to start and to stop a query, which is the same for all.
    """
    running = asyncio.ensure_future(runner.run())
    started_s = await _moment(lambda: runner.coordinator.counts.delivered > 0 or running.done())
    ended_s = await _moment(lambda: _done(runner) >= count or running.done())
    await running
    return ended_s - started_s


async def _moment(has_come: Callable[[], bool]) -> float:
    while True:
        if has_come():
            return time.perf_counter()
        await asyncio.sleep(_LOOK_S)
