"""Tasks of kind `sql`: their expressions, computed by Spark between two passes.

An expression that fails for one segment would fail the whole batch. Spark has no general way to
catch that, but `try_to_binary` catches whatever fails in its argument; so what expressions come to
is turned into JSON, and that into bytes. Spark must not compute common parts of expressions ahead
of that, and is told not to.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from postroad.core.errors import ConfigError
from postroad.pipeline.job import Job, Task, TaskKind, TaskType
from postroad.pipeline.spark.config import ELIMINATION
from postroad.pipeline.validation.catalog import RESERVED_COLUMNS
from postroad.pipeline.vectorized.shuffle_rows import COLUMNS, DDL, column_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_TEXT_MAX = 500


def find_columns(session: SparkSession, job: Job) -> dict[str, pa.DataType]:
    """What expressions and functions of DataFrames see, by their tasks; of most jobs, none.

    Raises:
        ConfigError: Spark cannot make sense of a task's columns or expressions, or has settings
            under which one segment can fail others.
    """
    tasks = [task for task in job.catalog if task.kind is TaskKind.SQL]
    frames = [task for task in job.catalog if task.kind is TaskKind.DATAFRAME]
    types = {task.name: _check(session, task) for task in frames}
    if not tasks:
        return types
    # They print a page for each exception, in Java and in JSON, before anybody can catch it.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).disabled = True
    if session.conf.get(ELIMINATION) != "false":
        raise ConfigError(f"tasks of kind sql need a Spark session with {ELIMINATION}=false")
    return types | {task.name: _check(session, task) for task in tasks}


def _check(session: SparkSession, task: Task) -> pa.DataType:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        rows = session.sql(f"SELECT id, CAST(NULL AS {struct_of(task)}) AS columns FROM range(1)")
        if task.expressions:
            # Spark looks at a plan when it is asked for its result.
            _ = _compute(rows, task, "columns", "computed").schema
        return to_arrow_type(rows.schema["columns"].dataType)
    except PySparkException as error:
        reason = str(error).strip().partition("\n")[0][:_TEXT_MAX]
        raise ConfigError(f"task {task.name!r}: Spark does not understand it: {reason}") from error


def find_output_types(session: SparkSession, job: Job) -> dict[str, pa.StructType]:
    """The columns of outputs with a schema that Spark writes, by their names.

    Raises:
        ConfigError: Spark cannot make sense of a schema.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    types = {}
    for task in job.catalog:
        if task.type != TaskType.OUTPUT or task.schema is None:
            continue
        try:
            empty = session.sql(f"SELECT CAST(NULL AS struct<{task.schema}>) AS c FROM range(0)")
            types[task.name] = to_arrow_type(empty.schema["c"].dataType)
        except PySparkException as error:
            reason = str(error).strip().partition("\n")[0][:_TEXT_MAX]
            raise ConfigError(f"output {task.name!r}: its schema is none: {reason}") from error
    return types


def struct_of(task: Task) -> str:
    """The type of what the expressions of a task see, as Spark writes it."""
    fields = (f"{_quoted(name)}: {type_}" for name, type_ in task.columns.items())
    return f"struct<{', '.join(fields)}>"


def ddl_with_columns(tasks: Sequence[Task]) -> str:
    """The schema of rows that have such columns beside them."""
    columns = (f"{column_name(place)} {struct_of(task)}" for place, task in enumerate(tasks))
    return ", ".join([DDL, *columns])


def compute(rows: DataFrame, tasks: Sequence[Task]) -> DataFrame:
    """Have expressions computed; for each row, those of the task that it is on its way to."""
    if not tasks:
        return rows
    results = [f"computed_{place}" for place in range(len(tasks))]
    for place, (task, result) in enumerate(zip(tasks, results, strict=True)):
        rows = _compute(rows, task, column_name(place), result)
    kept = [name for name, _ in COLUMNS]
    return rows.selectExpr(*kept, f"coalesce({', '.join(results)}) AS computed")


def _compute(rows: DataFrame, task: Task, columns: str, result: str) -> DataFrame:
    # Renamed, because expressions are to see nothing but the segment.
    hidden = {name: f"{RESERVED_COLUMNS}{name}" for name in rows.columns}
    seen = rows.toDF(*hidden.values()).select("*", f"{hidden[columns]}.*")
    kept = (f"{new} AS {name}" for name, new in hidden.items() if name != columns)
    values = _struct(task.expressions)
    json = f"to_json({values}, map('ignoreNullFields', 'false'))"
    caught = f"try_to_binary({json}, 'utf-8')"
    has_columns = f"{hidden[columns]} IS NOT NULL"
    return seen.selectExpr(*kept, f"CASE WHEN {has_columns} THEN {caught} END AS {result}")


def _struct(expressions: Mapping[str, str]) -> str:
    # What follows an expression is on another line: it may end with a comment.
    fields = (f"({text}\n) AS {_quoted(name)}" for name, text in expressions.items())
    return f"struct({', '.join(fields)})"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
