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


class BankCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many payments of banks have come how far."""

    at_s: float
    """On the clock of `time.monotonic`."""
    begun: int = 0
    credited: int = 0
    settled: int = 0
    refused: int = 0

    @property
    def under_way(self) -> int:
        """Begun, and neither settled nor refused."""
        return self.begun - self.settled - self.refused


class ClearingCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How far the clearing is."""

    at_s: float
    """On the clock of `time.monotonic`."""
    posted: int = 0
    cleared: int = 0
    acked: int = 0
    pending: int = 0
    replayed: int = 0
    dead: int = 0

    @property
    def waiting(self) -> int:
        """Posted, and neither cleared nor dead, wherever they are."""
        return max(0, self.posted - self.cleared - self.dead)


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


class BankBooks:
    """The tables of banks that agree on payments by flows; likewise."""

    def __init__(self, *paths: Path) -> None:
        self._connections = [_open(path) for path in paths]

    def count(self) -> BankCounts:
        """How many rows there are now, at all banks together."""
        # In this order, so that no payment has ended that was not begun.
        settled, refused = self._count("settlements"), self._count("refunds")
        credited, begun = self._count("credits"), self._count("debits")
        return BankCounts(
            at_s=time.monotonic(), begun=begun, credited=credited, settled=settled, refused=refused
        )

    def _count(self, table: str) -> int:
        return sum(_last_row(connection, table) for connection in self._connections)

    def close(self) -> None:
        """Let go of the files."""
        for connection in self._connections:
            connection.close()


class Posted(NamedTuple):
    """A payment that was posted to be cleared."""

    number: int
    bank: str
    amount: str
    at_s: float


class Cleared(NamedTuple):
    """A payment that came back."""

    number: int
    bank: str
    cents: int
    at_s: float


class ClearingBooks:
    """The tables of the node that posts payments to be cleared; likewise."""

    def __init__(self, path: Path) -> None:
        self._connection = _open(path)

    def count(self) -> tuple[int, int]:
        """How many were posted, and how many came back."""
        # In this order, so that no payment came back that was not posted.
        cleared = _last_row(self._connection, "cleared")
        return _last_row(self._connection, "posted"), cleared

    def posted(self) -> list[Posted]:
        """All payments, in the order they were posted."""
        rows = self._connection.execute("SELECT * FROM posted ORDER BY rowid")
        return [Posted(*row) for row in rows]

    def cleared(self) -> list[Cleared]:
        """All that came back, in the order they came."""
        rows = self._connection.execute("SELECT * FROM cleared ORDER BY rowid")
        return [Cleared(*row) for row in rows]

    def cleared_by_bank(self) -> dict[str, int]:
        """The sum of what came back, in cents."""
        rows = self._connection.execute("SELECT bank, sum(cents) FROM cleared GROUP BY bank")
        return dict(rows)

    def totals(self) -> dict[str, int]:
        """The newest total of each bank, in cents; totals only grow."""
        rows = self._connection.execute("SELECT bank, max(cents) FROM totals GROUP BY bank")
        return dict(rows)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


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
