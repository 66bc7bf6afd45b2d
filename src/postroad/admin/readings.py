"""Numbers that are looked at again and again, by many, without costing much."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_RATE_S = 10.0
_SAMPLES_MAX = 64
# Looking may take this share of the time at most, and is done at least so often if it is cheap.
_SHARE = 0.1
_FRESH_S = 0.2


class Rate:
    """How fast a total grows, over about the last ten seconds of looking."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES_MAX)

    def look(self, total: float, now: float) -> float:
        """The rate, now that the total is this; 0 at the first look."""
        samples = self._samples
        while len(samples) > 1 and samples[1][0] <= now - _RATE_S:
            samples.popleft()
        if not samples or now - samples[-1][0] >= _RATE_S / _SAMPLES_MAX:
            samples.append((now, total))
        then, before = samples[0]
        return max(total - before, 0.0) / (now - then) if now > then else 0.0


class Reading(Generic[T]):
    """Something that takes a moment to find out; what was found is good for a while.

    The longer it takes, the longer: so that looking never is most of what a node does.
    """

    def __init__(self, find: Callable[[], Awaitable[T]]) -> None:
        self._find = find
        self._found: T | None = None
        self._good_until = 0.0
        self._is_wrong = False
        self._lock = asyncio.Lock()

    def forget(self) -> None:
        """What was found, or is just being found, is known to be wrong now."""
        self._good_until = 0.0
        self._is_wrong = True

    async def take(self) -> T:
        """What is found, or was a moment ago."""
        async with self._lock:
            if self._found is None or time.monotonic() >= self._good_until:
                started = time.monotonic()
                self._is_wrong = False
                self._found = await self._find()
                now = time.monotonic()
                good_s = 0.0 if self._is_wrong else max((now - started) / _SHARE, _FRESH_S)
                self._good_until = now + good_s
            return self._found
