"""What the processes of a contender are told to do, and how they know the messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NUMBER_BYTES = 8


@dataclass(frozen=True)
class Job:
    """The conditions of a measurement."""

    loop: str
    scratch: Path
    payload_bytes: int = 100
    # Messages that are sent and not confirmed yet, at most.
    in_flight: int = 1_000


class Numbering:
    """The sender's payloads: each begins with its number, no two are alike."""

    def __init__(self, job: Job) -> None:
        self._padding = bytes(job.payload_bytes - _NUMBER_BYTES)
        self._next = 0

    def take(self, count: int) -> Iterator[bytes]:
        """As many further payloads; several tasks may share the iterator."""
        first = self._next
        self._next += count
        for number in range(first, self._next):
            yield number.to_bytes(_NUMBER_BYTES, "big") + self._padding


class Tally:
    """The receiver's list: which messages have come, each counted once however often it comes."""

    def __init__(self, job: Job) -> None:
        self._payload_bytes = job.payload_bytes
        self._awaited = 0
        # All before this number have come, and those in the set.
        self._front = 0
        self._ahead: set[int] = set()
        self._is_complete = asyncio.Event()

    def add(self, payload: bytes) -> None:
        """Enter a message that has come."""
        if len(payload) != self._payload_bytes:
            raise ValueError(f"{len(payload)} bytes instead of {self._payload_bytes}")
        number = int.from_bytes(payload[:_NUMBER_BYTES], "big")
        if number != self._front:
            if number > self._front:
                self._ahead.add(number)
            return
        self._front += 1
        while self._front in self._ahead:
            self._ahead.remove(self._front)
            self._front += 1
        if self._front == self._awaited:
            self._is_complete.set()

    def expect(self, count: int) -> None:
        """Be complete only when as many further messages have come; some may have already."""
        self._awaited += count
        self._is_complete.clear()
        if self.is_complete:
            self._is_complete.set()

    @property
    def is_complete(self) -> bool:
        return self._front >= self._awaited

    async def wait_complete(self) -> None:
        await self._is_complete.wait()
