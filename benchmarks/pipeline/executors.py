"""What a second executor brings, and how long the command takes to its first batch."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.children import Announce, running
from benchmarks.harness import BenchmarkFailed, Comparison, Contender, Section
from benchmarks.pipeline.jobs import FUNCTIONS, LIMIT_S, make_runner, moment, write_lines
from benchmarks.pipeline.session import ROOT, end_session
from postroad.durable import SqliteStore
from postroad.pipeline import JobBuilder
from postroad.pipeline.spark import SparkConfig
from postroad.pipeline.spark.runner import SparkRunner

if TYPE_CHECKING:
    from benchmarks.harness import Settings

ONE, TWO = "one executor", "two executors"
FIRST_BATCH_S = 15.0
_LOOK_S = 0.005
_JOB = """
name = "three"
workflow = [["in", "left"], ["left", "out"]]
[[catalog]]
name = "in"
type = "input"
connector = "jsonl"
options = {{ path = "{here}/in/*.jsonl" }}
[[catalog]]
name = "left"
type = "function"
fn = "benchmarks.pipeline.functions:with_key"
[[catalog]]
name = "out"
type = "output"
connector = "jsonl"
options = {{ path = "{here}/out" }}
"""


def sections(settings: Settings) -> list[Section]:
    """Segments per second, and seconds."""
    end_session()
    count = settings.segments // 10
    case = f"{count:,} segments with a function of 50 µs, files to JSON lines, a core an executor"
    measure = partial(_measure_executors, settings.scratch, count)
    start = "from the command `job run --spark` on three lines to the first output"
    return [
        Section(
            title=case,
            unit="segments/s",
            contenders=[Contender(TWO, partial(measure, 2)), Contender(ONE, partial(measure, 1))],
            comparisons=[Comparison(case, TWO, ONE, 1.7)],
            rounds_max=3,
        ),
        Section(
            title=start,
            unit="s",
            contenders=[Contender("postroad", partial(_measure_start, settings.scratch / "start"))],
            comparisons=[
                Comparison(start, "postroad", "budget", 1.0, at_most=True, budget=FIRST_BATCH_S)
            ],
            rounds_max=3,
        ),
    ]


def _measure_executors(scratch: Path, count: int, executors: int) -> float:
    with running(_run_job, str(scratch), count, executors) as child:
        rate = child.receive(LIMIT_S)
    if not isinstance(rate, float):
        raise BenchmarkFailed(str(rate))
    return rate


def _run_job(announce: Announce, scratch: str, count: int, executors: int) -> None:
    place = Path(scratch) / f"executors-{executors}"
    shutil.rmtree(place, ignore_errors=True)
    source = write_lines(Path(scratch) / "tenth" / "lines.jsonl", count)
    job = (
        JobBuilder("executors")
        .input(
            "in",
            connector="jsonl",
            options={"path": str(source)},
            batch_size=count // 10,
            max_pending=count,
        )
        .function("slow", f"{FUNCTIONS}:slow")
        .output("out", connector="jsonl", options={"path": str(place / "out")})
        .build()
    )
    runner = make_runner(
        job,
        SqliteStore(place / "job.db"),
        place / "checkpoint",
        settings=SparkConfig(
            master=f"local-cluster[{executors},1,1024]",
            python_path=(str(ROOT),),
            executor_memory="512m",
        ),
    )
    place.mkdir(parents=True)
    announce(asyncio.run(_rate(runner, count)))


async def _rate(runner: SparkRunner, count: int) -> float | str:
    """Segments per second behind the first batch, which waits for executors and workers."""
    running, counts = asyncio.ensure_future(runner.run()), runner.coordinator.counts
    started_s = await moment(lambda: counts.acked > 0 or running.done())
    first = counts.acked
    ended_s = await moment(lambda: counts.acked >= count or running.done())
    await running
    return (
        (count - first) / (ended_s - started_s) if counts.acked == count else f"{counts} of {count}"
    )


def _measure_start(place: Path) -> float:
    shutil.rmtree(place, ignore_errors=True)
    write_lines(place / "in" / "three.jsonl", 3)
    (place / "job.toml").write_text(_JOB.format(here=place))
    command = [sys.executable, "-m", "postroad", "job", "run", str(place / "job.toml"), "--spark"]
    started_s = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while not any((place / "out").glob("*.jsonl")):
            if process.poll() not in (None, 0) or time.perf_counter() - started_s > LIMIT_S:
                raise BenchmarkFailed(f"the command ended with status {process.poll()}")
            time.sleep(_LOOK_S)
        return time.perf_counter() - started_s
