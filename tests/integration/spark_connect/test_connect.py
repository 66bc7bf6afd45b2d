"""A job through Spark Connect: the session is a server's, the desk is here."""

from __future__ import annotations

import asyncio
from pathlib import Path

from postroad.durable import MemoryStore
from postroad.pipeline import MemoryInput, MemoryOutput, new_job
from postroad.pipeline.spark import SparkConfig, SparkRunner
from tests.support.servers.spark_connect import spark_connect
from tests.support.source_tree import ROOT
from tests.support.tiers import by_tier

FUNCTIONS = "tests.support.pipeline.spark_functions:"


async def test_job_runs_through_spark_connect(tmp_path: Path) -> None:
    job = (
        new_job("remote")
        .input("in", connector="memory", batch_size=600, retry={"attempts": 1})
        .function("sevens", FUNCTIONS + "refuse_sevens", group_by="n")
        .function("half", kind="sql", columns={"n": "int"}, expressions={"half": "n / 2"})
        .output("out", connector="memory")
        .build()
    )
    with spark_connect(tmp_path) as url:
        settings = SparkConfig(master=url, python_path=(str(ROOT),))
        checkpoints = [tmp_path / "checkpoint", None]
        for checkpoint in checkpoints[: by_tier(test=1, nightly=2)]:
            output = MemoryOutput()
            inputs = {"in": MemoryInput({"n": n} for n in range(500))}
            runner = SparkRunner(job, inputs, {"out": output}, MemoryStore(), checkpoint, settings)
            await asyncio.wait_for(runner.run(), 240)
            written = sorted(segment["n"] for segment in output.segments)
            assert written == [n for n in range(500) if n % 7]
            assert all(segment["half"] == segment["n"] / 2 for segment in output.segments)
            assert runner.restarts == 0
