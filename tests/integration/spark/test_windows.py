"""Windows that Spark keeps: what they emit, what they drop, and what is left after crashes."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from postroad.core.errors import ConfigError
from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import Job, LocalRunner, MemoryInput, MemoryOutput, new_job
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.spark_windows import SparkWindows
from postroad.pipeline.spark import SparkConfig
from postroad.pipeline.spark.runner import SparkRunner
from tests.integration.spark.spark_jobs import FUNCTIONS, LIMIT_S, outputs_of
from tests.support.pipeline import window_kill_job
from tests.support.source_tree import ROOT
from tests.support.tiers import by_tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RETRY = {"attempts": 3, "first_s": 0.02, "max_s": 0.05}


def job_of(aggregation: str, fn: str = "same", **fields: Any) -> Job:
    return _with_windows(
        f"windows_{aggregation}", fn, {"w": {"aggregation": aggregation, **fields}}
    )


def job_of_all_kinds() -> Job:
    """One job, because each query takes long to start."""
    windows: dict[str, dict[str, Any]] = {
        "fixed": {"aggregation": "sum"},
        "sliding": {"aggregation": "max", "type": "sliding", "slide_s": 5},
        "short": {"aggregation": "collect", "type": "sliding", "range_s": 0.6, "slide_s": 0.3},
    }
    return _with_windows("windows_of_all_kinds", "same", windows)


def _with_windows(name: str, fn: str, windows: dict[str, dict[str, Any]]) -> Job:
    job = (
        new_job(name)
        .input("in", connector="memory", retry=RETRY, batch_size=100)
        .function("per", FUNCTIONS + fn, group_by="k")
        .output("out", connector="memory")
    )
    for window, fields in windows.items():
        kind: dict[str, Any] = {"type": "fixed", "range_s": 10} | fields
        job = job.window(window, task="per", time_key="at", key="v", **kind)
        job = job.trigger(window, on="watermark", threshold=2)
    return job.build()


def segments(count: int, start: int = 0) -> list[dict[str, Any]]:
    """In order of time but for one in ten, which may be too late."""
    return [
        {"k": n % 3, "v": n / 10 if n % 4 else n, "at": n / 4 - (30 if n % 10 == 9 else 0)}
        for n in range(start, start + count)
    ]


class Account:
    """A job's store and checkpoint, which outlive its runs."""

    def __init__(self, session: SparkSession, directory: Path) -> None:
        self._session = session
        self.checkpoint = directory / "checkpoint"
        self.disk = MemoryDisk()
        self.out = MemoryOutput()

    def runner(self, job: Job, given: Sequence[dict[str, Any]]) -> SparkRunner:
        return SparkRunner(
            job,
            {"in": MemoryInput(given, split_segments=50)},
            {"out": self.out},
            MemoryStore(self.disk),
            self.checkpoint,
            # What is late depends on the batches, which are those of plain Python then.
            SparkConfig(partitions=1),
            session=self._session,
        )

    async def run(self, job: Job, given: Sequence[dict[str, Any]]) -> SparkRunner:
        runner = self.runner(job, given)
        await asyncio.wait_for(runner.run(), LIMIT_S)
        return runner


async def run_plainly(job: Job, given: Sequence[dict[str, Any]]) -> tuple[list[str], int]:
    """What it emits in plain Python, and how much comes too late."""
    outputs, store = outputs_of(job), MemoryStore()
    await store.open(job.name)
    runner = LocalRunner(job, {"in": MemoryInput(given, split_segments=50)}, outputs, store)
    await asyncio.wait_for(runner.run(), LIMIT_S)
    dropped = sum((await runner.coordinator.late()).values())
    await store.close()
    return sorted(map(repr, outputs["out"].segments)), dropped


async def dropped_of(account: Account, job: Job) -> int:
    store = MemoryStore(account.disk)
    await store.open(job.name)
    runner = LocalRunner(job, {"in": MemoryInput([])}, outputs_of(job), store)
    dropped = sum((await runner.coordinator.late()).values())
    await store.close()
    return dropped


@pytest.mark.slow
async def test_windows_in_spark_emit_and_drop_what_those_of_plain_python_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    job, given = job_of_all_kinds(), segments(400)
    emitted, dropped = await run_plainly(job, given)
    account = Account(spark, tmp_path)
    runner = await account.run(job, given)
    assert runner.restarts == 0
    assert sorted(runner.coordinator.spark_windows.windows) == ["fixed", "short", "sliding"]
    assert sorted(map(repr, account.out.segments)) == emitted
    assert {it["window"] for it in account.out.segments} == {"fixed", "short", "sliding"}
    assert await dropped_of(account, job) == dropped > 100
    assert len(list((account.checkpoint / "window-files").iterdir())) <= 12


@pytest.mark.slow
async def test_segments_that_fail_first_count_once(spark: SparkSession, tmp_path: Path) -> None:
    job = job_of("count", "fail_first_time")
    given = [{"k": 0, "v": n, "at": 5, "file": str(tmp_path / "seen")} for n in range(100)]
    given.append({"k": 0, "v": "end", "at": 100, "file": str(tmp_path / "seen")})
    account = Account(spark, tmp_path)
    runner = await account.run(job, given[:100])
    assert runner.coordinator.counts.failed == 50
    assert account.out.segments == [], "the watermark has not passed it"
    # The same store and checkpoint go on with what comes next.
    await account.run(job, given)
    assert [(it["lower"], it["segments"]) for it in account.out.segments] == [(0.0, 100)]


@pytest.mark.slow
async def test_contents_of_windows_outlive_the_session_of_their_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    job, given = job_of("average"), segments(300)
    account = Account(spark, tmp_path)
    for count in (100, 300):
        await account.run(job, given[:count])
    emitted, _ = await run_plainly(job, given)
    assert sorted(map(repr, account.out.segments)) == emitted


@pytest.mark.slow
async def test_windows_stay_where_their_contents_are(spark: SparkSession, tmp_path: Path) -> None:
    job, given = job_of("sum"), segments(100)
    account = Account(spark, tmp_path)
    await account.run(job, given)
    inputs, outputs = {"in": MemoryInput(given)}, outputs_of(job)
    with pytest.raises(ConfigError, match="Spark keeps the contents of window 'w'"):
        await LocalRunner(job, inputs, outputs, MemoryStore(account.disk)).run()
    with pytest.raises(ConfigError, match="window 'w' was changed"):
        await account.run(job_of("sum", range_s=20), given)
    # And the other way round.
    disk = MemoryDisk()
    await LocalRunner(job, inputs, outputs, MemoryStore(disk)).run()
    there = SparkRunner(job, inputs, outputs, MemoryStore(disk), tmp_path / "other", session=spark)
    await asyncio.wait_for(there.run(), LIMIT_S)
    assert not there.coordinator.spark_windows.windows


@pytest.mark.slow
async def test_windows_are_not_kept_by_a_spark_that_shall_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = job_of("sum")
    settings = SparkConfig(is_stateful=False)
    runner = SparkRunner(
        job,
        {"in": MemoryInput(segments(50))},
        outputs_of(job),
        MemoryStore(),
        tmp_path / "checkpoint",
        settings,
        session=spark,
    )
    await asyncio.wait_for(runner.run(), LIMIT_S)
    assert not runner.coordinator.spark_windows.windows


class Failure(NamedTuple):
    """Calls of a method that fail, with the work done before that or not."""

    owner: type
    method: str
    is_done: bool
    calls: tuple[int, ...]


EACH_ALONE = [
    [Failure(JobCoordinator, "commit_batch", True, (0, 2))],
    [Failure(SparkWindows, "list_deltas", False, (0, 2))],
    [Failure(SparkWindows, "commit_batch", False, (0, 2))],
    [Failure(SparkWindows, "commit_batch", True, (0, 2))],
]
ONE_AFTER_THE_OTHER = [
    Failure(JobCoordinator, "commit_batch", True, (0,)),
    Failure(SparkWindows, "list_deltas", False, (0,)),
    Failure(SparkWindows, "commit_batch", True, (0,)),
    Failure(SparkWindows, "commit_batch", False, (0,)),
]


@pytest.mark.slow
@pytest.mark.parametrize("failures", [ONE_AFTER_THE_OTHER, *by_tier(test=[], nightly=EACH_ALONE)])
async def test_each_segment_counts_once_whatever_fails_between_the_two_queries(
    failures: list[Failure],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In order of time: what is too late depends on the order in which batches are committed.
    job, given = job_of("sum"), sorted(segments(300), key=lambda it: it["at"])
    emitted, dropped = await run_plainly(job, given)
    failed: list[Failure] = []
    for failure in failures:
        act = getattr(failure.owner, failure.method)
        failing = partialmethod(_act_or_fail, act, failure, itertools.count(), failed)
        monkeypatch.setattr(failure.owner, failure.method, failing)
    account = Account(spark, tmp_path)
    runner = await account.run(job, given)
    # Both queries may fail at the same time.
    assert runner.restarts > 0
    assert len(failed) == sum(len(failure.calls) for failure in failures)
    assert sorted(map(repr, account.out.segments)) == emitted
    assert await dropped_of(account, job) == dropped


async def _act_or_fail(
    owner: object,
    act: Callable[..., Awaitable[Any]],
    failure: Failure,
    calls: Iterator[int],
    failed: list[Failure],
    *arguments: Any,
) -> Any:
    fails = next(calls) in failure.calls
    if fails:
        failed.append(failure)
    if fails and not failure.is_done:
        raise RuntimeError("the coordinator is gone")
    done = await act(owner, *arguments)
    if fails:
        raise RuntimeError("the coordinator is gone, but did it")
    return done


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_each_segment_counts_once_whenever_the_driver_is_killed(tmp_path: Path) -> None:
    # In order of time: what is too late depends on how batches are cut.
    given = sorted(segments(window_kill_job.SEGMENTS), key=lambda it: it["at"])
    emitted, _ = await run_plainly(job_of("sum"), given)
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, given)))
    for point in (*window_kill_job.POINTS, ""):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", window_kill_job.__name__, str(tmp_path), point), cwd=ROOT
        )
        status = await asyncio.wait_for(process.wait(), LIMIT_S)
        assert status in ((-signal.SIGKILL, 0) if point else (0,)), point
    files = (tmp_path / "out").glob("*.jsonl")
    lines = [line for it in files for line in it.read_text().splitlines()]
    assert sorted(repr(msgspec.json.decode(line)) for line in lines) == emitted
