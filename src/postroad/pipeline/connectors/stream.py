"""Base of stream inputs, and a pool of idle clients."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from postroad.pipeline.connectors.connector import InputConnector, Position
from postroad.pipeline.connectors.options import CODECS, check_codec, check_flag, check_positive
from postroad.pipeline.job import Segment

SPLIT_SEGMENTS = 10_000
SPLIT_BYTES = 4 * 1024 * 1024
PAUSE_S = 0.05
"""How often to look whether there is more, where nobody tells."""


class StreamSplitPlanner(Protocol):
    """Knows how far a stream is read, and asks the server for more."""

    async def open(self, is_bounded: bool) -> None:
        """Connect; a bounded stream ends with what is there now."""

    async def close(self) -> None:
        """Let go of the connection, also if `open` failed."""

    async def wait(self, timeout_s: float) -> None:
        """Return when there may be more, or after some time."""

    async def on_settled(self, places: Sequence[Position]) -> None:
        """Tell the server that slices are done."""


A = TypeVar("A", bound=StreamSplitPlanner)


class StreamInput(InputConnector, Generic[A]):
    """A stream: one process keeps account of it, and any can read slices.

    Args:
        codec: how segments are encoded, `json` or `msgpack`.
        bounded: whether to end with what is there when the job begins.
        split_segments: how many segments a slice has at most.
        split_bytes: about how long a slice is at most.
    """

    def __init__(self, codec: str, bounded: bool, split_segments: int, split_bytes: int) -> None:
        self._codec = check_codec(codec)
        self.is_bounded = check_flag("bounded", bounded)
        self._split_segments = check_positive("split_segments", split_segments)
        self._split_bytes = check_positive("split_bytes", split_bytes)
        self._opened: A | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    @abstractmethod
    def _make_account(self, unsettled: Sequence[Position]) -> A:
        """What keeps account of the stream, not opened yet."""

    @abstractmethod
    def _close_reader(self) -> None:
        """Let go of what this process reads slices with; may block."""

    @property
    def _account(self) -> A:
        assert self._opened is not None, "open() comes first"
        return self._opened

    async def open(self, unsettled: Sequence[Position]) -> None:
        account = self._make_account(unsettled)
        try:
            await account.open(self.is_bounded)
        except BaseException:
            await account.close()
            raise
        self._opened = account

    async def close(self) -> None:
        account, self._opened = self._opened, None
        try:
            if account is not None:
                await account.close()
        finally:
            await asyncio.to_thread(self._close_reader)

    async def wait(self, timeout_s: float) -> None:
        if self.is_bounded:
            await asyncio.sleep(min(timeout_s, PAUSE_S))
        else:
            await self._account.wait(timeout_s)

    async def on_committed(self, places: Sequence[Position]) -> None:
        await self._account.on_settled(places)

    @property
    def decode(self) -> Callable[[bytes], Segment]:
        return CODECS[self._codec]


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
