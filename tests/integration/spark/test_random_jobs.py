"""Random jobs on Spark and in plain Python: the same outputs, the same dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.spark.random_jobs import JobMaker, random_inputs
from tests.integration.spark.spark_jobs import run_here, run_on_spark
from tests.support.tiers import by_tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = [(1, False), (3, False), (3, True)]
"""How many stages a job has at most, and whether it is streamed."""


@pytest.mark.parametrize("kind", KINDS * by_tier(test=1, nightly=8))
async def test_random_job_on_spark_has_outputs_and_dead_letters_of_plain_python(
    kind: tuple[int, bool], spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    stages_max, is_streamed = kind
    maker = JobMaker(seed, stages_max)
    job = maker.make()
    here = await run_here(job, random_inputs(maker.inputs))
    checkpoint = tmp_path / "checkpoint" if is_streamed else None
    there = await run_on_spark(job, random_inputs(maker.inputs), spark, checkpoint)
    assert there.outputs == here.outputs, job
    assert there.dead == here.dead, job
    assert there.states == here.states, job
    assert there.counts.acked == here.counts.acked, job
