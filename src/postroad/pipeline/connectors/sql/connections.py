"""Connections to the databases of users, which are SQLite files or PostgreSQL servers."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from postroad.core.errors import ConfigError, MissingExtraError

Row: TypeAlias = tuple[Any, ...]

_POSTGRES = ("postgresql://", "postgres://")
# PostgreSQL cuts off what is longer, so that two names may become one.
_NAME_BYTES_MAX = 63 - len("_slice")
_BUSY_S = 30.0
_ROW_FAULTS = (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG)


class SqlConnection(Protocol):
    """One connection, outside of any transaction at first; statements have `?` for parameters."""

    begin: str
    """The statement that begins to write."""
    immediate_constraints: str
    """The statement that has a transaction find out about wrong rows when they are written."""
    failures: type[Exception]
    """What it raises, whatever is wrong."""
    where: str
    """The database, for people."""
    needs_distinct: bool
    """Whether a statement that writes must not have the same row twice."""

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement; the rows it yields."""

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement for each of some rows of parameters."""

    def describe(self, statement: str) -> list[tuple[str, object]]:
        """The columns that a statement yields: names, and what tells types apart if known."""

    def load(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert many rows; the names are quoted."""
        marks = ", ".join("?" * len(columns))
        self.execute_many(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)

    def in_clause(self, column: str, keys: Sequence[int | str]) -> tuple[str, Sequence[Any]]:
        """The condition that a column has one of some values, and its parameters."""

    def is_connection_error(self, error: Exception) -> bool:
        """Whether a failure is the database's, and not of what it was asked."""

    def row_error(self, error: Exception) -> str | None:
        """What is wrong with a row that was not written; None if it is not the row's fault."""

    def adapt(self, value: Any) -> Any:
        """A value of a segment in a form that the database takes."""

    def close(self) -> None:
        """Give the connection back."""


@contextmanager
def transaction(connection: SqlConnection) -> Iterator[None]:
    """All that is done within, or nothing of it."""
    connection.execute(connection.begin)
    try:
        yield
    except BaseException:
        with suppress(Exception):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def savepoint(connection: SqlConnection) -> Iterator[None]:
    """The same within a transaction."""
    connection.execute("SAVEPOINT postroad")
    try:
        yield
    except Exception:
        connection.execute("ROLLBACK TO SAVEPOINT postroad")
        connection.execute("RELEASE SAVEPOINT postroad")
        raise
    connection.execute("RELEASE SAVEPOINT postroad")


@contextmanager
def undone(connection: SqlConnection) -> Iterator[None]:
    """Undo what is done within, in a transaction."""
    connection.execute("SAVEPOINT trial")
    try:
        yield
    finally:
        connection.execute("ROLLBACK TO SAVEPOINT trial")
        connection.execute("RELEASE SAVEPOINT trial")


class SqlDatabase:
    """A database by its location; can be sent to other processes.

    Args:
        location: the path of an SQLite file, or `postgresql://user@host/name`.
    """

    def __init__(self, location: str) -> None:
        if not isinstance(location, str):
            raise ConfigError(f"option 'database' is {location!r}; it must be text")
        if not location:
            raise ConfigError("option 'database' must be a path, or postgresql://user@host/name")
        # Other processes may be in another directory.
        self._location = os.path.abspath(location)
        self.path: str | None = self._location
        """Of the file; None in PostgreSQL."""
        self._connect: Callable[[str], SqlConnection] = connect_sqlite
        if location.startswith(_POSTGRES):
            self._location, self.path = location, None
            self._connect = _postgres()
        self._kept: SqlConnection | None = None
        # A call that was given up may still be at work in its thread.
        self._turn = threading.Lock()

    def __reduce__(self) -> tuple[type[SqlDatabase], tuple[str]]:
        return SqlDatabase, (self._location,)

    def connect(self) -> SqlConnection:
        """A connection that the caller closes; raises OSError if the database cannot be used."""
        return self._connect(self._location)

    @contextmanager
    def connection(self) -> Iterator[SqlConnection]:
        """A connection for a while; raises OSError whenever the database cannot be used."""
        connection = self._connect(self._location)
        try:
            with naming_failures(connection):
                yield connection
        finally:
            connection.close()

    @contextmanager
    def pooled(self) -> Iterator[SqlConnection]:
        """The same connection each time, as long as nothing is wrong with it."""
        with self._turn:
            if self._kept is None:
                self._kept = self._connect(self._location)
            try:
                with naming_failures(self._kept):
                    yield self._kept
            except BaseException:
                self._forget()
                raise

    def close(self) -> None:
        """Give up the connection that is kept."""
        with self._turn:
            self._forget()

    def _forget(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            with suppress(Exception):
                kept.close()


@contextmanager
def naming_failures(connection: SqlConnection) -> Iterator[None]:
    """Have failures of a connection be OSError."""
    try:
        yield
    except connection.failures as error:
        reason = " ".join(str(error).split())
        raise OSError(f"{connection.where} cannot be used: {reason}") from error


def _postgres() -> Callable[[str], SqlConnection]:
    try:
        from postroad.pipeline.connectors.sql.postgres import connect_postgres
    except ImportError:
        raise MissingExtraError("postgres", "a connector in PostgreSQL") from None
    return connect_postgres


# SQLite.


class SqliteConnection(SqlConnection):
    """A connection to a file."""

    # At once, so that waiting for others happens here and not in the middle.
    begin = "BEGIN IMMEDIATE"
    immediate_constraints = "PRAGMA defer_foreign_keys = OFF"
    failures = sqlite3.Error
    needs_distinct = False

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self.where = f"database {path!r}"

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._connection.execute(statement, parameters).fetchall()

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        self._connection.executemany(statement, rows)

    def describe(self, statement: str) -> list[tuple[str, object]]:
        return [(column[0], None) for column in self._connection.execute(statement).description]

    def in_clause(self, column: str, keys: Sequence[int | str]) -> tuple[str, Sequence[Any]]:
        return f"{column} IN ({', '.join('?' * len(keys))})", keys

    def is_connection_error(self, error: Exception) -> bool:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        return code & 0xFF != sqlite3.SQLITE_ERROR

    def row_error(self, error: Exception) -> str | None:
        if isinstance(error, OverflowError | UnicodeError):
            return str(error)
        if not isinstance(error, sqlite3.Error):
            return None
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            # The driver itself may not know what to do with a value.
            is_fault = "binding parameter" in str(error)
        else:
            is_fault = code & 0xFF in _ROW_FAULTS or "no column named" in str(error)
        return str(error) if is_fault else None

    def adapt(self, value: Any) -> Any:
        if isinstance(value, dict | list):
            return msgspec.json.encode(value).decode()
        return value.isoformat() if isinstance(value, datetime) else value

    def close(self) -> None:
        self._connection.close()


def connect_sqlite(path: str) -> SqliteConnection:
    """Connect to a file that exists."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no database {path!r}")
    try:
        connection = sqlite3.connect(
            path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise OSError(f"database {path!r} cannot be opened: {error}") from error
    # What is no text must not keep others from being read.
    connection.text_factory = lambda text: text.decode(errors="surrogateescape")
    return SqliteConnection(connection, path)


# Names.


def quote(name: object) -> str:
    """The name of a column as statements have it."""
    if not isinstance(name, str) or not name or "?" in name or "\0" in name:
        raise ConfigError(f"{name!r} cannot be the name of a table or column")
    return '"' + name.replace('"', '""') + '"'


def quote_table(name: object) -> str:
    """The name of a table, which may be `schema.table`."""
    parts = name.split(".") if isinstance(name, str) else [name]
    return ".".join(map(quote, parts))


def side_table_name(table: str, purpose: str) -> str:
    """The name of a table of ours beside a user's."""
    name = f"{table}_postroad_{purpose}"
    if len(name.rpartition(".")[2].encode()) > _NAME_BYTES_MAX:
        raise ConfigError(f"the name {name!r} is longer than {_NAME_BYTES_MAX} bytes")
    return name
