"""Threads that do one thing after the other for an event loop, which goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_Job: TypeAlias = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class Thread(Protocol):
    """What runs the functions of a store."""

    def run(self, function: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Have a function called after those before it; the future is what comes of it."""

    def stop(self) -> None:
        """Do what is left, and nothing more."""


class QuickThread:
    """A thread of its own. To be handed one thing takes it half the time it takes an executor."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # Not waited for when the process ends: a store is made to be left at any moment.
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run(self, function: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put((done, function, args))
        return done

    def stop(self) -> None:
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(*job)
            # Nothing is kept alive while there is nothing to do.
            del job

    def _do(
        self, done: asyncio.Future[T], function: Callable[..., T], args: tuple[Any, ...]
    ) -> None:
        try:
            result = function(*args)
        except StopIteration as error:
            # No future takes it.
            self._tell(_fail, done, RuntimeError(f"a function of the store raised {error!r}"))
        except BaseException as error:
            self._tell(_fail, done, error)
        else:
            self._tell(_resolve, done, result)

    def _tell(self, tell: Callable[[*Ts], None], *args: *Ts) -> None:
        try:
            self._loop.call_soon_threadsafe(tell, *args)
        except RuntimeError:
            # The loop is closed, and with it whoever waited.
            self.stop()


def _resolve(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[Any], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)


class ExecutorThread:
    """A thread that the event loop knows about, so that a simulated one can stand in for it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    def run(self, function: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._executor, function, *args)

    def stop(self) -> None:
        self._executor.shutdown(wait=False)
