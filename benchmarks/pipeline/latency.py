"""From post to acknowledged output at low load, against what an empty query takes."""

from __future__ import annotations

import asyncio
import shutil
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Comparison, Contender, Section
from benchmarks.pipeline.jobs import make_runner
from benchmarks.pipeline.nodes import NODE, QUEUE, mail_node, make_job
from benchmarks.pipeline.session import shared_session
from postroad.pipeline.spark.runner import SparkRunner

if TYPE_CHECKING:
    from benchmarks.harness import Settings

OURS, FLOOR = "postroad", "an empty query with a source and a sink in Python"
WARM_UP = 5
MESSAGES = 40
PAUSE_S = 0.05
GOAL = 2.0


def section(settings: Settings) -> Section:
    """Milliseconds, the median of one sample."""
    case = "one letter at a time, queue to queue, p50 from post to acknowledged output"
    return Section(
        title=case,
        unit="ms",
        contenders=[
            Contender(OURS, partial(_measure_job, settings.scratch / "latency")),
            Contender(FLOOR, partial(_measure_floor, settings.scratch / "floor")),
        ],
        comparisons=[Comparison(case, OURS, FLOOR, GOAL, at_most=True)],
        rounds_max=3,
    )


def _measure_job(directory: Path) -> float:
    directory.mkdir()
    try:
        return asyncio.run(_run_job(directory))
    finally:
        shutil.rmtree(directory)


async def _run_job(directory: Path) -> float:
    job = make_job(batch_size=1_000, bounded=False)
    async with mail_node(directory) as mail:
        checkpoint = directory / "checkpoint"
        runner = make_runner(job, mail.store, checkpoint, mail, session=shared_session())
        running = asyncio.ensure_future(runner.run())
        taken_s = []
        for number in range(WARM_UP + MESSAGES):
            started_s = time.perf_counter()
            await mail.send(QUEUE, b'{"n":%d,"text":"x"}' % (number * 100 + 3), to=NODE)
            await _wait_for(runner, number + 1)
            taken_s.append(time.perf_counter() - started_s)
            await asyncio.sleep(PAUSE_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return median(taken_s[WARM_UP:]) * 1000


async def _wait_for(runner: SparkRunner, acked: int) -> None:
    while True:
        if runner.coordinator.counts.acked >= acked:
            return
        await asyncio.sleep(0.001)


def _measure_floor(directory: Path) -> float:
    """Time between two batches of one row, back to back."""
    from benchmarks.pipeline.empty_query import EmptySource

    session = shared_session()
    session.dataSource.register(EmptySource)
    directory.mkdir()
    frame = session.readStream.format("empty").load()
    query = frame.writeStream.format("empty").option("checkpointLocation", str(directory)).start()
    try:
        return median(_batch_times_ms(query))
    finally:
        query.stop()
        shutil.rmtree(directory)


def _batch_times_ms(query: Any) -> list[float]:
    times: dict[int, float] = {}
    deadline_s = time.monotonic() + 60
    while len(times) < WARM_UP + MESSAGES and time.monotonic() < deadline_s:
        for progress in query.recentProgress:
            times[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
        time.sleep(0.1)
    return [times[batch] for batch in sorted(times)][WARM_UP:]
