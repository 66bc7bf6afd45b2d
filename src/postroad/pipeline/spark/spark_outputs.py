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
from typing import TYPE_CHECKING, Any

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.connector import Committable
from postroad.pipeline.coordinator.records import FailedRoot
from postroad.pipeline.job import Task
from postroad.pipeline.spark.jdbc import write_jdbc
from postroad.pipeline.spark.spark_inputs import format_of, spark_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What Spark finds in JSON, as columns that the next batch fits in, too.
_TYPES_OF_VARIANTS = (
    (r"\bOBJECT<", "STRUCT<"),
    (r"DECIMAL\([^)]*\)", "DOUBLE"),
    (r"VOID", "STRING"),
)

FILES = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})


def publish(session: SparkSession, job: str, task: Task, staged: Committable) -> list[FailedRoot]:
    """Write what a batch staged for an output; returns what the output refuses."""
    rows = session.read.parquet(staged["path"])
    mine = rows.where(rows["task"] == task.name).select("id", "segment")
    format_, name = format_of(task), f"{staged['run']}-{staged['batch']}"
    if format_ == "jdbc":
        return write_jdbc(session, job, task, to_columns(session, mine, task, keep_id=True), name)
    if format_ == "kafka":
        _write(_to_messages(mine), task).mode("append").save()
        return []
    columns = to_columns(session, mine, task)
    writer = _write(columns, task)
    if format_ in FILES:
        path = task.options.get("path")
        if not path:
            raise ConfigError(f"output {task.name!r} needs options = {{ path = ... }}")
        writer.mode("overwrite").save(f"{path}/batch={name}")
    elif format_ == "delta":
        writer.option("txnAppId", f"postroad-{job}-{task.name}-{staged['run']}").option(
            "txnVersion", str(staged["batch"])
        ).mode("append").save()
    else:
        writer.mode("append").save()
    return []


def _write(rows: DataFrame, task: Task) -> Any:
    options = spark_options(task)
    if format_of(task) in FILES:
        options.pop("path", None)
    writer = rows.write.format(format_of(task)).options(**options)
    partition_by = task.options.get("partition_by")
    return writer.partitionBy(*partition_by) if partition_by else writer


def to_columns(
    session: SparkSession, rows: DataFrame, task: Task, *, keep_id: bool = False
) -> DataFrame:
    """Segments as columns: those of the task's schema, or those that the batch has."""
    from pyspark.sql import functions as f

    if format_of(task) == "text" and task.schema is None:
        return rows.select(f.col("segment").alias("value"))
    schema: Any = task.schema
    if schema is None:
        schema = _infer(session, rows)
    parsed = rows.select("id", f.from_json("segment", schema, {"mode": "FAILFAST"}).alias("s"))
    return parsed.select(*([f.col("id").alias("postroad_id")] if keep_id else []), "s.*")


def _infer(session: SparkSession, rows: DataFrame) -> Any:
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
