"""Streams to other nodes: which there are, and how they end with their nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from weakref import WeakValueDictionary

from postroad.core import ThrottledLogger

from .errors import RequestTimeoutError
from .inflow import IDLE, StreamKey
from .outgoing_stream import OutgoingStream
from .packets import Request, Response, StreamProgress
from .running import finish
from .stream_sources import Source
from .stream_window import SharedWindow
from .transit import Transit, logger

_LOG_INTERVAL_S = 10.0


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
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)

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
        self._log.log(key.peer, now, "a stream to %s broke off: %s", key.peer, error)
