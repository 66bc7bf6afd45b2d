"""User transactions on the store's connection, among the mutations of a commit group.

`SavepointTransaction.apply_and_release` puts a mutation and the user's rows into one savepoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

import msgspec

from postroad.core.errors import PostroadError, StoreError, TransactionAbortedError, UsageError
from postroad.durable.store.backends.backend import (
    DatabaseRow,
    StoreConnection,
    check_in_transaction,
    savepoint,
)
from postroad.durable.store.tables.store_tables import StoreTables

from .guarded_connection import call_with_connection, check_statement
from .mutations import Mutation
from .sqlalchemy_session import call_with_session
from .worker_threads import ThreadRunner

logger = logging.getLogger("postroad.durable")

T = TypeVar("T")

CURRENT_TRANSACTION: ContextVar[TransactionScope | None] = ContextVar(
    "postroad_transaction", default=None
)
"""The innermost transaction that the caller is in; inherited by tasks and threads."""


# A struct, which is created in half the time of a class: there is one for each message.
class TransactionScope(msgspec.Struct, eq=False, kw_only=True):
    """A transaction as seen by code inside of it.

    From its first statement to its end there is no other commit: a call inside that waits for a
    commit of its own would be a deadlock.

    Attributes:
        outer: the one around it, if it is inside of another.
        is_finished: whether it can do nothing more.
    """

    store: Any
    outer: TransactionScope | None = None
    is_finished: bool = False
    # Calls inside that wait for a commit; created when there is one.
    _waits: _PendingWaits | None = None

    __repr__ = object.__repr__

    @property
    def is_open(self) -> bool:
        """Whether all commits wait for its end, or will when it starts."""
        return not self.is_finished

    def enter(self) -> None:
        """Make it the current transaction of the caller."""
        if CURRENT_TRANSACTION.get() is not self and self not in _enclosing_transactions():
            self.outer = next(
                (scope for scope in _enclosing_transactions() if not scope.is_finished), None
            )
            CURRENT_TRANSACTION.set(self)

    def leave(self) -> None:
        """End being the current transaction; need not be called at its end."""
        if CURRENT_TRANSACTION.get() is self:
            CURRENT_TRANSACTION.set(self.outer)

    def begin_wait(self) -> None:
        """Count a call inside that waits for a commit."""
        if self._waits is None:
            self._waits = _PendingWaits()
        self._waits.count += 1
        self._waits.none_left.clear()

    def end_wait(self) -> None:
        """Discount a call that waited for a commit."""
        assert self._waits is not None
        self._waits.count -= 1
        if not self._waits.count:
            self._waits.none_left.set()

    async def wait_until_idle(self) -> None:
        """Wait until no call inside waits for a commit."""
        while self._waits is not None and self._waits.count:
            await self._waits.none_left.wait()


class _PendingWaits:
    """Calls that wait for a commit."""

    __slots__ = ("count", "none_left")

    def __init__(self) -> None:
        self.count = 0
        self.none_left = asyncio.Event()


def _enclosing_transactions() -> Iterator[TransactionScope]:
    """Return the transactions that the caller is in, the innermost first."""
    scope = CURRENT_TRANSACTION.get()
    while scope is not None:
        yield scope
        scope = scope.outer


_NO_CONTEXT = nullcontext()


def check_not_in_transaction(store: object, but: TransactionScope | None = None) -> None:
    """Raise UsageError if the caller would wait for a commit that waits for its transaction.

    Args:
        store: where the commit would be.
        but: a transaction that ends before.
    """
    inner = CURRENT_TRANSACTION.get()
    if inner is None or (inner is but and inner.outer is None):
        # The most frequent case.
        return
    for scope in _enclosing_transactions():
        if scope is not but and scope.store is store and scope.is_open:
            raise UsageError(
                "deadlock: this waits for a commit that cannot start before the transaction it is "
                "called in ends; do it before the first statement or after the transaction; to "
                "send, use tx.send or pass tx=tx; work for after a handler can be sent too"
            )


def outside_transaction(store: object) -> AbstractContextManager[None]:
    """Wait for a commit in the block; raises UsageError where that would be a deadlock.

    What is started in there is not inside any transaction. One that the caller is in, and that has
    no statements yet, gets its turn when the block is left.
    """
    inner = CURRENT_TRANSACTION.get()
    # Most callers are in no transaction, and save the time of a generator.
    return _NO_CONTEXT if inner is None else _left_transactions(store, inner)


@contextmanager
def _left_transactions(store: object, inner: TransactionScope) -> Iterator[None]:
    check_not_in_transaction(store)
    scopes = [
        scope
        for scope in _enclosing_transactions()
        if scope.store is store and not scope.is_finished
    ]
    for scope in scopes:
        scope.begin_wait()
    CURRENT_TRANSACTION.set(None)
    try:
        yield
    finally:
        CURRENT_TRANSACTION.set(inner)
        for scope in scopes:
            scope.end_wait()


class SavepointTransaction:
    """Statements of a user inside a group commit, isolated by a savepoint."""

    def __init__(
        self, thread: ThreadRunner, tables: StoreTables, lock_s: float, transaction_s: float
    ) -> None:
        self._thread = thread
        self._tables = tables
        self._lock_s = lock_s
        self._transaction_s = transaction_s
        loop = asyncio.get_running_loop()
        # Resolved when it may use the connection.
        self.started: asyncio.Future[None] = loop.create_future()
        # Resolved when no more statements come.
        self._finished: asyncio.Future[None] = loop.create_future()
        # Committed with the statements or not at all; None rolls them back.
        self.mutation: Mutation | None = None
        self._statement: asyncio.Future[Any] | None = None
        self._has_savepoint = False
        self.is_timed_out = False

    @property
    def is_finished(self) -> bool:
        """Whether nothing can be done in it any more."""
        return self.is_timed_out or self._finished.done()

    async def execute(
        self, statement: str, parameters: Sequence[Any] | None = None
    ) -> list[DatabaseRow]:
        """Run a statement and return its rows."""
        self._check()
        check_statement(statement)
        return await self._await_statement(
            self._thread.run(self._run_statement, statement, parameters)
        )

    async def call(self, function: Callable[[Any], T]) -> T:
        """Call a function with the connection in the thread of the store; return its result.

        If it raises, what it did is undone, and what was done before is not.
        """
        self._check()
        context = copy_context()
        return await self._await_statement(
            self._thread.run(self._run_function, call_with_connection, context, function)
        )

    async def call_with_session(self, function: Callable[[Any], T]) -> T:
        """Call a function with a SQLAlchemy session on the connection."""
        self._check()
        context = copy_context()
        return await self._await_statement(
            self._thread.run(self._run_function, call_with_session, context, function)
        )

    def _check(self) -> None:
        if self.is_finished:
            raise TransactionAbortedError("the transaction is over; its statements were undone")

    async def _await_statement(self, statement: asyncio.Future[T]) -> T:
        # A cancelled caller must not leave a statement behind that runs during other commits.
        self._statement = statement
        return await asyncio.shield(statement)

    def _run_statement(self, statement: str, parameters: Sequence[Any] | None) -> list[DatabaseRow]:
        database = self._ensure_savepoint()
        # User code that catches the error continues here.
        alone = savepoint(database, "postroad_statement")
        with alone if database.aborts_on_error else nullcontext():
            return database.execute_native(statement, parameters)

    def _run_function(
        self,
        lend_to: Callable[[StoreConnection, Callable[[], None], Callable[[Any], T]], T],
        context: Context,
        function: Callable[[Any], T],
    ) -> T:
        # Its caller may have been cancelled while others had the thread.
        self._check()
        database = self._ensure_savepoint()
        try:
            with savepoint(database, "postroad_call"):
                return context.run(lend_to, database, self._check, function)
        except StopIteration as error:
            # A future cannot hold it.
            raise RuntimeError(f"the function raised {error!r}") from error

    def _ensure_savepoint(self) -> StoreConnection:
        database = self._tables.database
        if self._has_savepoint:
            check_in_transaction(database)
        else:
            database.begin_savepoint(self._lock_s, self._transaction_s)
            self._has_savepoint = True
        return database

    def finish(self, mutation: Mutation | None) -> None:
        """End the statements: commit them with the mutation, or roll them back."""
        if self.is_timed_out:
            raise TransactionAbortedError(
                "the transaction took too long; its statements were undone"
            )
        if not self._finished.done():
            if mutation is not None:
                mutation.has_user_statements = True
            self.mutation = mutation
            self._finished.set_result(None)

    def fail(self, error: Exception) -> None:
        """Fail the transaction, which will not start."""
        if not self.started.done():
            self.started.set_exception(error)

    async def run(self) -> bool:
        """Run the statements of the user; return whether it is to be applied then."""
        if self._finished.done() or self.started.done():
            return False
        self.started.set_result(None)
        timer = asyncio.get_running_loop().call_later(self._transaction_s, self._on_timeout)
        try:
            await self._finished
        finally:
            timer.cancel()
        if self._statement is not None:
            if not self._statement.done():
                if self.is_timed_out:
                    # Other commits wait for it, so its time is limited.
                    await asyncio.to_thread(_cancel_quietly, self._tables.database)
                await asyncio.wait((self._statement,))
            # Its caller gets the error.
            self._statement.exception()
        return True

    def _on_timeout(self) -> None:
        """Abort it because of its timeout."""
        if not self._finished.done():
            self.is_timed_out = True
            self._finished.set_result(None)

    def apply_and_release(self) -> None:
        """Apply the mutation and release the savepoint, or roll it back; in the store's thread."""
        database, mutation = self._tables.database, self.mutation
        if self._has_savepoint:
            self._check_group(database, mutation)
            if mutation is not None:
                self._check_statements(database, mutation)
        if mutation is not None and mutation.error is None:
            try:
                mutation.apply(self._tables)
            except StoreError:
                raise
            except PostroadError as error:
                # It raised before it changed anything.
                mutation.error = error
        if not self._has_savepoint:
            return
        if mutation is None or mutation.error is not None:
            database.rollback_savepoint()
        else:
            database.release_savepoint()

    def _check_group(self, database: StoreConnection, mutation: Mutation | None) -> None:
        """Repeat the whole commit group if a statement of this transaction has rolled it back."""
        try:
            check_in_transaction(database)
        except TransactionAbortedError:
            if mutation is not None:
                # Without `fail`: what comes before it in its sequence is committed nevertheless.
                mutation.error = UsageError(
                    "a statement has rolled back the commit that others share"
                )
            raise

    def _check_statements(self, database: StoreConnection, mutation: Mutation) -> None:
        """Fail only this transaction if its statements cannot be committed."""
        try:
            database.check_savepoint()
        except StoreError:
            raise
        except Exception as error:
            mutation.fail(error)


def _cancel_quietly(database: StoreConnection) -> None:
    try:
        database.cancel()
    except Exception as error:
        logger.debug("a statement could not be ended: %r", error)
