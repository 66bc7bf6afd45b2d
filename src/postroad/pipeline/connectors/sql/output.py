"""Segments as rows of a table, each written once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import msgspec

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.connector import (
    Committable,
    OutputConnector,
    OutputWriter,
    UnwritableSegmentsError,
    decode_segment,
)
from postroad.pipeline.connectors.encoding import UNENCODABLE, InlineWriter, unpack
from postroad.pipeline.connectors.options import check_columns
from postroad.pipeline.connectors.sql.connections import (
    Row,
    SqlConnection,
    SqlDatabase,
    quote,
    quote_table,
    savepoint,
    side_table_name,
    transaction,
)
from postroad.pipeline.coordinator.records import to_signed
from postroad.pipeline.job import Segment

logger = logging.getLogger("postroad.pipeline")

_ID = "postroad_id"


class SqlOutput(OutputConnector):
    """Writes a row for each segment: keys are names of columns.

    Each output of a job has an id that never changes, and that goes into the column `postroad_id`
    (`BIGINT`, a primary key or unique). What is there already stays as it is. With a key of your
    own, what is there is updated instead, and no id is written.

    Tables and lists are written as JSON text. A row that the database refuses goes into the table
    `<table>_postroad_refused` with the reason, and keeps no other from being written.

    Args:
        database: the path of an SQLite file, or `postgresql://user@host/name`.
        table: the table, which must exist, or `schema.table`.
        key: the column, or columns, by which a row is known; they must be unique together.
        columns: which keys of segments are written; all by default.
    """

    def __init__(
        self,
        database: str,
        table: str,
        key: str | Sequence[str] = _ID,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._database = SqlDatabase(database)
        self._name = table
        self._table = quote_table(table)
        self._keys = (key,) if isinstance(key, str) else tuple(key)
        names = check_columns(columns)
        self._columns = None if names is None else frozenset(names)
        self._refused = quote_table(side_table_name(table, "refused"))
        if not self._keys:
            raise ConfigError("option 'key' is empty; it has the columns by which a row is known")
        if self._columns is not None and not self._has_ids and not self._columns >= {*self._keys}:
            raise ConfigError(f"option 'columns' must have those of the key: {list(self._keys)}")

    @property
    def _has_ids(self) -> bool:
        return self._keys == (_ID,)

    async def open(self, prefix: str, unpublished: Sequence[Committable]) -> None:
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        keys = ", ".join(map(quote, self._keys))
        with self._database.pooled() as connection:
            try:
                # Writes nothing, and tells whether it could be written.
                connection.execute(
                    f"INSERT INTO {self._table} ({keys}) SELECT {keys} FROM {self._table}"
                    f" WHERE 1 = 0 ON CONFLICT ({keys}) DO NOTHING"
                )
            except connection.failures as error:
                if connection.is_connection_error(error):
                    raise
                raise ConfigError(f"table {self._name!r} cannot be written: {error}") from error

    async def close(self) -> None:
        await asyncio.to_thread(self._database.close)

    def create_writer(self, stage: str) -> OutputWriter:
        return InlineWriter() if self._has_ids else _KeyedWriter(self._keys)

    async def commit(self, staged: Committable) -> None:
        await asyncio.to_thread(self._publish, staged)

    def _publish(self, staged: Committable) -> None:
        refused: list[_RejectedRow] = []
        with self._database.pooled() as connection, transaction(connection):
            connection.execute(connection.immediate_constraints)
            rows = self._rows(connection, staged, refused)
            for statement, group in groupby(rows, key=attrgetter("statement")):
                self._write(connection, statement, list(group), refused)
            if refused:
                self._keep(connection, refused)
        if refused:
            logger.warning(
                "table %r refused %d rows, the first with: %s",
                self._name,
                len(refused),
                refused[0].reason,
            )

    def _rows(
        self, connection: SqlConnection, staged: Committable, refused: list[_RejectedRow]
    ) -> Iterator[_RowWrite]:
        statements: dict[tuple[str, ...], str] = {}
        for id, packed in unpack(staged):
            try:
                columns = self._columns_of(id, decode_segment(packed))
                names = tuple(columns)
                if names not in statements:
                    statements[names] = self._upsert(names)
                values = tuple(map(connection.adapt, columns.values()))
                yield _RowWrite(id, statements[names], values, packed)
            except UNENCODABLE as error:
                # What is no name of a column, or no JSON.
                refused.append(_RejectedRow(id, str(error), packed))

    def _columns_of(self, id: int, segment: Segment) -> Mapping[str, object]:
        columns = segment
        if self._columns is not None:
            columns = {name: value for name, value in segment.items() if name in self._columns}
        return {**columns, _ID: to_signed(id)} if self._has_ids else columns

    def _upsert(self, names: Sequence[str]) -> str:
        places = ", ".join("?" * len(names))
        others = [] if self._has_ids else [quote(it) for it in names if it not in self._keys]
        change = ", ".join(f"{it} = excluded.{it}" for it in others)
        return (
            f"INSERT INTO {self._table} ({', '.join(map(quote, names))}) VALUES ({places})"
            f" ON CONFLICT ({', '.join(map(quote, self._keys))})"
            f" DO {f'UPDATE SET {change}' if change else 'NOTHING'}"
        )

    def _write(
        self,
        connection: SqlConnection,
        statement: str,
        rows: Sequence[_RowWrite],
        refused: list[_RejectedRow],
    ) -> None:
        """Write rows; where some are refused, halve them until it is known which."""
        try:
            with savepoint(connection):
                connection.execute_many(statement, [it.values for it in rows])
        except Exception as error:
            reason = connection.row_error(error)
            if reason is None:
                raise
            if len(rows) == 1:
                refused.append(_RejectedRow(rows[0].id, reason, rows[0].packed))
                return
            middle = len(rows) // 2
            self._write(connection, statement, rows[:middle], refused)
            self._write(connection, statement, rows[middle:], refused)

    def _keep(self, connection: SqlConnection, refused: Sequence[_RejectedRow]) -> None:
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._refused}"
            " (id BIGINT PRIMARY KEY, reason TEXT NOT NULL, segment TEXT NOT NULL)"
        )
        connection.execute_many(
            f"INSERT INTO {self._refused} (id, reason, segment) VALUES (?, ?, ?)"
            " ON CONFLICT (id) DO NOTHING",
            [(to_signed(it.id), it.reason, _to_json(it.packed)) for it in refused],
        )


class _RowWrite(NamedTuple):
    """What is written of a segment."""

    id: int
    statement: str
    values: Row
    packed: bytes


class _RejectedRow(NamedTuple):
    """What was not."""

    id: int
    reason: str
    packed: bytes


def _to_json(packed: bytes) -> str:
    try:
        return msgspec.json.encode(decode_segment(packed)).decode()
    except UNENCODABLE:
        return repr(packed)


class _KeyedWriter(InlineWriter):
    """Refuses segments without the key of a row."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__()
        self._keys = keys

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        reasons = {
            id: f"it has no {key!r}, by which its row is known"
            for id, segment in zip(ids, segments, strict=True)
            for key in self._keys
            if segment.get(key) is None
        }
        if reasons:
            raise UnwritableSegmentsError(reasons)
        super().write(ids, segments)
