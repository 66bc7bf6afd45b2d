"""Rows that wait beside a table until their batch is committed.

In PostgreSQL they are in a table of ours with the columns of the user's, and have the id of their
writer. In SQLite each writer has a file beside the database.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from postroad.pipeline.connectors.sql.connections import (
    SqlConnection,
    SqlDatabase,
    quote_table,
    side_table_name,
)

WRITER, ROW, GROUP, OUTPUT, STAGED = (
    "postroad_writer",
    "postroad_row",
    "postroad_group",
    "postroad_output",
    "postroad_staged_ms",
)
"""Columns beside the user's: whose row it is, its number and group, its id, and since when."""

_OWN = f"""CAST('' AS TEXT) AS {WRITER}, CAST(0 AS BIGINT) AS {ROW}, CAST(0 AS BIGINT) AS {GROUP},
    CAST(0 AS BIGINT) AS {OUTPUT}, CAST(0 AS BIGINT) AS {STAGED}"""
_ATTACHED = "postroad_staging"
_ENDING = ".staging"
# More than can be committed and not be recorded as such.
_MARKS_KEPT = 10_000


class SqlStaging:
    """Where the rows of an output wait for their commit."""

    def __init__(self, database: SqlDatabase, table: str) -> None:
        self._database = database
        self._table = quote_table(table)
        self._name = side_table_name(table, "staging")
        self._committed = quote_table(side_table_name(table, "committed"))

    def columns(self, connection: SqlConnection) -> list[str]:
        """The names of the columns of the user's table."""
        return [name for name, _ in self._described(connection)]

    def _described(self, connection: SqlConnection) -> list[tuple[str, object]]:
        return connection.describe(f"SELECT * FROM {self._table} t WHERE 1 = 0")

    def create(self, connection: SqlConnection, writer: str) -> str:
        """Make the table for the rows of a writer, if there is none; returns its quoted name."""
        table = self._shared_name(connection)
        if self._database.path is not None:
            table = self._attach(connection, writer)
        statement = (
            f"CREATE TABLE IF NOT EXISTS {table} AS"
            f" SELECT {_OWN}, t.* FROM {self._table} t WHERE 1 = 0"
        )
        try:
            connection.execute(statement)
        except connection.failures:
            # Another writer may have been quicker.
            if not self._exists(connection, table):
                raise
        return table

    def _exists(self, connection: SqlConnection, table: str) -> bool:
        try:
            connection.execute(f"SELECT 1 FROM {table} WHERE 1 = 0")
        except connection.failures as error:
            if connection.is_connection_error(error):
                raise
            return False
        return True

    def _shared_name(self, connection: SqlConnection) -> str:
        # Another one when the user's table has got other columns.
        columns = repr(self._described(connection)).encode()
        digest = hashlib.blake2b(columns, digest_size=2).hexdigest()
        return quote_table(f"{self._name}_{digest}")

    # Files of SQLite.

    def path(self, writer: str) -> Path | None:
        """The file of a writer; None in PostgreSQL."""
        path = self._database.path
        return None if path is None else Path(f"{path}.{writer}{_ENDING}")

    def _attach(self, connection: SqlConnection, writer: str) -> str:
        connection.execute(f"ATTACH DATABASE ? AS {_ATTACHED}", (str(self.path(writer)),))
        return f"{_ATTACHED}.staged"

    @contextmanager
    def opened(self, connection: SqlConnection, writer: str, table: str) -> Iterator[str | None]:
        """The quoted name of the table with the rows of a writer; None if all was committed before.

        Raises OSError if its file is not there, and was not committed.
        """
        path = self.path(writer)
        if path is None:
            yield table
            return
        if not path.exists():
            if not self._is_committed(connection, writer):
                raise OSError(f"{path} is missing; every machine must reach the same database file")
            yield None
            return
        attached = self._attach(connection, writer)
        try:
            yield attached
        finally:
            with suppress(connection.failures):
                connection.execute(f"DETACH DATABASE {_ATTACHED}")

    def mark_committed(self, connection: SqlConnection, writer: str) -> None:
        """Note in the transaction of a commit that it happened, where a file cannot tell."""
        if self._database.path is None:
            return
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._committed}"
            " (number INTEGER PRIMARY KEY AUTOINCREMENT, writer TEXT NOT NULL UNIQUE)"
        )
        connection.execute(
            f"INSERT INTO {self._committed} (writer) VALUES (?) ON CONFLICT DO NOTHING", (writer,)
        )
        connection.execute(
            f"DELETE FROM {self._committed} WHERE number <="
            f" (SELECT MAX(number) FROM {self._committed}) - {_MARKS_KEPT}"
        )

    def _is_committed(self, connection: SqlConnection, writer: str) -> bool:
        if not self._exists(connection, self._committed):
            return False
        query = f"SELECT 1 FROM {self._committed} WHERE writer = ?"
        return bool(connection.execute(query, (writer,)))

    # Removal.

    def remove(self, connection: SqlConnection, writer: str, table: str) -> None:
        """Remove what a writer has staged."""
        path = self.path(writer)
        if path is None:
            connection.execute(f"DELETE FROM {table} WHERE {WRITER} = ?", (writer,))
        else:
            remove_file(path)

    def remove_abandoned(
        self, connection: SqlConnection, prefix: str, kept: Sequence[str], before_s: float
    ) -> None:
        """Remove what writers with a prefix have staged before some time, but for some of them."""
        if self._database.path is None:
            table = self._shared_name(connection)
            if self._exists(connection, table):
                self._remove_rows(connection, table, prefix, kept, before_s)
            return
        base = Path(self._database.path)
        start = f"{base.name}.{prefix}"
        names = {f"{base.name}.{writer}{_ENDING}" for writer in kept}
        for path in base.parent.iterdir():
            is_ours = path.name.startswith(start) and path.name.endswith(_ENDING)
            if is_ours and path.name not in names and _changed_s(path) < before_s:
                remove_file(path)

    def _remove_rows(
        self,
        connection: SqlConnection,
        table: str,
        prefix: str,
        kept: Sequence[str],
        before_s: float,
    ) -> None:
        rows = connection.execute(
            f"SELECT {WRITER} FROM {table} WHERE {STAGED} < ? GROUP BY {WRITER}",
            (min(round(before_s * 1000), 1 << 62),),
        )
        for (writer,) in rows:
            if writer.startswith(prefix) and writer not in kept:
                connection.execute(f"DELETE FROM {table} WHERE {WRITER} = ?", (writer,))


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def remove_file(path: Path) -> None:
    """Remove the file of a writer, if it is there."""
    for ending in ("", "-journal", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{ending}")
