"""A job with a window that Spark keeps, whose driver kills itself.

Started as `python -m tests.support.pipeline.window_kill_job PLACE POINT`: runs until the second
time that it comes to the point, or until the job is done if there is none.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from postroad.durable import SqliteStore
from postroad.pipeline import Job, make_input, make_output, new_job
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.spark_windows import SparkWindows
from postroad.pipeline.spark import SparkConfig
from postroad.pipeline.spark.runner import SparkRunner
from tests.support.servers.spark import QUICK_JAVA
from tests.support.source_tree import ROOT

SEGMENTS = 1_000
POINTS = ("commit_batch+", "list_deltas-", "window:commit_batch-", "window:commit_batch+")
"""Methods of the coordinator, or of its windows, and whether they are done."""


def job(place: Path) -> Job:
    return (
        new_job("window_kills")
        .input("in", connector="jsonl", options={"path": str(place / "in.jsonl")}, batch_size=50)
        .function("per", "tests.support.pipeline.spark_functions:same", group_by="k")
        .output("out", connector="jsonl", options={"path": str(place / "out")})
        .window(
            "w", task="per", type="fixed", range_s=10, aggregation="sum", key="v", time_key="at"
        )
        .trigger("w", on="watermark", threshold=2)
        .build()
    )


def arm(point: str) -> None:
    """Have this process killed."""
    method, is_after = point[:-1].removeprefix("window:"), point.endswith("+")
    owner = JobCoordinator if point == "commit_batch+" else SparkWindows
    act, calls = getattr(owner, method), itertools.count()

    async def act_and_die(*arguments: Any) -> Any:
        is_due = next(calls) == 1
        if is_due and not is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = await act(*arguments)
        if is_due:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(owner, method, act_and_die)


async def main(place: Path, point: str) -> None:
    if point:
        arm(point)
    it = job(place)
    runner = SparkRunner(
        it,
        {"in": make_input(it.catalog[0])},
        {"out": make_output(it.catalog[-1])},
        SqliteStore(str(place / "job.db")),
        place / "checkpoint",
        SparkConfig(driver_memory="512m", java_options=QUICK_JAVA, python_path=(str(ROOT),)),
    )
    await runner.run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
