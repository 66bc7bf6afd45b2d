"""Tasks whose expressions Spark computes: the same as functions that do the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from postroad.core.errors import ConfigError
from postroad.durable import MemoryStore
from postroad.pipeline import Job, Segment, SeqInput, new_job
from postroad.pipeline.building import JobBuilder
from postroad.pipeline.spark.runner import SparkRunner
from tests.integration.spark.spark_jobs import FUNCTIONS, outputs_of, run_here, run_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

RETRY = {"attempts": 2, "first_s": 0.02, "max_s": 0.05}

PRICE = {
    "columns": {"n": "bigint", "name": "string", "root": "double"},
    "expressions": {
        "name": "concat(upper(name), '-', n)  -- with a comment",
        "even": "n % 2 = 0",
        "share": "n / (n % 5)",
        "digits": "element_at(array('a', 'b', 'c'), cast(n % 3 as int) + 1)",
        "half": "root / 2",
        "nothing": "nullif(n, n)",
    },
}
LABEL = {"columns": {"n": "int"}, "expressions": {"label": "if(n % 7 = 0, raise_error('no'), 'x')"}}


def task(job: JobBuilder, name: str, is_sql: bool, sql: dict[str, Any], **more: Any) -> JobBuilder:
    """With a task in SQL, or the function of that name that does the same."""
    if is_sql:
        return job.function(name, kind="sql", **sql, **more)
    return job.function(name, f"{FUNCTIONS}{name}", **more)


def in_both(is_sql: bool) -> Job:
    """Two such tasks beside each other, one after a shuffle, one before a window."""
    job = new_job("sql").input("in", medium="seq", retry=RETRY, batch_size=300)
    job = task(job, "price", is_sql, PRICE, after="in")
    job = task(job, "label", is_sql, LABEL, after="in")
    job = job.output("labels", medium="seq", after="label")
    job = job.function("split", FUNCTIONS + "split", after="price")
    job = task(job, "again", is_sql, PRICE, after="split", group_by="even")
    job = job.output("out", medium="seq", after="again")
    job = task(job, "sums", is_sql, LABEL, after="price", group_by="even")
    job = job.output("totals", medium="seq", after="sums")
    job = job.window("all", task="sums", type="global", aggregation="sum", key="n")
    return job.trigger("all", on="drained").build()


def segments() -> Iterator[Segment]:
    for n in range(1, 601):
        segment: Segment = {"n": n, "name": "é" * (n % 4), "kind": b"\x00", "task": [n]}
        if n % 4:
            segment["root"] = n + 0.5
        if n % 50 == 0:
            segment["n"] = "no number"
        yield segment


async def test_expressions_do_what_functions_do(spark: SparkSession, tmp_path: Path) -> None:
    here = await run_here(in_both(False), {"in": SeqInput(segments(), slice_segments=50)})
    for checkpoint in (tmp_path / "checkpoint", None):
        inputs = {"in": SeqInput(segments(), slice_segments=50)}
        there = await run_on_spark(in_both(True), inputs, spark, checkpoint)
        assert here.dead, "some of it must fail"
        assert there.outputs == here.outputs
        assert there.dead == here.dead


@pytest.mark.parametrize(
    ("columns", "expressions", "reason"),
    [
        ({"n": "number"}, {"x": "n"}, "NUMBER"),
        ({"n": "int"}, {"x": "m"}, "UNRESOLVED_COLUMN"),
        ({"n": "int"}, {"x": "n +"}, "PARSE_SYNTAX_ERROR"),
        ({"n": "int"}, {"x": "sum(n)"}, "MISSING_GROUP_BY"),
        ({"n": "int"}, {"x": "explode(array(n))"}, "GENERATOR"),
        ({"n": "int"}, {"x": "payload"}, "UNRESOLVED_COLUMN"),
    ],
)
async def test_what_spark_does_not_understand_is_told_at_once(
    columns: dict[str, str], expressions: dict[str, str], reason: str, spark: SparkSession
) -> None:
    job = (
        new_job("odd")
        .input("in", medium="seq")
        .function("price", kind="sql", columns=columns, expressions=expressions)
        .output("out", medium="seq")
        .build()
    )
    runner = SparkRunner(job, {"in": SeqInput([])}, outputs_of(job), MemoryStore(), session=spark)
    with pytest.raises(ConfigError, match=rf"task 'price': Spark does not understand.*{reason}"):
        await runner.run()


async def test_a_session_in_which_one_segment_fails_others_is_refused(spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set("spark.sql.subexpressionElimination.enabled", "true")
    job = in_both(True)
    runner = SparkRunner(job, {"in": SeqInput([])}, outputs_of(job), MemoryStore(), session=other)
    with pytest.raises(ConfigError, match=r"need a Spark session with .*Elimination"):
        await runner.run()
