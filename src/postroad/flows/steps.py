"""Steps as flow code calls them, and injection into the parameters of their functions."""

from __future__ import annotations

import enum
import functools
import inspect
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NewType, ParamSpec, Protocol, TypeVar, overload

from postroad.core import RetryPolicy
from postroad.core.errors import UsageError
from postroad.durable import SyncTransaction, Transaction
from postroad.durable.injection import (
    fill,
    find_injections,
    find_parameters,
    is_async_function,
    name_of,
)
from postroad.flows.machine.commands import RunStep, StepLimit

StepId = NewType("StepId", str)
"""A globally unique id of a step, the same in each attempt: an idempotency key."""


class StoreConnection(Protocol):
    """The DB-API 2 connection of the store, inside the transaction of a step.

    A connection of `sqlite3` or `psycopg`, which can be used as annotations too; it cannot commit.
    """

    def cursor(self) -> Any:
        """Return a new cursor."""
        ...

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> Any:
        """Run a statement and return its cursor."""
        ...


class Source(enum.Enum):
    """The source of an injected parameter."""

    TRANSACTION = "Transaction"
    SYNC_TRANSACTION = "SyncTransaction"
    CONNECTION = "StoreConnection"
    SQL_SESSION = "sqlalchemy.orm.Session"
    STEP_ID = "StepId"


_NAMES = ("Transaction", "SyncTransaction", "StoreConnection", "Connection", "Session", "StepId")
_BLOCKING = (Source.SYNC_TRANSACTION, Source.CONNECTION, Source.SQL_SESSION)
# Former versions injected into parameters of these names, whatever their annotation.
_FORMER = {
    "tx": Source.TRANSACTION,
    "connection": Source.CONNECTION,
    "sql_session": Source.SQL_SESSION,
    "step_id": Source.STEP_ID,
}


def _source_of(hint: Any) -> Source | None:
    if hint is Transaction:
        return Source.TRANSACTION
    if hint is SyncTransaction:
        return Source.SYNC_TRANSACTION
    if hint is StepId:
        return Source.STEP_ID
    if hint is StoreConnection or hint is sqlite3.Connection or _is("psycopg", "Connection", hint):
        return Source.CONNECTION
    if _is("sqlalchemy.orm", "Session", hint):
        return Source.SQL_SESSION
    return None


def _is(module: str, name: str, hint: Any) -> bool:
    # A module that annotates with it has imported it.
    return module in sys.modules and hint is getattr(sys.modules[module], name, None)


class StepSignature:
    """The calling convention of a step function.

    Attributes:
        is_async: whether it runs on the event loop, not in a thread.
        sources: what is injected into its parameters.
        is_transaction: whether it works on the store, in the commit of the step.
    """

    __slots__ = ("_former", "_function", "_injections", "is_async", "is_transaction", "sources")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.is_async = is_async_function(function)
        parameters = find_parameters(function)
        self._injections = find_injections(function, parameters, _source_of, _NAMES)
        self.sources = frozenset(injection.source for injection in self._injections)
        self.is_transaction = bool(self.sources - {Source.STEP_ID})
        filled = {injection.name for injection in self._injections}
        self._former = [
            parameter.name
            for parameter in parameters
            if parameter.name in _FORMER.keys() - filled and parameter.default is parameter.empty
        ]
        self._check()

    @property
    def is_plain(self) -> bool:
        """Whether it is called in a thread and nothing is injected."""
        return not (self.is_async or self.sources or self._former)

    def _check(self) -> None:
        name = name_of(self._function)
        blocking = self.sources.intersection(_BLOCKING)
        if blocking and self.is_async:
            raise UsageError(
                f"step {name} injects a {min(source.value for source in blocking)}, so it must be "
                "a `def`; an `async def` can use a Transaction instead"
            )

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], values: Mapping[Source, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the arguments of a call with the injected ones."""
        if self._former:
            self._check_former(args, kwargs, values)
        if not self._injections:
            return args, kwargs
        return fill(self._injections, values, args, kwargs)

    def _check_former(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], values: Mapping[Source, Any]
    ) -> None:
        filled, named = fill(self._injections, values, args, kwargs)
        arguments = inspect.signature(self._function).bind_partial(*filled, **named).arguments
        for name in self._former:
            if name not in arguments:
                annotation = _FORMER[name].value
                raise UsageError(
                    f"parameter `{name}` of step {name_of(self._function)} is not filled in for "
                    f"its name: write `{name}: {annotation} = INJECTED`"
                )


def step_signature(function: Callable[..., Any]) -> StepSignature:
    """Return the signature of a step function; raises UsageError if an injection is invalid."""
    try:
        return _step_signature(function)
    except TypeError:
        # A callable object that is not hashable.
        return StepSignature(function)


_step_signature = functools.lru_cache(maxsize=4096)(StepSignature)


P = ParamSpec("P")
T = TypeVar("T")

_OPTIONS = frozenset(("limit", "name", "retry", "timeout"))


class StepOptions:
    """Options of a step.

    Attributes:
        retry: the retry policy for errors of the function; no retries by default.
        timeout_s: seconds for each attempt.
        name: the name in the history; by default that of the function.
        limit: the limit that it shares with other steps; none by default.
        is_read: whether the next commit of the flow records it, instead of one of its own.
    """

    __slots__ = ("is_read", "limit", "name", "retry", "timeout_s")

    def __init__(
        self,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        name: str | None = None,
        limit: StepLimit | None = None,
        *,
        is_read: bool = False,
    ) -> None:
        self.is_read = is_read
        self.limit = limit
        self.retry = retry
        self.timeout_s = timeout
        self.name = name

    def make(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RunStep:
        """Return the command that the code awaits."""
        if kwargs and not _OPTIONS.isdisjoint(kwargs):
            _check_options(function, kwargs)
        if self.is_read and step_signature(function).is_transaction:
            raise UsageError(
                f"{name_of(function)} works in the transaction that records its result: run "
                "it with ctx.step, not with ctx.read"
            )
        return RunStep(
            function,
            args,
            kwargs,
            name=self.name or _name_in_record(function),
            retry=self.retry,
            timeout_s=self.timeout_s,
            limit=self.limit,
            is_read=self.is_read,
        )


class StepCaller(StepOptions):
    """Runs functions that may do anything, and records their results: `ctx.step`.

        receipt = await ctx.step(charge, order)
        await ctx.step.with_options(retry=RetryPolicy(max_attempts=5), timeout=10)(ship, order)

    An `async def` runs on the event loop; a `def`, which may block, in a thread. A function with a
    parameter annotated as `Transaction` writes through that transaction, which commits with the
    step: exactly once. Any other function runs again if the process dies before its result is
    recorded; a parameter annotated as `StepId` gets a text that is the same in each attempt. Give
    such parameters the default `INJECTED`, so that type checkers accept a call without them.
    """

    __slots__ = ()

    @overload
    async def __call__(
        self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def __call__(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    async def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self.make(function, args, kwargs)

    def with_options(
        self,
        *,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        name: str | None = None,
        limit: StepLimit | None = None,
    ) -> StepCaller:
        """Return a caller with options; call it with the function and its arguments.

        Args:
            retry: the retry policy for errors of the function; no retries by default.
            timeout: seconds for each attempt.
            name: the name in the history; by default that of the function.
            limit: the limit that it shares with other steps; none by default.
        """
        return StepCaller(retry, timeout, name, limit, is_read=self.is_read)


def _check_options(function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Raise UsageError if options are passed as arguments that the function does not have."""
    try:
        parameters = inspect.signature(function).parameters
    except (NameError, TypeError, ValueError):
        return
    wrong = [name for name in sorted(_OPTIONS.intersection(kwargs)) if name not in parameters]
    if wrong and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        options = ", ".join(f"{name}=..." for name in wrong)
        raise UsageError(
            f"{name_of(function)} has no parameter {wrong[0]!r}; as an option of the step write "
            f"ctx.step.with_options({options})(function, ...)"
        )


def _name_in_record(function: Callable[..., Any]) -> str:
    """Return a name that is the same in each replay, without an address in memory."""
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name
