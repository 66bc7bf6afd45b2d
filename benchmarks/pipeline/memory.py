"""Memory of the driver and of all workers, over many batches."""

from __future__ import annotations

import asyncio
import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Comparison, Contender, Section
from benchmarks.pipeline.jobs import make_runner, write_lines
from benchmarks.pipeline.session import shared_session
from postroad.durable import SqliteStore
from postroad.pipeline import JobBuilder

if TYPE_CHECKING:
    from benchmarks.harness import Settings

BATCHES = 1_000
SETTLING = 200
SEGMENTS = 50
GOAL = 1.1
OURS = "postroad, at the end"


def section(settings: Settings) -> Section:
    """MiB of this process and everything that it started."""
    case = f"memory after {BATCHES} batches, against after {SETTLING}"
    samples: dict[str, float] = {}
    return Section(
        title=case,
        unit="MiB",
        contenders=[
            Contender(OURS, partial(_measure, settings.scratch / "memory", samples)),
            Contender("then", lambda: samples["then"]),
        ],
        comparisons=[Comparison(case, OURS, "then", GOAL, at_most=True)],
        rounds_max=1,
    )


def _measure(directory: Path, samples: dict[str, float]) -> float:
    directory.mkdir()
    try:
        return asyncio.run(_run(directory, samples))
    finally:
        shutil.rmtree(directory)


async def _run(directory: Path, samples: dict[str, float]) -> float:
    source = write_lines(directory / "in.jsonl", BATCHES * SEGMENTS)
    job = (
        JobBuilder("memory")
        .input(
            "in",
            connector="jsonl",
            options={"path": str(source)},
            batch_size=SEGMENTS,
            max_pending=SEGMENTS,
        )
        .function("first", "benchmarks.pipeline.functions:first")
        .output("out", connector="jsonl", options={"path": str(directory / "out")})
        .build()
    )
    store, checkpoint = SqliteStore(directory / "job.db"), directory / "checkpoint"
    runner = make_runner(job, store, checkpoint, session=shared_session())
    running = asyncio.ensure_future(runner.run())
    seen = 0.0
    while not running.done():
        await asyncio.sleep(0.2)
        if runner.coordinator.counts.batches >= SETTLING and "then" not in samples:
            samples["then"] = _family_mib()
        if runner.coordinator.counts.batches < BATCHES:
            seen = _family_mib()
    await running
    return seen


def _family_mib() -> float:
    """Private memory of this process and its descendants."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    waiting, total = [os.getpid()], 0
    while waiting:
        pid = waiting.pop()
        waiting += parents.get(pid, [])
        total += _private_kib(pid)
    return total / 1024


def _private_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
