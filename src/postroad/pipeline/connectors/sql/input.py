"""Rows of a table as segments, and a table of ours beside it that says which were taken."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.connector import InputConnector, Position, RawRecords, Split
from postroad.pipeline.connectors.encoding import UNENCODABLE
from postroad.pipeline.connectors.options import (
    accept_old_names,
    check_columns,
    check_flag,
    check_name,
    check_positive,
    check_seconds,
)
from postroad.pipeline.connectors.sql.connections import (
    Row,
    SqlConnection,
    SqlDatabase,
    quote,
    quote_table,
    side_table_name,
    transaction,
)
from postroad.pipeline.connectors.sql.processed_keys import Key, ProcessedKeys, as_key

T = TypeVar("T")

logger = logging.getLogger("postroad.pipeline")

_SPLIT_SEGMENTS = 2_000
_READ_ROWS = 500

_encode = msgspec.msgpack.Encoder(enc_hook=str).encode


class SqlInput(InputConnector):
    """Reads every row of a table once, in the order of a key.

    Rows that appear with keys below those already read are found too: a transaction that took its
    number early and committed late loses nothing. For that, a table of Postroad's beside it,
    `<table>_postroad_<consumer>`, has every key that was taken: as ranges of consecutive numbers,
    or one by one where the key is text. Numbers without gaps stay one row there. Text needs a row
    for each, and to look for late ones reads all keys.

    It relies on this: a key never changes, is unique, not NULL, and is not used again for another
    row; and a row stays as it is until it is committed.

    Numbers, texts, bytes, NULL and times with a zone come as they are; JSON and arrays as tables
    and lists; decimals, dates, times without a zone and all else as text.

    Args:
        database: the path of an SQLite file, or `postgresql://user@host/name`.
        table: the table, or `schema.table`.
        key: a column with numbers or text (or UUIDs) that tells each row from all others.
        consumer: who reads; two jobs that read the same table need two.
        columns: which of them make a segment; all by default.
        continuous: whether to wait for more rows when all are read.
        rescan_interval_s: how often to look for late rows, besides whenever all seems to be read.
        split_segments: how many rows a split has at most.
    """

    @accept_old_names(
        reader="consumer",
        follow="continuous",
        late_s="rescan_interval_s",
        slice_segments="split_segments",
    )
    def __init__(
        self,
        database: str,
        table: str,
        key: str,
        consumer: str,
        columns: Sequence[str] | None = None,
        continuous: bool = False,
        rescan_interval_s: float = 5.0,
        split_segments: int = _SPLIT_SEGMENTS,
    ) -> None:
        check_name("consumer", consumer, forbidden=".?")
        check_positive("split_segments", split_segments)
        check_flag("continuous", continuous)
        names = check_columns(columns)
        self._database = SqlDatabase(database)
        self._name = table
        self._table = quote_table(table)
        self._key = f"t.{quote(key)}"
        self._columns = "t.*" if names is None else ", ".join(f"t.{quote(name)}" for name in names)
        self._taken = ProcessedKeys(side_table_name(table, consumer), self._table, self._key)
        self.is_bounded = not continuous
        self._rescan_interval_s = check_seconds("rescan_interval_s", rescan_interval_s)
        self._split_segments = split_segments
        # Set by open: splits of an earlier process.
        self._uncommitted: set[int] | None = None
        # Splits that are committed, and not yet noted to be.
        self._committed: set[int] = set()
        # The last split that was cut here.
        self._last = 0
        self._looked_at = 0.0

    async def open(self, uncommitted: Sequence[Position]) -> None:
        self._uncommitted = {position["slice"] for position in uncommitted}
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        with self._database.pooled() as connection:
            self._describe(connection)
            null = f"SELECT 1 FROM {self._table} t WHERE {self._key} IS NULL LIMIT 1"
            if connection.execute(null):
                raise ConfigError(f"option 'key': it is NULL in some rows of table {self._name!r}")
            with transaction(connection):
                self._taken.create(connection)

    def _describe(self, connection: SqlConnection) -> list[str]:
        """The names of the columns, of which the key is the first."""
        statement = f"SELECT {self._key}, {self._columns} FROM {self._table} t WHERE 1 = 0"
        try:
            return [name for name, _ in connection.describe(statement)]
        except connection.failures as error:
            if connection.is_connection_error(error):
                raise
            raise ConfigError(f"table {self._name!r} cannot be read: {error}") from error

    async def close(self) -> None:
        await asyncio.to_thread(self._database.close)

    # Cutting.

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        place: Position = {"slice": 0, "key": None} if after is None else after
        return await asyncio.to_thread(self._cut, place["slice"], place["key"], segments)

    def _cut(self, last: int, upto: Key | None, segments: int) -> list[Split]:
        """The splits after one with a number, in which `upto` is the highest key taken so far."""
        with self._database.pooled() as connection:
            self._tidy(connection, last, is_new=upto is None)
            late, keys = [], self._find_next(connection, upto, segments)
            if upto is not None and self._is_time_to_look(is_idle=not keys):
                late = self._taken.find_skipped(connection, upto, segments)
                self._looked_at = time.monotonic()
            size = min(self._split_segments, self.split_segments_max)
            parts = [(part, upto) for part in _split(late, size)]
            rest = keys[: segments - len(late)]
            parts += [(part, part[-1]) for part in _split(rest, size)]
            if not parts:
                return []
            self._last = last + len(parts)
            with transaction(connection):
                for number, (part, _) in enumerate(parts, last + 1):
                    self._taken.claim(connection, number, part)
        return [
            Split({"slice": number}, len(part), {"slice": number, "key": highest})
            for number, (part, highest) in enumerate(parts, last + 1)
        ]

    def _is_time_to_look(self, is_idle: bool) -> bool:
        # A job that ends when nothing is left must be sure of it.
        is_sure = is_idle and self.is_bounded
        return is_sure or time.monotonic() - self._looked_at >= self._rescan_interval_s

    def _find_next(self, connection: SqlConnection, upto: Key | None, limit: int) -> list[Key]:
        where, which = ("", ()) if upto is None else (f" WHERE {self._key} > ?", (upto,))
        rows = connection.execute(
            f"SELECT {self._key} FROM {self._table} t{where} ORDER BY {self._key} LIMIT ?",
            (*which, limit),
        )
        return [as_key(key) for (key,) in rows]

    def _tidy(self, connection: SqlConnection, last: int, is_new: bool) -> None:
        """Have the taken keys say what the account of the job says."""
        is_first, committed = self._uncommitted is not None, set(self._committed)
        if not (is_first or committed or self._last > last):
            return
        with transaction(connection):
            if is_new and self._taken.has_settled(connection):
                raise ConfigError(
                    f"table {self._taken.name!r} has keys that another job processed, or this one"
                    " before its store was lost: choose another 'consumer', or drop that table"
                )
            self._taken.release_after(connection, last)
            if self._uncommitted is not None:
                committed |= self._taken.uncommitted(connection) - self._uncommitted
            for number in sorted(committed):
                self._taken.mark_processed(connection, number)
        self._last = last
        self._uncommitted = None
        self._committed -= committed

    async def on_committed(self, places: Sequence[Position]) -> None:
        # Noted with the next cut; a crash until then is made up for by `open`.
        self._committed |= {place["slice"] for place in places}

    # Reading.

    def read(self, place: Position) -> Iterator[RawRecords]:
        number = place["slice"]
        with self._database.connection() as connection:
            names = self._describe(connection)[1:]
            keys = self._taken.claimed_keys(connection, number)
            if not keys:
                raise OSError(f"table {self._taken.name!r} has lost the keys of split {number}")
            for part in _split(keys, _READ_ROWS):
                # Not by a join of the two tables: databases think of bad ways to do that.
                where, which = connection.in_clause(self._key, part)
                rows = connection.execute(
                    f"SELECT {self._key}, {self._columns} FROM {self._table} t"
                    f" WHERE {where} ORDER BY {self._key}",
                    which,
                )
                if len(rows) < len(part):
                    logger.warning(
                        "%d rows of table %r were deleted before their batch was committed",
                        len(part) - len(rows),
                        self._name,
                    )
                found = [as_key(row[0]) for row in rows]
                yield RawRecords(self._name, found, [_encode_row(names, row[1:]) for row in rows])


def _encode_row(names: Sequence[str], row: Row) -> bytes:
    segment = dict(zip(names, row, strict=True))
    try:
        return _encode(segment)
    except UNENCODABLE:
        # What no decoder takes for a segment, and people can read.
        return repr(segment).encode(errors="backslashreplace")


def _split(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
