"""One stream to another node: chunks from a source, sent as fast as they are read."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from .error_form import error_to_wire
from .errors import MoleculerError, QueueIsFullError, UnsendablePacket
from .incoming_stream import CANCELLED
from .inflow import StreamKey
from .kinds import VERSION
from .packets import Request, Response, StreamProgress
from .stream_sources import Source
from .stream_window import SendWindow
from .stream_writer import StreamWriter
from .streams import REPORTED

if TYPE_CHECKING:
    from .outgoing_streams import OutgoingStreams

# A node of the original system loses an error that comes before somebody listens for it.
_LISTENS_AFTER_S = 0.05
# How often what does not fit into a full transporter is tried again.
_FULL_PAUSE_S = 0.02
# A source that never waits must not keep everything else from running.
_TURN_PARTS = 16


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
