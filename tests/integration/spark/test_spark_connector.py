"""Inputs that Spark's readers read and outputs that its writers write, tracked to the segment."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest

from postroad.core.errors import ConfigError
from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import Job, MemoryOutput, make_input, make_output, new_job
from postroad.pipeline.coordinator.records import StoredRoot
from postroad.pipeline.spark.batches import BatchProcessor
from postroad.pipeline.spark.coordinator_client import CoordinatorClient
from postroad.pipeline.spark.runner import SparkRunner
from tests.integration.spark.spark_jobs import FUNCTIONS, LIMIT_S, dead_of
from tests.support.servers.postgres import fresh_database
from tests.support.servers.spark import POSTGRES_JAR

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RETRY = {"attempts": 2, "first_s": 0.02, "max_s": 0.05}


def write_lines(path: Path, numbers: range) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"n": n, "name": f"é{n}"}) + "\n" for n in numbers))


def json_to_parquet(here: Path, **output: Any) -> Job:
    return (
        new_job("readers")
        .input(
            "in",
            connector="spark",
            options={"format": "json", "path": str(here / "in")},
            id=["n"],
            retry=RETRY,
        )
        .function("sevens", FUNCTIONS + "refuse_sevens")
        .output(
            "files",
            connector="spark",
            options={"format": "parquet", "path": str(here / "out")},
            **output,
        )
        .output("memory", connector="memory", after="sevens")
        .build()
    )


class Runs:
    """Runs of one job, one after the other."""

    def __init__(self, session: SparkSession, job: Job, here: Path) -> None:
        self._session = session
        self._job = job
        self._here = here
        self.checkpoint = str(here / "checkpoint")
        self._disk = MemoryDisk()
        self.memory = MemoryOutput()

    def run(self) -> SparkRunner:
        inputs = {it.name: make_input(it) for it in self._job.catalog if it.type == "input"}
        outputs = {
            it.name: self.memory if it.connector == "memory" else make_output(it)
            for it in self._job.catalog
            if it.type == "output"
        }
        runner = SparkRunner(
            self._job,
            inputs,
            outputs,
            MemoryStore(self._disk),
            checkpoint=self.checkpoint,
            session=self._session,
        )
        asyncio.run(asyncio.wait_for(runner.run(), LIMIT_S))
        return runner

    def dead(self) -> list[StoredRoot]:
        return asyncio.run(dead_of(self._job, self._disk))

    def numbers(self, path: str) -> list[int]:
        rows = self._session.read.parquet(str(self._here / path))
        return sorted(row["n"] for row in rows.collect())


def test_json_by_sparks_reader_to_parquet_by_its_writer(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_lines(tmp_path / "in" / "b.json", range(100))
    runs = Runs(spark, json_to_parquet(tmp_path), tmp_path)
    first = runs.run()
    good = [n for n in range(100) if n % 7]
    assert runs.numbers("out") == good
    assert sorted(it["n"] for it in runs.memory.segments) == good
    assert (first.coordinator.counts.acked, first.restarts) == (len(good), 0)

    # Nothing new, nothing to do.
    assert runs.run().coordinator.counts.delivered == 0
    assert runs.numbers("out") == good

    # The next run takes what came meanwhile, also under a smaller name.
    write_lines(tmp_path / "in" / "a.json", range(100, 120))
    runs.run()
    assert runs.numbers("out") == [n for n in range(120) if n % 7]


def two_outputs(here: Path, format_: str, **keys: Any) -> Job:
    def place(name: str) -> dict[str, Any]:
        return {"format": format_, "path": str(here / name), "partition_by": ["name"]}

    return (
        new_job("two")
        .input(
            "in", connector="spark", options={"format": "json", "path": str(here / "in")}, id=["n"]
        )
        .output("every", connector="spark", options=place("every"), after="in", **keys)
        .function("double", FUNCTIONS + "double", after="in")
        .output("doubled", connector="spark", options=place("doubled"), after="double", **keys)
        .build()
    )


@pytest.mark.parametrize("schema", [None, "n BIGINT, name STRING"])
def test_two_outputs_by_sparks_writer(
    spark: SparkSession, tmp_path: Path, schema: str | None
) -> None:
    """With columns that are known they are written once, otherwise staged and written again."""
    write_lines(tmp_path / "in" / "a.json", range(50))
    keys = {} if schema is None else {"schema": schema}
    runs = Runs(spark, two_outputs(tmp_path, "parquet", **keys), tmp_path)
    runs.run()
    assert runs.numbers("every") == list(range(50))
    assert runs.numbers("doubled") == [2 * n for n in range(50)]
    names = sorted(row["name"] for row in spark.read.parquet(str(tmp_path / "every")).collect())
    assert names == sorted(f"é{n}" for n in range(50))
    directories = {it.name for it in (tmp_path / "every").glob("batch=*/*") if it.is_dir()}
    assert len(directories) == 50 and all(it.startswith("name=") for it in directories)
    # Nothing is left of what was staged.
    assert list((tmp_path / "checkpoint" / "staged").iterdir()) == []


def test_task_that_spark_does_again_counts_and_writes_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its worker dies with rows and a report half way: both are those of the second attempt."""
    write_lines(tmp_path / "in" / "a.json", range(50))
    out = {"format": "parquet", "path": str(tmp_path / "out")}
    job = (
        new_job("again")
        .input(
            "in",
            connector="spark",
            options={"format": "json", "path": str(tmp_path / "in")},
            id=["n"],
        )
        .function("die", FUNCTIONS + "die_once", params={"marker": str(tmp_path / "died")})
        .output("files", connector="spark", options=out, schema="n BIGINT, name STRING")
        .build()
    )
    runs = Runs(spark, job, tmp_path)
    counts = runs.run().coordinator.counts
    assert (tmp_path / "died").exists()
    assert (counts.acked, counts.failed) == (50, 0)
    assert runs.numbers("out") == list(range(50))


def test_segment_that_does_not_fit_the_schema_of_an_output_is_dead(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_lines(tmp_path / "in" / "a.json", range(10))
    (tmp_path / "in" / "b.json").write_text('{"n": 10, "name": "ok"}\n')
    job = json_to_parquet(tmp_path, schema="n BIGINT, name INT")
    runs = Runs(spark, job, tmp_path)
    runs.run()
    dead = runs.dead()
    good = [n for n in range(11) if n % 7]
    assert sorted(it["n"] for it in runs.memory.segments) == good
    assert len(dead) == 11
    reasons = [it.history[-1].error for it in dead]
    assert sum("does not fit the schema" in it for it in reasons) == len(good)


def test_jdbc_takes_each_row_once_and_what_it_refuses_is_dead(
    spark: SparkSession, tmp_path: Path
) -> None:
    if not POSTGRES_JAR.exists():
        pytest.skip(f"{POSTGRES_JAR} is not there: install libpostgresql-jdbc-java")
    write_lines(tmp_path / "in" / "a.json", range(60))
    with fresh_database() as dsn, psycopg.connect(dsn, autocommit=True) as database:
        database.execute("CREATE TABLE t (n BIGINT PRIMARY KEY CHECK (n <> 33), name TEXT)")
        parts = urlsplit(dsn)
        options = {
            "format": "jdbc",
            "url": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}",
            "user": parts.username,
            "password": parts.password,
            "driver": "org.postgresql.Driver",
            "dbtable": "t",
        }
        job = (
            new_job("to_table")
            .input(
                "in",
                connector="spark",
                options={"format": "json", "path": str(tmp_path / "in")},
                id=["n"],
                retry=RETRY,
            )
            .output("table", connector="spark", options=options)
            .build()
        )
        runs = Runs(spark, job, tmp_path)
        runner = runs.run()
        found = sorted(it[0] for it in database.execute("SELECT n FROM t").fetchall())
        tables = database.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        ).fetchall()
    assert found == [n for n in range(60) if n != 33]
    (dead,) = runs.dead()
    assert "t_n_check" in dead.history[-1].error
    assert (dead.task, len(dead.history)) == ("table", 1)
    assert sorted(tables) == [("postroad_batches",), ("t",)]
    assert runner.coordinator.counts.acked == 59


@pytest.mark.parametrize("schema", [None, "n BIGINT, name STRING"])
def test_files_of_a_driver_that_was_thought_dead_are_not_published(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: str | None
) -> None:
    """Its JVM may end seconds later, and commit what it was at."""
    act = BatchProcessor._act
    attempts: list[dict[Path, bytes]] = []

    def act_twice(self: BatchProcessor, *arguments: Any) -> Any:
        outcomes, writes = act(self, *arguments)
        (path,) = {str(it["path"]) for _, it in writes}
        files = [it for it in Path(path).rglob("*.parquet") if it.is_file()]
        attempts.append({it: it.read_bytes() for it in files})
        if len(attempts) == 1:
            raise ConnectionError("the driver dies")
        for file, content in attempts[0].items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return outcomes, writes

    monkeypatch.setattr(BatchProcessor, "_act", act_twice)
    write_lines(tmp_path / "in" / "a.json", range(20))
    job = json_to_parquet(tmp_path, **({} if schema is None else {"schema": schema}))
    runs = Runs(spark, job, tmp_path)
    runs.run()

    assert len(attempts) > 1
    assert runs.numbers("out") == [n for n in range(20) if n % 7]
    # The next run removes what is left of it.
    runs.run()
    assert list((tmp_path / "checkpoint" / "staged").iterdir()) == []


@pytest.mark.parametrize("schema", [None, "n BIGINT, name STRING"])
def test_output_whose_end_was_not_noted_is_not_written_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: str | None
) -> None:
    finish = CoordinatorClient.finish_write
    failures = iter([ConnectionError("the driver dies")])

    def finish_late(self: CoordinatorClient, *arguments: Any) -> None:
        for error in failures:
            raise error
        finish(self, *arguments)

    monkeypatch.setattr(CoordinatorClient, "finish_write", finish_late)
    write_lines(tmp_path / "in" / "a.json", range(20))
    job = json_to_parquet(tmp_path, **({} if schema is None else {"schema": schema}))
    runs = Runs(spark, job, tmp_path)
    assert runs.run().restarts == 1
    assert runs.numbers("out") == [n for n in range(20) if n % 7]


def test_checkpoint_by_url_is_found_again_and_belongs_to_one_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_lines(tmp_path / "in" / "a.json", range(20))
    runs = Runs(spark, json_to_parquet(tmp_path), tmp_path)
    runs.checkpoint = f"file://{tmp_path}/checkpoint"
    good = [n for n in range(20) if n % 7]
    runs.run()
    assert runs.numbers("out") == good
    assert runs.run().coordinator.counts.delivered == 0
    # A directory and its URL are the same.
    runs.checkpoint = str(tmp_path / "checkpoint")
    assert runs.run().coordinator.counts.delivered == 0
    assert runs.numbers("out") == good

    other = Runs(spark, two_outputs(tmp_path, "parquet"), tmp_path)
    other.checkpoint = f"file://{tmp_path}/checkpoint"
    with pytest.raises(ConfigError, match="checkpoint of the job 'readers', not of 'two'"):
        other.run()
    other.checkpoint = f"file://{tmp_path}/in"
    with pytest.raises(ConfigError, match="no checkpoint of a job, and not empty"):
        other.run()
    other.checkpoint = "nowhere://host/path"
    with pytest.raises(ConfigError, match=r"nowhere://host/path cannot be made: .*nowhere"):
        other.run()
