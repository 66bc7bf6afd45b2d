"""A store in memory, for tests: loses uncommitted data like a real disk if its process dies."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from postroad.core.errors import StoreLockedError, StoreUnavailableError
from postroad.durable.store.store import Store
from postroad.durable.store.worker_threads import ExecutorThreadRunner

from .backend import DatabaseBackend, DatabaseRow, StoreConnection
from .guarded_sqlite import GuardedSqliteConnection, unguarded
from .sqlite import COLUMN_TYPES, SqliteStoreConnection, check_integrity


class MemoryDisk:
    """A disk that survives the process that uses it: an SQLite database in memory.

        disk = MemoryDisk()
        store = MemoryStore(disk)

    Attributes:
        sync_s: seconds that a commit takes.
        is_full: whether commits fail for lack of room.
        is_read_only: whether nothing can be written.
    """

    def __init__(self, rng: Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._use(None)
        self.sync_s = 0.0
        self.is_full = False
        self.is_read_only = False
        self.is_prepared = False
        self.holders: dict[str, object] = {}
        # For the one connection of all threads: a statement that SQLite compiles holds the mutex
        # of the connection and waits for the interpreter, whose lock another thread may hold while
        # it waits for the mutex.
        self.lock = threading.RLock()

    @staticmethod
    def _connect() -> GuardedSqliteConnection:
        return sqlite3.connect(
            ":memory:",
            isolation_level=None,
            check_same_thread=False,
            factory=GuardedSqliteConnection,
        )

    def crash(self) -> None:
        """Simulate the end of the process: a prepared commit is durable as a whole, or not."""
        self.holders.clear()
        if self.is_in_transaction:
            was_committed = self.is_prepared and self._rng.random() < 0.5
            self.execute("COMMIT" if was_committed else "ROLLBACK")
        self.is_prepared = False

    def backup(self) -> bytes:
        """Return a copy of the committed data."""
        copy = self._connect()
        try:
            if self.is_in_transaction:
                raise StoreUnavailableError(
                    "a commit is under way; take the backup at another moment"
                )
            self._connection.backup(copy)
            return copy.serialize()
        finally:
            copy.close()

    def restore(self, backup: bytes) -> None:
        """Restore a copy; no process may use the disk."""
        self.crash()
        self._connection.close()
        self._use(backup)

    def fail_over(self, backup: bytes) -> None:
        """Replace the server by a copy: commits since the copy are lost.

        Processes that use the disk lose their connections, and get new ones to the copy.
        """
        if self.is_in_transaction:
            self.execute("ROLLBACK")
        self.is_prepared = False
        # The old database is closed by those that have a connection to it.
        self._use(backup)

    def _use(self, backup: bytes | None) -> None:
        self.connection = self._connect()
        self._connection = unguarded(self.connection)
        if backup is not None:
            self._connection.deserialize(backup)

    @property
    def is_in_transaction(self) -> bool:
        """Whether a commit is under way."""
        return self._connection.in_transaction

    def execute(self, statement: str) -> sqlite3.Cursor:
        """Run a statement outside of any connection of a store."""
        return self._connection.cursor().execute(statement)


class MemoryStoreConnection(SqliteStoreConnection):
    """A connection to a disk in memory."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk.connection, "in memory")
        self._disk = disk

    @property
    def _is_disconnected(self) -> bool:
        return self._leased is not self._disk.connection

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[DatabaseRow]:
        if self._is_disconnected:
            raise StoreUnavailableError(
                "store in memory cannot be used now: the connection is lost"
            )
        with self._disk.lock:
            return super().execute(statement, parameters)

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        with self._disk.lock:
            return super().change(statement, parameters)

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._disk.lock:
            super().execute_many(statement, rows)

    def begin(self) -> None:
        if self._disk.is_read_only:
            raise StoreUnavailableError("store in memory cannot be used now: it is read-only")
        self._disk.is_prepared = False
        super().begin()

    def prepare(self) -> None:
        self._disk.is_prepared = True

    def commit(self) -> None:
        self._disk.is_prepared = False
        if self._disk.is_full:
            raise StoreUnavailableError("store in memory cannot be used now: the disk is full")
        super().commit()

    def close(self) -> None:
        if self._is_disconnected:
            self._connection.close()
        else:
            # The disk stays.
            self.rollback()


class MemoryBackend(DatabaseBackend):
    """The backend of a disk in memory."""

    column_types = COLUMN_TYPES

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self._database = MemoryStoreConnection(disk)
        self._roles: list[str] = []

    idle_check_s = 0.0

    @property
    def simulated_sync_s(self) -> float:
        return self._disk.sync_s

    def exists(self) -> bool:
        return True

    def lock(self, role: str) -> None:
        if role in self._disk.holders:
            raise StoreLockedError(
                f"store in memory is used by another {role}; stop that one first"
            )
        self._disk.holders[role] = self
        self._roles.append(role)

    def lock_additional_role(self, role: str, database: StoreConnection) -> None:
        self.lock(role)

    def connect(self) -> MemoryStoreConnection:
        # One for all: SQLite keeps a database in memory for a single connection.
        self._database = MemoryStoreConnection(self._disk)
        return self._database

    def lock_schema(self, database: StoreConnection) -> None:
        """Not needed: all use one connection."""

    def connect_reader(self) -> MemoryStoreConnection:
        return self._database

    def check(self, database: StoreConnection) -> None:
        check_integrity(database, "in memory")

    def record_commits(self, role: str, commits: int) -> None:
        """Not recorded: there is no place beside the data."""

    def unlock(self) -> None:
        for role in self._roles:
            # A crash may have let another one in.
            if self._disk.holders.get(role) is self:
                del self._disk.holders[role]
        self._roles.clear()

    def __str__(self) -> str:
        return "in memory"


class MemoryStore(Store):
    """A store for tests; its data survives on the disk that is passed."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        super().__init__(MemoryBackend(disk or MemoryDisk()), ExecutorThreadRunner)
