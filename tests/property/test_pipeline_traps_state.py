"""What a job's account must not fall for: late segments, growth without end, lost files."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from postroad.durable import MemoryDisk, MemoryStore
from postroad.durable.store.backends.backend import StoreConnection
from postroad.pipeline import Job, JsonLinesOutput, LocalRunner, MemoryInput, MemoryOutput, Segment
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors import OutputConnector
from postroad.pipeline.connectors.files.parquet import ParquetOutput
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.progress import JobCounters
from postroad.pipeline.coordinator.records import RootState
from postroad.pipeline.functions import Function
from tests.property.pipeline_strategies import SOME
from tests.support.deadlines import DEADLINE_S
from tests.support.pipeline.acker import Acker
from tests.support.pipeline.seen_windows import SeenWindowState

QUICK = {"attempts": 3, "first_s": 0.0, "max_s": 0.0}


def windowed_job(batch_size: int, allowed_lateness_s: float | None) -> Job:
    """A job that counts segments, for every ten seconds."""
    return msgspec.convert(
        {
            "name": "job",
            "workflow": [["in", "count"], ["count", "out"]],
            "catalog": [
                {
                    "name": "in",
                    "type": "input",
                    "connector": "memory",
                    "batch_size": batch_size,
                    "retry": QUICK,
                },
                {"name": "count", "type": "function", "fn": "count"},
                {"name": "out", "type": "output", "connector": "memory"},
            ],
            "windows": [
                {
                    "name": "w",
                    "task": "count",
                    "type": "fixed",
                    "aggregation": "count",
                    "time_key": "t",
                    "range_s": 10,
                    "allowed_lateness_s": allowed_lateness_s,
                }
            ],
            "triggers": [{"window": "w", "on": "drained"}],
        },
        Job,
    )


class Ran:
    """A job that ran to its end, and what it left."""

    def __init__(self, job: Job, function: Function) -> None:
        self._job = job
        self._function = function
        self._disk = MemoryDisk()
        self.output = MemoryOutput()
        self.runner: LocalRunner | None = None

    async def run(self, segments: Sequence[Segment]) -> JobCounters:
        source, store = MemoryInput(segments, split_segments=3), MemoryStore(self._disk)
        outputs = {"out": self.output}
        self.runner = LocalRunner(self._job, {"in": source}, outputs, store, find=self._find)
        async with asyncio.timeout(DEADLINE_S):
            await self.runner.run()
        return self.runner.coordinator.counts

    def _find(self, name: str) -> Function:
        return self._function

    async def look(self, look: Callable[[StoreConnection], Any]) -> Any:
        store = MemoryStore(self._disk)
        await store.open("job")
        try:
            return await store.read(look)
        finally:
            await store.close()


# Late segments.


async def run_late(times: list[int], batch_size: int) -> None:
    ran = Ran(windowed_job(batch_size, allowed_lateness_s=0.0), lambda segment: segment)
    counts = await ran.run([{"t": time} for time in times])
    assert (counts.acked, counts.failed, counts.replayed) == (
        len(times) + len(ran.output.segments),
        0,
        0,
    )
    panes = await ran.look(lambda database: JobStore(database, "job").panes())
    program = CompiledJob(windowed_job(batch_size, allowed_lateness_s=0.0), lambda _: same)
    late = SeenWindowState(program.windows, panes).late("w")
    event(f"late: {bool(late)}")
    assert sum(it["value"] for it in ran.output.segments) + late == len(times)
    found = await ran.look(lambda it: [JobStore(it, "job").count(state) for state in RootState])
    assert found == [0, 0, 0]


def same(segment: Segment) -> Segment:
    return segment


@SOME
@given(st.lists(st.integers(0, 99), max_size=25), st.integers(1, 9))
def test_segments_that_windows_drop_are_done_with(times: list[int], batch_size: int) -> None:
    """A window that is forgotten takes no more segments. If one that comes too late for it were
    only dropped, it would never be acknowledged: it would come again, too late again, for ever. It
    is done with at once and counted as late, and no segment waits for its window to be emitted.
    """
    asyncio.run(run_late(times, batch_size))


# Growth.


def refuse_some(calls: Counter[int], segment: Segment) -> Segment:
    """Every fifth fails at first."""
    calls[segment["t"]] += 1
    if segment["t"] % 5 == 0 and calls[segment["t"]] == 1:
        raise ValueError("not yet")
    return segment


def count_rows(database: StoreConnection) -> dict[str, int]:
    tables = database.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'postroad_pipeline%'"
    )
    return {name: int(database.execute(f"SELECT COUNT(*) FROM {name}")[0][0]) for (name,) in tables}


async def rows_after(count: int) -> dict[str, int]:
    calls: Counter[int] = Counter()
    ran = Ran(
        windowed_job(10, allowed_lateness_s=20.0), lambda segment: refuse_some(calls, segment)
    )
    await ran.run([{"t": t} for t in range(count)])
    assert sum(it["value"] for it in ran.output.segments) == count
    gc.collect()
    ackers = [it for it in gc.get_objects() if isinstance(it, Acker)]
    assert ran.runner is not None
    assert not ackers, "a runner remembers reports of batches that are settled"
    rows: dict[str, int] = await ran.look(count_rows)
    return rows


async def test_what_is_done_with_leaves_nothing_behind() -> None:
    """Each report that came is remembered, so that it counts once; each root, each staged file and
    each window has a row. What is done with must be forgotten, or a job that runs for a year has a
    store of a year: ten times as many segments leave no more rows.
    """
    few, many = await rows_after(100), await rows_after(1_000)
    assert len(few) >= 7
    assert many == few
    assert sum(few.values()) < 10, few


# Files.


class Syncs:
    """What was on the disk for certain, whenever something was written out."""

    def __init__(self) -> None:
        self._sync = os.fsync
        self.sizes: dict[int, int] = {}
        """By the numbers of files."""
        self.names: dict[int, set[str]] = {}
        """By the numbers of directories."""

    def __call__(self, file: int) -> None:
        self._sync(file)
        found = os.fstat(file)
        self.sizes[found.st_ino] = found.st_size
        try:
            self.names[found.st_ino] = set(os.listdir(file))
        except NotADirectoryError:
            return

    def has(self, path: Path) -> bool:
        """Whether a file would be there, and whole, after a loss of power."""
        found = path.stat()
        is_whole = self.sizes.get(found.st_ino) == found.st_size
        return is_whole and path.name in self.names.get(path.parent.stat().st_ino, ())


def only_file(directory: Path) -> Path:
    (file,) = (it for it in directory.rglob("job*") if it.is_file())
    return file


@pytest.mark.parametrize("make", [JsonLinesOutput, ParquetOutput])
async def test_what_is_staged_and_published_outlasts_a_loss_of_power(
    make: Callable[[str], OutputConnector], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is settled when all it wrote is staged. If that were only in the memory of the
    system, a loss of power would take the output, and the account would say that it is there.
    """
    syncs = Syncs()
    monkeypatch.setattr(os, "fsync", syncs)
    output = make(str(tmp_path))
    await output.open("job+", [])
    stager = output.create_writer("job+part+out")
    stager.write([1, 2], [{"n": 1}, {"n": 2}])
    staged = stager.prepare_commit()
    assert staged is not None
    assert syncs.has(only_file(tmp_path))
    await output.commit(staged)
    published = only_file(tmp_path)
    assert published.parent == tmp_path
    assert syncs.has(published)
