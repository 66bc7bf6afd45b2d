"""How the code of a flow runs a step."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, overload

from postroad.core import RetryPolicy
from postroad.core.errors import UsageError
from postroad.core.injection import name_of

from .requests import RunStep
from .step_signature import step_signature

P = ParamSpec("P")
T = TypeVar("T")

_OPTIONS = frozenset(("name", "retry", "timeout"))


class StepOptions:
    """How a step is run.

    Attributes:
        retry: how often and when to try again if it raises; not at all by default.
        timeout_s: seconds for each attempt.
        name: what it is called in the record; the function's name by default.
        is_read: whether it is recorded with the next commit of the flow, in place of its own.
    """

    __slots__ = ("is_read", "name", "retry", "timeout_s")

    def __init__(
        self,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        name: str | None = None,
        *,
        is_read: bool = False,
    ) -> None:
        self.is_read = is_read
        self.retry = retry
        self.timeout_s = timeout
        self.name = name

    def make(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RunStep:
        """What the code waits for."""
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
            is_read=self.is_read,
        )


class StepCaller(StepOptions):
    """Runs functions that may do anything, and remembers what they return: `ctx.step`.

        receipt = await ctx.step(charge, order)
        await ctx.step.with_options(retry=RetryPolicy(max_attempts=5), timeout=10)(ship, order)

    An `async def` runs on the event loop, a `def`, which may block, in a thread. A function with a
    parameter annotated as `Transaction` does what it does through that transaction, with this step:
    once. Any other is run again if the process dies before its result is written down; one with a
    parameter annotated as `StepId` is given a text that is the same whenever that happens. Give
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
    ) -> StepCaller:
        """The same with options: call what this returns with the function and its arguments.

        Args:
            retry: how often and when to try again if the function raises; not at all by default.
            timeout: seconds for each attempt.
            name: what the step is called in the record; the function's name by default.
        """
        return StepCaller(retry, timeout, name, is_read=self.is_read)


def _check_options(function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Raise UsageError if options are given as arguments of a function that has no such ones."""
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
    """What a function is called whenever the code is run: nothing of its address in memory."""
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name
