"""Interface between a store and a database: a connection that runs one statement at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeAlias

from postroad.core.errors import StoreError, TransactionAbortedError

DatabaseRow: TypeAlias = tuple[Any, ...]


logger = logging.getLogger("postroad.durable")


class StoreConnection(Protocol):
    """One connection. Its callers make sure that calls do not overlap.

    Statements of Postroad have `?` for parameters; those of users have what their driver expects.
    Failures of the database become StoreUnavailableError or StoreCorruptedError; errors of a
    statement are raised unchanged.
    """

    aborts_on_error: bool
    """Whether only a rollback is possible after a statement that failed."""
    dialect: str
    """The name of the database and its driver in SQLAlchemy."""
    session_factory: Any = None
    """The factory of SQLAlchemy sessions, once one was made."""

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[DatabaseRow]:
        """Run one of Postroad's own statements; return its rows."""

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run one of them that returns no rows; return how many it changed."""

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one of them that returns no rows, for each of several parameters."""

    def execute_native(
        self, statement: str, parameters: Sequence[Any] | None = None
    ) -> list[DatabaseRow]:
        """Run a user's statement."""

    def guarding(self, statement: str) -> AbstractContextManager[None]:
        """Return the context for a user's statement; UsageError if it would affect other commits.

        What can only be checked after it, `check_savepoint` checks.
        """
        return nullcontext()

    def begin_savepoint(self, lock_s: float, statement_s: float) -> None:
        """Begin the statements of a user, which can be rolled back alone.

        Args:
            lock_s: how long a statement may wait for a lock of another client.
            statement_s: how long one may take in all.
        """

    def check_savepoint(self) -> None:
        """Raise if the user's statements would fail the commit; reset changed settings."""

    def rollback_savepoint(self) -> None:
        """Roll back the statements of a user."""

    def release_savepoint(self) -> None:
        """Make the statements of a user part of the commit."""

    @property
    def leased(self) -> Any:
        """The connection for users: a GuardedConnection, also of the class of its driver."""

    def single_statement_options(self, statement: str, parameters: object) -> dict[str, Any]:
        """Return options for a cursor that make it reject a second statement."""

    def classify_error(self, error: BaseException) -> StoreError | None:
        """Return the StoreError for an error of the driver; None if the database works."""

    def execute_later(self, statement: str) -> None:
        """Run one of Postroad's own statements, now or just before the next one."""
        self.execute(statement)

    def flush(self) -> None:
        """Run what `execute_later` deferred, before the raw connection of the driver is used."""

    def begin(self) -> None:
        """Begin a transaction that writes."""

    def cancel(self) -> None:
        """Cancel the statement that runs in another thread, if that affects no other statement."""

    @property
    def is_in_transaction(self) -> bool:
        """Whether the transaction that `begin` started has not ended."""

    def prepare(self) -> None:
        """Prepare for `commit`, which is next: everything is written."""

    def commit(self) -> None:
        """Make all statements since `begin` durable."""

    def rollback(self) -> None:
        """Roll back all statements since `begin`."""

    def close(self) -> None:
        """Close the connection."""


def check_in_transaction(database: StoreConnection) -> None:
    """Raise TransactionAbortedError if a statement has rolled back the shared transaction."""
    if not database.is_in_transaction:
        raise TransactionAbortedError(
            "a statement has rolled the whole transaction back; start it again"
        )


@contextmanager
def savepoint(database: StoreConnection, name: str) -> Iterator[None]:
    """Roll back the statements of the block, and no others, if it raises."""
    database.execute_later(f"SAVEPOINT {name}")
    try:
        database.flush()
        yield
        check_in_transaction(database)
        database.execute_later(f"RELEASE SAVEPOINT {name}")
    except BaseException:
        if database.is_in_transaction:
            database.execute_later(f"ROLLBACK TO SAVEPOINT {name}")
            database.execute_later(f"RELEASE SAVEPOINT {name}")
        raise


class DatabaseBackend(Protocol):
    """The database of a store: locks it, and opens connections."""

    is_shared: bool = False
    """Whether other programs can write to the database while a node works on it."""
    column_types: dict[str, str]
    """Types for `{id}`, `{serial}`, `{blob}` and, after a table, `{clustered}` in migrations."""

    @property
    def simulated_sync_s(self) -> float:
        """Seconds that a commit on a simulated disk takes."""

    @property
    def idle_check_s(self) -> float:
        """Seconds without work after which to check for another process in its place; 0: never."""

    def exists(self) -> bool:
        """Whether the database exists."""

    def lock(self, role: str) -> None:
        """Become the only process in that role; raises StoreLockedError if another is."""

    def lock_additional_role(self, role: str, database: StoreConnection) -> None:
        """Take a second role, while connected."""

    def connect(self) -> StoreConnection:
        """Open a connection that reads and writes."""

    def connect_reader(self) -> StoreConnection:
        """Open a connection that only reads, and sees what is committed."""

    def lock_schema(self, database: StoreConnection) -> None:
        """Make the current transaction wait until no other process migrates the tables."""

    def check(self, database: StoreConnection) -> None:
        """Raise StoreCorruptedError if the data is damaged."""

    def record_commits(self, role: str, commits: int) -> None:
        """Record the number of acknowledged commits beside the data, if that survives a crash."""

    def recorded_commits(self, role: str) -> int:
        """Return the number that an earlier process recorded; 0 if it is not known."""
        return 0

    def unlock(self) -> None:
        """Release the locks, after all connections are closed."""


def close_quietly(database: StoreConnection) -> None:
    """Close a connection that may be broken."""
    try:
        database.close()
    except Exception as error:
        logger.debug("closing a connection failed: %r", error)
