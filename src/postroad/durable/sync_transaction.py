"""Plain functions in threads: a transaction without `await`, and no coroutine that is forgotten."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context, ContextVar
from functools import lru_cache
from typing import Any, Concatenate, ParamSpec, TypeVar

from postroad.core.errors import UsageError
from postroad.durable.injection import name_of
from postroad.durable.store.backends.backend import DatabaseRow
from postroad.durable.store.worker_threads import ThreadRunner
from postroad.durable.transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")


class SyncTransaction:
    """A `Transaction` for a plain `def`, which runs in a thread: its methods wait by themselves.

    @consumer(orders)
    def bill(order: Order, tx: SyncTransaction) -> None:
        tx.execute("INSERT INTO bills VALUES (?)", (order.item,))
        invoices.send(order, tx=tx)
    """

    __slots__ = ("_call", "_tx", "reply", "send", "send_message")

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._call = ThreadCall(asyncio.get_running_loop())
        # These do not wait.
        self.send = tx.send
        self.send_message = tx.send_message
        self.reply = tx.reply

    def execute(self, statement: str, parameters: Sequence[Any] | None = None) -> list[DatabaseRow]:
        """Run a statement and return its rows: see `Transaction.execute`."""
        return self._call.wait_for(self._tx.execute(statement, parameters))

    def run_sync(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function with a DB-API 2 connection: see `Transaction.run_sync`."""
        return self._call.wait_for(self._tx.run_sync(function, *args, **kwargs))

    def run_in_session(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function with a `Session` of SQLAlchemy: see `Transaction.run_in_session`."""
        return self._call.wait_for(self._tx.run_in_session(function, *args, **kwargs))


class ThreadCall:
    """A call of a plain function in a thread, beside the event loop of its node.

    Attributes:
        forgotten: names of the coroutines that it made and nothing waited for.
    """

    __slots__ = ("_loop", "forgotten")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.forgotten: list[str] = []

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of the node and return its result.

        Raises:
            UsageError: called where an event loop runs, which would wait for itself.
        """
        if asyncio._get_running_loop() is None and _CURRENT.get() is not None:
            if not _is_simulated(self._loop):
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
            reason = "the simulator has no threads, so a plain `def` cannot wait in it"
        else:
            reason = "only the plain `def` that it was given to can wait with it, in its thread"
        name = name_of(coroutine)
        coroutine.close()
        raise UsageError(f"{name}() cannot wait here: {reason}; write an `async def`, and await it")


_CURRENT: ContextVar[ThreadCall | None] = ContextVar("postroad_thread_call", default=None)


def current_thread_call() -> ThreadCall | None:
    """The plain function that this is called in, in its thread; None elsewhere."""
    call = _CURRENT.get()
    return None if call is None or asyncio._get_running_loop() is not None else call


def call_in_thread(
    threads: ThreadRunner,
    context: Context,
    function: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> asyncio.Future[T]:
    """Have a plain function called in a thread; it fails if it leaves a coroutine unawaited."""
    _collect_forgotten()
    call = ThreadCall(asyncio.get_running_loop())
    return threads.run(context.run, _run, call, function, args, kwargs or {})


def _run(
    call: ThreadCall, function: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> T:
    _CURRENT.set(call)
    result = function(*args, **kwargs)
    if call.forgotten:
        names = ", ".join(f"{name}()" for name in call.forgotten)
        raise UsageError(
            f"{name_of(function)} is a plain `def` and called {names}, which did nothing because "
            "nothing awaited it: make it an `async def` and await, or call no coroutine functions"
        )
    return result


def _is_simulated(loop: asyncio.AbstractEventLoop) -> bool:
    # Known by its name: the simulator is above this layer.
    return type(loop).__name__ == "SimLoop"


@lru_cache(maxsize=1)
def _collect_forgotten() -> None:
    """Tell each plain function of the coroutines it forgets, which Python only warns of."""
    # The interpreter looks this name up whenever it drops a coroutine that was never awaited.
    warn = getattr(warnings, "_warn_unawaited_coroutine", None)
    if warn is None:
        return

    def collect(coroutine: Coroutine[Any, Any, object]) -> None:
        call = _CURRENT.get()
        if call is None:
            warn(coroutine)
        else:
            call.forgotten.append(name_of(coroutine))

    setattr(warnings, "_warn_unawaited_coroutine", collect)  # noqa: B010
