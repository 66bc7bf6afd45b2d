"""Writes a batch through JDBC into a table, once: by a table beside it and one transaction."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any

import msgspec

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.connector import encode_segment
from postroad.pipeline.coordinator.records import FailedRoot, SegmentAttempt, to_unsigned
from postroad.pipeline.job import Task
from postroad.pipeline.spark.spark_inputs import spark_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCHES = "postroad_batches"
_ID = "postroad_id"
# What a database says of a row that it will not take: SQLSTATE 22 and 23.
_REFUSALS = ("22", "23")
_TEXT_MAX = 500


def write_jdbc(
    session: SparkSession, job: str, task: Task, rows: DataFrame, batch: str
) -> list[FailedRoot]:
    """Write rows, unless the batch was written before; returns those that the table refuses."""
    if getattr(session, "_jvm", None) is None:
        raise ConfigError(f"output {task.name!r}: JDBC is not written through Spark Connect")
    options = spark_options(task)
    target = options.pop("dbtable", "")
    if not target or "url" not in options:
        raise ConfigError(f"output {task.name!r} needs options = {{ url = ..., dbtable = ... }}")
    digest = hashlib.sha256(f"{job} {task.name} {batch}".encode()).hexdigest()[:16]
    beside = f"postroad_stage_{digest}"
    rows.write.format("jdbc").options(**options).option("dbtable", beside).mode("overwrite").save()
    columns = [name for name in rows.columns if name != _ID]
    with _Connection(session, options, beside) as connection:
        refused = _Merge(connection, target, beside, columns).run(job, task.name, batch)
    return _to_failed(rows, task, refused) if refused else []


def _to_failed(rows: DataFrame, task: Task, refused: dict[int, str]) -> list[FailedRoot]:
    """The segments that were refused; they come again by the output itself."""
    from pyspark.sql import functions as f

    columns = [name for name in rows.columns if name != _ID]
    wanted = rows.where(rows[_ID].isin(list(refused)))
    found = wanted.select(_ID, f.to_json(f.struct(*columns)).alias("segment")).collect()
    now_ms = time.time_ns() // 1_000_000
    failed = []
    for row in found:
        segment = encode_segment(msgspec.json.decode(row["segment"]))
        attempt = SegmentAttempt(0, now_ms, task.name, refused[row[_ID]], [task.name])
        root = to_unsigned(row[_ID])
        # A table that refuses a row does so again: somebody has to decide.
        failed.append(FailedRoot(root, task.name, 0, segment, attempt, [], is_permanent=True))
    return failed


class _Connection:
    """A connection of Java's, as Spark makes it: with the drivers that Spark was given."""

    def __init__(self, session: SparkSession, options: dict[str, str], table: str) -> None:
        jvm: Any = session._jvm
        given = jvm.java.util.HashMap()
        for name, value in {**options, "dbtable": table}.items():
            given.put(name, value)
        scala = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(given)
        package = jvm.org.apache.spark.sql.execution.datasources.jdbc
        jdbc_options = package.JDBCOptions(scala)
        dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(options["url"])
        self._java = dialect.createConnectionFactory(jdbc_options).apply(-1)
        self._java.setAutoCommit(False)

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *raised: object) -> None:
        if raised[0] is not None:
            self._java.rollback()
        self._java.close()

    def execute(self, text: str, *values: object) -> int:
        """Run a statement; returns how many rows it changed."""
        statement = self._java.prepareStatement(text)
        try:
            for place, value in enumerate(values, 1):
                statement.setObject(place, value)
            return int(statement.executeUpdate())
        finally:
            statement.close()

    def query(self, text: str, *values: object) -> list[int]:
        """The first column of what a query gives, as whole numbers."""
        statement = self._java.prepareStatement(text)
        try:
            for place, value in enumerate(values, 1):
                statement.setObject(place, value)
            found = statement.executeQuery()
            rows = []
            while found.next():
                rows.append(int(found.getLong(1)))
            return rows
        finally:
            statement.close()

    def quote(self, name: str) -> str:
        mark = str(self._java.getMetaData().getIdentifierQuoteString()).strip()
        return f"{mark}{name.replace(mark, mark * 2)}{mark}" if mark else name

    def savepoint(self) -> Any:
        return self._java.setSavepoint()

    def rollback(self, savepoint: Any) -> None:
        self._java.rollback(savepoint)

    def commit(self) -> None:
        self._java.commit()


class _Merge:
    """Takes rows from the table beside into the one that they are for."""

    def __init__(
        self, connection: _Connection, target: str, beside: str, columns: list[str]
    ) -> None:
        self._connection = connection
        self._target = target
        self._beside = beside
        self._columns = ", ".join(map(connection.quote, columns))
        self._refused: dict[int, str] = {}

    def run(self, job: str, task: str, batch: str) -> dict[int, str]:
        """Do it in one transaction; returns which rows are refused, and why."""
        connection = self._connection
        self._make_table()
        noted = (
            f"SELECT COUNT(*) FROM {_BATCHES} WHERE job = ? AND task = ? AND batch = ?",
            *(job, task, batch),
        )
        if connection.query(*noted)[0] == 0:
            connection.execute(
                f"INSERT INTO {_BATCHES} (job, task, batch) VALUES (?, ?, ?)", job, task, batch
            )
            name = connection.quote(_ID)
            ids = connection.query(f"SELECT {name} FROM {self._beside} ORDER BY {name}")
            if ids:
                self._insert(ids)
        connection.execute(f"DROP TABLE {self._beside}")
        connection.commit()
        return self._refused

    def _make_table(self) -> None:
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {_BATCHES} (job VARCHAR(200) NOT NULL, task VARCHAR(200)"
            " NOT NULL, batch VARCHAR(100) NOT NULL, PRIMARY KEY (job, task, batch))"
        )
        self._connection.commit()

    def _insert(self, ids: list[int]) -> None:
        """Insert a range of rows; where some are refused, halve it until it is known which."""
        from py4j.protocol import Py4JJavaError

        name = self._connection.quote(_ID)
        savepoint = self._connection.savepoint()
        try:
            self._connection.execute(
                f"INSERT INTO {self._target} ({self._columns}) SELECT {self._columns} FROM"
                f" {self._beside} WHERE {name} BETWEEN ? AND ?",
                ids[0],
                ids[-1],
            )
        except Py4JJavaError as error:
            cause = error.java_exception
            state = str(cause.getSQLState()) if hasattr(cause, "getSQLState") else ""
            if not state.startswith(_REFUSALS):
                raise
            self._connection.rollback(savepoint)
            if len(ids) == 1:
                self._refused[ids[0]] = str(cause.getMessage())[:_TEXT_MAX]
                return
            middle = len(ids) // 2
            self._insert(ids[:middle])
            self._insert(ids[middle:])
