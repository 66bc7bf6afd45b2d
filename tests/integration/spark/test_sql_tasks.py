"""Tasks whose expressions Spark computes: the same as functions that do the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from postroad.core.errors import ConfigError
from postroad.durable import MemoryStore
from postroad.pipeline import Job, MemoryInput, Segment, new_job
from postroad.pipeline.builder import JobBuilder
from postroad.pipeline.spark.runner import SparkRunner
from tests.integration.spark.spark_jobs import FUNCTIONS, outputs_of, run_here, run_on_spark
from tests.support.tiers import by_tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    job = new_job("sql").input("in", connector="memory", retry=RETRY, batch_size=300)
    job = task(job, "price", is_sql, PRICE, after="in")
    job = task(job, "label", is_sql, LABEL, after="in")
    job = job.output("labels", connector="memory", after="label")
    job = job.function("split", FUNCTIONS + "split", after="price")
    job = task(job, "again", is_sql, PRICE, after="split", group_by="even")
    job = job.output("out", connector="memory", after="again")
    job = task(job, "sums", is_sql, LABEL, after="price", group_by="even")
    job = job.output("totals", connector="memory", after="sums")
    job = job.window("all", task="sums", type="global", aggregation="sum", key="n")
    return job.trigger("all", on="drained").build()


def segments() -> Iterator[Segment]:
    for n in range(1, 301):
        segment: Segment = {"n": n, "name": "é" * (n % 4), "kind": b"\x00", "task": [n]}
        if n % 4:
            segment["root"] = n + 0.5
        if n % 50 == 0:
            segment["n"] = "no number"
        yield segment


@pytest.mark.parametrize("is_streamed", by_tier(test=[False], nightly=[False, True]))
async def test_expressions_come_to_what_functions_come_to(
    is_streamed: bool, spark: SparkSession, tmp_path: Path
) -> None:
    here = await run_here(in_both(False), {"in": MemoryInput(segments(), split_segments=50)})
    inputs = {"in": MemoryInput(segments(), split_segments=50)}
    checkpoint = tmp_path / "checkpoint" if is_streamed else None
    there = await run_on_spark(in_both(True), inputs, spark, checkpoint)
    assert here.dead, "some of it must fail"
    assert there.outputs == here.outputs
    assert there.dead == here.dead


async def test_expression_that_spark_does_not_understand_is_an_error_with_its_reason(
    spark: SparkSession,
) -> None:
    for column, expression, reason in (
        ("number", "n", "NUMBER"),
        ("int", "m", "UNRESOLVED_COLUMN"),
        ("int", "n +", "PARSE_SYNTAX_ERROR"),
        ("int", "sum(n)", "MISSING_GROUP_BY"),
        ("int", "explode(array(n))", "GENERATOR"),
        ("int", "payload", "UNRESOLVED_COLUMN"),
    ):
        job = (
            new_job("odd")
            .input("in", connector="memory")
            .function("price", kind="sql", columns={"n": column}, expressions={"x": expression})
            .output("out", connector="memory")
            .build()
        )
        inputs = {"in": MemoryInput([])}
        runner = SparkRunner(job, inputs, outputs_of(job), MemoryStore(), session=spark)
        refusal = rf"task 'price': Spark does not understand.*{reason}"
        with pytest.raises(ConfigError, match=refusal):
            await runner.run()


async def test_session_that_computes_common_parts_ahead_is_refused(spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set("spark.sql.subexpressionElimination.enabled", "true")
    job = in_both(True)
    runner = SparkRunner(
        job, {"in": MemoryInput([])}, outputs_of(job), MemoryStore(), session=other
    )
    with pytest.raises(ConfigError, match=r"need a Spark session with .*Elimination"):
        await runner.run()
