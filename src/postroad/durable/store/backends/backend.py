"""What a store needs of a database: one connection that runs statements, one at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeAlias

from postroad.core.errors import StoreError, TransactionAbortedError

DatabaseRow: TypeAlias = tuple[Any, ...]


logger = logging.getLogger("postroad.durable")


class StoreConnection(Protocol):
    """One connection. Whoever calls it sees to it that calls do not overlap.

    Statements of Postroad are written with `?` for parameters; those of users in whatever way
    their database wants. Failures of the database itself become StoreUnavailableError or
    StoreCorruptedError; what is wrong with a statement raises as it is.
    """

    aborts_on_error: bool
    """Whether after a statement that failed only a rollback is possible."""
    dialect: str
    """What SQLAlchemy calls the database and its driver."""
    session_factory: Any = None
    """Where sessions of SQLAlchemy come from, once there was one."""

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[DatabaseRow]:
        """Run one of Postroad's own statements; the rows it yields."""

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """The same for one that yields no rows; how many it changed."""

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one of them with each of some parameters; for what yields no rows."""

    def execute_native(
        self, statement: str, parameters: Sequence[Any] | None = None
    ) -> list[DatabaseRow]:
        """Run a user's statement."""

    def guarding(self, statement: str) -> AbstractContextManager[None]:
        """A user's statement is run within; UsageError if it would change what others commit.

        What can be found out after it, `check_savepoint` does.
        """
        return nullcontext()

    def begin_savepoint(self, lock_s: float, statement_s: float) -> None:
        """Let a user work, whose part can be undone alone.

        Args:
            lock_s: how long a statement may wait for a lock of another client.
            statement_s: how long one may take in all.
        """

    def check_savepoint(self) -> None:
        """The user is done: raise what would keep others from committing, and reset settings."""

    def rollback_savepoint(self) -> None:
        """Undo what a user did."""

    def release_savepoint(self) -> None:
        """What a user did is part of the commit."""

    @property
    def leased(self) -> Any:
        """The connection for users: a GuardedConnection that is one of its driver's class too."""

    def single_statement_options(self, statement: str, parameters: object) -> dict[str, Any]:
        """What a cursor must be told so that it takes no second statement along."""

    def classify_error(self, error: BaseException) -> StoreError | None:
        """What an error of the driver says about the database; None if it is fine."""

    def execute_later(self, statement: str) -> None:
        """Run one of Postroad's own statements, at the latest before the next one."""
        self.execute(statement)

    def flush(self) -> None:
        """Run what `execute_later` deferred, before the raw connection of the driver is used."""

    def begin(self) -> None:
        """Start to write."""

    def cancel(self) -> None:
        """End the statement that runs in another thread, where that harms no other."""

    @property
    def is_in_transaction(self) -> bool:
        """Whether what `begin` started has not ended."""

    def prepare(self) -> None:
        """Everything is written, and `commit` is next."""

    def commit(self) -> None:
        """Make everything since `begin` durable."""

    def rollback(self) -> None:
        """Undo everything since `begin`."""

    def close(self) -> None:
        """Give the connection back."""


def check_in_transaction(database: StoreConnection) -> None:
    """Raise TransactionAbortedError if a statement ended what others commit too."""
    if not database.is_in_transaction:
        raise TransactionAbortedError(
            "a statement has rolled the whole transaction back; start it again"
        )


@contextmanager
def savepoint(database: StoreConnection, name: str) -> Iterator[None]:
    """Undo what is done within, and nothing else, if it raises."""
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
    """Where a store keeps its data, and how one gets connections to it."""

    is_shared: bool = False
    """Whether other programs can write to the database while a node works on it."""
    column_types: dict[str, str]
    """What a migration calls `{id}`, `{serial}`, `{blob}` and, after a table, `{clustered}`."""

    @property
    def simulated_sync_s(self) -> float:
        """Seconds that a commit seems to take besides; for disks that are simulated."""

    @property
    def idle_check_s(self) -> float:
        """Seconds without work after which it is asked whether another took its place; 0: never."""

    def exists(self) -> bool:
        """Whether there is anything to open."""

    def lock(self, role: str) -> None:
        """Become the only process in that role; raises StoreLockedError if another is."""

    def lock_additional_role(self, role: str, database: StoreConnection) -> None:
        """Take a second role, while connected."""

    def connect(self) -> StoreConnection:
        """A connection that reads and writes."""

    def connect_reader(self) -> StoreConnection:
        """A connection that sees what is committed."""

    def lock_schema(self, database: StoreConnection) -> None:
        """Have the transaction that has started wait until no other prepares the tables."""

    def check(self, database: StoreConnection) -> None:
        """Raise StoreCorruptedError if the data is damaged."""

    def record_commits(self, role: str, commits: int) -> None:
        """Note beside the data how many commits were acknowledged, where that survives a crash."""

    def recorded_commits(self, role: str) -> int:
        """What was noted before this process; 0 if that is not known."""
        return 0

    def unlock(self) -> None:
        """Let another process in; every connection is closed by now."""


def close_quietly(database: StoreConnection) -> None:
    """Close a connection that may be broken."""
    try:
        database.close()
    except Exception as error:
        logger.debug("closing a connection failed: %r", error)
