"""One Spark session for the tests of a file: it takes long to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from postroad.pipeline.spark import SparkSettings, start_spark, stop_spark
from tests.support.servers.spark import QUICK_JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    settings = SparkSettings(
        app_name="tests",
        driver_memory="512m",
        java_options=QUICK_JAVA,
        python_path=(str(ROOT),),
    )
    session = start_spark(settings)
    yield session
    stop_spark(session)
