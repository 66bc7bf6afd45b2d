"""One stream from another node: parts come in packets, and wait for whoever reads them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from postroad.core.errors import UsageError

from .error_form import error_from_wire
from .errors import MoleculerError, RequestTimeoutError
from .packets import Request, Response
from .stream_window import ReadCount
from .streams import REPORTED, Chunk, Failed, Opened, Part, StreamReader, has_objects, part_of

if TYPE_CHECKING:
    from .incoming_streams import IncomingStreams

IDLE = "STREAM_IDLE"
"""The type of the error of a stream from which nothing was heard for too long."""
OVERFLOW = "STREAM_OVERFLOW"
"""The type of the error of a stream that came faster than it was read."""

_REPORTED_AFTER_S = 0.01


class StreamKey(NamedTuple):
    """What tells a stream from all others of this node."""

    peer: str
    """The node at the other end."""
    id: str
    """Of its call."""
    is_request: bool
    """Whether it came, or goes, with the request."""


class Inflow:
    """One stream on its way in. The reader's end of it is an IncomingStream."""

    def __init__(self, key: StreamKey, streams: IncomingStreams) -> None:
        self.key = key
        self.is_reported = False
        """Whether its sender waits to be told what was read."""
        self.is_open = False
        """Whether its opening part has come."""
        self.failure: MoleculerError | None = None
        self.has_objects = False
        self._streams = streams
        self._loop = streams.loop
        self._reader = StreamReader()
        self._waiting: deque[Chunk] = deque()
        # Bytes that wait to be read, and those that count as held, with what came too early.
        self._waiting_bytes = 0
        self._held_bytes = 0
        self._due = 0
        self._count = ReadCount()
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._later: asyncio.TimerHandle | None = None
        self.moved_at = self._loop.time()

    # From the network.

    def receive(self, packet: Request | Response, size: int) -> bool:
        """Take a part in a packet of some bytes; whether it opened the stream."""
        part = part_of(packet)
        if type(part) is Opened:
            headers = packet.headers or {}
            self.is_reported = headers.get(REPORTED) is True
            self.has_objects = has_objects(packet)
        elif type(part) is Chunk:
            part = Chunk(part.value, size if has_objects(packet) else len(part.value))
        assert isinstance(packet.seq, int)
        was_open = self.is_open
        for due in self._reader.receive(packet.seq, part, size):
            self._take(due)
        self._hold()
        self._wake()
        return self.is_open and not was_open

    def hear(self, sent: int) -> None:
        """Its sender is alive, and says what it has sent; it wants to know what was read."""
        if sent < self._due:
            self.moved_at = self._loop.time()
        self._report(is_urgent=True)

    def fail(self, error: MoleculerError, *, is_told: bool = False) -> None:
        """Break it off; `is_told` if its sender should stop."""
        if self._is_over:
            return
        self.failure = error
        self._finish()
        if is_told:
            self._cancel()
        self._hold()
        self._wake()

    def _take(self, part: Part) -> None:
        self._due += 1
        self.moved_at = self._loop.time()
        if type(part) is Chunk:
            self._waiting.append(part)
            self._waiting_bytes += part.size
            self._report(is_urgent=self._count.add_arrived(part.size))
        elif type(part) is Opened:
            self.is_open = True
        else:
            if isinstance(part, Failed):
                self.failure = error_from_wire(part.error, sender=self.key.peer)
            self._finish()

    def _hold(self) -> None:
        """Count what waits, and see that it is not too much."""
        held = self._waiting_bytes + self._reader.pooled_bytes
        more, self._held_bytes = held - self._held_bytes, held
        if self._streams.hold(more, held):
            return
        text = f"{held} bytes of a stream from {self.key.peer} were not read in time"
        self.fail(MoleculerError(text, type=OVERFLOW), is_told=True)

    def _finish(self) -> None:
        """Nothing comes any more."""
        self._is_over = True
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._reader.fail({})
        self._streams.forget(self.key)

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done() and (self._waiting or self._is_over):
            waiter.set_result(None)

    # To the reader.

    async def read(self) -> Any:
        while not self._waiting:
            if self.failure is not None:
                raise self.failure
            if self._is_over:
                raise StopAsyncIteration
            await self._wait()
        chunk = self._waiting.popleft()
        self._waiting_bytes -= chunk.size
        self._held_bytes -= chunk.size
        self._streams.release(chunk.size)
        self._report(is_urgent=self._count.add_read(chunk.size))
        return chunk.value

    async def close(self) -> None:
        self.close_now()

    def close_now(self) -> None:
        """As `close`, for those who cannot wait."""
        self._waiting.clear()
        self._streams.release(self._held_bytes)
        self._waiting_bytes = self._held_bytes = 0
        self.failure = None
        if not self._is_over:
            self._finish()
            self._cancel()
        self._wake()

    def abandon(self) -> None:
        if not ((self._is_over and not self._waiting) or self._loop.is_closed()):
            self._loop.call_soon_threadsafe(self.close_now)

    async def _wait(self) -> None:
        if self._waiter is not None:
            raise UsageError("a stream is read by one reader at a time")
        self._waiter = self._loop.create_future()
        self.moved_at = self._loop.time()
        self._watch()
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _watch(self) -> None:
        """Give up if there is no sign of life."""
        idle_s = self._streams.limits.idle_s
        if not idle_s:
            return
        due = self.moved_at + idle_s
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._watch)
            return
        text = f"nothing was heard from {self.key.peer} for {idle_s:g} s"
        told = {"nodeID": self.key.peer}
        self.fail(RequestTimeoutError(text, type=IDLE, data=told), is_told=True)

    # To the sender.

    def _report(self, *, is_urgent: bool) -> None:
        """Tell the sender what came and was read, now or in a moment."""
        if not self.is_reported or self._is_over:
            return
        if is_urgent:
            arrived, read = self._count.tell()
            told = self._streams.progress(self.key, arrived=arrived, received=read)
            self._streams.tell(told, self.key.peer)
        elif self._later is None:
            self._later = self._loop.call_later(_REPORTED_AFTER_S, self._report_rest)

    def _report_rest(self) -> None:
        self._later = None
        if not self._count.is_told:
            self._report(is_urgent=True)

    def _cancel(self) -> None:
        if self.is_reported:
            self._streams.cancel(self.key)

    def __repr__(self) -> str:
        state = "over" if self._is_over else "open" if self.is_open else "not open"
        return f"<Inflow from {self.key.peer}, {state}, {self._waiting_bytes} bytes wait>"
