"""A job with functions of groups and of DataFrames, whose driver or workers are killed.

Started as `python -m tests.support.pipeline.kinds_kill_job PLACE POINT`: runs until the second time
that it comes to the point; if that is `worker`, a worker of Spark is killed, and the job is done.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postroad.durable import SqliteStore
from postroad.pipeline import Job, JobBuilder, Segment, make_input, make_output
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.spark import SparkConfig
from postroad.pipeline.spark.dataframes import BatchInParts
from postroad.pipeline.spark.runner import SparkRunner
from tests.support.servers.spark import QUICK_JAVA
from tests.support.source_tree import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEGMENTS = 400
WORKER = "worker"
POINTS = ("commit+", "part", "commit-")
"""Where the driver is killed: after and before a commit, and between two parts of a batch."""
FUNCTIONS = "tests.support.pipeline.kinds_kill_job:"
OUTPUTS = ("running", "totals")


def refuse_sevens(segment: Segment) -> Segment:
    if segment["n"] % 7 == 0:
        raise ValueError("no multiple of seven")
    return segment


def running(
    key: str, segments: list[Segment], state: int | None, place: str
) -> tuple[Segment, int]:
    """What this batch adds, and the sum of all."""
    marker = Path(place, WORKER)
    if key == "b" and marker.exists():
        marker.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    added = sum(it["n"] for it in segments)
    total = (state or 0) + added
    return {"key": key, "added": added, "total": total}, total


def totals(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return frame.groupBy("key").agg(f.sum("n").alias("added"))


def make_job(place: Path) -> Job:
    retry = {"attempts": 2, "first_s": 0.01, "max_s": 0.01}
    options = {"path": str(place / "in.jsonl")}
    job = JobBuilder("kinds").input(
        "in", connector="jsonl", options=options, batch_size=50, retry=retry
    )
    job = job.function("refuse", FUNCTIONS + "refuse_sevens")
    group: dict[str, Any] = {
        "kind": "group",
        "group_by": "key",
        "state": True,
        "params": {"place": str(place)},
    }
    job = job.function("group", FUNCTIONS + "running", after="refuse", **group)
    frame: dict[str, Any] = {"kind": "dataframe", "columns": {"n": "bigint", "key": "string"}}
    job = job.function("frame", FUNCTIONS + "totals", after="refuse", **frame)
    for name, source in zip(OUTPUTS, ("group", "frame"), strict=True):
        options = {"path": str(place / name)}
        job = job.output(name, connector="jsonl", options=options, after=source)
    return job.build()


def arm(point: str, place: Path) -> None:
    """Have a process killed."""
    if point == WORKER:
        (place / WORKER).touch()
        return
    calls = itertools.count()
    if point == "part":
        write = BatchInParts._write

        def write_and_die(self: Any, rows: Any) -> None:
            write(self, rows)
            if next(calls) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        setattr(BatchInParts, write.__name__, write_and_die)
        return
    commit = JobCoordinator.commit_batch

    async def commit_and_die(*arguments: Any) -> Any:
        is_due = next(calls) == 1
        if is_due and point == "commit-":
            os.kill(os.getpid(), signal.SIGKILL)
        done = await commit(*arguments)
        if is_due:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(JobCoordinator, commit.__name__, commit_and_die)


async def main(place: Path, point: str) -> None:
    arm(point, place)
    job = make_job(place)
    runner = SparkRunner(
        job,
        {"in": make_input(job.catalog[0])},
        {it.name: make_output(it) for it in job.catalog if it.name in OUTPUTS},
        SqliteStore(str(place / "job.db")),
        place / "checkpoint",
        SparkConfig(
            driver_memory="512m", partitions=2, java_options=QUICK_JAVA, python_path=(str(ROOT),)
        ),
    )
    await runner.run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
