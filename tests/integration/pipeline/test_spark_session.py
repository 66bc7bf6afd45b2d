"""A session on this machine: Python workers run, and the process is left as it was."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import pytest

import postroad
from postroad.core.errors import ConfigError, UsageError
from postroad.pipeline.spark import SparkSettings, start_spark, stop_spark
from tests.support.servers.process import free_port
from tests.support.servers.spark import QUICK_JAVA

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

SETTINGS = SparkSettings(app_name="first", driver_memory="512m", java_options=QUICK_JAVA)
LEFT_BY_PYSPARK = {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"}
SOON_S = 10.0


class Surroundings(NamedTuple):
    """What a session could change in its process."""

    variables: dict[str, str]
    interrupt_handler: object


def look_around() -> Surroundings:
    variables = {name: os.environ[name] for name in os.environ.keys() - {"PYTEST_CURRENT_TEST"}}
    return Surroundings(variables, signal.getsignal(signal.SIGINT))


@pytest.fixture(scope="module")
def before() -> Surroundings:
    return look_around()


@pytest.fixture(scope="module")
def session(before: Surroundings) -> Iterator[SparkSession]:
    # In another thread than the tests that use it, as programs with an event loop do.
    with ThreadPoolExecutor(1) as thread:
        session = thread.submit(start_spark, SETTINGS).result()
        jvm = session.sparkContext._gateway.proc  # type: ignore[union-attr]
        try:
            yield session
        finally:
            thread.submit(stop_spark, session).result()
    assert jvm.poll() is not None
    assert look_around() == before


def test_arrow_batches_pass_through_python_workers(session: SparkSession) -> None:
    def double(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow.compute

        for batch in batches:
            doubled = pyarrow.compute.multiply(batch.column("id"), 2)
            yield pyarrow.RecordBatch.from_arrays([doubled], names=["id"])

    rows = session.range(10, numPartitions=1).mapInArrow(double, "id bigint").collect()

    assert sorted(row["id"] for row in rows) == list(range(0, 20, 2))


def test_workers_run_our_python_with_postroad_and_their_memory_settings(
    session: SparkSession,
) -> None:
    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import sys

        import pyarrow

        import postroad

        for _batch in batches:
            told = [sys.executable, postroad.__file__, os.environ["MALLOC_TOP_PAD_"]]
            yield pyarrow.RecordBatch.from_pydict({"told": told})

    rows = session.range(1, numPartitions=1).mapInArrow(tell, "told string").collect()

    assert [row["told"] for row in rows] == [sys.executable, postroad.__file__, "67108864"]


def test_environment_is_as_before(session: SparkSession, before: Surroundings) -> None:
    now = look_around()

    assert session.sparkContext.appName == "first"
    assert now.interrupt_handler is before.interrupt_handler
    assert now.variables.keys() - before.variables.keys() == LEFT_BY_PYSPARK
    assert now.variables.items() >= before.variables.items()


async def test_second_session_is_refused_while_one_runs(session: SparkSession) -> None:
    with pytest.raises(UsageError, match="'first'; stop that one first"):
        await asyncio.to_thread(start_spark, SETTINGS)

    assert session.range(3).count() == 3


def test_server_that_does_not_listen_is_told_soon() -> None:
    where = f"sc://127.0.0.1:{free_port()}"
    started_s = time.monotonic()

    with pytest.raises(ConfigError, match=f"at {re.escape(where)}: .*refused") as told:
        start_spark(SparkSettings(master=f"{where}/;token=secret"))

    assert time.monotonic() - started_s < SOON_S
    assert "secret" not in str(told.value)


def test_address_that_is_none_is_told() -> None:
    with pytest.raises(ConfigError, match=r"at sc://127\.0\.0\.1:none: "):
        start_spark(SparkSettings(master="sc://127.0.0.1:none"))
