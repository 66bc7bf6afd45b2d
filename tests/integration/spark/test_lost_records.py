"""A job's store and Spark's checkpoint belong together: what happens when one of them is lost.

What either of them knows, the other does not: a job whose records are gone says so and ends, and
one that can go on without them loses nothing and does nothing twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from postroad.core.errors import ConfigError
from postroad.durable import SqliteStore
from postroad.pipeline import Job, JobBuilder, make_input, make_output
from postroad.pipeline.spark.batches import BatchProcessor
from postroad.pipeline.spark.coordinator_client import CoordinatorClient
from postroad.pipeline.spark.runner import SparkRunner
from tests.integration.spark.spark_jobs import FUNCTIONS, LIMIT_S
from tests.support.deadlines import eventually
from tests.support.servers.spark import quick_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RETRY = {"attempts": 1, "first_s": 0.01}
JOB = """
name = "clearing"
workflow = [["in", "out"]]

[[catalog]]
name = "in"
type = "input"
connector = "jsonl"
options = { path = "in/*.jsonl" }

[[catalog]]
name = "out"
type = "output"
connector = "jsonl"
options = { path = "out" }
"""


def postroad_reader(here: Path) -> Job:
    job = JobBuilder("lost").input(
        "in", connector="jsonl", options={"path": str(here / "in" / "*.jsonl")}, retry=RETRY
    )
    job = job.function("sevens", FUNCTIONS + "refuse_sevens")
    return job.output("out", connector="jsonl", options={"path": str(here / "out")}).build()


def spark_reader(here: Path) -> Job:
    options = {"format": "json", "path": str(here / "in")}
    job = JobBuilder("lost").input(
        "in", connector="spark", options=options, id=["n"], schema="n BIGINT", retry=RETRY
    )
    return job.output("out", connector="jsonl", options={"path": str(here / "out")}).build()


def spark_writer(here: Path) -> Job:
    job = JobBuilder("lost").input(
        "in", connector="jsonl", options={"path": str(here / "in" / "*.jsonl")}, retry=RETRY
    )
    options = {"format": "json", "path": str(here / "out")}
    return job.output("out", connector="spark", options=options, schema="n BIGINT").build()


def windows(here: Path) -> Job:
    job = JobBuilder("lost").input(
        "in", connector="jsonl", options={"path": str(here / "in" / "*.jsonl")}, retry=RETRY
    )
    job = job.function("sums", FUNCTIONS + "same", group_by="part")
    job = job.output("out", connector="jsonl", options={"path": str(here / "out")})
    job = job.window(
        "tens", task="sums", type="fixed", aggregation="count", time_key="n", range_s=10
    )
    return job.trigger("tens", on="watermark").build()


class Place:
    """A directory with a job's files, its store and its checkpoint."""

    def __init__(self, here: Path, session: SparkSession, make: Callable[[Path], Job]) -> None:
        self.here = here
        self._session = session
        (here / "in").mkdir()
        self._job = make(here)
        self.checkpoint = here / "lost.spark"
        self.store = here / "lost.db"

    def write(self, name: str, numbers: range) -> None:
        lines = "".join(json.dumps({"n": n}) + "\n" for n in numbers)
        (self.here / "in" / name).write_text(lines)

    async def run(self) -> SparkRunner:
        tasks = self._job.catalog
        runner = SparkRunner(
            self._job,
            {it.name: make_input(it) for it in tasks if it.type == "input"},
            {it.name: make_output(it) for it in tasks if it.type == "output"},
            SqliteStore(self.store),
            self.checkpoint,
            session=self._session,
        )
        await asyncio.wait_for(runner.run(), LIMIT_S)
        return runner

    def remove_store(self) -> None:
        for path in self.here.glob("lost.db*"):
            path.unlink()

    def copy_store(self, target: Path) -> None:
        target.mkdir(exist_ok=True)
        for path in self.here.glob("lost.db*"):
            shutil.copy(path, target)

    def written(self) -> list[int]:
        paths = [*(self.here / "out").rglob("*.json*")]
        lines = [line for it in paths if it.is_file() for line in it.read_text().splitlines()]
        return sorted(json.loads(line)["n"] for line in lines)


@pytest.mark.parametrize("make", [postroad_reader, spark_reader])
async def test_checkpoint_whose_store_was_deleted_ends_the_job(
    make: Callable[[Path], Job], spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path, spark, make)
    place.write("a.jsonl", range(1, 7))
    await place.run()
    place.remove_store()

    with pytest.raises(
        ConfigError, match=r"lost\.spark was made with another store.*delete the checkpoint"
    ):
        await place.run()

    # Both deleted, the job begins anew.
    place.remove_store()
    shutil.rmtree(place.checkpoint)
    await place.run()


@pytest.mark.parametrize("make", [postroad_reader, spark_reader])
async def test_store_that_is_older_than_the_checkpoint_ends_the_job(
    make: Callable[[Path], Job], spark: SparkSession, tmp_path: Path
) -> None:
    """One that was restored from a backup."""
    place = Place(tmp_path, spark, make)
    place.write("a.jsonl", range(1, 7))
    await place.run()
    place.copy_store(tmp_path / "backup")
    for name, first in (("b.jsonl", 8), ("c.jsonl", 22)):
        place.write(name, range(first, first + 6))
        await place.run()
    place.remove_store()
    for path in (tmp_path / "backup").iterdir():
        shutil.copy(path, tmp_path)

    place.write("d.jsonl", range(36, 40))
    with pytest.raises(
        ConfigError, match=r"the store .* older than Spark's checkpoint.* [35], .* [01];"
    ):
        await place.run()


async def test_store_whose_checkpoint_was_deleted_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, spark, postroad_reader)
    place.write("a.jsonl", range(1, 7))
    await place.run()
    # The next one dies with what it was delivered, before that is committed.
    place.write("b.jsonl", range(8, 14))

    def fail(*arguments: object) -> None:
        raise OSError("the coordinator is gone")

    with monkeypatch.context() as patch:
        patch.setattr(CoordinatorClient, "commit_batch", fail)
        patch.setattr(SparkRunner, "_supervise", stop_at_first_failure(SparkRunner._supervise))
        with pytest.raises(ConnectionAbortedError):
            await place.run()
    shutil.rmtree(place.checkpoint)
    place.write("c.jsonl", range(15, 21))

    runner = await place.run()

    assert place.written() == [n for n in range(1, 21) if n % 7]
    assert runner.coordinator.counts.acked == 12


def stop_at_first_failure(supervise: Any) -> Any:
    """As if the process had died then."""

    async def run(self: SparkRunner, *arguments: Any) -> bool:
        running = asyncio.ensure_future(supervise(self, *arguments))
        await eventually(lambda: self.restarts or running.done())
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise ConnectionAbortedError

    return run


@pytest.mark.parametrize(
    ("make", "what"), [(spark_reader, "input 'in'"), (windows, "window 'tens'")]
)
async def test_store_whose_checkpoint_was_deleted_does_nothing_twice(
    make: Callable[[Path], Job], what: str, spark: SparkSession, tmp_path: Path
) -> None:
    """How far Spark's readers are, and what its windows hold, was in the checkpoint alone."""
    place = Place(tmp_path, spark, make)
    place.write("a.jsonl", range(1, 7))
    await place.run()
    before = [*(tmp_path / "out").glob("*")]
    shutil.rmtree(place.checkpoint)

    with pytest.raises(ConfigError, match=rf"{what}.*checkpoint.*bring .* back"):
        await place.run()

    assert [*(tmp_path / "out").glob("*")] == before


async def test_store_whose_checkpoint_was_deleted_says_what_is_lost_with_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was committed, and Spark was still to write, was in the checkpoint alone."""
    place = Place(tmp_path, spark, spark_writer)
    place.write("a.jsonl", range(1, 7))

    def fail(*arguments: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(BatchProcessor, "write_pending", fail)
        patch.setattr(SparkRunner, "_supervise", stop_at_first_failure(SparkRunner._supervise))
        with pytest.raises(ConnectionAbortedError):
            await place.run()
    shutil.rmtree(place.checkpoint)

    with pytest.raises(ConfigError, match=r"output 'out'.*checkpoint.*bring .* back"):
        await place.run()


def stop_before_first_batch(checkpoint: Path) -> None:
    """Leave what a query leaves that is stopped as it notes its first batch."""
    note = (checkpoint / "metadata").read_bytes()
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()
    (checkpoint / ".metadata.5e1bca1a-7b1f-4a8e-8f0e-1c7c2d0a9b11.tmp").write_bytes(note)


async def test_queries_that_were_stopped_as_they_noted_their_first_batch_start_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path, spark, windows)
    place.write("a.jsonl", range(0))
    await place.run()
    for name in ("spark", "window-state/tens"):
        stop_before_first_batch(place.checkpoint / name)
    place.write("b.jsonl", range(1, 24))

    runner = await place.run()

    assert runner.restarts == 0
    lines = [it.read_text() for it in (tmp_path / "out").glob("*.jsonl")]
    sums = [json.loads(line) for text in lines for line in text.splitlines()]
    assert sorted((it["lower"], it["value"]) for it in sums) == [(0.0, 9), (10.0, 10)]


@pytest.mark.slow
def test_command_ends_with_an_error_when_only_the_store_was_deleted(tmp_path: Path) -> None:
    (tmp_path / "clearing.toml").write_text(JOB)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n{"n": 3}\n')

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "postroad", "job", "run", "clearing.toml", "--spark"],
            cwd=tmp_path,
            env=os.environ | quick_environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    first = run()
    assert (first.returncode, first.stdout) == (0, "3 acknowledged, 0 failures, 0 dead\n"), first
    for path in tmp_path.glob("clearing.db*"):
        path.unlink()

    again = run()

    assert again.returncode == 1, again
    (line,) = again.stderr.splitlines()
    assert line.startswith("postroad: the checkpoint ") and "delete the checkpoint" in line
