"""Bulkheads: so many calls of an action run at once, so many wait, the rest is refused."""

from __future__ import annotations

import enum
from collections import deque
from typing import Generic, TypeVar

import msgspec

from postroad.core.errors import ConfigError

T = TypeVar("T")


class BulkheadConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a bulkhead."""

    is_enabled: bool = False
    """Whether there is one."""
    concurrency: int = 10
    """Calls that run at once."""
    queue_max: int = 100
    """Calls that wait."""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ConfigError(f"concurrency={self.concurrency!r} must be at least 1")
        if self.queue_max < 0:
            raise ConfigError(f"queue_max={self.queue_max!r} must be 0 or more")


class Entry(enum.Enum):
    """What becomes of a call."""

    RUNS = "runs"
    WAITS = "waits"
    REFUSED = "refused"


class Bulkhead(Generic[T]):
    """The calls of one action, or one event, at this node. They wait in order."""

    def __init__(self, config: BulkheadConfig) -> None:
        self.config = config
        self.running = 0
        self._waiting: deque[T] = deque()

    @property
    def waiting(self) -> int:
        """Calls that wait."""
        return len(self._waiting)

    def enter(self, call: T) -> Entry:
        """A call comes."""
        if self.running < self.config.concurrency:
            self.running += 1
            return Entry.RUNS
        if len(self._waiting) >= self.config.queue_max:
            return Entry.REFUSED
        self._waiting.append(call)
        return Entry.WAITS

    def leave(self) -> T | None:
        """A running call ended; gives the one that runs in its place, if one waits."""
        if self._waiting:
            return self._waiting.popleft()
        self.running -= 1
        return None

    def give_up(self, call: T) -> bool:
        """A waiting call is not wanted any more; False if it does not wait."""
        try:
            self._waiting.remove(call)
        except ValueError:
            return False
        return True

    def __repr__(self) -> str:
        return f"<Bulkhead: {self.running} running, {self.waiting} waiting>"
