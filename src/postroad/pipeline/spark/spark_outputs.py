"""Outputs that Spark's own writers write: each batch once, however often that is tried.

Which writer keeps that promise, and how:

- files: a batch is a directory below the path of the output, and replaces what it had before;
- `jdbc`: rows go to a table beside, and from there into the table of the output in a transaction
  that notes the batch;
- `delta`: Delta's own `txnAppId` and `txnVersion`;
- anything else gets a batch at least once.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.connector import Committable
from postroad.pipeline.coordinator.records import FailedRoot
from postroad.pipeline.job import Task
from postroad.pipeline.spark.jdbc import write_jdbc
from postroad.pipeline.spark.result_rows import OUTPUT_COLUMN
from postroad.pipeline.spark.spark_inputs import format_of, spark_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What Spark finds in JSON, as columns that the next batch fits in, too.
_TYPES_OF_VARIANTS = (
    (r"\bOBJECT<", "STRUCT<"),
    (r"DECIMAL\([^)]*\)", "DOUBLE"),
    (r"VOID", "STRING"),
)
_FILES = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})


def is_file_format(task: Task) -> bool:
    """Whether an output is files in a directory."""
    return format_of(task) in _FILES


class Published(NamedTuple):
    """What a batch staged for an output, and where it goes."""

    job: str
    task: Task
    label: str
    """What the output is called in rows."""
    staged: Committable

    @property
    def batch(self) -> str:
        """A name that no other batch has."""
        return f"{self.staged['run']}-{self.staged['batch']}"

    @property
    def staged_path(self) -> str:
        """Where its files are, if they only have to be moved."""
        return f"{self.staged['path']}/{OUTPUT_COLUMN}={self.label}"

    @property
    def path(self) -> str:
        """Where files of the batch go."""
        path = self.task.options.get("path")
        if not path:
            raise ConfigError(f"output {self.task.name!r} needs options = {{ path = ... }}")
        return f"{path}/batch={self.batch}"


def staging_options(task: Task) -> dict[str, str]:
    """The options of a writer, but for where it writes."""
    options = {**spark_options(task), "format": format_of(task)}
    options.pop("path", None)
    if "partition_by" in task.options:
        options["partition_by"] = repr(task.options["partition_by"])
    return options


def publish(session: SparkSession, place: Published) -> list[FailedRoot]:
    """Write what a batch staged for an output; returns what the output refuses."""
    task, format_ = place.task, format_of(place.task)
    path = str(place.staged["path"])
    # Of a batch that was done in parts, what earlier attempts have left is not read.
    paths = [f"{path}/{part}" for part in place.staged.get("parts", ())] or [path]
    rows = session.read.option("basePath", path).parquet(*paths)
    mine = rows.where(rows["task"] == place.label)
    if mine.isEmpty():
        return []
    if format_ == "jdbc":
        columns = to_columns(mine, place, keep_id=True)
        return write_jdbc(session, place.job, task, columns, place.batch)
    if format_ == "kafka":
        _write(_to_messages(mine), task).mode("append").save()
        return []
    writer = _write(to_columns(mine, place), task)
    if is_file_format(task):
        writer.mode("overwrite").save(place.path)
    elif format_ == "delta":
        writer = writer.option(
            "txnAppId", f"postroad-{place.job}-{task.name}-{place.staged['run']}"
        )
        writer.option("txnVersion", str(place.staged["batch"])).mode("append").save()
    else:
        writer.mode("append").save()
    return []


def _write(rows: DataFrame, task: Task) -> Any:
    options = spark_options(task)
    if is_file_format(task):
        options.pop("path", None)
    writer = rows.write.format(format_of(task)).options(**options)
    partition_by = task.options.get("partition_by")
    return writer.partitionBy(*partition_by) if partition_by else writer


def to_columns(rows: DataFrame, place: Published, *, keep_id: bool = False) -> DataFrame:
    """Segments as columns: those of the task's schema, or those that the batch has."""
    from pyspark.sql import functions as f

    kept = [f.col("id").alias("postroad_id")] if keep_id else []
    if place.task.schema is not None:
        return rows.select(*kept, f"{place.label}.*")
    if format_of(place.task) == "text":
        return rows.select(f.col("segment").alias("value"))
    parsed = rows.select("id", f.from_json("segment", _infer(rows)).alias("s"))
    return parsed.select(*kept, "s.*")


def _infer(rows: DataFrame) -> str:
    """The columns that segments have, by Spark's own rules for JSON."""
    from pyspark.sql import functions as f

    variants = f.schema_of_variant_agg(f.parse_json("segment"))
    found = str(rows.select(variants.alias("schema")).collect()[0]["schema"])
    for pattern, type_ in _TYPES_OF_VARIANTS:
        found = re.sub(pattern, type_, found)
    return found


def _to_messages(rows: DataFrame) -> DataFrame:
    """Segments as messages of Kafka; the id that stays the same is a header."""
    from pyspark.sql import functions as f

    header = f.struct(
        f.lit("postroad-id").alias("key"), f.col("id").cast("string").cast("binary").alias("value")
    )
    return rows.select(f.col("segment").alias("value"), f.array(header).alias("headers"))


def move_directory(session: SparkSession, path: str, target: str | None) -> None:
    """Move a directory in whatever file system it is, or remove it; it may be gone already."""
    jvm: Any = getattr(session, "_jvm", None)
    if jvm is None:
        # Through Spark Connect nobody can.
        return
    source, files = _find_files(session, path)
    if files.getUri().getScheme() == "file":
        goal = None if target is None else jvm.org.apache.hadoop.fs.Path(target).toUri().getPath()
        _move_on_disk(Path(source.toUri().getPath()), goal)
        return
    if not files.exists(source):
        return
    if target is None:
        files.delete(source, True)
        return
    goal = jvm.org.apache.hadoop.fs.Path(target)
    # Left by an attempt that was cut off.
    files.delete(goal, True)
    files.mkdirs(goal.getParent())
    if not files.rename(source, goal):
        raise OSError(f"{path} cannot be moved to {target}")


def _move_on_disk(source: Path, target: str | None) -> None:
    """The same on this machine, where Hadoop starts a program for each directory it makes."""
    if not source.exists():
        return
    if target is None:
        shutil.rmtree(source)
        return
    goal = Path(target)
    if goal.exists():
        shutil.rmtree(goal)
    goal.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(source, goal)


def keep_directories(session: SparkSession, path: str, kept: Collection[str]) -> list[str]:
    """Remove all directories below a path but for some, which are given by their paths.

    Returns:
        Those of them that are not there.
    """
    if getattr(session, "_jvm", None) is None:
        return []
    parent, files = _find_files(session, path)
    names = {it.rpartition("/")[2] for it in kept}
    for status in files.listStatus(parent) if files.exists(parent) else ():
        if status.getPath().getName() not in names:
            files.delete(status.getPath(), True)
    return [it for it in kept if not files.exists(_find_files(session, it)[0])]


def _find_files(session: SparkSession, path: str) -> tuple[Any, Any]:
    """A path as Hadoop knows it, and the file system that has it."""
    jvm: Any = session._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    return place, place.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
