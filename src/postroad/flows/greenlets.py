"""Runs plain functions as if they were coroutines: what they wait for switches to their driver.

A function runs in a greenlet, a stack of its own in the thread of the event loop. It is driven as a
coroutine is, by `send`, `throw` and `close`, so whatever runs the code of flows runs it unchanged.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from postroad.core.errors import MissingExtraError, UsageError

_HAS_GREENLET = find_spec("greenlet") is not None
if TYPE_CHECKING or _HAS_GREENLET:
    from greenlet import getcurrent, greenlet
else:
    getcurrent, greenlet = object, object

R = TypeVar("R")
T = TypeVar("T")


def require_greenlet() -> None:
    """Raise MissingExtraError if plain functions cannot be flows here."""
    if not _HAS_GREENLET:
        raise MissingExtraError("sync", "a flow that is a plain `def`")


class GreenletCoroutine(Coroutine[Any, Any, R]):
    """A call of a plain function, driven like a coroutine.

    Args:
        function: is called without arguments; inside, `wait_for` waits.
    """

    __slots__ = ("_function", "_greenlet")

    def __init__(self, function: Callable[[], R]) -> None:
        self._function = function
        # Created when it starts: calls that never start must cost nothing.
        self._greenlet: _Stack | None = None

    def send(self, value: Any) -> Any:
        """Run until the function waits; return its command, or raise StopIteration."""
        stack = self._greenlet
        if stack is None:
            stack = self._greenlet = _Stack(self._function)
            return self._on_switched(stack, stack.switch())
        self._check_alive(stack)
        stack.parent = getcurrent()
        return self._on_switched(stack, stack.switch(value))

    def throw(self, error: Any, value: Any = None, traceback: Any = None, /) -> Any:
        """Raise an error where the function waits, and continue."""
        stack = self._greenlet
        if stack is None:
            # It has not started, and never will.
            stack = self._greenlet = _Stack(self._function)
        self._check_alive(stack)
        stack.parent = getcurrent()
        return self._on_switched(stack, stack.throw(error, value, traceback))

    def close(self) -> None:
        """End the function where it waits; raises RuntimeError if it waits for more."""
        stack = self._greenlet
        if stack is None or stack.dead:
            return
        try:
            self.throw(GeneratorExit())
        except (StopIteration, GeneratorExit):
            return
        raise RuntimeError("the function ignored GeneratorExit")

    def __await__(self) -> Generator[Any, Any, R]:
        try:
            command = self.send(None)
            while True:
                try:
                    value = yield command
                except BaseException as error:
                    command = self.throw(error)
                else:
                    command = self.send(value)
        except StopIteration as stop:
            result: R = stop.value
            return result

    def _check_alive(self, stack: _Stack) -> None:
        if stack.dead:
            raise RuntimeError("cannot reuse a function that has ended")

    def _on_switched(self, stack: _Stack, switched: Any) -> Any:
        if stack.dead:
            raise StopIteration(switched)
        return switched


class _Stack(greenlet):
    """The stack of a function."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__()
        self._function = function
        # In the context of the branch, which is the current one, as a coroutine does.
        self.gr_context = _current_context()

    def run(self) -> Any:
        try:
            result = self._function()
        except StopIteration as error:
            raise RuntimeError("the function raised StopIteration") from error
        if inspect.iscoroutine(result):
            result.close()
            raise UsageError(
                "the function returned a coroutine, which nothing waits for: write it as "
                "`async def`, or call no coroutine functions in it"
            )
        return result


def _current_context() -> contextvars.Context | None:
    # None starts with an empty context: flow code always has one.
    return getcurrent().gr_context


def _switch_out(stack: _Stack, command: Any) -> Any:
    driver = stack.parent
    assert driver is not None
    return driver.switch(command)


def wait_for(awaitable: Awaitable[T]) -> T:
    """Wait for something from inside a function that a `GreenletCoroutine` runs.

    Raises:
        UsageError: called from elsewhere, such as a step or a thread.
    """
    current = getcurrent()
    if not isinstance(current, _Stack):
        if inspect.iscoroutine(awaitable):
            awaitable.close()
        raise UsageError(
            "the context of a flow belongs to the code of the flow, which runs in a greenlet: a "
            "step, a query handler or a thread cannot wait with it"
        )
    steps = awaitable.__await__()
    try:
        command = next(steps)
        while True:
            try:
                value = _switch_out(current, command)
            except BaseException as error:
                command = steps.throw(error)
            else:
                command = steps.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result
