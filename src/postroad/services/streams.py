"""Streams that come in: parts in any order and any number, handed out once each and in order.

The parts of a stream are numbered: 0 opens it, chunks follow, the last one ends it. What comes
too early waits in a pool, up to a limit: there is no way to ask for a part again, so a stream
whose pool overflows has failed. Nodes of the original system hand out repeated parts twice and
keep a pool without a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from postroad.core.errors import ConfigError
from postroad.core.limits import MIB

from .packets import Request, Response

POOLED_MAX = 1_024
"""Parts that wait for an earlier one."""
POOLED_BYTES_MAX = 16 * MIB
"""Bytes of all parts that wait."""

OBJECT_MODE = "$streamObjectMode"
"""A header: chunks are values of any sort."""
STREAM_ERROR = "$streamError"
"""A header of the last part of a request's stream: the error it ends with."""
REPORTED = "$streamReported"
"""A header between nodes of this package: the sender waits to be told what was read."""


class Opened(msgspec.Struct, frozen=True):
    """The stream begins. It may be handed to whoever reads it."""


class Chunk(msgspec.Struct, frozen=True):
    """The next piece: bytes, or any value in object mode."""

    value: Any
    size: int = 0
    """How much it counts for those who limit what waits; 0 if nobody does."""


class Ended(msgspec.Struct, frozen=True):
    """There is no more."""


class Failed(msgspec.Struct, frozen=True):
    """It broke off; `error` is what `error_from_wire` reads."""

    error: Mapping[str, Any]


Part: TypeAlias = Opened | Chunk | Ended | Failed


class StreamState(Enum):
    """How far a stream is."""

    WAITING = "waiting"
    """Parts may have come, but not the opening one."""
    OPEN = "open"
    OVER = "over"
    """Ended or failed; whatever comes now is dropped."""


class StreamReader:
    """One stream that comes in. Gives out parts as they fall due; says when it has failed."""

    def __init__(
        self, *, pooled_max: int = POOLED_MAX, pooled_bytes_max: int = POOLED_BYTES_MAX
    ) -> None:
        if pooled_max < 1 or pooled_bytes_max < 1:
            raise ConfigError("the pool of a stream must hold something")
        self._pooled_max = pooled_max
        self._pooled_bytes_max = pooled_bytes_max
        self._next = 0
        self._pool: dict[int, tuple[Part, int]] = {}
        self._pooled_bytes = 0
        self.state = StreamState.WAITING
        self.dropped = 0
        """Parts that came a second time, or after the end."""

    def __repr__(self) -> str:
        waiting = f", {len(self._pool)} wait for {self._next}" if self._pool else ""
        return f"<StreamReader {self.state.value}{waiting}>"

    @property
    def missing(self) -> int | None:
        """The number that others wait for; None if nothing waits."""
        return self._next if self._pool else None

    @property
    def pooled_bytes(self) -> int:
        """The size of what waits."""
        return self._pooled_bytes

    def receive(self, seq: int, part: Part, size: int = 0) -> list[Part]:
        """Take a part of some bytes; returns those that are due now, in order."""
        if self.state is StreamState.OVER or seq < self._next or seq in self._pool:
            self.dropped += 1
            return []
        if seq == self._next:
            return self._advance(part)
        if len(self._pool) >= self._pooled_max or (
            self._pooled_bytes + size > self._pooled_bytes_max
        ):
            return self.fail(_overflow(self._next, len(self._pool), self._pooled_bytes))
        self._pool[seq] = (part, size)
        self._pooled_bytes += size
        return []

    def fail(self, error: Mapping[str, Any]) -> list[Part]:
        """Break it off: its sender is lost, or its time is over. Nothing comes after this."""
        if self.state is StreamState.OVER:
            return []
        self._finish()
        return [Failed(error)]

    def _advance(self, part: Part) -> list[Part]:
        due = []
        while True:
            due.append(part)
            self._next += 1
            if isinstance(part, Ended | Failed):
                self._finish()
                return due
            self.state = StreamState.OPEN
            if self._next not in self._pool:
                return due
            part, size = self._pool.pop(self._next)
            self._pooled_bytes -= size

    def _finish(self) -> None:
        self.state = StreamState.OVER
        self.dropped += len(self._pool)
        self._pool.clear()
        self._pooled_bytes = 0


def is_stream(packet: Request | Response) -> bool:
    """Whether a packet is a part of a stream, opening and last included."""
    return packet.stream is True or (isinstance(packet.seq, int) and packet.seq > 0)


def has_objects(packet: Request | Response) -> bool:
    """Whether the stream that a packet is a part of is in object mode."""
    return bool((packet.headers or {}).get(OBJECT_MODE))


def part_of(packet: Request | Response) -> Part:
    """What a packet says of its stream; whatever else it holds besides a chunk does not count."""
    if packet.seq == 0:
        return Opened()
    if packet.stream is not True:
        return _last(packet)
    value = packet.params if isinstance(packet, Request) else packet.data
    return Chunk(value) if has_objects(packet) else _plain_chunk(value)


def _last(packet: Request | Response) -> Part:
    if isinstance(packet, Response):
        if packet.success:
            return Ended()
        return Failed(packet.error if isinstance(packet.error, dict) else {})
    error = packet.headers.get(STREAM_ERROR)
    if error is None:
        return Ended()
    return Failed(error if isinstance(error, dict) else {})


def _plain_chunk(value: Any) -> Part:
    if isinstance(value, bytes | bytearray | memoryview):
        return Chunk(bytes(value))
    if isinstance(value, str):
        return Chunk(value.encode(errors="replace"))
    return Failed(_error(f"a chunk must be bytes, not {type(value).__name__}", "STREAM_BAD_CHUNK"))


def _overflow(missing: int, count: int, size: int) -> Mapping[str, Any]:
    return _error(
        f"part {missing} of a stream did not come; {count} later ones with {size} bytes wait",
        "STREAM_OVERFLOW",
    )


def _error(message: str, type: str) -> Mapping[str, Any]:
    return {"name": "MoleculerError", "message": message, "code": 500, "type": type}
