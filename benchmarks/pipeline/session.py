"""The Spark session that contenders share."""

from __future__ import annotations

import atexit
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from postroad.pipeline.spark import SparkConfig, start_spark, stop_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


@cache
def shared_session() -> SparkSession:
    """Started when it is first needed, and stopped when the benchmarks end."""
    session = start_spark(SparkConfig(app_name="benchmarks", python_path=(str(ROOT),)))
    atexit.register(stop_spark, session)
    return session


def end_session() -> None:
    """Stop it, if it runs: what follows needs the machine for itself."""
    if shared_session.cache_info().currsize:
        stop_spark(shared_session())
        shared_session.cache_clear()
