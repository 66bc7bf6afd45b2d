"""Spark's classes as a JVM has them in memory, in a file: with it each starts in half the time.

python -m tests.support.servers.spark_classes .venv/spark-classes.jsa

`make test` does so once for each environment. Without the file tests only take longer.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postroad.pipeline.spark import SparkSettings, find_java_home, start_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CLASSES = Path(sys.prefix) / "spark-classes.jsa"
END_S = 120

# Classes that were not verified are not written.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"


def can_share() -> bool:
    """Whether the Java of this machine can; the one in the wheel has not what it takes."""
    command = [str(find_java_home() / "bin" / "java"), "-version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return "sharing" in told.stderr


def record(path: Path) -> None:
    """Write the classes that are loaded by what tests do most."""
    unfinished = path.with_suffix(".unfinished")
    options = f"{_JAVA} -XX:ArchiveClassesAtExit={unfinished}"
    session = start_spark(SparkSettings(driver_memory="512m", java_options=options))
    gateway: Any = session.sparkContext._gateway
    work(session)
    session.stop()
    # It ends by itself, and writes, when nobody talks to it any more.
    gateway.proc.stdin.close()
    gateway.proc.wait(END_S)
    unfinished.replace(path)


def work(session: SparkSession) -> None:
    """A query with Python in it, and a stream of batches."""

    def double(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def count(batch: DataFrame, number: int) -> None:
        batch.count()

    session.range(10).mapInArrow(double, "id bigint").groupBy("id").count().collect()
    ticks = session.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
    query = ticks.writeStream.foreachBatch(count).trigger(availableNow=True).start()
    assert query.awaitTermination(END_S), "the stream does not end"


if __name__ == "__main__":
    if can_share():
        record(Path(sys.argv[1]))
