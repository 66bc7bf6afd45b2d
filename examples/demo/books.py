"""What the databases of both nodes hold, read from the files themselves."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

_BUSY_S = 10.0


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows there are."""

    at_s: float
    """On the clock of `time.monotonic`."""
    payments: int = 0
    bookings: int = 0
    receipts: int = 0


class Entry(NamedTuple):
    """One row of a table."""

    account: str
    number: int
    cents: int
    at_s: float
    """When it was written, on the clock of `time.monotonic`."""


class Books:
    """The tables of the node that pays and of the one that books.

    They can be read at any time, also while a node is away: all that is seen is committed.
    """

    def __init__(self, payer: Path, booker: Path) -> None:
        self._payer = _open(payer)
        self._booker = _open(booker)

    def count(self) -> Counts:
        """How many rows there are now; nothing is ever deleted, so the last one tells."""
        # In this order, so that no row is counted whose cause is not.
        receipts = _last_row(self._payer, "receipts")
        bookings = _last_row(self._booker, "bookings")
        payments = _last_row(self._payer, "payments")
        return Counts(
            at_s=time.monotonic(), payments=payments, bookings=bookings, receipts=receipts
        )

    def close(self) -> None:
        """Let go of the files."""
        self._payer.close()
        self._booker.close()


def read_entries(path: Path, table: str) -> list[Entry]:
    """All rows of a table, in the order they were written."""
    with closing(_open(path)) as connection:
        rows = connection.execute(
            f"SELECT account, number, cents, at_s FROM {table} ORDER BY rowid"
        )
        return [Entry(*row) for row in rows]


def _last_row(connection: sqlite3.Connection, table: str) -> int:
    (last,) = connection.execute(f"SELECT coalesce(max(rowid), 0) FROM {table}").fetchone()
    return int(last)


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    connection.execute("PRAGMA query_only = ON")
    return connection
