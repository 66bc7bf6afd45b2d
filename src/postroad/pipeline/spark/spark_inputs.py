"""Inputs that Spark's own readers read: any format that Spark knows, as input rows of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from postroad.core.errors import ConfigError
from postroad.pipeline.job import Task
from postroad.pipeline.spark.input_rows import InputRowKind, segment_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FORMAT = "format"
_PATH = "path"
# What tells a row from all others, where a format has such a thing.
_POSITIONS: Mapping[str, tuple[str, ...]] = {"kafka": ("topic", "partition", "offset")}
# Formats of files in which Spark says where a row was; of the others it knows the file alone.
_FILES = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
_ROW_INDEX = frozenset({"parquet"})
_REASON_CHARS_MAX = 500
# Types whose values are the same in Arrow and in JSON, by their names in Spark.
_PLAIN_TYPES = frozenset({"boolean", "tinyint", "smallint", "int", "bigint", "double", "string"})


def format_of(task: Task) -> str:
    """The format that a task of the connector `spark` names.

    Raises:
        ConfigError: it names none.
    """
    name = task.options.get(_FORMAT)
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"task {task.name!r} needs options = {{ format = ... }}: a format that Spark knows, "
            "such as json, parquet, csv or kafka"
        )
    return name


def spark_options(task: Task) -> dict[str, str]:
    """The options that Spark itself gets."""
    return {
        name: _to_text(value)
        for name, value in task.options.items()
        if name not in (_FORMAT, "partition_by", "mode", "key", "streaming")
    }


def _to_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_stream(session: SparkSession, task: Task, place: int) -> DataFrame:
    """What Spark reads for an input, as it arrives.

    Raises:
        ConfigError: Spark does not know the format, or refuses its options.
    """
    format_ = format_of(task)
    reader = session.readStream.format(format_).options(**spark_options(task))
    if task.schema is not None:
        reader = reader.schema(task.schema)
    elif format_ in _FILES and format_ != "text":
        reader = reader.schema(_infer_schema(session, task, format_))
    return _identify(_load(task, reader), task, place)


def read_once(session: SparkSession, task: Task, place: int) -> DataFrame:
    """All that Spark reads for an input now."""
    reader = session.read.format(format_of(task)).options(**spark_options(task))
    if task.schema is not None:
        reader = reader.schema(task.schema)
    return _identify(_load(task, reader), task, place)


def _load(task: Task, reader: Any) -> DataFrame:
    from pyspark.errors import PySparkException

    try:
        rows: DataFrame = reader.load()
        _ = rows.schema
        return rows
    except PySparkException as error:
        raise ConfigError(f"input {task.name!r}: Spark cannot read it: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:_REASON_CHARS_MAX]


def _infer_schema(session: SparkSession, task: Task, format_: str) -> StructType:
    """What the files of today have; the stream has no more columns."""
    from pyspark.errors import PySparkException

    reader = session.read.format(format_).options(**spark_options(task))
    try:
        return reader.load().schema
    except PySparkException as error:
        raise ConfigError(
            f"input {task.name!r}: its columns cannot be found out: {_reason(error)}; give them "
            "as schema = 'name TYPE, ...'"
        ) from error


def _identify(rows: DataFrame, task: Task, place: int) -> DataFrame:
    columns = rows.columns
    unknown = [name for name in task.id if name not in columns]
    if unknown:
        raise ConfigError(
            f"input {task.name!r} has no column {unknown[0]!r} for its id; it has "
            f"{', '.join(columns)}"
        )
    return to_input_rows(rows, task, place, _identity(rows, task))


def to_input_rows(rows: DataFrame, task: Task, place: int, identity: Sequence[Column]) -> DataFrame:
    """Rows as they come into a job.

    Args:
        rows: each a segment.
        task: by which they come in.
        place: that of the task in the order of the job.
        identity: what tells a row from all others.
    """
    from pyspark.sql import functions as f

    raw, columns, kind = f.lit(None).cast("binary"), [], InputRowKind.COLUMNS
    if all(it.dataType.simpleString() in _PLAIN_TYPES for it in rows.schema):
        columns = [f.col(_quoted(it)).alias(segment_column(place, it)) for it in rows.columns]
    else:
        kind = InputRowKind.JSON
        segment = f.struct(*(f.col(_quoted(name)) for name in rows.columns))
        raw = f.to_json(segment, {"ignoreNullFields": "false"}).cast("binary")
    return rows.select(
        f.xxhash64(f.lit(task.name), *identity).alias("root"),
        f.lit(0).cast("bigint").alias("delivery"),
        f.lit(place).cast("smallint").alias("input"),
        f.lit(int(kind)).cast("tinyint").alias("kind"),
        f.lit(0).cast("bigint").alias("generation"),
        raw.alias("raw"),
        f.lit(None).cast("binary").alias("published"),
        *columns,
    )


def _identity(rows: DataFrame, task: Task) -> list[Column]:
    """The columns that tell a row from all others."""
    from pyspark.sql import functions as f

    format_ = format_of(task)
    if names := tuple(task.id) or _POSITIONS.get(format_, ()):
        return [f.col(_quoted(name)) for name in names]
    every = [f.col(_quoted(name)) for name in rows.columns]
    if format_ in _ROW_INDEX:
        return [f.col("_metadata.file_path"), f.col("_metadata.row_index")]
    if format_ in _FILES:
        return [f.col("_metadata.file_path"), *every]
    return every


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
