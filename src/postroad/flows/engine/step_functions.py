"""Runs the functions of steps: in a thread, on the event loop, or in a transaction of the store."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import Any, Concatenate, ParamSpec, TypeVar

from postroad.core.errors import UsageError
from postroad.durable import SyncTransaction, Transaction
from postroad.durable.store import Store
from postroad.durable.store.backends.backend import DatabaseRow
from postroad.durable.store.savepoints import SavepointTransaction
from postroad.durable.transaction import call_in_thread
from postroad.flows.machine.commands import RunStep
from postroad.flows.machine.history import Position
from postroad.flows.steps import Source, StepId, step_signature

P = ParamSpec("P")
T = TypeVar("T")

_TRANSACTIONS = (Source.TRANSACTION, Source.SYNC_TRANSACTION)


class StepTransaction(Transaction, eq=False, kw_only=True):
    """The transaction of a step.

    Attributes:
        position: where the step is.
        is_started: whether it runs statements, or waits to: what is submitted now comes after it.
    """

    position: Position
    is_started: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether it timed out and was rolled back, although its function still runs."""
        return self._savepoint is not None and self._savepoint.is_timed_out

    async def execute(
        self, statement: str, parameters: Sequence[Any] | None = None
    ) -> list[DatabaseRow]:
        self.is_started = True
        return await super().execute(statement, parameters)

    async def run_sync(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self.is_started = True
        return await super().run_sync(function, *args, **kwargs)

    async def run_in_session(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self.is_started = True
        return await super().run_in_session(function, *args, **kwargs)

    def close(self) -> SavepointTransaction | None:
        self.is_started = False
        return super().close()


class StepFunctions:
    """Calls step functions."""

    def __init__(self, store: Store, threads: int) -> None:
        self._threads = store.thread_factory("postroad-step", threads)

    def close(self) -> None:
        """Start no more functions; those in threads cannot be stopped."""
        self._threads.stop()

    async def run(self, step: RunStep, step_id: str) -> Any:
        """Call a function that does not work on the store."""
        signature = step_signature(step.function)
        args, kwargs = signature.bind(step.args, step.kwargs, {Source.STEP_ID: step_id})
        if signature.is_async:
            call = step.function(*args, **kwargs)
        else:
            call = await_step_result(
                call_in_thread(self._threads, copy_context(), step.function, args, kwargs)
            )
        if step.timeout_s is None:
            return await call
        async with asyncio.timeout(step.timeout_s):
            return await call

    def call_in_thread(self, step: RunStep, context: Context) -> asyncio.Future[Any]:
        """Call a plain function in a thread."""
        return call_in_thread(self._threads, context, step.function, step.args, step.kwargs)

    async def run_in_transaction(self, step: RunStep, step_id: str, tx: Transaction) -> Any:
        """Call a function that works on the store."""
        signature = step_signature(step.function)
        context = copy_context()

        def bind(source: Source, value: Any) -> tuple[Sequence[Any], dict[str, Any]]:
            values = {source: value, Source.STEP_ID: StepId(step_id)}
            return signature.bind(step.args, step.kwargs, values)

        def call(source: Source, value: Any) -> Any:
            args, kwargs = bind(source, value)
            return context.run(step.function, *args, **kwargs)

        async with asyncio.timeout(step.timeout_s):
            for source in signature.sources.intersection(_TRANSACTIONS):
                if signature.is_async:
                    return await call(source, tx)
                arguments = bind(source, SyncTransaction(tx))
                return await await_step_result(
                    call_in_thread(self._threads, context, step.function, *arguments)
                )
            if Source.CONNECTION in signature.sources:
                return await tx.run_sync(lambda connection: call(Source.CONNECTION, connection))
            return await tx.run_in_session(lambda session: call(Source.SQL_SESSION, session))


def is_thread_only(step: RunStep) -> bool:
    """Whether a function is called in a thread without injections."""
    try:
        is_unlimited = step.timeout_s is None and step.limit is None
        return is_unlimited and step_signature(step.function).is_plain
    except UsageError:
        # The executor reports such errors.
        return False


async def await_step_result(call: asyncio.Future[Any]) -> Any:
    """Return the result of a function, or await what it returned."""
    result = await call
    return await result if inspect.isawaitable(result) else result
