"""Segments as rows of a table, each written once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.connector import (
    Committable,
    OutputConnector,
    OutputWriter,
    RejectedSegment,
    UnwritableSegmentsError,
)
from postroad.pipeline.connectors.encoding import UNENCODABLE
from postroad.pipeline.connectors.options import check_columns
from postroad.pipeline.connectors.sql.connections import (
    Row,
    SqlConnection,
    SqlDatabase,
    naming_failures,
    quote,
    quote_table,
    savepoint,
    transaction,
    undone,
)
from postroad.pipeline.connectors.sql.staging import (
    GROUP,
    OUTPUT,
    ROW,
    STAGED,
    WRITER,
    SqlStaging,
    remove_file,
)
from postroad.pipeline.coordinator.records import to_signed, to_unsigned
from postroad.pipeline.job import Segment

_ID = "postroad_id"
_OWN = (WRITER, ROW, GROUP, OUTPUT, STAGED)
_encode = msgspec.msgpack.Encoder(enc_hook=str).encode


class SqlOutput(OutputConnector):
    """Writes a row for each segment: keys are names of columns.

    Each output of a job has an id that never changes, and that goes into the column `postroad_id`
    (`BIGINT`, a primary key or unique). What is there already stays as it is. With a key of your
    own, what is there is updated instead, and no id is written.

    Tables and lists are written as JSON text. Rows are staged by those who make them: in the table
    `<table>_postroad_staging_...` of PostgreSQL, or in a file beside that of SQLite. There they are
    tried, so that a segment whose row the database refuses fails, with the reason; a row that is
    refused only when its batch is committed is tried again by itself, and is then a dead letter.

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
        self.database = SqlDatabase(database)
        self._name = table
        self._table = quote_table(table)
        self.staging = SqlStaging(self.database, table)
        self.keys = (key,) if isinstance(key, str) else tuple(key)
        names = check_columns(columns)
        self._columns = None if names is None else frozenset(names)
        if not self.keys:
            raise ConfigError("option 'key' is empty; give the columns that identify a row")
        if self._columns is not None and not self.has_ids and not self._columns >= {*self.keys}:
            raise ConfigError(f"option 'columns' must have those of the key: {list(self.keys)}")

    @property
    def has_ids(self) -> bool:
        """Whether rows are known by the ids of segments."""
        return self.keys == (_ID,)

    async def open(self, prefix: str, unpublished: Sequence[Committable]) -> None:
        await asyncio.to_thread(self._open, prefix, unpublished)

    def _open(self, prefix: str, unpublished: Sequence[Committable]) -> None:
        keys = ", ".join(map(quote, self.keys))
        with self.database.pooled() as connection:
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
        self._remove_abandoned(prefix, unpublished, float(1 << 40))

    async def close(self) -> None:
        await asyncio.to_thread(self.database.close)

    def create_writer(self, stage: str) -> OutputWriter:
        return _RowWriter(self, stage)

    def columns_of(self, id: int, segment: Segment) -> Mapping[str, object]:
        """What is written of a segment."""
        columns: Mapping[str, object] = segment
        if self._columns is not None:
            columns = {name: value for name, value in segment.items() if name in self._columns}
        return {**columns, _ID: to_signed(id)} if self.has_ids else columns

    # Committing.

    async def commit(self, staged: Committable) -> Sequence[RejectedSegment]:
        return await asyncio.to_thread(self._commit, staged)

    def _commit(self, staged: Committable) -> list[RejectedSegment]:
        with (
            self.database.pooled() as connection,
            self.staging.opened(connection, staged["writer"], staged["table"]) as table,
        ):
            rejected = [] if table is None else self._publish(connection, table, staged)
        path = self.staging.path(staged["writer"])
        if path is not None and not rejected:
            remove_file(path)
        return rejected

    def _publish(
        self, connection: SqlConnection, table: str, staged: Committable
    ) -> list[RejectedSegment]:
        writer, rejected = staged["writer"], list[RejectedSegment]()
        with transaction(connection):
            connection.execute(connection.immediate_constraints)
            for group, (names, first, last) in enumerate(staged["groups"]):
                rows = StagedRows(table, writer, group, names, first, last)
                self._insert(connection, rows, rejected)
            refused = "".join(f" AND {OUTPUT} <> {to_signed(segment.id)}" for segment in rejected)
            connection.execute(f"DELETE FROM {table} WHERE {WRITER} = ?{refused}", (writer,))
            self.staging.mark_committed(connection, writer)
        return rejected

    def insert_all(self, connection: SqlConnection, rows: StagedRows) -> None:
        """Write staged rows to the table, all of them or none."""
        names = ", ".join(map(quote, rows.names))
        keys = ", ".join(map(quote, self.keys))
        others = (
            [] if self.has_ids else [quote(name) for name in rows.names if name not in self.keys]
        )
        change = ", ".join(f"{other} = excluded.{other}" for other in others)
        # PostgreSQL changes no row twice in one statement: of those with the same key, the last.
        is_latest = bool(change) and connection.needs_distinct
        with savepoint(connection):
            connection.execute(
                f"INSERT INTO {self._table} ({names})"
                f" SELECT {f'DISTINCT ON ({keys})' if is_latest else ''} {names} FROM {rows.table}"
                f" WHERE {rows.where} ORDER BY {f'{keys}, {ROW} DESC' if is_latest else ROW}"
                f" ON CONFLICT ({keys}) DO {f'UPDATE SET {change}' if change else 'NOTHING'}",
                rows.parameters,
            )

    def _insert(
        self, connection: SqlConnection, rows: StagedRows, rejected: list[RejectedSegment]
    ) -> None:
        """Write staged rows; where some are refused, halve them until it is known which."""
        try:
            self.insert_all(connection, rows)
        except connection.failures as error:
            reason = connection.row_error(error)
            if reason is None:
                raise
            if rows.first == rows.last:
                rejected += self._read(connection, rows, reason)
                return
            middle = (rows.first + rows.last) // 2
            self._insert(connection, rows._replace(last=middle), rejected)
            self._insert(connection, rows._replace(first=middle + 1), rejected)

    def _read(
        self, connection: SqlConnection, rows: StagedRows, reason: str
    ) -> list[RejectedSegment]:
        names = [name for name in rows.names if not (self.has_ids and name == _ID)]
        columns = "".join(f", {quote(name)}" for name in names)
        found = connection.execute(
            f"SELECT {OUTPUT}{columns} FROM {rows.table} WHERE {rows.where}", rows.parameters
        )
        return [
            RejectedSegment(to_unsigned(id), reason, _encode(dict(zip(names, values, strict=True))))
            for id, *values in found
        ]

    # Removal.

    async def abort(self, staged: Committable) -> None:
        await asyncio.to_thread(self.remove, staged["writer"], staged["table"])

    def remove(self, writer: str, table: str) -> None:
        """Remove what a writer has staged."""
        with self.database.pooled() as connection:
            self.staging.remove(connection, writer, table)

    async def remove_abandoned(
        self, prefix: str, kept: Sequence[Committable], before_s: float
    ) -> None:
        await asyncio.to_thread(self._remove_abandoned, prefix, kept, before_s)

    def _remove_abandoned(self, prefix: str, kept: Sequence[Committable], before_s: float) -> None:
        writers = [staged["writer"] for staged in kept if "writer" in staged]
        with self.database.pooled() as connection:
            self.staging.remove_abandoned(connection, prefix, writers, before_s)


class StagedRows(NamedTuple):
    """Some rows of a writer that have the same columns."""

    table: str
    writer: str
    group: int
    names: Sequence[str]
    first: int
    """The numbers of the first and the last."""
    last: int

    @property
    def where(self) -> str:
        """The condition for them."""
        return f"{WRITER} = ? AND {GROUP} = ? AND {ROW} BETWEEN ? AND ?"

    @property
    def parameters(self) -> Row:
        """Of the condition."""
        return self.writer, self.group, self.first, self.last


class _NewRow(NamedTuple):
    id: int
    names: tuple[str, ...]
    values: Row


class _RowWriter(OutputWriter):
    """Stages rows where they are made, after having tried them."""

    def __init__(self, output: SqlOutput, writer: str) -> None:
        self._output = output
        self._writer = writer
        self._connection: SqlConnection | None = None
        self._table = ""
        self._known: frozenset[str] = frozenset()
        # Names, and numbers of the first and last row.
        self._groups: list[tuple[tuple[str, ...], int, int]] = []
        self._count = 0

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        if self._connection is None:
            self._connection = self._output.database.connect()
        connection = self._connection
        with naming_failures(connection):
            self._open(connection)
            rows, reasons = self._prepare(connection, ids, segments)
            if not reasons:
                try:
                    with transaction(connection):
                        self._groups, self._count = self._stage(connection, rows)
                    return
                except Exception as error:
                    if connection.row_error(error) is None:
                        raise
                with transaction(connection):
                    self._find_refused(connection, rows, reasons)
        raise UnwritableSegmentsError(reasons)

    def _open(self, connection: SqlConnection) -> None:
        if not self._table:
            self._known = frozenset(self._output.staging.columns(connection))
            self._table = self._output.staging.create(connection, self._writer)

    def _prepare(
        self, connection: SqlConnection, ids: Sequence[int], segments: Sequence[Segment]
    ) -> tuple[list[_NewRow], dict[int, str]]:
        rows: list[_NewRow] = []
        reasons: dict[int, str] = {}
        for id, segment in zip(ids, segments, strict=True):
            try:
                columns = self._output.columns_of(id, segment)
                if strange := [name for name in columns if name not in self._known]:
                    raise ValueError(f"the table has no column {strange[0]!r}")
                for key in self._output.keys:
                    if columns.get(key) is None:
                        raise ValueError(f"the segment has no value for the key {key!r}")
                values = tuple(map(connection.adapt, columns.values()))
                rows.append(_NewRow(id, tuple(columns), values))
            except UNENCODABLE as error:
                reasons[id] = str(error)
        return rows, reasons

    def _stage(
        self, connection: SqlConnection, rows: Iterable[_NewRow]
    ) -> tuple[list[tuple[tuple[str, ...], int, int]], int]:
        """Write rows to the staging table, and see whether the user's would take them."""
        groups, count, now_ms = list(self._groups), self._count, time.time_ns() // 1_000_000
        for names, together in self._group(rows):
            first = count
            count += len(together)
            own = [
                (self._writer, number, len(groups), to_signed(row.id), now_ms)
                for number, row in enumerate(together, first)
            ]
            values = [(*mark, *row.values) for mark, row in zip(own, together, strict=True)]
            connection.load(self._table, [*_OWN, *map(quote, names)], values)
            groups.append((names, first, count - 1))
        connection.execute(connection.immediate_constraints)
        with undone(connection):
            for number in range(len(self._groups), len(groups)):
                staged = StagedRows(self._table, self._writer, number, *groups[number])
                self._output.insert_all(connection, staged)
        return groups, count

    def _group(self, rows: Iterable[_NewRow]) -> Iterable[tuple[tuple[str, ...], list[_NewRow]]]:
        """Rows with the same columns; in their order where one may change what another wrote."""
        groups: list[tuple[tuple[str, ...], list[_NewRow]]] = []
        by_names: dict[tuple[str, ...], list[_NewRow]] = {}
        for row in rows:
            if not self._output.has_ids and groups and groups[-1][0] != row.names:
                by_names.clear()
            together = by_names.get(row.names)
            if together is None:
                together = by_names[row.names] = []
                groups.append((row.names, together))
            together.append(row)
        return groups

    def _find_refused(
        self, connection: SqlConnection, rows: Sequence[_NewRow], reasons: dict[int, str]
    ) -> None:
        """Find out which rows are refused, and leave nothing behind."""
        try:
            with undone(connection):
                self._stage(connection, rows)
            return
        except Exception as error:
            reason = connection.row_error(error)
            if reason is None:
                raise
        if len(rows) == 1:
            reasons[rows[0].id] = reason
            return
        count = len(reasons)
        middle = len(rows) // 2
        self._find_refused(connection, rows[:middle], reasons)
        self._find_refused(connection, rows[middle:], reasons)
        if len(reasons) == count:
            # Only together they are refused: so the second half is, and may be tried again.
            reasons |= {row.id: reason for row in rows[middle:]}

    def prepare_commit(self) -> Committable | None:
        self._close()
        if not self._count:
            self.abort()
            return None
        return {"writer": self._writer, "table": self._table, "groups": self._groups}

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abort(self) -> None:
        self._close()
        if self._table:
            self._output.remove(self._writer, self._table)
            self._table, self._groups, self._count = "", [], 0
