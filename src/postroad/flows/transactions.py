"""Transactions within the code of a flow: statements on the user's own tables, done once.

    async with flow.transaction() as tx:
        await tx.execute("UPDATE accounts SET balance = balance - 5 WHERE name = 'ann'")

All statements and the fact that they were done are one commit. When the code is run again, they are
not: it is given what they returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeAlias

import msgspec

from postroad.core.errors import UsageError

from . import values
from .asks import Outcome
from .code import Code
from .requests import Conclude, Statement
from .values import Failure

Row: TypeAlias = tuple[Any, ...]


class Result(msgspec.Struct, frozen=True, array_like=True):
    """What one statement returned, as it is written down."""

    digest: bytes
    value: bytes | None = None
    failure: Failure | None = None

    def read(self) -> Outcome:
        """What the code gets."""
        if self.failure is not None:
            return Outcome(error=values.make_error(self.failure))
        assert self.value is not None
        return Outcome(values.decode(self.value))


class FlowTransaction:
    """A transaction of a flow, while its block is open."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self.position = code.current.next_position()
        self.results: list[Result] = []
        self._is_over = False

    async def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement on the database of the store and return its rows."""
        rows = await self._ask(Statement("execute", (statement, parameters), {}))
        return [tuple(row) for row in rows]

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `function(connection, …)` with a DB-API connection, in the store's thread."""
        return await self._ask(Statement("run", (function, *args), kwargs))

    async def run_session(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `function(session, …)` with a session of SQLAlchemy, in the store's thread."""
        return await self._ask(Statement("run_session", (function, *args), kwargs))

    async def _ask(self, statement: Statement) -> Any:
        if self._is_over:
            raise UsageError("the transaction is over: its block was left")
        statement.transaction = self
        statement.position = (*self.position, len(self.results))
        return await statement

    def add(self, statement: Statement, result: Result) -> None:
        """A statement was run."""
        if result.digest != statement.digest:
            raise UsageError("statements of a transaction run one after the other")
        self.results.append(result)

    async def __aenter__(self) -> FlowTransaction:
        if self._is_over or self._code.current.transaction is not None:
            raise UsageError("a transaction is one block, and not inside another")
        self._code.current.transaction = self
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over = True
        try:
            if error is None or isinstance(error, Exception):
                await Conclude(self, is_kept=error is None)
        finally:
            self._code.current.transaction = None


def result_of(statement: Statement, value: Any, error: BaseException | None) -> Result:
    """What came of a statement, to be written down."""
    if error is None:
        try:
            encoded = values.encode(value, f"what {statement.name} returned")
            return Result(statement.digest, encoded)
        except Exception as unrecordable:
            error = unrecordable
    return Result(statement.digest, failure=values.describe_error(error))


def encode_results(transaction: FlowTransaction) -> bytes:
    """What all statements of a transaction returned."""
    return values.encode(transaction.results, "what a transaction returned")


def decode_results(encoded: bytes | None) -> list[Result]:
    """The same, from the record."""
    assert encoded is not None
    found: list[Result] = values.decode(encoded, list[Result])
    return found
