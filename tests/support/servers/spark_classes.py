"""A Spark that starts fast: its classes as a JVM has them in memory, its Python compiled.

python -m tests.support.servers.spark_classes .venv/spark-classes.jsa

`make test` does so once for each environment. Without the file tests only take longer.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postroad.pipeline.spark import SparkConfig, find_java_home, start_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CLASSES = Path(sys.prefix) / "spark-classes.jsa"
HOME = Path(sys.prefix) / "spark-home"
END_S = 120

# Classes that were not verified are not written.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"


def spark_home() -> Path:
    """The installed Spark without the sources of pyspark.

    Its workers would compile these from a ZIP file, each of six kinds of workers again; now they
    import the installed package, which is compiled.
    """
    spec = importlib.util.find_spec("pyspark")  # To import it takes long.
    assert spec is not None and spec.origin is not None, "needs pyspark: make test installs it"
    HOME.mkdir(exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        link = HOME / name
        try:
            link.symlink_to(Path(spec.origin).parent / name)
        except FileExistsError:
            continue  # As it does when several processes begin at once.
    return HOME


def can_share() -> bool:
    """Whether the Java of this machine can; the one in the wheel has not what it takes."""
    command = [str(find_java_home() / "bin" / "java"), "-version"]
    version = subprocess.run(command, capture_output=True, text=True, check=True)
    return "sharing" in version.stderr


def record(path: Path) -> None:
    """Write the classes that are loaded by what tests do most."""
    unfinished = path.with_suffix(".unfinished")
    options = f"{_JAVA} -XX:ArchiveClassesAtExit={unfinished}"
    os.environ["SPARK_HOME"] = str(spark_home())  # The file is of use to this classpath only.
    session = start_spark(SparkConfig(driver_memory="512m", java_options=options))
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
