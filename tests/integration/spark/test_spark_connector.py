"""Inputs that Spark's readers read and outputs that its writers write, tracked to the segment."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import Job, MemoryOutput, make_input, make_output, new_job
from postroad.pipeline.spark.runner import SparkRunner
from tests.integration.spark.spark_jobs import FUNCTIONS, LIMIT_S

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
            checkpoint=self._here / "checkpoint",
            session=self._session,
        )
        asyncio.run(asyncio.wait_for(runner.run(), LIMIT_S))
        return runner

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
