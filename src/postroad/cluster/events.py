"""Changes of the cluster, handed to callbacks and to readers that wait for them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Self, TypeAlias

from postroad.core.errors import EventsLost, PostroadError

from .membership import MemberChange

logger = logging.getLogger("postroad.cluster")

Listener: TypeAlias = Callable[[MemberChange], object]

# Changes kept for a reader that does not read.
_UNREAD_MAX = 10_000


class ChangeStream:
    """Changes in their order, from the moment it was made: `async for change in agent.changes()`.

    It ends when the agent stops. It raises `EventsLost` if its reader falls too far behind, and
    `NameTaken` if this node has to leave because of its name.
    """

    def __init__(self, on_close: Callable[[ChangeStream], None]) -> None:
        self._on_close = on_close
        self._unread: deque[MemberChange] = deque()
        self._wake: asyncio.Future[None] | None = None
        # What the reader is told after what is unread.
        self._end: PostroadError | None = None
        self._is_closed = False

    def put(self, change: MemberChange) -> None:
        """Add a change."""
        if len(self._unread) >= _UNREAD_MAX:
            self._unread.clear()
            self.close(EventsLost(f"more than {_UNREAD_MAX} changes were not read in time"))
            return
        self._unread.append(change)
        self._stir()

    def close(self, error: PostroadError | None = None) -> None:
        """End it, with an error if there is one."""
        if not self._is_closed:
            self._is_closed = True
            self._end = error
            self._on_close(self)
            self._stir()

    def _stir(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MemberChange:
        while not self._unread:
            if self._end is not None:
                raise self._end
            if self._is_closed:
                raise StopAsyncIteration
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return self._unread.popleft()


class Audience:
    """Everybody who wants to hear of changes."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._streams: dict[ChangeStream, None] = {}
        # Changes that come up while one is told wait for their turn.
        self._untold: deque[MemberChange] = deque()
        self._is_telling = False
        self._is_closed = False
        self._end: PostroadError | None = None

    def add(self, listener: Listener) -> None:
        """Call it with every change."""
        self._listeners.append(listener)

    def remove(self, listener: Listener) -> None:
        """Call it no more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def open_stream(self) -> ChangeStream:
        """A new reader."""
        stream = ChangeStream(self._forget)
        self._streams[stream] = None
        if self._is_closed:
            stream.close(self._end)
        return stream

    def _forget(self, stream: ChangeStream) -> None:
        self._streams.pop(stream, None)

    def tell(self, change: MemberChange) -> None:
        """Tell everybody, in the order of the changes, also if a listener causes more of them."""
        self._untold.append(change)
        if self._is_telling:
            return
        self._is_telling = True
        while self._untold:
            self._tell_one(self._untold.popleft())
        self._is_telling = False

    def _tell_one(self, change: MemberChange) -> None:
        """One listener that fails disturbs nobody else."""
        for stream in list(self._streams):
            stream.put(change)
        for listener in list(self._listeners):
            try:
                listener(change)
            except Exception:
                logger.exception("a listener to changes of the cluster failed")

    def close(self, error: PostroadError | None) -> None:
        """There will be no more changes."""
        self._is_closed = True
        self._end = error
        for stream in list(self._streams):
            stream.close(error)
