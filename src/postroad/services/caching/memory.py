"""Results kept in the memory of this process."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from postroad.core.errors import ConfigError

from .store import MISSING, CacheStore, fits

ENTRIES_MAX = 10_000


class MemoryStore(CacheStore):
    """Keeps the results that were used last.

    Without `copies`, whoever calls gets the very object that is kept, as it would from a function
    with `functools.lru_cache`: it must not be changed. Calls of other nodes get one of their own
    in any case.

    Args:
        entries_max: results at the same time; then those that were not used for longest go.
        copies: give every caller a copy of its own, which takes time.
        clock: the present time in seconds.
    """

    def __init__(
        self,
        *,
        entries_max: int = ENTRIES_MAX,
        copies: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if entries_max < 1:
            raise ConfigError(f"entries_max={entries_max!r} must be at least 1")
        self._entries_max = entries_max
        self._copies = copies
        self._clock = clock
        # When each is no longer good, and what it is; what was used last comes last.
        self._entries: OrderedDict[str, tuple[float, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    async def close(self) -> None:
        self._entries.clear()

    def pack(self, value: Any) -> Any:
        return deepcopy(value) if self._copies else value

    def unpack(self, packed: Any) -> Any:
        return deepcopy(packed) if self._copies else packed

    async def get(self, key: str) -> Any:
        entry = self._entries.get(key)
        if entry is None:
            return MISSING
        good_until, value = entry
        if good_until <= self._clock():
            del self._entries[key]
            return MISSING
        self._entries.move_to_end(key)
        return value

    async def set(self, key: str, packed: Any, ttl_s: float | None) -> None:
        good_until = math.inf if ttl_s is None else self._clock() + ttl_s
        self._entries[key] = good_until, packed
        self._entries.move_to_end(key)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    async def clean(self, patterns: Sequence[str]) -> None:
        for key in [it for it in self._entries if fits(it, patterns)]:
            del self._entries[key]

    def __repr__(self) -> str:
        return f"<MemoryStore: {len(self)} of {self._entries_max} entries>"
