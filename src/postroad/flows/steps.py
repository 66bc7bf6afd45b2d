"""Runs the functions of steps: in a thread, on the event loop, or in a transaction of the store."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import Any, Concatenate, ParamSpec, TypeVar

from postroad.core.errors import TransactionAbortedError, UsageError
from postroad.durable import Transaction
from postroad.durable.store import Store
from postroad.durable.store.database import Row
from postroad.durable.store.turn import Turn

from .records import Position
from .requests import Step

P = ParamSpec("P")
T = TypeVar("T")

_INJECTED = ("tx", "connection", "sql_session", "step_id")


class Form:
    """How a function wants to be called."""

    __slots__ = ("is_async", "wants")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        )
        try:
            names = frozenset(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            # Some built-in functions do not tell.
            names = frozenset()
        self.wants = names.intersection(_INJECTED)

    @property
    def is_transaction(self) -> bool:
        """Whether it works on the store, with the step."""
        return not self.wants.isdisjoint(("tx", "connection", "sql_session"))


def form_of(function: Callable[..., Any]) -> Form:
    """How a function wants to be called."""
    try:
        return _form_of(function)
    except TypeError:
        # An object that can be called, and cannot be a key.
        return _form_of.__wrapped__(function)


@functools.lru_cache(maxsize=4096)
def _form_of(function: Callable[..., Any]) -> Form:
    form = Form(function)
    _check(function, form)
    return form


def _check(function: Callable[..., Any], form: Form) -> None:
    if "tx" in form.wants and not form.is_async:
        raise UsageError(
            f"step {function!r} has a parameter tx, so it must be an `async def`; one that is not "
            "can have a parameter `connection` instead"
        )
    blocking = form.wants & {"connection", "sql_session"}
    if blocking and form.is_async:
        raise UsageError(
            f"step {function!r} has a parameter {min(blocking)}, so it must not be an `async def`; "
            "one that is can have a parameter `tx` instead"
        )


class StepTransaction(Transaction, eq=False, kw_only=True):
    """The transaction of a step.

    Attributes:
        position: where the step is.
        is_begun: whether it runs statements, or waits to: what is submitted now comes after it.
    """

    position: Position
    is_begun: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether it took too long and was undone, although its function still runs."""
        return self._turn is not None and self._turn.is_lost

    async def execute(self, statement: str, parameters: Sequence[Any] | None = None) -> list[Row]:
        self.is_begun = True
        return await super().execute(statement, parameters)

    async def run(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self.is_begun = True
        return await super().run(function, *args, **kwargs)

    async def run_session(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self.is_begun = True
        return await super().run_session(function, *args, **kwargs)

    def close(self) -> Turn | None:
        self.is_begun = False
        return super().close()


class Functions:
    """Runs functions, again where they are to be tried again."""

    def __init__(self, store: Store, threads: int) -> None:
        self._threads = store.make_threads("postroad-step", threads)

    def close(self) -> None:
        """Run nothing more; what runs in a thread cannot be stopped."""
        self._threads.stop()

    async def run(self, step: Step, step_id: str) -> Any:
        """Run a function that does not work on the store."""
        form = form_of(step.function)
        kwargs = {**step.kwargs, "step_id": step_id} if "step_id" in form.wants else step.kwargs
        if step.timeout_s is None:
            return await self._call(step, form, kwargs)
        async with asyncio.timeout(step.timeout_s):
            return await self._call(step, form, kwargs)

    async def _call(self, step: Step, form: Form, kwargs: dict[str, Any]) -> Any:
        if form.is_async:
            return await step.function(*step.args, **kwargs)
        call = functools.partial(copy_context().run, step.function, *step.args, **kwargs)
        return await unwrap(self._threads.run(call))

    def call(self, step: Step, context: Context) -> asyncio.Future[Any]:
        """Have a plain function called in a thread."""
        call = functools.partial(context.run, step.function, *step.args, **step.kwargs)
        return self._threads.run(call)

    async def run_in(self, step: Step, step_id: str, tx: Transaction) -> Any:
        """Run a function that works on the store."""
        form = form_of(step.function)
        kwargs = {**step.kwargs, "step_id": step_id} if "step_id" in form.wants else step.kwargs
        async with asyncio.timeout(step.timeout_s):
            if "tx" in form.wants:
                return await step.function(*step.args, tx=tx, **kwargs)
            context = copy_context()
            if "connection" in form.wants:
                return await tx.run(lambda it: context.run(_with, step, "connection", kwargs, it))
            return await tx.run_session(
                lambda it: context.run(_with, step, "sql_session", kwargs, it)
            )


def is_plain(step: Step) -> bool:
    """Whether a function is called in a thread and needs nothing else."""
    try:
        form = form_of(step.function)
    except (TypeError, UsageError):
        # Whoever runs it hears of that.
        return False
    return not form.is_async and not form.wants and step.timeout_s is None


async def unwrap(call: asyncio.Future[Any]) -> Any:
    """What a function returned, or what it returned something to wait for."""
    result = await call
    return await result if inspect.isawaitable(result) else result


def _with(step: Step, name: str, kwargs: dict[str, Any], given: Any) -> Any:
    return step.function(*step.args, **kwargs, **{name: given})


def pause_s(step: Step, error: BaseException, failures: int) -> float | None:
    """Seconds until a step that failed is tried again; None if it is not."""
    if not isinstance(error, Exception):
        return None
    if isinstance(error, TransactionAbortedError) and failures < 3:
        # Not a fault of the function: others had the store for too long.
        return 0.05 * failures
    if step.retry is None or failures >= step.retry.attempts:
        return None
    return step.retry.pause_s(failures, random.random())
