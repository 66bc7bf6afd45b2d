"""A session on this machine: Python workers run, and the process is left as it was."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import postroad
from postroad.core.errors import ConfigError, UsageError
from postroad.pipeline.spark import SparkConfig, start_spark
from tests.support.servers.process import free_port
from tests.support.servers.spark import look_around, shared_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

LEFT_BY_PYSPARK = {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"}


def test_workers_have_our_python_with_postroad_and_their_memory_settings(
    spark: SparkSession,
) -> None:
    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import sys

        import pyarrow

        import postroad

        for batch in batches:
            ids = [str(it) for it in batch.column("id").to_pylist()]
            facts = [*ids, sys.executable, postroad.__file__, os.environ["MALLOC_TOP_PAD_"]]
            yield pyarrow.RecordBatch.from_pydict({"fact": facts})

    rows = spark.range(2, numPartitions=1).mapInArrow(tell, "fact string").collect()

    assert [it["fact"] for it in rows] == [
        *("0", "1"),
        *(sys.executable, postroad.__file__, "67108864"),
    ]


def test_session_at_work_leaves_environment_and_interrupts_alone(spark: SparkSession) -> None:
    """That nothing is left when it is stopped, its end asserts."""
    before, now = shared_session.before, look_around()

    assert spark.sparkContext.appName == "shared"
    assert now.interrupt_handler is before.interrupt_handler
    assert now.variables.keys() - before.variables.keys() == LEFT_BY_PYSPARK
    assert now.variables.items() >= before.variables.items()


async def test_second_session_is_refused_while_one_runs(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="'shared'; stop that one first"):
        await asyncio.to_thread(start_spark, shared_session.SETTINGS)

    assert spark.range(3).count() == 3


def test_connect_server_that_does_not_listen_is_an_error_without_the_token() -> None:
    """pyspark itself would try again for many minutes."""
    where = f"sc://127.0.0.1:{free_port()}"

    with pytest.raises(ConfigError, match=f"at {re.escape(where)}: .*refused") as raised:
        start_spark(SparkConfig(master=f"{where}/;token=secret"))

    assert "secret" not in str(raised.value)


def test_connect_address_without_a_port_number_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"at sc://127\.0\.0\.1:none: "):
        start_spark(SparkConfig(master="sc://127.0.0.1:none"))
