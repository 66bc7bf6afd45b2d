"""A transaction of one's own on the store's connection, among the units of a round."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from postroad.core.errors import PostroadError, StoreError, TransactionLost, UsageError

from .database import Row
from .ledger import Ledger
from .statements import check_statement
from .threads import Thread
from .units import Unit

OPEN: ContextVar[Turn | None] = ContextVar("postroad_turn", default=None)
"""The turn whose statements have begun in this task: commits wait for its end."""


def check_not_inside() -> None:
    """Refuse to wait for a commit that waits for the caller's own transaction."""
    turn = OPEN.get()
    # Tasks inherit what was open when they were made, and may outlive it.
    if turn is not None and not turn.is_over and turn.task is asyncio.current_task():
        raise UsageError(
            "this would wait for the transaction it is called in: pass tx=tx, or do it before "
            "the first statement"
        )


class Turn:
    """Statements of a user, undone together unless the turn ends well."""

    def __init__(self, thread: Thread, ledger: Ledger) -> None:
        self._thread = thread
        self._ledger = ledger
        loop = asyncio.get_running_loop()
        # Resolved when the connection is this one's to use.
        self.granted: asyncio.Future[None] = loop.create_future()
        # Resolved when no more statements come.
        self._ended: asyncio.Future[None] = loop.create_future()
        # What is done with the statements or not at all; None undoes them.
        self.unit: Unit | None = None
        self._statement: asyncio.Future[list[Row]] | None = None
        self._has_savepoint = False
        self.is_lost = False
        self.task = asyncio.current_task()

    @property
    def is_over(self) -> bool:
        """Whether nothing can be done in it any more."""
        return self.is_lost or self._ended.done()

    async def execute(self, statement: str, parameters: Sequence[Any] | None = None) -> list[Row]:
        """Run a statement and return its rows."""
        if self.is_lost or self._ended.done():
            raise TransactionLost("the transaction is over; its statements were undone")
        check_statement(statement)
        # A caller that is cancelled must not leave a statement behind that runs into others.
        self._statement = self._thread.run(self._run_statement, statement, parameters)
        return await asyncio.shield(self._statement)

    def _run_statement(self, statement: str, parameters: Sequence[Any] | None) -> list[Row]:
        database = self._ledger.database
        if not self._has_savepoint:
            database.execute("SAVEPOINT postroad_turn")
            self._has_savepoint = True
        elif not database.is_in_transaction:
            raise TransactionLost("a statement before this one has undone the whole transaction")
        if not database.aborts_on_error:
            return database.execute_native(statement, parameters)
        # A user who catches the error goes on from here.
        database.execute("SAVEPOINT postroad_statement")
        try:
            rows = database.execute_native(statement, parameters)
        except BaseException:
            database.execute("ROLLBACK TO SAVEPOINT postroad_statement")
            raise
        finally:
            database.execute("RELEASE SAVEPOINT postroad_statement")
        return rows

    def end(self, unit: Unit | None) -> None:
        """Say that no more statements come: apply the unit with them, or undo them."""
        if self.is_lost:
            raise TransactionLost("the transaction took too long; its statements were undone")
        if not self._ended.done():
            if unit is not None:
                unit.has_statements = True
            self.unit = unit
            self._ended.set_result(None)

    def refuse(self, error: Exception) -> None:
        """Tell whoever waits for this turn that there is none."""
        if not self.granted.done():
            self.granted.set_exception(error)

    async def run(self, timeout_s: float) -> None:
        """Let the user work, and do or undo what it did."""
        if self._ended.done() or self.granted.done():
            return
        self.granted.set_result(None)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._ended)
        except TimeoutError:
            self.is_lost = True
        if self._statement is not None:
            await asyncio.wait((self._statement,))
            # Its caller hears of what went wrong with it.
            self._statement.exception()
        await self._thread.run(self._close)

    def _close(self) -> None:
        database, unit = self._ledger.database, self.unit
        if unit is not None:
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
            database.execute("ROLLBACK TO SAVEPOINT postroad_turn")
        database.execute("RELEASE SAVEPOINT postroad_turn")
