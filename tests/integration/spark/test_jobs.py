"""The same jobs on Spark and in plain Python: the same outputs, the same dead letters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from postroad.core.errors import ConfigError
from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import Job, JsonLinesInput, MemoryInput, Segment, new_job
from postroad.pipeline.builder import JobBuilder
from postroad.pipeline.spark import runner as runner_module
from postroad.pipeline.spark.runner import SparkRunner
from tests.integration.spark.spark_jobs import (
    FUNCTIONS,
    LIMIT_S,
    dead_of,
    outputs_of,
    run_here,
    run_on_spark,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENTS = 600
"""Two batches, and those of what comes again."""
RETRY = {"attempts": 2, "first_s": 0.02, "max_s": 0.05}
SPLIT, SAME, DOUBLE = FUNCTIONS + "split", FUNCTIONS + "same", FUNCTIONS + "double"
REFUSE_SEVENS = FUNCTIONS + "refuse_sevens"


def begin(name: str) -> JobBuilder:
    return new_job(name).input("in", connector="memory", retry=RETRY, batch_size=400)


def one_stage() -> Job:
    return (
        begin("one_stage")
        .function("split", SPLIT)
        .function("left", REFUSE_SEVENS, after="split")
        .function("right", DOUBLE, after="split")
        .output("to_left", connector="memory", after="left")
        .output("to_right", connector="memory", after="right")
        .when("split", to="left", predicate=FUNCTIONS + "is_even")
        .when("split", to="right")
        .build()
    )


def two_shuffles() -> Job:
    return (
        begin("two_shuffles")
        .function("split", SPLIT)
        .output("aside", connector="memory", after="split")
        .function("double", DOUBLE, group_by="n", after="split")
        .function("sevens", REFUSE_SEVENS, group_by=["part", "n"], after="double")
        .output("out", connector="memory", after="sevens")
        .build()
    )


def closures() -> Job:
    """Functions that workers cannot import: one that is awaited, and one that hangs at times."""
    factor = 3

    async def ask(segment: Segment) -> Segment:
        await asyncio.sleep(0)
        return {**segment, "asked": segment["n"] * factor}

    def hang(segment: Segment) -> Segment:
        if segment["n"] == 77:
            time.sleep(3600)
        return segment

    return (
        begin("closures")
        .function("split", lambda segment: {**segment, "split": True})
        .function("ask", ask, concurrency=8)
        .function("hang", hang, time_limit_s=0.3)
        .output("out", connector="memory")
        .build()
    )


def windowed() -> Job:
    return (
        begin("windowed")
        .function("split", SPLIT)
        .function("sums", REFUSE_SEVENS, group_by="part")
        .output("out", connector="memory")
        .window(
            "per_hundred",
            task="sums",
            type="fixed",
            aggregation="sum",
            key="n",
            time_key="n",
            range_s=100,
        )
        .trigger("per_hundred", on="drained")
        .build()
    )


@pytest.mark.parametrize("make", [one_stage, two_shuffles, windowed, closures])
async def test_job_on_spark_has_outputs_and_dead_letters_of_plain_python(
    make: Callable[[], Job], spark: SparkSession, tmp_path: Path
) -> None:
    job = make()
    here = await run_here(job, {"in": count_to(SEGMENTS)})
    there = await run_on_spark(job, {"in": count_to(SEGMENTS)}, spark, tmp_path / "checkpoint")
    assert here.dead, "some of it must fail"
    assert there.outputs == here.outputs
    assert there.dead == here.dead
    assert (there.counts.delivered, there.counts.acked) == (SEGMENTS, here.counts.acked)


def count_to(count: int) -> MemoryInput:
    return MemoryInput(({"n": n} for n in range(count)), split_segments=100)


async def test_bad_segments_among_many_are_dead_letters_and_harm_no_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    bad = {1: "no json", 500: "[1]", 501: '{"n": "endless"}', 900: '{"n": "greedy"}'}
    lines = [bad.get(n, f'{{"n": {n}}}') for n in range(1_000)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    job = (
        new_job("poison")
        .input("in", connector="jsonl", retry={"attempts": 1})
        .function("work", FUNCTIONS + "misbehave", time_limit_s=0.3)
        .output("out", connector="memory")
        .build()
    )
    inputs = {"in": JsonLinesInput(str(tmp_path / "in.jsonl"), split_bytes=5_000)}
    came = await run_on_spark(job, inputs, spark, tmp_path / "checkpoint")
    assert len(came.outputs["out"]) == 1_000 - len(bad)
    assert len(came.dead) == len(bad)


async def test_segment_that_kills_its_worker_is_a_dead_letter_and_harms_no_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = (
        new_job("deadly")
        .input("in", connector="memory", retry={"attempts": 2, "first_s": 0.01})
        .function("work", FUNCTIONS + "die_with_sevens", group_by="n")
        .output("out", connector="memory")
        .build()
    )
    outputs, disk = outputs_of(job), MemoryDisk()
    runner = SparkRunner(
        job,
        {"in": count_to(200)},
        outputs,
        MemoryStore(disk),
        tmp_path / "checkpoint",
        session=spark,
    )
    await asyncio.wait_for(runner.run(), LIMIT_S)
    written = sorted(segment["n"] for segment in outputs["out"].segments)
    assert written == [n for n in range(200) if n % 100 != 7]
    dead = await dead_of(job, disk)
    assert len(dead) == 2
    assert all("it ended the process that ran it" in it.history[-1].error for it in dead)


@pytest.mark.slow
def test_segment_that_hangs_in_native_code_is_a_dead_letter_and_harms_no_other(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_GRACE_S", 8.0)
    job = (
        new_job("hanging")
        .input(
            "in",
            connector="memory",
            pending_timeout_s=2.0,
            retry={"attempts": 1, "first_s": 0.01, "max_s": 0.01},
        )
        .function("hang", FUNCTIONS + "hang_at_13")
        .output("out", connector="memory")
        .build()
    )
    disk, outputs = MemoryDisk(), outputs_of(job)
    inputs = {"in": MemoryInput([{"n": n} for n in range(30)])}
    runner = SparkRunner(job, inputs, outputs, MemoryStore(disk), tmp_path / "c", session=spark)
    asyncio.run(asyncio.wait_for(runner.run(), LIMIT_S))
    assert sorted(it["n"] for it in outputs["out"].segments) == [n for n in range(30) if n != 13]
    (dead,) = asyncio.run(dead_of(job, disk))
    assert "hang" in dead.history[-1].missing
    assert runner.restarts == 1


async def test_function_that_workers_cannot_import_is_an_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def work(segment): return segment\n")
    monkeypatch.syspath_prepend(tmp_path)
    job = (
        new_job("nowhere")
        .input("in", connector="memory")
        .function("work", "only_here:work")
        .output("out", connector="memory")
        .build()
    )
    runner = SparkRunner(
        job,
        {"in": count_to(10)},
        outputs_of(job),
        MemoryStore(),
        tmp_path / "checkpoint",
        session=spark,
    )
    with pytest.raises(ConfigError, match=r"workers cannot run the job.*only_here:work"):
        await runner.run()


async def test_checkpoint_of_another_job_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    job = new_job("first").input("in", connector="memory").output("out", connector="memory").build()
    await run_on_spark(job, {"in": count_to(10)}, spark, tmp_path / "checkpoint")
    other = (
        new_job("second").input("in", connector="memory").output("out", connector="memory").build()
    )
    with pytest.raises(ConfigError, match="checkpoint of the job 'first', not of 'second'"):
        await run_on_spark(other, {"in": count_to(10)}, spark, tmp_path / "checkpoint")
