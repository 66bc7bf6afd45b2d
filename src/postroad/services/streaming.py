"""The streams of a node, both ways: what their ends tell each other, and how nodes end them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import UNSET

from postroad.core.errors import PostroadError

from .config import BrokerConfig
from .errors import BrokerDisconnectedError
from .incoming_streams import IncomingStreams, StreamLimits
from .inflow import StreamKey
from .outgoing_stream import OutgoingStream
from .outgoing_streams import OutgoingStreams
from .packets import Request, Response, StreamProgress
from .stream_sources import Source
from .transit import Transit

# Shorter than anybody's patience, longer than it takes to answer.
_INTERVAL_S = 5.0
_INTERVALS_IN_PATIENCE = 4
_PATIENCE_S = 60.0


class Streaming:
    """All streams between this node and others.

    Args:
        node_id: this node.
        transit: the way to the others.
        reports: whether a node tells what it read of a stream.
        config: settings.
    """

    def __init__(
        self, node_id: str, transit: Transit, reports: Callable[[str], bool], config: BrokerConfig
    ) -> None:
        self._transit = transit
        self._reports = reports
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._patience_s = config.stream_idle_s or _PATIENCE_S
        self._interval_s = min(self._patience_s / _INTERVALS_IN_PATIENCE, _INTERVAL_S)
        limits = StreamLimits(
            streams_max=config.streams_max,
            bytes_max=config.stream_bytes_max,
            all_bytes_max=config.streams_bytes_max,
            idle_s=config.stream_idle_s,
        )
        self.incoming = IncomingStreams(node_id, limits, self._tell)
        self.outgoing = OutgoingStreams(
            node_id, transit, patience_s=self._patience_s, tells_stacks=config.tells_stacks
        )

    def send(self, opening: Request | Response, source: Source, node_id: str) -> OutgoingStream:
        """Begin to send a stream to a node; raises as `Transit.send` if that is not possible."""
        key = StreamKey(node_id, opening.id, isinstance(opening, Request))
        is_reported = self._reports(node_id)
        stream = self.outgoing.begin(key, opening, source, is_reported=is_reported)
        self.watch()
        return stream

    def receive(self, packet: StreamProgress) -> None:
        """The other end of a stream tells how far it is."""
        key = StreamKey(packet.sender, packet.id, packet.is_request)
        if packet.sent is not UNSET:
            self.incoming.hear(key, packet.sent)
            return
        stream = self.outgoing.get(key)
        if stream is None:
            return
        if packet.is_cancelled:
            stream.break_off()
        elif packet.received is not UNSET:
            read = packet.received
            stream.hear(read if packet.arrived is UNSET else packet.arrived, read)

    def lose_node(self, node_id: str) -> None:
        """A node is gone, or begins a new life."""
        self.incoming.lose_node(node_id)
        self.outgoing.lose_node(node_id)

    async def finish(self, timeout_s: float) -> int:
        """Wait for streams of requests that are still sent; says how many had to be ended."""
        return await self.outgoing.finish(timeout_s)

    def close(self) -> None:
        """Nothing can be sent or received any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.incoming.fail_all(BrokerDisconnectedError())

    def watch(self) -> None:
        """There is something to look after now and then."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for packet, node_id in self.outgoing.show_life(now, self._interval_s):
            self._tell(packet, node_id)
        self.incoming.drop_unopened(now - self._patience_s)
        if len(self.outgoing) or self.incoming.has_unopened:
            self.watch()

    def _tell(self, packet: StreamProgress, node_id: str) -> None:
        if not self._reports(node_id):
            # Whatever it said of itself in a header: a node of the original system may die of it.
            return
        try:
            self._transit.send(packet, node_id)
        except PostroadError:
            # It is told again, or the other end sees that this one is lost.
            return
