"""Functions of DataFrames on Spark: what they make, and that everything counts once."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from postroad.core.errors import ConfigError
from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import (
    Job,
    JobBuilder,
    MemoryInput,
    MemoryOutput,
    OutputConnector,
    Segment,
    make_output,
)
from postroad.pipeline.coordinator.batch_result import BatchResult, CommitResult
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.records import StoredRoot
from postroad.pipeline.spark import dataframes
from postroad.pipeline.spark.runner import SparkRunner
from tests.integration.spark.spark_jobs import LIMIT_S, dead_of, outputs_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RETRY = {"attempts": 2, "first_s": 0.02, "max_s": 0.05}
COLUMNS = {"n": "bigint", "currency": "string"}
SEGMENTS: list[Segment] = [
    {"n": n, "currency": ["EUR", "USD", "CHF"][n % 3], "unseen": "x"} for n in range(120)
]


def parse(segment: Segment) -> Segment:
    if segment["n"] % 10 == 4:
        raise ValueError("no fours")
    return segment


def refuse_nines(segment: Segment) -> Segment:
    if segment["n"] % 10 == 9:
        raise ValueError("no nines")
    return segment


def convert(frame: DataFrame, rate: float) -> DataFrame:
    """Joins a table, drops what has no rate, and makes some twice, which are equal then."""
    rates = frame.sparkSession.createDataFrame(
        [("EUR", 1.0), ("USD", rate)], "currency string, rate double"
    )
    joined = frame.join(rates, "currency").selectExpr("n", "n * rate AS euros")
    return joined.unionAll(joined.where("n = 1"))


def total(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return frame.groupBy("currency").agg(f.sum("n").alias("sum"), f.count("*").alias("count"))


class Done:
    """What came of a job."""

    def __init__(
        self, outputs: dict[str, MemoryOutput], dead: list[StoredRoot], counts: Any, restarts: int
    ) -> None:
        self.outputs = {name: output.segments for name, output in outputs.items()}
        self.dead = dead
        self.counts = counts
        self.restarts = restarts


async def run(
    job: Job,
    segments: list[Segment],
    session: SparkSession,
    checkpoint: Path | None,
    desk: type[JobCoordinator] = JobCoordinator,
) -> Done:
    disk, memory = MemoryDisk(), outputs_of(job)
    written = {it.name: make_output(it) for it in job.catalog if it.connector == "spark"}
    outputs: dict[str, OutputConnector] = {**memory, **written}
    inputs = {"in": MemoryInput(segments, split_segments=40)}
    runner = SparkRunner(job, inputs, outputs, MemoryStore(disk), checkpoint, session=session)
    runner.coordinator = desk(runner._program, runner._store, inputs, outputs)
    await asyncio.wait_for(runner.run(), LIMIT_S)
    dead = await dead_of(job, disk)
    return Done(memory, dead, runner.coordinator.counts, runner.restarts)


def job_of(fn: Any, **keys: Any) -> JobBuilder:
    job = JobBuilder("frames").input("in", connector="memory", retry=RETRY, batch_size=60)
    return job.function("frame", fn, **{"kind": "dataframe", "columns": COLUMNS} | keys)


def chain() -> Job:
    """A function before it, an output beside it, one that fails behind it, and another of it."""
    job = JobBuilder("chain").input("in", connector="memory", retry=RETRY, batch_size=60)
    job = job.function("parse", parse).output("aside", connector="memory", after="parse")
    job = job.function(
        "convert", convert, kind="dataframe", columns=COLUMNS, params={"rate": 0.5}, after="parse"
    )
    job = job.function("behind", refuse_nines, after="convert")
    job = job.output("out", connector="memory", after="behind")
    job = job.function("total", total, kind="dataframe", columns=COLUMNS, after=["parse", "behind"])
    return job.output("totals", connector="memory", after="total").build()


def check_chain(done: Done) -> None:
    good = [it for it in SEGMENTS if it["n"] % 10 != 4]
    rates = {"EUR": 1.0, "USD": 0.5}
    converted = [it for it in good if it["currency"] in rates]
    converted += [it for it in good if it["n"] == 1]
    kept = [it for it in converted if it["n"] % 10 != 9]
    assert sorted(it["n"] for it in done.outputs["aside"]) == [it["n"] for it in good]
    assert Counter((it["n"], it["euros"]) for it in done.outputs["out"]) == Counter(
        (it["n"], it["n"] * rates[it["currency"]]) for it in kept
    )
    sums: Counter[Any] = Counter()
    for it in done.outputs["totals"]:
        sums[it["currency"]] += it["count"]
    # Rows of the other have no currency.
    expected = Counter(it["currency"] for it in good)
    assert sums == expected + Counter({None: len(kept)})
    fours = [it for it in SEGMENTS if it["n"] % 10 == 4]
    nines = [it for it in converted if it["n"] % 10 == 9]
    assert Counter(it.task for it in done.dead) == {"in": len(fours), "convert": len(nines)}
    assert done.counts.delivered == len(SEGMENTS)


async def test_frames_take_each_segment_once_and_what_they_make_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    done = await run(chain(), SEGMENTS, spark, tmp_path / "c")
    assert done.restarts == 0
    check_chain(done)
    assert not [*(tmp_path / "c" / "staged").glob("*")], "nothing is left behind"


class Forgetful(JobCoordinator):
    """Loses the connection before some commits, and after others."""

    commits = 0

    async def commit_batch(self, run: str, batch: int, outcome: BatchResult) -> CommitResult:
        self.commits += 1
        if self.commits == 1:
            raise OSError("the connection is lost before the commit")
        settled = await super().commit_batch(run, batch, outcome)
        if self.commits == 3:
            raise OSError("the connection is lost after the commit")
        return settled


async def test_batch_with_frames_that_is_done_again_has_everything_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    done = await run(chain(), SEGMENTS, spark, tmp_path / "c", Forgetful)
    assert done.restarts == 2
    check_chain(done)


async def test_segment_with_other_columns_fails_alone(spark: SparkSession, tmp_path: Path) -> None:
    job = job_of(total).output("out", connector="memory").build()
    segments: list[Segment] = [
        {"n": 1, "currency": "EUR"},
        {"n": "one", "currency": "EUR"},
        {"currency": "USD"},
    ]
    done = await run(job, segments, spark, tmp_path / "c")
    assert sorted(done.outputs["out"], key=str) == [
        {"currency": "EUR", "sum": 1, "count": 1},
        {"currency": "USD", "sum": None, "count": 1},
    ]
    (dead,) = done.dead
    assert "one" in dead.history[-1].error


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda frame: 7, "returns a DataFrame, not int"),
        (lambda frame: frame.select("nowhere"), "nowhere"),
        (lambda frame: frame.select("n", "n"), "several columns named 'n'"),
    ],
)
async def test_function_that_raises_fails_for_its_segments_and_no_others(
    fn: Any, reason: str, spark: SparkSession, tmp_path: Path
) -> None:
    job = job_of(fn).output("out", connector="memory", after="frame")
    job = job.output("aside", connector="memory", after="in")
    segments = [{"n": n, "currency": "EUR"} for n in range(5)]
    done = await run(job.build(), segments, spark, tmp_path / "c")
    assert (done.restarts, len(done.dead)) == (0, 5)
    assert all(reason in it.history[-1].error for it in done.dead)
    assert {len(it.history) for it in done.dead} == {2}
    # What was written with the first attempt is not written with the second.
    assert sorted(it["n"] for it in done.outputs["aside"]) == [0, 1, 2, 3, 4]
    assert done.outputs["out"] == []


async def test_row_that_spark_fails_with_is_dead_and_harms_no_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    def divide(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("n", "100 div (n - 13) AS share")

    job = job_of(divide, columns={"n": "bigint"}).output("out", connector="memory").build()
    done = await run(job, [{"n": n} for n in range(40)], spark, tmp_path / "c")
    assert sorted(it["n"] for it in done.outputs["out"]) == [n for n in range(40) if n != 13]
    (dead,) = done.dead
    assert "DIVIDE_BY_ZERO" in dead.history[-1].error
    assert done.restarts == 2


def hang_in_spark(frame: DataFrame) -> DataFrame:
    def sleep(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        time.sleep(3600)
        yield from batches

    return frame.mapInArrow(sleep, "n bigint, currency string")


def hang_in_an_action(frame: DataFrame) -> DataFrame:
    hang_in_spark(frame).count()
    return frame


def hang_in_python(frame: DataFrame) -> DataFrame:
    time.sleep(3600)
    return frame


def loop_in_python(frame: DataFrame) -> DataFrame:
    while True:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("fn", [hang_in_spark, hang_in_an_action, hang_in_python, loop_in_python])
async def test_function_that_takes_too_long_fails_for_its_segments_and_no_others(
    fn: Any, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataframes, "_CANCEL_S", 1.0)
    job = job_of(fn, time_limit_s=1.0).output("out", connector="memory", after="frame")
    job = job.output("aside", connector="memory", after="in")
    segments = [{"n": n, "currency": "EUR"} for n in range(5)]
    done = await run(job.build(), segments, spark, tmp_path / "c")
    assert (done.restarts, len(done.dead)) == (0, 5)
    for it in done.dead:
        assert "task 'frame' took more than 1 s for a batch" in it.history[-1].error
        assert len(it.history) == 2
    assert sorted(it["n"] for it in done.outputs["aside"]) == [0, 1, 2, 3, 4]
    assert done.outputs["out"] == []
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


async def test_function_within_its_time_is_not_disturbed(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = job_of(total, time_limit_s=100.0).output("out", connector="memory").build()
    done = await run(job, SEGMENTS[:30], spark, tmp_path / "c")
    assert {it["currency"]: it["count"] for it in done.outputs["out"]} == dict.fromkeys(
        ("EUR", "USD", "CHF"), 10
    )
    assert (done.restarts, done.dead) == (0, [])


async def test_spark_writes_what_frames_make(spark: SparkSession, tmp_path: Path) -> None:
    options = {"format": "json", "path": str(tmp_path / "out")}
    job = job_of(convert, params={"rate": 0.5}).output("out", connector="spark", options=options)
    job = job.output(
        "aside",
        connector="spark",
        options={"format": "json", "path": str(tmp_path / "aside")},
        after="in",
    )
    await run(job.build(), SEGMENTS, spark, tmp_path / "c")

    def written(name: str) -> list[int]:
        files = (tmp_path / name).glob("*/*.json")
        return sorted(json.loads(line)["n"] for it in files for line in it.read_text().splitlines())

    assert written("aside") == list(range(120))
    assert written("out") == sorted([*(n for n in range(120) if n % 3 < 2), 1])


async def test_frames_need_a_checkpoint(spark: SparkSession) -> None:
    job = job_of(total).output("out", connector="memory").build()
    with pytest.raises(ConfigError, match="'frame' is of kind dataframe, which needs a checkpoint"):
        await run(job, SEGMENTS, spark, None)
