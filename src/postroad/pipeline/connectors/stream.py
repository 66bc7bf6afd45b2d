"""Base of stream inputs, and a pool of idle clients."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from postroad.pipeline.connectors.connector import InputConnector, Position, Split
from postroad.pipeline.connectors.options import CODECS, check_codec, check_flag, check_positive
from postroad.pipeline.job import Segment

logger = logging.getLogger("postroad.pipeline")

SPLIT_SEGMENTS = 10_000
SPLIT_BYTES = 4 * 1024 * 1024
PAUSE_S = 0.05
"""How often to look for more where the server does not notify."""

Id = TypeVar("Id", int, tuple[int, int])
"""What a server numbers the messages of a stream with."""
Range: TypeAlias = tuple[int, Id, Id]
"""Of which stream of that name, the first and the last id."""


class StreamSplitPlanner(ABC, Generic[Id]):
    """Plans the splits of a stream, and acknowledges the committed ones to the server."""

    stale_errors: ClassVar[tuple[type[OSError], ...]]
    """Raised when the server lost what it knew about this job, perhaps with the stream."""

    def __init__(self, start: Id, uncommitted: Iterable[Position]) -> None:
        self._start: Id = start
        self._position: Id = start
        # Which stream of that name it is, where the server can tell.
        self._epoch = 0
        # Planned ranges, with the ids that are known to be in them.
        self._uncommitted: dict[Range[Id], list[Id] | None] = dict.fromkeys(
            map(self._range_of, uncommitted)
        )
        # Sizes of messages above the position, by id.
        self._known: dict[Id, int] = {}
        # The last id of a planned split, whether it was admitted or not.
        self._planned_upto: Id = start
        # Ranges to acknowledge, likewise.
        self._done: list[tuple[Range[Id], list[Id] | None]] = []
        # The last id of a bounded stream.
        self._stop: Id | None = None

    @abstractmethod
    async def open(self, is_bounded: bool) -> None:
        """Connect; a bounded stream ends with what is there now."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect, also if `open` failed."""

    async def plan(
        self, after: Position | None, segments: int, split_segments: int, split_bytes: int
    ) -> list[Split]:
        """The next splits. Each begins where the last one ended, so nothing is between them."""
        try:
            try:
                await self._fetch_ahead(after, segments)
            except self.stale_errors:
                self._lose_sync()
                await self._fetch_ahead(after, segments)
        except BaseException:
            # What the server sent may be lost.
            self._lose_sync()
            raise
        return self._cut(segments, split_segments, split_bytes)

    async def _fetch_ahead(self, after: Position | None, segments: int) -> None:
        """Know so many messages above the position, if there are."""
        await self._sync(after)
        await self._acknowledge()
        while not self._is_enough(segments) and await self._fetch(segments - len(self._known)):
            continue

    def _is_enough(self, segments: int) -> bool:
        reached = max(self._known, default=self._position)
        return len(self._known) >= segments or (self._stop is not None and reached >= self._stop)

    def _cut(self, segments: int, split_segments: int, split_bytes: int) -> list[Split]:
        splits: list[Split] = []
        ids: list[Id] = []
        size, after, stop = 0, self._position, self._stop
        known = sorted(id for id in self._known if stop is None or id <= stop)[:segments]
        for id in known:
            ids.append(id)
            size += self._known[id]
            if len(ids) >= split_segments or size >= split_bytes or id == known[-1]:
                first = self._next_id(after)
                self._uncommitted[self._epoch, first, id] = ids
                splits.append(self._make_split(first, ids))
                after, ids, size = id, [], 0
        self._planned_upto = after
        return splits

    def _on_message(self, id: Id, size: int) -> None:
        if id > self._position:
            self._known[id] = size
        elif not self._is_uncommitted(id):
            # It is delivered again because its acknowledgement was lost.
            self._done.append(((self._epoch, id, id), [id]))

    def _is_uncommitted(self, id: Id) -> bool:
        return any(
            epoch == self._epoch and first <= id <= last for epoch, first, last in self._uncommitted
        )

    def _move_to(self, position: Id) -> None:
        """Forget what is behind the position, and splits that were planned and not admitted."""
        self._position = position
        self._known = {id: size for id, size in self._known.items() if id > position}
        for range_ in list(self._uncommitted):
            if range_[0] == self._epoch and range_[1] > position:
                del self._uncommitted[range_]

    async def wait(self, timeout_s: float) -> None:
        """Return when there may be more, or after some time."""
        is_more_known = max(self._known, default=self._start) > self._planned_upto
        try:
            if self._is_synced and not self._has_missed and not is_more_known:
                await self._wait_for_message(timeout_s)
                return
        except OSError:
            # The next call of `plan` raises it.
            self._lose_sync()
        await asyncio.sleep(min(timeout_s, PAUSE_S))

    async def on_committed(self, places: Iterable[Position]) -> None:
        """Acknowledge splits."""
        for range_ in map(self._range_of, places):
            self._done.append((range_, self._uncommitted.pop(range_, None)))
        await self._acknowledge()

    async def _acknowledge(self) -> None:
        """Acknowledge what is done; what cannot be acknowledged now is kept for the next time."""
        while self._done:
            done = self._done.pop()
            (epoch, first, last), ids = done
            try:
                if epoch == self._epoch:
                    await self._acknowledge_range(first, last, ids)
            except BaseException as error:
                self._done.append(done)
                if not isinstance(error, OSError):
                    raise
                logger.warning("messages %s to %s cannot be acknowledged: %s", first, last, error)
                return

    @property
    @abstractmethod
    def _is_synced(self) -> bool:
        """Whether nothing that the server sent can be lost."""

    @property
    @abstractmethod
    def _has_missed(self) -> bool:
        """Whether the server sent messages to a process that is dead."""

    @abstractmethod
    def _lose_sync(self) -> None:
        """Ask the server how far it is before the next message."""

    @abstractmethod
    async def _sync(self, after: Position | None) -> None:
        """Go to a position, and ask the server how far it is unless that is known."""

    @abstractmethod
    async def _fetch(self, segments: int) -> bool:
        """Ask for so many more messages; false if no more are there now."""

    @abstractmethod
    async def _wait_for_message(self, timeout_s: float) -> None:
        """Have the server notify."""

    @abstractmethod
    def _next_id(self, id: Id) -> Id:
        """The lowest id above one."""

    @abstractmethod
    def _range_of(self, place: Position) -> Range[Id]:
        """The range of a split."""

    @abstractmethod
    def _make_split(self, first: Id, ids: Sequence[Id]) -> Split:
        """A split with some messages."""

    @abstractmethod
    async def _acknowledge_range(self, first: Id, last: Id, ids: list[Id] | None) -> None:
        """Acknowledge the messages of a range; without ids, those that the server has there."""


class SupportsClose(Protocol):
    """Something that is open until it is closed."""

    def close(self) -> None:
        """Let go of it."""


class StreamReader(SupportsClose, Protocol):
    """Reads splits of a stream, in any process."""

    def read(self, place: Position) -> list[Any]:
        """The messages of a split; blocks."""


class StreamInput(InputConnector):
    """A stream: one process plans its splits, and any can read them.

    Subclasses set `_access`, the stream and how to connect to it.
    """

    _access: Hashable

    def __init__(self, codec: str, bounded: bool, split_segments: int, split_bytes: int) -> None:
        self._codec = check_codec(codec)
        self.is_bounded = check_flag("bounded", bounded)
        self._split_segments = check_positive("split_segments", split_segments)
        self._split_bytes = check_positive("split_bytes", split_bytes)
        self._opened: StreamSplitPlanner[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    @abstractmethod
    def _make_planner(self, uncommitted: Sequence[Position]) -> StreamSplitPlanner[Any]:
        """What plans splits, not opened yet."""

    @abstractmethod
    def _make_reader(self) -> StreamReader:
        """What reads splits in this process."""

    @property
    def _planner(self) -> StreamSplitPlanner[Any]:
        assert self._opened is not None, "open() comes first"
        return self._opened

    async def open(self, uncommitted: Sequence[Position]) -> None:
        planner = self._make_planner(uncommitted)
        try:
            await planner.open(self.is_bounded)
        except BaseException:
            await planner.close()
            raise
        self._opened = planner

    async def close(self) -> None:
        planner, self._opened = self._opened, None
        try:
            if planner is not None:
                await planner.close()
        finally:
            await asyncio.to_thread(_readers.close, self._access)

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        limits = min(self._split_segments, self.split_segments_max), self._split_bytes
        return await self._planner.plan(after, segments, *limits)

    def _read(self, place: Position) -> list[Any]:
        with _readers.borrow(self._access, self._make_reader) as reader:
            return reader.read(place)

    async def wait(self, timeout_s: float) -> None:
        if self.is_bounded:
            await asyncio.sleep(min(timeout_s, PAUSE_S))
        else:
            await self._planner.wait(timeout_s)

    async def on_committed(self, places: Sequence[Position]) -> None:
        await self._planner.on_committed(places)

    @property
    def decode(self) -> Callable[[bytes], Segment]:
        return CODECS[self._codec]


_IDLE_S = 30.0
_STOP_S = 10.0

T = TypeVar("T")


C = TypeVar("C", bound=SupportsClose)


class IdlePool(Generic[C]):
    """Open clients of this process, by keys; one that nobody uses is closed after some seconds."""

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


_readers: IdlePool[StreamReader] = IdlePool()


class EventLoopThread:
    """An event loop in a thread of its own, for those who block."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine there and wait for it; raises TimeoutError if it takes too long."""
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
