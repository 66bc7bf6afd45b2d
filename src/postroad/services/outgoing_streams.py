"""Streams to other nodes: chunks are taken from their source, and sent as fast as they are read."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from contextlib import suppress
from weakref import WeakValueDictionary

import msgspec

from postroad.core import ThrottledLog

from .error_form import error_to_wire
from .errors import MoleculerError, QueueIsFullError, RequestTimeoutError, UnsendablePacket
from .incoming_stream import CANCELLED
from .incoming_streams import IDLE, StreamKey
from .kinds import VERSION
from .packets import Request, Response, StreamProgress
from .running import finish
from .stream_sources import Source
from .stream_window import SendWindow, SharedWindow
from .stream_writer import StreamWriter
from .streams import REPORTED
from .transit import Transit, logger

# A node of the original system loses an error that comes before somebody listens for it.
_LISTENS_AFTER_S = 0.05
# How often what does not fit into a full transporter is tried again.
_FULL_PAUSE_S = 0.02
# A source that never waits must not keep everything else from running.
_TURN_PARTS = 16
_LOG_INTERVAL_S = 10.0


class OutgoingStream:
    """One stream on its way out.

    Args:
        key: what it is known by.
        opening: the request, or the response, that it goes with.
        source: its chunks; closed in the end, however that comes.
        streams: where it belongs.
        is_reported: whether the other end tells what was read.
    """

    def __init__(
        self,
        key: StreamKey,
        opening: Request | Response,
        source: Source,
        streams: OutgoingStreams,
        *,
        is_reported: bool,
    ) -> None:
        if is_reported:
            headers = {**(opening.headers or {}), REPORTED: True}
            opening = msgspec.structs.replace(opening, headers=headers)
        self.key = key
        self._source = source
        self._streams = streams
        self._transit = streams.transit
        self._loop = streams.loop
        self._writer = StreamWriter(
            opening,
            self._transit.serializer,
            has_objects=source.has_objects,
            packet_bytes_max=self._transit.transporter.packet_bytes_max,
        )
        # The number of the last part that was sent.
        self._sent = 0
        self._window = SendWindow(streams.window_to(key.peer), self._wake) if is_reported else None
        self._room: asyncio.Future[None] | None = None
        self._scope: asyncio.Timeout | None = None
        self._broken_by: Exception | None = None
        self._is_broken = False
        self._is_over = False
        self._action = opening.action if isinstance(opening, Request) else None
        self._opened_at = self.sent_at = self.heard_at = self._loop.time()

    def open(self) -> None:
        """Send the opening part; raises as `Transit.send`."""
        self._transit.send(self._writer.opening, self.key.peer)
        self._source.is_taken = True

    async def run(self) -> None:
        """Send the rest; returns when there is no more to do, whatever came of it."""
        try:
            await self._send_until_broken()
        except BaseException:
            self._fail(MoleculerError(f"{self._streams.node_id} stops", 503, CANCELLED))
            raise
        finally:
            self._is_over = True
            if self._window is not None:
                self._window.close()
            self._streams.forget(self)
            await self._source.aclose()

    def break_off(self, reason: Exception | None = None) -> None:
        """Send no more; the other end is told the reason, if there is one."""
        if self._is_over or self._is_broken:
            return
        self._is_broken = True
        self._broken_by = reason
        if self._scope is not None:
            self._scope.reschedule(self._loop.time())

    # What the other end tells.

    @property
    def is_reported(self) -> bool:
        """Whether the other end tells what was read."""
        return self._window is not None

    def hear(self, arrived: int, read: int) -> None:
        """These parts, and all before, came, and were read."""
        self.heard_at = self._loop.time()
        if self._window is not None:
            self._window.hear(arrived, read)

    def _wake(self) -> None:
        """There is room."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def show_life(self) -> StreamProgress:
        """What to tell the other end when there is nothing new."""
        return StreamProgress(
            id=self.key.id,
            is_request=self.key.is_request,
            sent=self._sent,
            ver=VERSION,
            sender=self._streams.node_id,
        )

    # How it is sent.

    async def _send_until_broken(self) -> None:
        # What is broken off ends as a TimeoutError; no other can get out of there.
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as self._scope:
                if not self._is_broken:
                    await self._send_all()
        self._scope = None
        if self._is_broken:
            await self._wait_for_listeners()
            self._fail(self._broken_by)

    async def _send_all(self) -> None:
        await asyncio.sleep(0)
        try:
            async for value in self._source:
                await self._send_chunks(self._writer.chunks(value))
            await self._send(self._writer.end())
        except Exception as error:
            self._streams.warn(self.key, error)
            await self._wait_for_listeners()
            self._fail(error)

    async def _send_chunks(self, packets: Iterator[Request | Response]) -> None:
        for packet in packets:
            window = self._window
            while window is not None and window.is_full:
                self._room = self._loop.create_future()
                window.wait()
                await self._room
            size = await self._send(packet)
            if window is not None:
                # Both ends must count alike.
                value = packet.params if isinstance(packet, Request) else packet.data
                counted = size if self._source.has_objects else len(value)
                window.send(self._sent, counted, size)
            if self._sent % _TURN_PARTS == 0:
                await asyncio.sleep(0)

    async def _send(self, packet: Request | Response) -> int:
        """Send a part, as soon as there is room for it; returns its size."""
        size = self._try_to_send(packet)
        while size is None:
            await asyncio.sleep(_FULL_PAUSE_S)
            size = self._try_to_send(packet)
        await self._transit.transporter.drain()
        return size

    def _try_to_send(self, packet: Request | Response) -> int | None:
        """Send a part; None if there is no room now."""
        try:
            size = self._transit.send_sized(packet, self.key.peer)
        except QueueIsFullError:
            if self._loop.time() - self.sent_at > self._streams.patience_s:
                raise
            return None
        self._sent += 1
        self.sent_at = self._loop.time()
        return size

    async def _wait_for_listeners(self) -> None:
        if not self.is_reported:
            await asyncio.sleep(self._opened_at + _LISTENS_AFTER_S - self._loop.time())

    def _fail(self, error: Exception | None) -> None:
        """Tell the other end that the rest will not come."""
        if error is None or self._writer.is_over:
            return
        # A part that was made but could not be sent has left no number.
        last = msgspec.structs.replace(self._writer.fail(self._told(error)), seq=self._sent + 1)
        try:
            self._transit.send(last, self.key.peer)
        except Exception as failure:
            self._streams.warn(self.key, failure)

    def _told(self, error: Exception) -> dict[str, object]:
        """An error that can be sent."""
        streams = self._streams
        stack = "".join(traceback.format_exception(error)) if streams.tells_stacks else None
        fields = {"node_id": streams.node_id, "action": self._action, "stack": stack}
        told = error_to_wire(error, **fields)  # type: ignore[arg-type]
        try:
            self._transit.serializer.serialize(
                Response(id="", success=False, error=told, ver=VERSION, sender=streams.node_id)
            )
        except UnsendablePacket:
            return error_to_wire(error, has_data=False, **fields)  # type: ignore[arg-type]
        return told

    def __repr__(self) -> str:
        return f"<OutgoingStream to {self.key.peer}: {self._writer!r}>"


class OutgoingStreams:
    """All streams on their way out.

    Args:
        node_id: this node.
        transit: the way out.
        patience_s: how long a transporter may be full, or the other end silent.
        tells_stacks: whether others are told where an error was raised.
    """

    def __init__(
        self, node_id: str, transit: Transit, *, patience_s: float, tells_stacks: bool
    ) -> None:
        self.node_id = node_id
        self.transit = transit
        self.patience_s = patience_s
        self.tells_stacks = tells_stacks
        self.loop = asyncio.get_running_loop()
        self._streams: dict[StreamKey, OutgoingStream] = {}
        self._windows: WeakValueDictionary[str, SharedWindow] = WeakValueDictionary()
        self._running: set[asyncio.Task[None]] = set()
        self._log = ThrottledLog(logger, _LOG_INTERVAL_S)

    def __len__(self) -> int:
        return len(self._streams)

    def begin(
        self, key: StreamKey, opening: Request | Response, source: Source, *, is_reported: bool
    ) -> OutgoingStream:
        """Send the opening part of a stream; somebody must run the rest. Raises as `send`."""
        stream = OutgoingStream(key, opening, source, self, is_reported=is_reported)
        stream.open()
        self._streams[key] = stream
        return stream

    def start(self, stream: OutgoingStream) -> None:
        """Run a stream in a task of its own."""
        task = self.loop.create_task(stream.run())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def window_to(self, node_id: str) -> SharedWindow:
        """What all streams to a node share; it lasts as long as one of them."""
        window = self._windows.get(node_id)
        if window is None:
            window = self._windows[node_id] = SharedWindow()
        return window

    def forget(self, stream: OutgoingStream) -> None:
        self._streams.pop(stream.key, None)

    def get(self, key: StreamKey) -> OutgoingStream | None:
        return self._streams.get(key)

    def lose_node(self, node_id: str) -> None:
        """A node is gone: nobody reads what goes there."""
        for stream in [it for it in self._streams.values() if it.key.peer == node_id]:
            stream.break_off()

    def show_life(self, now: float, interval_s: float) -> Iterator[tuple[StreamProgress, str]]:
        """What to tell whom, so that streams with nothing new are not given up."""
        for stream in [it for it in self._streams.values() if it.is_reported]:
            if now - stream.heard_at > 2 * self.patience_s:
                told = {"action": None, "nodeID": stream.key.peer}
                text = f"nothing was heard from {stream.key.peer} about a stream"
                stream.break_off(RequestTimeoutError(text, type=IDLE, data=told))
            elif now - min(stream.sent_at, stream.heard_at) >= interval_s:
                yield stream.show_life(), stream.key.peer

    async def finish(self, timeout_s: float) -> int:
        """Wait for streams of requests, then end them; says how many had to be ended."""
        return await finish(self._running, timeout_s)

    def warn(self, key: StreamKey, error: BaseException) -> None:
        """A stream broke off at this end."""
        now = self.loop.time()
        self._log.warn(key.peer, now, "a stream to %s broke off: %s", key.peer, error)
