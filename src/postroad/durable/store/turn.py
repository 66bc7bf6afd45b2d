"""A transaction of one's own on the store's connection, among the units of a round."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

import msgspec

from postroad.core.errors import PostroadError, StoreError, TransactionAbortedError, UsageError

from .database import Database, Row, check_in_transaction, savepoint
from .guarded_connection import call_with_connection, check_statement
from .ledger import Ledger
from .orm import call_with_session
from .threads import Thread
from .units import Unit

logger = logging.getLogger("postroad.durable")

T = TypeVar("T")

OPEN: ContextVar[Scope | None] = ContextVar("postroad_transaction", default=None)
"""The innermost transaction this is called in; tasks and threads begun inside inherit it."""


# A struct, which is made in half the time of a class: there is one for each message.
class Scope(msgspec.Struct, eq=False, kw_only=True):
    """A transaction, as everything sees it that is called inside of it.

    From its first statement to its end nobody else commits: whatever is called inside and waits
    for a commit of its own would wait for itself.

    Attributes:
        outer: the one around it, if it is inside of another.
        is_over: whether it can do nothing more.
    """

    store: Any
    outer: Scope | None = None
    is_over: bool = False
    # Calls inside that wait for a commit; made when there is one.
    _calls: _Calls | None = None

    __repr__ = object.__repr__

    @property
    def has_begun(self) -> bool:
        """Whether all commits wait for its end, or will as soon as it has its turn."""
        return not self.is_over

    def enter(self) -> None:
        """Have everything inside know of it that is called from here on."""
        if OPEN.get() is not self and self not in _around():
            self.outer = next((scope for scope in _around() if not scope.is_over), None)
            OPEN.set(self)

    def leave(self) -> None:
        """Have what is called from here on not know of it; it need not be called at its end."""
        if OPEN.get() is self:
            OPEN.set(self.outer)

    def begin_wait(self) -> None:
        """Something inside waits for a commit."""
        if self._calls is None:
            self._calls = _Calls()
        self._calls.count += 1
        self._calls.are_over.clear()

    def end_wait(self) -> None:
        """It waits no more."""
        assert self._calls is not None
        self._calls.count -= 1
        if not self._calls.count:
            self._calls.are_over.set()

    async def wait_until_idle(self) -> None:
        """Wait until nothing inside waits for a commit."""
        while self._calls is not None and self._calls.count:
            await self._calls.are_over.wait()


class _Calls:
    """Calls that wait for a commit."""

    __slots__ = ("are_over", "count")

    def __init__(self) -> None:
        self.count = 0
        self.are_over = asyncio.Event()


def _around() -> Iterator[Scope]:
    """The transactions this is called in, the innermost first."""
    scope = OPEN.get()
    while scope is not None:
        yield scope
        scope = scope.outer


_ANYWHERE = nullcontext()


def check_not_inside(store: object, but: Scope | None = None) -> None:
    """Refuse to wait for a commit that waits for a transaction the caller is in.

    Args:
        store: where the commit would be.
        but: a transaction that ends before.
    """
    inner = OPEN.get()
    if inner is None or (inner is but and inner.outer is None):
        # As nearly always.
        return
    for scope in _around():
        if scope is not but and scope.store is store and scope.has_begun:
            raise UsageError(
                "this would wait for the transaction it is called in, which everybody waits for: "
                "do it before the first statement, or when the transaction is over; to send, use "
                "tx.send or pass tx=tx, and what a handler shall do afterwards can be sent too"
            )


def outside(store: object) -> AbstractContextManager[None]:
    """Wait for a commit in the block, which is refused where that would never come.

    What is begun in there is not inside any transaction. One that the caller is in, and that has
    no statements yet, gets its turn when the block is left.
    """
    inner = OPEN.get()
    # Most callers are in none, and save the time of a generator.
    return _ANYWHERE if inner is None else _leaving(store, inner)


@contextmanager
def _leaving(store: object, inner: Scope) -> Iterator[None]:
    check_not_inside(store)
    scopes = [scope for scope in _around() if scope.store is store and not scope.is_over]
    for scope in scopes:
        scope.begin_wait()
    OPEN.set(None)
    try:
        yield
    finally:
        OPEN.set(inner)
        for scope in scopes:
            scope.end_wait()


class Turn:
    """Statements of a user, undone together unless the turn ends well."""

    def __init__(self, thread: Thread, ledger: Ledger, lock_s: float, transaction_s: float) -> None:
        self._thread = thread
        self._ledger = ledger
        self._lock_s = lock_s
        self._transaction_s = transaction_s
        loop = asyncio.get_running_loop()
        # Resolved when the connection is this one's to use.
        self.granted: asyncio.Future[None] = loop.create_future()
        # Resolved when no more statements come.
        self._ended: asyncio.Future[None] = loop.create_future()
        # What is done with the statements or not at all; None undoes them.
        self.unit: Unit | None = None
        self._statement: asyncio.Future[Any] | None = None
        self._has_savepoint = False
        self.is_lost = False

    @property
    def is_over(self) -> bool:
        """Whether nothing can be done in it any more."""
        return self.is_lost or self._ended.done()

    async def execute(self, statement: str, parameters: Sequence[Any] | None = None) -> list[Row]:
        """Run a statement and return its rows."""
        self._check()
        check_statement(statement)
        return await self._finish(self._thread.run(self._run_statement, statement, parameters))

    async def call(self, function: Callable[[Any], T]) -> T:
        """Call a function with the connection, in the thread of the store; what it returns.

        If it raises, what it did is undone, and what was done before is not.
        """
        self._check()
        context = copy_context()
        return await self._finish(
            self._thread.run(self._run_function, call_with_connection, context, function)
        )

    async def call_with_session(self, function: Callable[[Any], T]) -> T:
        """The same with a session of SQLAlchemy on the connection."""
        self._check()
        context = copy_context()
        return await self._finish(
            self._thread.run(self._run_function, call_with_session, context, function)
        )

    def _check(self) -> None:
        if self.is_over:
            raise TransactionAbortedError("the transaction is over; its statements were undone")

    async def _finish(self, statement: asyncio.Future[T]) -> T:
        # A caller that is cancelled must not leave a statement behind that runs into others.
        self._statement = statement
        return await asyncio.shield(statement)

    def _run_statement(self, statement: str, parameters: Sequence[Any] | None) -> list[Row]:
        database = self._enter()
        # A user who catches the error goes on from here.
        alone = savepoint(database, "postroad_statement")
        with alone if database.aborts_on_error else nullcontext():
            return database.execute_native(statement, parameters)

    def _run_function(
        self,
        lend_to: Callable[[Database, Callable[[], None], Callable[[Any], T]], T],
        context: Context,
        function: Callable[[Any], T],
    ) -> T:
        # Its caller may have given up while others had the thread.
        self._check()
        database = self._enter()
        try:
            with savepoint(database, "postroad_call"):
                return context.run(lend_to, database, self._check, function)
        except StopIteration as error:
            # No future takes it.
            raise RuntimeError(f"the function raised {error!r}") from error

    def _enter(self) -> Database:
        database = self._ledger.database
        if self._has_savepoint:
            check_in_transaction(database)
        else:
            database.begin_turn(self._lock_s, self._transaction_s)
            self._has_savepoint = True
        return database

    def end(self, unit: Unit | None) -> None:
        """Say that no more statements come: apply the unit with them, or undo them."""
        if self.is_lost:
            raise TransactionAbortedError(
                "the transaction took too long; its statements were undone"
            )
        if not self._ended.done():
            if unit is not None:
                unit.has_statements = True
            self.unit = unit
            self._ended.set_result(None)

    def refuse(self, error: Exception) -> None:
        """Tell whoever waits for this turn that there is none."""
        if not self.granted.done():
            self.granted.set_exception(error)

    async def run(self) -> bool:
        """Let the user work; whether `close` is to be called then."""
        if self._ended.done() or self.granted.done():
            return False
        self.granted.set_result(None)
        timer = asyncio.get_running_loop().call_later(self._transaction_s, self._lose)
        try:
            await self._ended
        finally:
            timer.cancel()
        if self._statement is not None:
            if not self._statement.done():
                if self.is_lost:
                    # Others wait for it, however long it would take.
                    await asyncio.to_thread(_cancel_quietly, self._ledger.database)
                await asyncio.wait((self._statement,))
            # Its caller hears of what went wrong with it.
            self._statement.exception()
        return True

    def _lose(self) -> None:
        """It took too long."""
        if not self._ended.done():
            self.is_lost = True
            self._ended.set_result(None)

    def close(self) -> None:
        """Do or undo what the user did, in the thread of the store."""
        database, unit = self._ledger.database, self.unit
        if self._has_savepoint:
            self._check_whole(database, unit)
            if unit is not None:
                self._check_statements(database, unit)
        if unit is not None and unit.error is None:
            try:
                unit.apply(self._ledger)
            except StoreError:
                raise
            except PostroadError as error:
                # It refused before it changed anything.
                unit.error = error
        if not self._has_savepoint:
            return
        if unit is None or unit.error is not None:
            database.undo_turn()
        else:
            database.keep_turn()

    def _check_whole(self, database: Database, unit: Unit | None) -> None:
        """Have the whole round done again if a statement of this turn has undone it."""
        try:
            check_in_transaction(database)
        except TransactionAbortedError:
            if unit is not None:
                # Without `refuse`: what comes before it in its lane is committed all the same.
                unit.error = UsageError("a statement has undone the commit of others too")
            raise

    def _check_statements(self, database: Database, unit: Unit) -> None:
        """Have only this one fail if what its statements did cannot be committed."""
        try:
            database.close_turn()
        except StoreError:
            raise
        except Exception as error:
            unit.refuse(error)


def _cancel_quietly(database: Database) -> None:
    try:
        database.cancel()
    except Exception as error:
        logger.debug("a statement could not be ended: %r", error)
