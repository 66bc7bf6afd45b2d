"""Random jobs on Spark and in plain Python: the same outputs, the same dead letters.

Environment:
    POSTROAD_SEED  the jobs that come of this number, to see a failure again.
"""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.spark.random_jobs import JobMaker, random_inputs
from tests.integration.spark.spark_jobs import run_here, run_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

logger = logging.getLogger(__name__)

SEED = int(os.environ.get("POSTROAD_SEED") or random.randrange(10**9))


# To name the seed here would make the tests of each process others.
@pytest.mark.parametrize(("number", "is_streamed"), [(number, number >= 4) for number in range(6)])
async def test_spark_does_what_plain_python_does(
    number: int, is_streamed: bool, spark: SparkSession, tmp_path: Path
) -> None:
    logger.warning("POSTROAD_SEED=%d", SEED)
    maker = JobMaker(SEED + number, stages_max=1 if number == 0 else 3)
    job = maker.make()
    here = await run_here(job, random_inputs(maker.inputs))
    checkpoint = tmp_path / "checkpoint" if is_streamed else None
    there = await run_on_spark(job, random_inputs(maker.inputs), spark, checkpoint)
    again = f"see it again with POSTROAD_SEED={SEED}: {job}"
    assert there.outputs == here.outputs, again
    assert there.dead == here.dead, again
    assert there.counts.acked == here.counts.acked, again
