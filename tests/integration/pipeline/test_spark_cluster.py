"""Jobs on a standalone cluster: tasks run in the executors of both workers."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pyarrow.dataset
import pyarrow.parquet
import pytest

from postroad.core.errors import ConfigError
from postroad.durable import MemoryStore, SqliteStore
from postroad.pipeline import (
    JsonLinesInput,
    JsonLinesOutput,
    MemoryOutput,
    QueueOutput,
    Segment,
    new_job,
    run,
)
from postroad.pipeline.connectors import ParquetOutput, SqlOutput
from postroad.pipeline.spark import SparkConfig, stop_spark
from postroad.pipeline.spark.runner import SparkRunner
from tests.support.servers.postgres import fresh_database
from tests.support.servers.spark import (
    QUICK_JAVA,
    shared_session,
    spark_cluster,
    start_quickly,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TASKS = 4
SEGMENTS = 20
LIMIT_S = 240.0


class Cluster(NamedTuple):
    """A session of a cluster, and the directory below which its executors run."""

    session: SparkSession
    directory: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with spark_cluster(directory) as cluster:
        settings = SparkConfig(
            master=cluster.master,
            driver_memory="512m",
            executor_memory="512m",
            java_options=QUICK_JAVA,
            conf={
                "spark.executor.extraJavaOptions": QUICK_JAVA,
                # The first task waits for both.
                "spark.scheduler.minRegisteredResourcesRatio": "1",
                "spark.cores.max": "2",
                "spark.task.maxFailures": "2",
                # Tasks here are short.
                "spark.speculation.interval": "100ms",
                "spark.speculation.minTaskRuntime": "1s",
            },
        )
        # A process has one session at a time.
        shared_session.stop()
        session = start_quickly(settings)
        try:
            yield Cluster(session, directory)
        finally:
            stop_spark(session)


def test_tasks_run_on_all_workers_with_their_memory_settings(cluster: Cluster) -> None:
    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        import pyarrow

        import postroad

        # An executor alone would be done with all tasks before the other has started.
        time.sleep(0.3)
        assert postroad.__version__
        for batch in batches:
            facts = [f"{os.environ['MALLOC_TOP_PAD_']} {os.getcwd()}"] * batch.num_rows
            yield pyarrow.RecordBatch.from_pydict({"fact": facts})

    frame = cluster.session.range(TASKS, numPartitions=TASKS).mapInArrow(tell, "fact string")
    facts = [row["fact"] for row in frame.collect()]

    assert len(facts) == TASKS
    memory, places = zip(*(text.split(" ") for text in facts), strict=True)
    assert set(memory) == {"67108864"}
    assert {Path(place).relative_to(cluster.directory).parts[0] for place in places} == {
        "worker-0",
        "worker-1",
    }


async def test_relative_paths_are_those_of_the_process_that_runs_the_job(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors run in directories of their own."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("payments")
    for number in range(SEGMENTS):
        (tmp_path / "payments" / f"{number}.jsonl").write_text(json.dumps({"n": number}))
    job = (
        new_job("relative")
        .input("in", connector="jsonl")
        .output("lines", connector="jsonl", after="in")
        .output("rows", connector="parquet", after="in")
        .build()
    )
    runner = SparkRunner(
        job,
        {"in": JsonLinesInput("payments/*.jsonl")},
        {"lines": JsonLinesOutput("cleared/lines"), "rows": ParquetOutput("cleared/rows")},
        MemoryStore(),
        session=cluster.session,
        # As for executors on other machines: through TLS.
        bind="0.0.0.0:0",
    )

    await asyncio.wait_for(runner.run(), LIMIT_S)

    assert runner.coordinator.counts.acked == SEGMENTS
    lines = [it.read_text() for it in (tmp_path / "cleared/lines").glob("*.jsonl")]
    written = [json.loads(line)["n"] for it in lines for line in it.splitlines()]
    assert sorted(written) == list(range(SEGMENTS))
    tables = map(pyarrow.parquet.read_table, (tmp_path / "cleared/rows").glob("*.parquet"))
    assert sorted(row["n"] for it in tables for row in it.to_pylist()) == list(range(SEGMENTS))


HOLDING = """
import time
from pathlib import Path
from pyspark import TaskContext

PLACE = Path(__file__).parent
HELD = 13
has_held = False

def work(segment):
    global has_held
    if segment["n"] == HELD:
        has_held = True
        if POINT == "function":
            hold()
    return segment

def hold():
    attempt = TaskContext.get().attemptNumber()
    (PLACE / f"attempt-{attempt}").touch()
    # A copy that is faster than the first attempt waits until that has come here too.
    awaited = PLACE / ("staged-1" if attempt == 0 else "attempt-0")
    while not awaited.exists():
        time.sleep(0.01)

class Hold:
    def after_batch(self):
        if has_held:
            (PLACE / f"staged-{TaskContext.get().attemptNumber()}").touch()
            if POINT == "staged":
                hold()
"""


@pytest.mark.parametrize("point", ["function", "staged"])
async def test_task_that_runs_twice_at_a_time_has_its_outputs_once(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The first attempt hangs, in a function or with everything staged, until another is done."""
    monkeypatch.syspath_prepend(tmp_path)
    # Workers are kept, with the modules that they have.
    module = f"hold_{point}"
    (tmp_path / f"{module}.py").write_text(HOLDING.replace("POINT", repr(point)))
    numbers = list(range(1200))
    for start in (0, 600):
        lines = "".join(json.dumps({"n": n}) + "\n" for n in numbers[start : start + 600])
        (tmp_path / f"{start}.jsonl").write_text(lines)
    names = ("queue", "rows", "database", "parquet", "lines")
    job = new_job("twice").input("in", connector="jsonl").function("work", f"{module}:work")
    for name in names:
        job = job.output(name, connector="memory", after="work")
    job = job.lifecycle("work", f"{module}:Hold")
    store, table = SqliteStore(tmp_path / "twice.db"), "(postroad_id BIGINT PRIMARY KEY, n BIGINT)"
    with fresh_database() as dsn, psycopg.connect(dsn, autocommit=True) as database:
        database.execute(f"CREATE TABLE numbers {table}")
        with closing(sqlite3.connect(tmp_path / "rows.db")) as rows:
            rows.execute(f"CREATE TABLE numbers {table}")
        outputs = {
            "queue": QueueOutput(store, queue="numbers"),
            "rows": SqlOutput(str(tmp_path / "rows.db"), "numbers"),
            "database": SqlOutput(dsn, "numbers"),
            "parquet": ParquetOutput(str(tmp_path / "parquet")),
            "lines": JsonLinesOutput(str(tmp_path / "lines")),
        }
        runner = SparkRunner(
            job.build(),
            {"in": JsonLinesInput(str(tmp_path / "*.jsonl"))},
            outputs,
            store,
            tmp_path / "checkpoint",
            SparkConfig(python_path=(str(tmp_path),)),
            session=cluster.session,
        )
        await asyncio.wait_for(runner.run(), LIMIT_S)
        written = await read_outputs(tmp_path, database)
    assert (tmp_path / "attempt-0").exists() and (tmp_path / "staged-1").exists()
    assert {name: sorted(those) for name, those in written.items()} == dict.fromkeys(names, numbers)
    assert (runner.coordinator.counts.acked, runner.restarts) == (len(numbers), 0)


async def read_outputs(place: Path, database: psycopg.Connection[Any]) -> dict[str, list[int]]:
    statement = "SELECT n FROM numbers"
    with closing(sqlite3.connect(place / "rows.db")) as rows:
        in_file = [n for (n,) in rows.execute(statement)]
    lines = [it.read_text() for it in (place / "lines").glob("*.jsonl")]
    return {
        "queue": await read_queue(place / "twice.db"),
        "rows": in_file,
        "database": [n for (n,) in database.execute(statement)],
        "parquet": pyarrow.dataset.dataset(place / "parquet").to_table()["n"].to_pylist(),
        "lines": [json.loads(line)["n"] for text in lines for line in text.splitlines()],
    }


async def read_queue(path: Path) -> list[int]:
    out = MemoryOutput()
    options = {"queue": "numbers", "bounded": True}
    job = new_job("look").input("in", connector="queue", options=options)
    job = job.output("out", connector="memory", after="in")
    await run(job.build(), store=SqliteStore(path), outputs={"out": out})
    return [it["n"] for it in out.segments]


def helper(segment: Segment) -> Segment:
    """Executors do not have this module."""
    return segment


@pytest.mark.parametrize("is_imported", [True, False])
async def test_module_that_executors_do_not_have_ends_the_job_with_its_name(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_imported: bool
) -> None:
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "only_here.py").write_text("def keep(segment):\n    return segment\n")
    monkeypatch.syspath_prepend(tmp_path)
    job = (
        new_job("elsewhere")
        .input("in", connector="jsonl")
        .function("keep", "only_here:keep" if is_imported else lambda it: helper(it))
        .output("out", connector="jsonl")
        .build()
    )
    runner = SparkRunner(
        job,
        {"in": JsonLinesInput(str(tmp_path / "in.jsonl"))},
        {"out": JsonLinesOutput(str(tmp_path / "out"))},
        MemoryStore(),
        tmp_path / "checkpoint",
        session=cluster.session,
    )

    with pytest.raises(ConfigError, match="only_here" if is_imported else "no module 'tests'"):
        await asyncio.wait_for(runner.run(), LIMIT_S)
