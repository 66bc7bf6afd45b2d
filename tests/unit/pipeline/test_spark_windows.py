"""What the coordinator knows of windows whose contents Spark keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.durable import MemoryDisk, MemoryStore, Store
from postroad.pipeline import Job, LocalRunner, MemoryInput, MemoryOutput, new_job
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import encode_segment
from postroad.pipeline.coordinator import job_store
from postroad.pipeline.coordinator.batch_result import BatchResult
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.window_deltas import ResultFile, WindowFile, encode_results
from postroad.pipeline.coordinator.window_store import read_windows


def job_of(window: str = "w", **trigger: Any) -> Job:
    return (
        new_job("counting")
        .input("in", connector="memory")
        .function("per", "builtins:dict", group_by="k")
        .output("out", connector="memory")
        .window(window, task="per", type="fixed", range_s=10, time_key="at", aggregation="count")
        .trigger(window, on="watermark", threshold=2, **trigger)
        .build()
    )


@asynccontextmanager
async def opened(store: Store, job: Job, run: str = "a run") -> AsyncIterator[JobCoordinator]:
    await store.open(job.name)
    inputs, outputs = {"in": MemoryInput([])}, {"out": MemoryOutput()}
    coordinator = JobCoordinator(CompiledJob(job), store, inputs, outputs)
    await coordinator.open()
    try:
        await coordinator.spark_windows.assign(run, ["w"])
        yield coordinator
    finally:
        await coordinator.close()
        await store.close()


def results_in(directory: Path, *segments: dict[str, Any]) -> ResultFile:
    path = directory / "results"
    path.write_bytes(
        encode_results([(str(n), encode_segment(it)) for n, it in enumerate(segments)])
    )
    return ResultFile(str(path), len(segments))


def files_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def test_what_comes_too_late_is_counted_for_its_window() -> None:
    store, job = MemoryStore(), job_of()
    async with opened(store, job) as coordinator:
        first = WindowFile("w", "a", 100.0, {9: 1, 10: 1})
        await coordinator.commit_batch("a run", 0, BatchResult([], window_files=[first]))
        assert await coordinator.late() == {"w": 0}
        late = WindowFile("w", "b", 50.0, {5: 2, 10: 4})
        await coordinator.commit_batch("a run", 1, BatchResult([], window_files=[late]))
        assert await coordinator.late() == {"w": 2}
        views = await store.read(lambda it: read_windows(job_store.JobStore(it, job.name), job, 10))
        assert [(view.name, view.late) for view in views] == [("w", 2)]


async def test_what_a_window_emits_is_taken_in_once_whatever_other_runs_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_store, "_RUNS_KEPT", 1)
    async with opened(MemoryStore(), job_of()) as coordinator:
        windows, file = coordinator.spark_windows, results_in(tmp_path, {"value": 1})
        assert not await windows.is_committed("a run", "w", 0)
        await windows.commit_batch("a run", "w", 0, [file], [])
        for run in ("b", "c", "d"):
            await coordinator.commit_batch(run, 0, BatchResult([]))
        assert await windows.is_committed("a run", "w", 0)
        await windows.commit_batch("a run", "w", 0, [file], [])
        assert [it.segments for it in await coordinator.next_deliveries()] == [1]
        assert not await windows.is_committed("a run", "w", 1)


async def test_a_new_checkpoint_counts_its_batches_anew() -> None:
    disk = MemoryDisk()
    async with opened(MemoryStore(disk), job_of()) as coordinator:
        await coordinator.spark_windows.commit_batch("a run", "w", 7, [], [])
    async with opened(MemoryStore(disk), job_of(), "another") as coordinator:
        assert not await coordinator.spark_windows.is_committed("another", "w", 0)
        # Whoever still has the old one has nothing to say.
        assert await coordinator.spark_windows.is_committed("a run", "w", 8)


async def test_what_is_emitted_may_change_and_the_window_may_not() -> None:
    disk = MemoryDisk()
    async with opened(MemoryStore(disk), job_of()):
        pass
    async with opened(MemoryStore(disk), job_of(emit="builtins:repr")):
        pass
    with pytest.raises(ConfigError, match="window 'w' was changed"):
        async with opened(MemoryStore(disk), job_of(refinement="discarding")):
            pass


async def test_what_was_emitted_before_a_window_got_another_name_is_done_in_plain_python(
    tmp_path: Path,
) -> None:
    disk, out = MemoryDisk(), MemoryOutput()
    file = results_in(tmp_path, {"value": 1}, {"value": 2})
    async with opened(MemoryStore(disk), job_of()) as coordinator:
        await coordinator.spark_windows.commit_batch("a run", "w", 0, [file], [])
    with pytest.raises(ConfigError, match="Spark keeps the contents of window 'w'"):
        await LocalRunner(job_of(), {"in": MemoryInput([])}, {"out": out}, MemoryStore(disk)).run()
    renamed = job_of("w2")
    await LocalRunner(renamed, {"in": MemoryInput([])}, {"out": out}, MemoryStore(disk)).run()
    assert out.segments == [{"value": 1}, {"value": 2}]
    assert files_in(tmp_path) == []
