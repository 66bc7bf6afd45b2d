"""The thread that the functions of a job run in, beside the event loop of their process."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

from postroad.pipeline.time_limits import (
    TimeLimitReached,
    forget_interruption,
    interrupt_if_late,
    interrupt_thread,
    supervised_thread,
)

T = TypeVar("T")

# Whoever is cancelled waits so long for what it is doing; what never ends is left alone.
_STOP_S = 1.0


class StuckFunctionError(Exception):
    """A function did not end when its time was up, and cannot be interrupted."""


class FunctionThread:
    """One thread for all calls: what hooks made in it, such as connections, is used in it."""

    def __init__(self, look_s: float) -> None:
        self._look_s = look_s
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_stopped = False
        # Whether it did not end what it was at when it should have.
        self._is_stuck = False
        # A daemon, because nobody can end a call into C.
        self._thread = threading.Thread(target=self._work, name="postroad-functions", daemon=True)
        self._thread.start()

    async def run(self, call: Callable[[], T]) -> T:
        """Call a function in the thread; raises StuckFunctionError if it never ends."""
        loop, thread = asyncio.get_running_loop(), self._thread.ident
        assert thread is not None
        if self._is_stuck:
            raise StuckFunctionError
        outcome: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if not outcome.done():
                outcome.set_result((result, error))

        def report(result: T | None = None, failure: BaseException | None = None) -> None:
            # It may be too late, and the loop be gone.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, failure)

        def work() -> None:
            result, failure = None, None
            try:
                result = call()
            except BaseException as error:
                failure = error
            report(result, failure)

        self._calls.put(work)
        try:
            while not outcome.done():
                await asyncio.wait([outcome], timeout=self._look_s)
                if not outcome.done() and interrupt_if_late(thread):
                    self._is_stuck = True
                    raise StuckFunctionError
        except asyncio.CancelledError:
            interrupt_thread(thread)
            # If the call has just ended this hits what comes next, or what the call reports.
            self._calls.put(lambda: None)
            self._calls.put(report)
            await asyncio.wait([outcome], timeout=_STOP_S)
            self._is_stuck = not outcome.done()
            if self._is_stuck:
                forget_interruption(thread)
            raise
        result, error = outcome.result()
        if isinstance(error, TimeLimitReached):
            # It was raised when the call it was meant for had just ended.
            raise StuckFunctionError from None
        if error is not None:
            raise error
        return cast("T", result)

    def abandon(self) -> None:
        """Have the thread end when what it is doing does."""
        self._is_stopped = True
        self._calls.put(lambda: None)

    def _work(self) -> None:
        with supervised_thread():
            while not self._is_stopped:
                # The inner loop, because what is raised may come with its jump back, too.
                with suppress(TimeLimitReached):
                    while not self._is_stopped:
                        self._calls.get()()
