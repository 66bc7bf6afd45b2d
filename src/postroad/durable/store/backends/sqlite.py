"""The embedded store: one SQLite file in WAL mode, synced at every commit."""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from postroad.core.errors import (
    StoreCorruptedError,
    StoreError,
    StoreLockedError,
    StoreUnavailableError,
)
from postroad.durable.store.store import Store
from postroad.net.owned_files import check_file, make_private_directory

from .backend import DatabaseBackend, DatabaseRow, StoreConnection
from .guarded_sqlite import GuardedSqliteConnection, unguarded

logger = logging.getLogger("postroad.durable")

# Another process may hold the write lock while its bridge or an operator's command commits.
_BUSY_S = 30.0
_BUSY_POLL_S = 0.02
# SQLite empties the log whenever it has grown to about this length, and keeps the file.
_WAL_BYTES = 4 * 1024 * 1024
_WAL_KEPT_BYTES = 16 * _WAL_BYTES

# Content of a lock file: the process that holds it, and the number of acknowledged commits.
_PID_BYTES = 32
_COMMITS_BYTES = 20

COLUMN_TYPES = {
    "id": "INTEGER PRIMARY KEY",
    "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "blob": "BLOB",
    # One tree instead of two, so that a commit writes fewer batches.
    "clustered": "WITHOUT ROWID",
}
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNAVAILABLE = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
)


class ErrorTranslator:
    """A context that tells failures of the database apart from mistakes in a statement."""

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            _raise_store_error(self._where, error)


def _raise_store_error(where: str, error: sqlite3.Error) -> None:
    """Raise the StoreError for an error, unless the database works."""
    failure = _classify_error(where, error)
    if failure is not None:
        raise failure from error


def _classify_error(where: str, error: sqlite3.Error) -> StoreError | None:
    primary = _primary_code(error)
    if primary in _CORRUPT:
        return StoreCorruptedError(
            f"store {where} is damaged: {error}; restore a backup and start a new epoch"
        )
    if primary in _UNAVAILABLE:
        return StoreUnavailableError(f"store {where} cannot be used now: {error}")
    return None


def _primary_code(error: sqlite3.Error) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


class SqliteStoreConnection(StoreConnection):
    """One connection to a SQLite database."""

    aborts_on_error = False
    dialect = "sqlite"

    def __init__(self, connection: GuardedSqliteConnection, where: str) -> None:
        self._leased = connection
        self._connection = unguarded(connection)
        self._where = where
        # One for all statements: to create one takes as long as to run a short statement. Those
        # with many rows have their own, as their rows may come from another statement.
        self._cursor = self._connection.cursor()

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[DatabaseRow]:
        # Not by a context, which costs time even if nothing fails.
        try:
            return self._cursor.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            _raise_store_error(self._where, error)
            raise

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        try:
            return self._cursor.execute(statement, parameters).rowcount
        except sqlite3.Error as error:
            _raise_store_error(self._where, error)
            raise

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        with ErrorTranslator(self._where):
            self._connection.cursor().executemany(statement, rows)

    def execute_native(
        self, statement: str, parameters: Sequence[Any] | None = None
    ) -> list[DatabaseRow]:
        parameters = () if parameters is None else parameters
        with self.guarding(statement):
            return self.execute(statement, parameters)

    def guarding(self, statement: str) -> AbstractContextManager[None]:
        return self._leased._guard.of(statement)

    def flush(self) -> None:
        """Not needed: `execute_later` defers nothing."""

    def cancel(self) -> None:
        """Not done: it would roll back the whole transaction."""

    def begin_savepoint(self, lock_s: float, statement_s: float) -> None:
        # No limits: a transaction that writes does not wait for others.
        self.execute("SAVEPOINT postroad_turn")

    def check_savepoint(self) -> None:
        """Not needed: foreign keys are not checked, and changes of settings are rejected."""

    def rollback_savepoint(self) -> None:
        self.execute("ROLLBACK TO SAVEPOINT postroad_turn")
        self.release_savepoint()

    def release_savepoint(self) -> None:
        self.execute("RELEASE SAVEPOINT postroad_turn")

    @property
    def leased(self) -> GuardedSqliteConnection:
        return self._leased

    def single_statement_options(self, statement: str, parameters: object) -> dict[str, Any]:
        # It never accepts two.
        return {}

    def classify_error(self, error: BaseException) -> StoreError | None:
        if not isinstance(error, sqlite3.Error):
            return None
        # The write lock is held: it is blocked by a cursor of the function itself.
        is_busy = _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        return None if is_busy else _classify_error(self._where, error)

    def begin(self) -> None:
        # At once, so that waiting for another process happens here and not in the middle.
        self.execute("BEGIN IMMEDIATE")

    def prepare(self) -> None:
        """SQLite needs no preparation."""

    def commit(self) -> None:
        self.execute("COMMIT")

    def rollback(self) -> None:
        # A failed commit may have ended the transaction already.
        if self._connection.in_transaction:
            self.execute("ROLLBACK")

    @property
    def is_in_transaction(self) -> bool:
        return self._connection.in_transaction

    def copy_to(self, path: str) -> None:
        """Write a copy of the committed data."""
        _make_private(Path(path))
        with ErrorTranslator(path):
            copy = sqlite3.connect(path)
            try:
                self._connection.backup(copy)
            finally:
                copy.close()

    def close(self) -> None:
        self._connection.close()


class SqliteBackend(DatabaseBackend):
    """A SQLite file, and beside it one lock file for each role."""

    column_types = COLUMN_TYPES
    is_shared = True
    simulated_sync_s = 0.0
    idle_check_s = 0.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._locks: dict[str, int] = {}
        # Numbers of acknowledged commits: now, and before this process.
        self._commit_records: dict[str, mmap.mmap] = {}
        self._recorded_commits: dict[str, int] = {}

    def exists(self) -> bool:
        return self._path.exists()

    def lock(self, role: str) -> None:
        path = self._path.with_name(f"{self._path.name}.{role}.lock")
        try:
            make_private_directory(self._path.parent)
            self._check_owners(path)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailableError(f"store {self._path} cannot be opened: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, _PID_BYTES, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise StoreLockedError(
                f"store {self._path} is used by process {holder} as its {role}; stop that one first"
            ) from None
        os.pwrite(lock, str(os.getpid()).encode().ljust(_PID_BYTES), 0)
        self._locks[role] = lock
        recorded = os.pread(lock, _COMMITS_BYTES, _PID_BYTES)
        self._recorded_commits[role] = int(recorded) if recorded.isdigit() else 0
        os.ftruncate(lock, _PID_BYTES + _COMMITS_BYTES)
        self._commit_records[role] = mmap.mmap(lock, _PID_BYTES + _COMMITS_BYTES)

    def _check_owners(self, *more: Path) -> None:
        """Raise ConfigError if files of the store belong to another user."""
        names = (self._path.name + ending for ending in ("", "-wal", "-shm", "-journal"))
        for path in (*map(self._path.with_name, names), *more):
            try:
                if os.path.lexists(path):
                    check_file(path)
            except FileNotFoundError:
                # The last reader of a store removes these files when it closes.
                if os.path.lexists(path):
                    raise

    def lock_additional_role(self, role: str, database: StoreConnection) -> None:
        self.lock(role)

    def connect(self) -> SqliteStoreConnection:
        _make_private(self._path)
        database = self._open(f"{self._path}")
        try:
            self._use_wal(database)
            database.execute("PRAGMA synchronous = FULL")
            database.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")
            # Alone, so that it does not overwrite what another process writes there.
            database.begin()
            try:
                self._preallocate_wal()
            finally:
                database.rollback()
        except BaseException:
            database.close()
            raise
        return database

    def _use_wal(self, database: SqliteStoreConnection) -> None:
        """Turn the log on; SQLite itself does not wait for another process that does the same."""
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                database.execute("PRAGMA journal_mode = WAL")
            except StoreUnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_BUSY_POLL_S)
            else:
                return

    def _preallocate_wal(self) -> None:
        """Write the log in its whole length once, if the disk has plenty of space.

        Overwriting a file is synced faster than extending it. SQLite ignores what is not valid in
        the log.
        """
        try:
            log = os.open(f"{self._path}-wal", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                length, disk = os.fstat(log).st_size, os.fstatvfs(log)
                if length < _WAL_BYTES < disk.f_bavail * disk.f_frsize // 16:
                    os.pwrite(log, bytes(_WAL_BYTES - length), length)
                    os.fsync(log)
            finally:
                os.close(log)
        except OSError as error:
            logger.debug("cannot preallocate the write-ahead log of %s: %s", self._path, error)

    def lock_schema(self, database: StoreConnection) -> None:
        """Not needed: a transaction that writes is alone."""

    def connect_reader(self) -> SqliteStoreConnection:
        database = self._open(f"{self._path}")
        database.execute("PRAGMA query_only = ON")
        return database

    def _open(self, where: str) -> SqliteStoreConnection:
        self._check_owners()
        with ErrorTranslator(where):
            connection = sqlite3.connect(
                self._path,
                timeout=_BUSY_S,
                isolation_level=None,
                check_same_thread=False,
                factory=GuardedSqliteConnection,
            )
        return SqliteStoreConnection(connection, where)

    def check(self, database: StoreConnection) -> None:
        check_integrity(database, str(self._path))

    def record_commits(self, role: str, commits: int) -> None:
        # Without a sync: it may be behind the database, and is ahead of it only if the database has
        # lost commits.
        if role in self._commit_records:
            self._commit_records[role][_PID_BYTES:] = b"%0*d" % (_COMMITS_BYTES, commits)

    def recorded_commits(self, role: str) -> int:
        return self._recorded_commits.get(role, 0)

    def unlock(self) -> None:
        while self._commit_records:
            self._commit_records.popitem()[1].close()
        while self._locks:
            os.close(self._locks.popitem()[1])

    def __str__(self) -> str:
        return str(self._path)


def _make_private(path: Path) -> None:
    """Create a file that no other user may read, unless it exists; SQLite's log is as private."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise StoreUnavailableError(f"store {path} cannot be created: {error}") from error


def check_integrity(database: StoreConnection, where: str) -> None:
    """Raise StoreCorruptedError unless SQLite finds the file in order."""
    try:
        rows = database.execute("PRAGMA quick_check(5)")
    except sqlite3.DatabaseError as error:
        raise StoreCorruptedError(f"store {where} is damaged: {error}") from error
    if rows != [("ok",)]:
        faults = "; ".join(str(row[0]) for row in rows)
        raise StoreCorruptedError(
            f"store {where} is damaged: {faults}; restore a backup and start a new epoch"
        )


class SqliteStore(Store):
    """A store in one file; the default. `path` is created if it does not exist."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(SqliteBackend(Path(path)))

    async def backup(self, path: str | Path) -> None:
        """Copy the store to a file, also while it is in use."""
        await self.read(_copy, str(path))


def _copy(database: StoreConnection, path: str) -> None:
    assert isinstance(database, SqliteStoreConnection)
    database.copy_to(path)
