"""One direction of a connection: bytes in order, in random segments with random delays.

A pipe models the kernels of both hosts and the link between them. Nothing is lost: blocked data
waits, as TCP retransmits until it times out.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import os
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroad.testing.simulation.network.network import MemoryNetwork
    from postroad.testing.simulation.network.transport import MemoryTransport

WINDOW_BYTES = 256 * 1024
"""Maximum of bytes in flight or unread; at this limit the writer waits."""

_PIECE_BYTES_MAX = 64 * 1024
_CUT_CHANCE = 0.25


class StreamEnd(enum.Enum):
    """How a direction of a connection ends."""

    FIN = "end"
    RESET = "reset"


class Pipe:
    """Carries data from the transport that writes to the one that reads."""

    def __init__(
        self, network: MemoryNetwork, source: MemoryTransport, target: MemoryTransport
    ) -> None:
        self._network = network
        self.source = source
        self.target = target
        self._in_flight: deque[bytes | StreamEnd] = deque()
        # How many segments are due, and whether the link is blocked.
        self._due = 0
        self._is_stuck = False
        # Breaks the connection when it was blocked for too long.
        self._break_timer: asyncio.TimerHandle | None = None
        # When the last segment arrives: none overtakes another.
        self._latest = 0.0
        self._arrived: deque[bytes] = deque()
        self.arrived_bytes = 0
        # Bytes that the writer has sent and the reader has not read.
        self._unread_bytes = 0
        # Bytes read since the last acknowledgement, and whether one is pending.
        self._read_bytes = 0
        self._is_ack_due = False
        # Set when the end of the stream has arrived.
        self.end: StreamEnd | None = None

    # Writer.

    def send(self, data: bytes | memoryview) -> int:
        """Accept data up to the capacity; return the number of bytes accepted."""
        accepted = min(len(data), WINDOW_BYTES - self._unread_bytes)
        if accepted <= 0:
            return 0
        self._unread_bytes += accepted
        rng = self._network.rng
        start = 0
        while start < accepted:
            size = min(accepted - start, _PIECE_BYTES_MAX)
            if size > 1 and rng.random() < _CUT_CHANCE:
                size = rng.randint(1, size)
            self._depart(bytes(data[start : start + size]))
            start += size
        return accepted

    def finish(self, mark: StreamEnd) -> None:
        self._depart(mark)

    def discard_in_flight(self) -> None:
        """Discard data that has not arrived: it is not retransmitted."""
        self._in_flight.clear()
        self._due = 0
        self._cancel_retry()

    def _depart(self, segment: bytes | StreamEnd) -> None:
        network = self._network
        delay = network.links.delay(self.source.host.name, self.target.host.name)
        self._latest = max(self._latest, network.loop.time() + delay)
        self._in_flight.append(segment)
        network.loop.call_at(self._latest, self._arrive, context=network.context)

    # Link.

    def _arrive(self) -> None:
        if len(self._in_flight) > self._due:
            self._due += 1
            if not self._is_stuck:
                self._deliver_due()

    def _deliver_due(self) -> None:
        if self._due and not self._network.reaches(self.source.host, self.target.host):
            self._wait_for_link()
            return
        while self._due:
            self._due -= 1
            self._is_ack_due = True
            self._deliver(self._in_flight.popleft())
        self._confirm()

    def _wait_for_link(self) -> None:
        self._is_stuck = True
        self._network.on_link_open(self._retry)
        if self._break_timer is None:
            self._break_timer = self._network.loop.call_later(
                self._network.stream_timeout_s,
                self._on_stream_timeout,
                context=self._network.context,
            )

    def _retry(self) -> None:
        if self._is_stuck:
            self._is_stuck = False
            self._deliver_due()

    def _cancel_retry(self) -> None:
        self._is_stuck = False
        if self._break_timer is not None:
            self._break_timer.cancel()
            self._break_timer = None

    def _on_stream_timeout(self) -> None:
        self._break_timer = None
        self.discard_in_flight()
        self.source.reset_by_kernel(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def _confirm(self) -> None:
        """Acknowledge read bytes to the writer, if the link back is open."""
        if self._is_ack_due and not self._network.reaches(self.target.host, self.source.host):
            self._wait_for_link()
            return
        self._cancel_retry()
        self._is_ack_due = False
        if self._read_bytes:
            self._unread_bytes -= self._read_bytes
            self._read_bytes = 0
            self.source.on_capacity()

    # Reader.

    def _deliver(self, segment: bytes | StreamEnd) -> None:
        target = self.target
        if target.is_socket_closed:
            if isinstance(segment, bytes):
                target.outgoing.finish(StreamEnd.RESET)
        elif isinstance(segment, bytes):
            self._arrived.append(segment)
            self.arrived_bytes += len(segment)
            target.on_readable()
        else:
            self.end = segment
            target.on_readable()

    def read(self, size_max: int) -> bytes:
        """Remove and return received data, up to a size; empty if there is none."""
        arrived = self._arrived
        if not arrived:
            return b""
        if len(arrived) == 1 and len(arrived[0]) <= size_max:
            data = arrived.popleft()
        else:
            data = self._join(size_max)
        self.arrived_bytes -= len(data)
        self._read_bytes += len(data)
        self._is_ack_due = True
        if not self._is_stuck:
            self._confirm()
        return data

    def _join(self, size_max: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while self._arrived and size < size_max:
            piece = self._arrived.popleft()
            if size + len(piece) > size_max:
                self._arrived.appendleft(piece[size_max - size :])
                piece = piece[: size_max - size]
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)
