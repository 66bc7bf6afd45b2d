"""One direction of a connection: bytes in order, cut and delayed by chance, a limit in flight.

It stands for the kernels of both hosts and the way between them. Nothing is lost: what cannot get
through waits, as TCP sends again until somebody gives up.
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
"""Bytes on their way or not yet read; then the writer has to wait."""

_PIECE_BYTES_MAX = 64 * 1024
_CUT_CHANCE = 0.25


class StreamEnd(enum.Enum):
    """What ends a direction."""

    FIN = "end"
    RESET = "reset"


class Pipe:
    """Carries what one transport writes to the one that reads it."""

    __slots__ = (
        "_arrived",
        "_due",
        "_has_news",
        "_in_flight",
        "_is_stuck",
        "_latest",
        "_network",
        "_patience",
        "_taken_bytes",
        "_unread_bytes",
        "arrived_bytes",
        "end",
        "source",
        "target",
    )

    def __init__(
        self, network: MemoryNetwork, source: MemoryTransport, target: MemoryTransport
    ) -> None:
        self._network = network
        self.source = source
        self.target = target
        self._in_flight: deque[bytes | StreamEnd] = deque()
        # How many of them should have arrived, and whether something is in their way.
        self._due = 0
        self._is_stuck = False
        # Ends the connection when it was stuck for too long.
        self._patience: asyncio.TimerHandle | None = None
        # When the last one that left arrives: none overtakes another.
        self._latest = 0.0
        self._arrived: deque[bytes] = deque()
        self.arrived_bytes = 0
        # What was taken from the writer and not yet read by the reader.
        self._unread_bytes = 0
        # What was read since the writer was last told, and whether there is anything to tell it.
        self._taken_bytes = 0
        self._has_news = False
        # Set when the end has arrived.
        self.end: StreamEnd | None = None

    # The writer's side.

    def send(self, data: bytes | memoryview) -> int:
        """Take as much as there is room for; returns how much that is."""
        taken = min(len(data), WINDOW_BYTES - self._unread_bytes)
        if taken <= 0:
            return 0
        self._unread_bytes += taken
        rng = self._network.rng
        start = 0
        while start < taken:
            size = min(taken - start, _PIECE_BYTES_MAX)
            if size > 1 and rng.random() < _CUT_CHANCE:
                size = rng.randint(1, size)
            self._depart(bytes(data[start : start + size]))
            start += size
        return taken

    def finish(self, mark: StreamEnd) -> None:
        """Send that nothing more comes."""
        self._depart(mark)

    def discard_in_flight(self) -> None:
        """Nobody sends again what has not arrived."""
        self._in_flight.clear()
        self._due = 0
        self._cancel_retry()

    def _depart(self, segment: bytes | StreamEnd) -> None:
        network = self._network
        delay = network.links.delay(self.source.host.name, self.target.host.name)
        self._latest = max(self._latest, network.loop.time() + delay)
        self._in_flight.append(segment)
        network.loop.call_at(self._latest, self._arrive, context=network.context)

    # The way.

    def _arrive(self) -> None:
        if len(self._in_flight) > self._due:
            self._due += 1
            if not self._is_stuck:
                self._go_on()

    def _go_on(self) -> None:
        if self._due and not self._network.reaches(self.source.host, self.target.host):
            self._wait_for_link()
            return
        while self._due:
            self._due -= 1
            self._has_news = True
            self._deliver(self._in_flight.popleft())
        self._confirm()

    def _wait_for_link(self) -> None:
        self._is_stuck = True
        self._network.on_link_open(self._retry)
        if self._patience is None:
            self._patience = self._network.loop.call_later(
                self._network.stream_timeout_s, self._give_up, context=self._network.context
            )

    def _retry(self) -> None:
        if self._is_stuck:
            self._is_stuck = False
            self._go_on()

    def _cancel_retry(self) -> None:
        self._is_stuck = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        self._patience = None
        self.discard_in_flight()
        self.source.reset_by_kernel(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def _confirm(self) -> None:
        """Tell the writer what arrived and was read, if word of it gets there."""
        if self._has_news and not self._network.reaches(self.target.host, self.source.host):
            self._wait_for_link()
            return
        self._cancel_retry()
        self._has_news = False
        if self._taken_bytes:
            self._unread_bytes -= self._taken_bytes
            self._taken_bytes = 0
            self.source.on_room()

    # The reader's side.

    def _deliver(self, segment: bytes | StreamEnd) -> None:
        target = self.target
        if target.is_gone:
            if isinstance(segment, bytes):
                target.outgoing.finish(StreamEnd.RESET)
        elif isinstance(segment, bytes):
            self._arrived.append(segment)
            self.arrived_bytes += len(segment)
            target.on_readable()
        else:
            self.end = segment
            target.on_readable()

    def take(self, size_max: int) -> bytes:
        """What has arrived, up to a size; empty if nothing has."""
        arrived = self._arrived
        if not arrived:
            return b""
        if len(arrived) == 1 and len(arrived[0]) <= size_max:
            data = arrived.popleft()
        else:
            data = self._join(size_max)
        self.arrived_bytes -= len(data)
        self._taken_bytes += len(data)
        self._has_news = True
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
