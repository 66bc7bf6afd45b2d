"""What waits to be sent: bounded, in order, handed to whoever sends."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from postroad.core.limits import MIB
from postroad.services.errors import QueueIsFullError

T = TypeVar("T")

WAITING_BYTES_MAX = 64 * MIB
"""More than this is refused."""
HIGH_BYTES = 1 * MIB
"""Whoever can wait does so while more than this waits to be sent."""
PACKET_COST = 128
"""What a packet takes besides its bytes: many small ones are much too."""


class Outbox(Generic[T]):
    """Packets on their way out. `put` never waits; `room` is for those who can."""

    def __init__(
        self, *, waiting_bytes_max: int = WAITING_BYTES_MAX, high_bytes: int = HIGH_BYTES
    ) -> None:
        self._waiting_bytes_max = waiting_bytes_max
        self._high_bytes = high_bytes
        self._waiting: deque[tuple[T, bytes]] = deque()
        self._bytes = 0
        self._is_filled = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, to: T, data: bytes) -> None:
        """Add a packet; raises QueueIsFullError if too much waits already."""
        cost = len(data) + PACKET_COST
        if self._bytes + cost > self._waiting_bytes_max:
            raise QueueIsFullError(
                f"{self._bytes} bytes wait to be sent; {self._waiting_bytes_max} is the most"
            )
        self._waiting.append((to, data))
        self._bytes += cost
        self._is_filled.set()
        if self._bytes > self._high_bytes:
            self._has_room.clear()

    async def take(self) -> tuple[T, bytes]:
        """The next packet; waits for one."""
        while not self._waiting:
            self._is_filled.clear()
            await self._is_filled.wait()
        return self.take_now()

    def take_now(self) -> tuple[T, bytes]:
        """The next packet; there must be one."""
        to, data = self._waiting.popleft()
        self._bytes -= len(data) + PACKET_COST
        if self._bytes <= self._high_bytes:
            self._has_room.set()
        return to, data

    async def room(self) -> None:
        """Wait until not much waits to be sent."""
        await self._has_room.wait()

    def clear(self) -> int:
        """Give up what waits; says how many packets that were."""
        lost = len(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        self._has_room.set()
        return lost
