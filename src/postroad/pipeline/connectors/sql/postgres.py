"""Connections to PostgreSQL. Only those who need one import this."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import monotonic
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.types.string import TextLoader

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.sql.connections import Row, SqlConnection, savepoint

T = TypeVar("T")

# As statements write them to columns of text.
_BOOLEANS = {True: "true", False: "false"}

_CONNECT_S = 10
# To compile a statement takes longer than any of ours.
_SETTINGS = "-c statement_timeout=60000 -c synchronous_commit=on -c jit=off"
# The server ends statements that take too long, unless it is the server that hangs.
SILENCE_S = 75.0
# Values, constraints, limits; columns and types that do not fit; what a trigger raises.
_ROW_FAULT_CLASSES = ("22", "23", "44", "54")
_ROW_FAULTS = ("42703", "42804", "42846", "P0001")
_NOT_ALWAYS_LOADED = ("date", "interval", "timestamp", "timestamptz")


class PostgresConnection(SqlConnection):
    """A connection to a server."""

    begin = "BEGIN"
    immediate_constraints = "SET CONSTRAINTS ALL IMMEDIATE"
    failures = psycopg.Error
    needs_distinct = True

    def __init__(self, connection: psycopg.Connection[Row], where: str) -> None:
        self._connection = connection
        self.where = where

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        cursor = self._connection.execute(_translate(statement), parameters)
        return [] if cursor.description is None else cursor.fetchall()

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(_translate(statement), rows)

    def describe(self, statement: str) -> list[tuple[str, object]]:
        columns = self._connection.execute(_translate(statement)).description or ()
        return [
            (column.name, (column.type_code, column.precision, column.scale)) for column in columns
        ]

    def load(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        try:
            with savepoint(self):
                self._copy(table, columns, rows)
        except psycopg.Error as error:
            if self.row_error(error) is None:
                raise
            # Statements convert more than texts do, such as 1.0 to a whole number.
            super().load(table, columns, rows)

    def _copy(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN".replace("%", "%%")
        with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            for row in rows:
                copy.write_row(
                    [_BOOLEANS[value] if isinstance(value, bool) else value for value in row]
                )

    def in_clause(self, column: str, keys: Sequence[int | str]) -> tuple[str, Sequence[Any]]:
        # As text, which the server takes for values of the type that the column has.
        return f"{column} = ANY(?)", ["{" + ",".join(map(_to_element, keys)) + "}"]

    def is_connection_error(self, error: Exception) -> bool:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)

    def row_error(self, error: Exception) -> str | None:
        if not isinstance(error, psycopg.Error):
            return None
        state = error.sqlstate
        # Without a state it was the driver that did not know what to do with a value.
        is_faulty = (
            isinstance(error, psycopg.DataError | psycopg.ProgrammingError)
            if state is None
            else state[:2] in _ROW_FAULT_CLASSES or state in _ROW_FAULTS
        )
        return error.diag.message_primary or str(error) if is_faulty else None

    def adapt(self, value: Any) -> Any:
        return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value

    def close(self) -> None:
        self._connection.close()


def connect_postgres(dsn: str) -> PostgresConnection:
    """Connect to a server; raises ConnectionError if it does not answer."""
    where, options = _describe(dsn)
    try:
        connection = _TimeoutConnection.connect(
            dsn,
            autocommit=True,
            connect_timeout=_CONNECT_S,
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            tcp_user_timeout=15_000,
            options=f"{_SETTINGS} {options}",
        )
    except psycopg.Error as error:
        raise ConnectionError(
            f"{where} cannot be reached: {' '.join(str(error).split())}"
        ) from error
    for name in _NOT_ALWAYS_LOADED:
        connection.adapters.register_loader(name, _text_if_need_be(connection, name))
    return PostgresConnection(connection, where)


def _describe(dsn: str) -> tuple[str, str]:
    """Where a connection string leads to, for people, and the options it has for the server."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"option 'database' is no connection string: {error}") from None
    # Without the password.
    place = f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}"
    return f"database postgresql://{place}/{parts.get('dbname', '')}", str(parts.get("options", ""))


def _translate(statement: str) -> bytes:
    return statement.replace("%", "%%").replace("?", "%s").encode()


def _to_element(key: int | str) -> str:
    """A value as texts of arrays have it."""
    if isinstance(key, int):
        return str(key)
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _TimeoutConnection(psycopg.Connection[Row]):
    """A connection that gives up when its server says nothing for too long."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        return super().wait(_until_silence(gen), *args, **options)


def _until_silence(steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    silent_since = monotonic()
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if ready:
                silent_since = monotonic()
            elif monotonic() - silent_since > SILENCE_S:
                raise TimeoutError(f"the server has not answered for {SILENCE_S:g} s")
            wanted = steps.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _text_if_need_be(connection: psycopg.Connection[Row], name: str) -> type[Loader]:
    """What loads a type, and gives values that Python has not, such as `infinity`, as text."""
    oid = connection.adapters.types[name].oid
    known = connection.adapters.get_loader(oid, psycopg.pq.Format.TEXT) or TextLoader

    class TextIfNeedBe(Loader):
        def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
            super().__init__(oid, context)
            self._known = known(oid, context)

        def load(self, data: Buffer) -> Any:
            try:
                return self._known.load(data)
            except psycopg.DataError:
                return bytes(data).decode()

    return TextIfNeedBe
