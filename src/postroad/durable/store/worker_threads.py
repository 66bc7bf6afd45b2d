"""Threads that run blocking functions for an event loop: one, in order, or several."""

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


class ThreadRunner(Protocol):
    """Runs functions in threads, such as those of a store."""

    def run(self, function: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Call a function after those submitted before it; return the future of its result.

        If the future is cancelled before that, the function is not called.
        """

    def stop(self) -> None:
        """Run the functions that were submitted, and accept no more."""


class DirectThreadRunner:
    """Threads with a queue, which take half the time of an executor for a call.

    Args:
        name: of the threads.
        number: the most threads; they are created as needed.
    """

    def __init__(self, name: str, number: int = 1) -> None:
        self._name = name
        self._number = number
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = 0
        # Number of calls without a result so far.
        self._outstanding = 0
        self._start()

    def _start(self) -> None:
        self._threads += 1
        # A daemon: a store may be left at any moment, so the end of the process does not wait.
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def run(self, function: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self._loop.create_future()
        self._outstanding += 1
        if self._threads < self._outstanding and self._threads < self._number:
            self._start()
        self._jobs.put((done, function, args))
        return done

    def stop(self) -> None:
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run_job(*job)
            # An idle thread keeps no arguments alive.
            del job

    def _run_job(
        self, done: asyncio.Future[T], function: Callable[..., T], args: tuple[Any, ...]
    ) -> None:
        if done.cancelled():
            self._post_result(self._resolve, done, None)
            return
        try:
            result = function(*args)
        except StopIteration as error:
            # A future cannot hold it.
            self._post_result(
                self._fail, done, RuntimeError(f"a function in a thread raised {error!r}")
            )
        except BaseException as error:
            self._post_result(self._fail, done, error)
        else:
            self._post_result(self._resolve, done, result)

    def _post_result(self, callback: Callable[[*Ts], None], *args: *Ts) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            # The loop is closed, so no one waits for the result.
            self.stop()

    def _resolve(self, done: asyncio.Future[Any], result: Any) -> None:
        self._outstanding -= 1
        if not done.done():
            done.set_result(result)

    def _fail(self, done: asyncio.Future[Any], error: BaseException) -> None:
        self._outstanding -= 1
        if not done.done():
            done.set_exception(error)


class ExecutorThreadRunner:
    """Threads of an executor, which a simulated event loop replaces."""

    def __init__(self, name: str, number: int = 1) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(number, thread_name_prefix=name)

    def run(self, function: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._executor, function, *args)

    def stop(self) -> None:
        self._executor.shutdown(wait=False)
