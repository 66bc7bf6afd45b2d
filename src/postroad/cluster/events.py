"""Membership events for callbacks and for readers."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Callable
from typing import Self, TypeAlias

from postroad.cluster.membership import MembershipEvent
from postroad.core.errors import PostroadError, SlowConsumerError

logger = logging.getLogger("postroad.cluster")

MembershipListener: TypeAlias = Callable[[MembershipEvent], object]

# Events buffered for a reader that does not read.
_UNREAD_MAX = 10_000


class MembershipEventStream:
    """Events in order from its creation on: `async for event in agent.events()`.

    It ends when the agent stops, or when it is closed or garbage-collected. It raises
    `SlowConsumerError` if its reader falls too far behind, and `NameConflictError` if this node has
    to leave because of its name.
    """

    def __init__(self, waiting: dict[MembershipEventStream, None]) -> None:
        # References streams with a waiting reader.
        self._waiting = waiting
        self._unread: deque[MembershipEvent] = deque()
        self._wake: asyncio.Future[None] | None = None
        # Raised to the reader after the unread events.
        self._close_error: PostroadError | None = None
        self.is_closed = False

    def put(self, event: MembershipEvent) -> None:
        if len(self._unread) >= _UNREAD_MAX:
            self._unread.clear()
            self.close(
                SlowConsumerError(
                    f"event stream closed: more than {_UNREAD_MAX} events were unread"
                )
            )
            return
        self._unread.append(event)
        self._wake_reader()

    def close(self, error: PostroadError | None = None) -> None:
        """End the stream, with an error if one is given."""
        if not self.is_closed:
            self.is_closed = True
            self._close_error = error
            self._wake_reader()

    def _wake_reader(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MembershipEvent:
        while not self._unread:
            if self._close_error is not None:
                raise self._close_error
            if self.is_closed:
                raise StopAsyncIteration
            self._wake = asyncio.get_running_loop().create_future()
            self._waiting[self] = None
            try:
                await self._wake
            finally:
                self._waiting.pop(self, None)
        return self._unread.popleft()


class MembershipListeners:
    """The callbacks and streams that receive membership events."""

    def __init__(self) -> None:
        self._listeners: list[MembershipListener] = []
        # Weak references, so that an abandoned stream does not collect events for ever; a stream
        # whose reader waits is referenced by `_waiting`.
        self._streams: list[weakref.ref[MembershipEventStream]] = []
        self._waiting: dict[MembershipEventStream, None] = {}
        # Events published while another is being delivered; they keep their order.
        self._queue: deque[MembershipEvent] = deque()
        self._is_publishing = False
        self._is_closed = False
        self._close_error: PostroadError | None = None

    def add(self, listener: MembershipListener) -> None:
        """Call the listener for every event."""
        self._listeners.append(listener)

    def remove(self, listener: MembershipListener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def open_stream(self) -> MembershipEventStream:
        stream = MembershipEventStream(self._waiting)
        self._streams.append(weakref.ref(stream))
        if self._is_closed:
            stream.close(self._close_error)
        return stream

    def _open_streams(self) -> list[MembershipEventStream]:
        """Return the open streams in the order of their creation."""
        streams = [stream for ref in self._streams if (stream := ref()) is not None]
        open_streams = [stream for stream in streams if not stream.is_closed]
        if len(open_streams) < len(self._streams):
            self._streams = [weakref.ref(stream) for stream in open_streams]
        return open_streams

    def publish(self, event: MembershipEvent) -> None:
        """Publish an event; order is kept even if a listener causes further events."""
        self._queue.append(event)
        if self._is_publishing:
            return
        self._is_publishing = True
        try:
            while self._queue:
                event = self._queue.popleft()
                for stream in self._open_streams():
                    stream.put(event)
                for listener in list(self._listeners):
                    try:
                        listener(event)
                    except (Exception, asyncio.CancelledError):
                        # A cancellation raised by a listener concerns only that listener.
                        logger.exception("a listener of membership events failed")
        finally:
            self._is_publishing = False

    def close(self, error: PostroadError | None) -> None:
        """End all streams: no further events follow."""
        self._is_closed = True
        self._close_error = error
        for stream in self._open_streams():
            stream.close(error)
