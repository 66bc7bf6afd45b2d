"""The table beside a user's that says which of its keys were taken."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.sql.connections import SqlConnection, quote, quote_table

Key: TypeAlias = int | str
Range: TypeAlias = tuple[Key, Key]

# What is next to a range. Columns may be of a shorter type, and nothing is beyond the longest.
_BELOW = f"CASE WHEN b.low > {-(1 << 63) + 1} - 1 THEN CAST(b.low AS BIGINT) - 1 END"
_ABOVE = f"CASE WHEN b.high < {(1 << 63) - 1} THEN CAST(b.high AS BIGINT) + 1 END"


class ProcessedKeys:
    """Ranges of keys, each with the number of its split; 0 when that is committed.

    Consecutive whole numbers are one range, so that nothing can ever come between. Text is a range
    for each. All methods but `find_skipped` run inside a transaction.
    """

    def __init__(self, name: str, table: str, key: str) -> None:
        self.name = name
        self.quoted = quote_table(name)
        self._index = name.rpartition(".")[2]
        self._table = table
        self._key = key

    def create(self, connection: SqlConnection) -> None:
        """Make the table, if it is not there."""
        # Of the same type and order as the key, whatever these are.
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self.quoted} AS SELECT {self._key} AS low,"
            f" {self._key} AS high, CAST(0 AS BIGINT) AS slice FROM {self._table} t WHERE 1 = 0"
        )
        for column in ("low", "high", "slice"):
            kind = "INDEX" if column == "slice" else "UNIQUE INDEX"
            index = quote(f"{self._index}_{column}")
            connection.execute(f"CREATE {kind} IF NOT EXISTS {index} ON {self.quoted} ({column})")

    def claim(self, connection: SqlConnection, number: int, keys: Sequence[Key]) -> None:
        """Keys belong to a split."""
        self._insert(connection, ranges_of(keys), number)

    def release_after(self, connection: SqlConnection, after: int) -> None:
        """Splits with higher numbers were never admitted."""
        connection.execute(f"DELETE FROM {self.quoted} WHERE slice > ?", (after,))

    def uncommitted(self, connection: SqlConnection) -> set[int]:
        """Splits that nobody noted to be committed."""
        rows = connection.execute(f"SELECT DISTINCT slice FROM {self.quoted} WHERE slice > 0")
        return {int(number) for (number,) in rows}

    def claimed_keys(self, connection: SqlConnection, number: int) -> list[Key]:
        """The keys of a split that is not committed, in order."""
        rows = connection.execute(
            f"SELECT low, high FROM {self.quoted} WHERE slice = ? ORDER BY low", (number,)
        )
        return [key for low, high in rows for key in _keys_in(low, high)]

    def has_settled(self, connection: SqlConnection) -> bool:
        """Whether any split ever was."""
        return bool(connection.execute(f"SELECT 1 FROM {self.quoted} WHERE slice = 0 LIMIT 1"))

    def mark_processed(self, connection: SqlConnection, number: int) -> None:
        """A split is committed: what adjoins other such ranges becomes one with them."""
        own = connection.execute(f"SELECT low, high FROM {self.quoted} WHERE slice = ?", (number,))
        if own and isinstance(own[0][0], int):
            known = [*own, *self._adjoining(connection, number)]
            merged = merge(known)
            gone, new = set(known) - set(merged), set(merged) - set(known)
            connection.execute_many(
                f"DELETE FROM {self.quoted} WHERE low = ?", [(low,) for low, _ in gone]
            )
            self._insert(connection, new, 0)
        connection.execute(f"UPDATE {self.quoted} SET slice = 0 WHERE slice = ?", (number,))

    def _adjoining(self, connection: SqlConnection, number: int) -> list[tuple[int, int]]:
        found = (
            f"SELECT a.low, a.high FROM {self.quoted} b JOIN {self.quoted} a ON"
            " {} WHERE b.slice = ? AND a.slice = 0"
        )
        rows = connection.execute(
            f"{found.format(f'a.high = {_BELOW}')} UNION {found.format(f'a.low = {_ABOVE}')}",
            (number, number),
        )
        return [(low, high) for low, high in rows]

    def _insert(self, connection: SqlConnection, ranges: Iterable[Range], number: int) -> None:
        connection.execute_many(
            f"INSERT INTO {self.quoted} (low, high, slice) VALUES (?, ?, ?)",
            [(low, high, number) for low, high in ranges],
        )

    def find_skipped(self, connection: SqlConnection, upto: Key, limit: int) -> list[Key]:
        """Keys that were not taken although higher ones were, in order."""
        rows = connection.execute(
            *(
                (self._late_numbers, (limit,))
                if isinstance(upto, int)
                else (self._late_texts, (upto, limit))
            )
        )
        return [as_key(key) for (key,) in rows]

    @property
    def _late_numbers(self) -> str:
        # Only the gaps are looked at, not the whole table.
        return (
            f"WITH gaps AS (SELECT high AS below, LEAD(low) OVER (ORDER BY low) AS above"
            f" FROM {self.quoted})"
            f" SELECT {self._key} FROM gaps JOIN {self._table} t"
            f" ON {self._key} > gaps.below AND {self._key} < gaps.above"
            " WHERE CAST(gaps.above AS BIGINT) - 1 > gaps.below"
            f" UNION ALL SELECT {self._key} FROM {self._table} t"
            f" WHERE {self._key} < (SELECT MIN(low) FROM {self.quoted})"
            " ORDER BY 1 LIMIT ?"
        )

    @property
    def _late_texts(self) -> str:
        return (
            f"SELECT {self._key} FROM {self._table} t WHERE {self._key} <= ? AND NOT EXISTS"
            f" (SELECT 1 FROM {self.quoted} a WHERE a.low = {self._key})"
            f" ORDER BY {self._key} LIMIT ?"
        )


def _keys_in(low: object, high: object) -> Iterable[Key]:
    if isinstance(low, int) and isinstance(high, int):
        return range(low, high + 1)
    return (as_key(low),)


def as_key(value: object) -> Key:
    """A key as plain data; raises ConfigError if it is of another kind."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, int | str) and not isinstance(value, bool):
        return value
    raise ConfigError(f"option 'key': {value!r} is neither a whole number nor text")


def ranges_of(keys: Sequence[Key]) -> list[Range]:
    """Sorted keys as ranges; raises ConfigError if one is there twice."""
    if len(set(keys)) < len(keys):
        repeated = next(key for key, next_key in pairwise(keys) if key == next_key)
        raise ConfigError(f"option 'key': {repeated!r} is in two rows; it must be unique")
    pairs = [(key, key) for key in keys]
    numbers = [(low, high) for low, high in pairs if isinstance(low, int) and isinstance(high, int)]
    return [*merge(numbers)] if len(numbers) == len(pairs) else [*pairs]


def merge(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges that follow one another without a gap become one."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and merged[-1][1] + 1 == low:
            merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return merged
