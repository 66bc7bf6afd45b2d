"""What a process keeps open between two readings, and lets go of when nobody reads for a while."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

_IDLE_S = 30.0
_STOP_S = 10.0

T = TypeVar("T")


class SupportsClose(Protocol):
    """Something that is open until it is closed."""

    def close(self) -> None:
        """Let go of it."""


C = TypeVar("C", bound=SupportsClose)


class IdlePool(Generic[C]):
    """Open things of this process, by keys.

    Args:
        idle_s: how long one is kept that nobody uses.
    """

    def __init__(self, idle_s: float = _IDLE_S) -> None:
        self._idle_s = idle_s
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        # Those of the parent are the parent's alone, to use and to close.
        self._inherited = getattr(self, "_entries", None)
        self._entries: dict[Hashable, _PooledClient[C]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def borrow(self, key: Hashable, make: Callable[[], C]) -> Iterator[C]:
        """Use what is kept under a key; made first, where there is none. Others may use it too."""
        entry = self._take(key, make)
        try:
            yield entry.thing
        finally:
            with self._lock:
                entry.users -= 1
                entry.used_at = time.monotonic()

    def _take(self, key: Hashable, make: Callable[[], C]) -> _PooledClient[C]:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _PooledClient(make())
                self._look_again(key, self._idle_s)
            entry.users += 1
            return entry

    def close(self, key: Hashable) -> None:
        """Let go of it now, unless somebody uses it."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.users:
                return
            del self._entries[key]
        entry.timer.cancel()
        entry.thing.close()

    def _look_again(self, key: Hashable, in_s: float) -> None:
        timer = threading.Timer(in_s, self._on_time, [key])
        timer.daemon = True
        self._entries[key].timer = timer
        timer.start()

    def _on_time(self, key: Hashable) -> None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return
            left_s = entry.used_at + self._idle_s - time.monotonic()
            if entry.users or left_s > 0:
                self._look_again(key, max(left_s, self._idle_s / 10))
                return
        self.close(key)


class _PooledClient(Generic[C]):
    timer: threading.Timer

    def __init__(self, thing: C) -> None:
        self.thing = thing
        self.users = 0
        self.used_at = time.monotonic()


class EventLoopThread:
    """An event loop in a thread of its own, for those who block."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run something there and wait for it.

        Raises:
            TimeoutError: it took too long, and was cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()

    def close(self) -> None:
        """End the thread, and all that goes on in it."""
        asyncio.run_coroutine_threadsafe(_end_others(), self._loop).result(_STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)
        if not self._thread.is_alive():
            self._loop.close()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
