"""A bounded queue that no single source can fill.

No source may use more of it than what is still free. So a flooding source gets at most half, the
next one half of the rest, and only many sources together can leave no capacity for a new one. Items
that came through another domain are within the share of that domain, which is divided in the same
way: however many sources a domain brings or invents, they have one share together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

_ShareKey: TypeAlias = str | tuple[str, str]
"""A source, or a pair of the domain in between and the source behind it."""


class FairQueue(Generic[T]):
    """Bounded FIFO with a fair share for each source."""

    __slots__ = ("_bytes_max", "_items_max", "_usage", "bytes", "items")

    def __init__(self, items_max: int, bytes_max: int) -> None:
        self._items_max = items_max
        # An empty queue accepts an item of any size.
        self._bytes_max = bytes_max
        self.items: deque[tuple[T, int, tuple[_ShareKey, ...]]] = deque()
        """Items with size and shares, oldest first; not to be changed by others."""
        self.bytes = 0
        # Items and bytes of each share in use.
        self._usage: dict[_ShareKey, tuple[int, int]] = {}

    def try_put(
        self,
        item: T,
        size: int,
        source: str,
        *,
        via: str | None = None,
        bypasses_share: bool = False,
    ) -> bool:
        """Append an item; return False if the share of its source, or of `via`, is used up.

        With `bypasses_share`, as for replies, only the capacity of the whole queue counts.
        """
        shares: tuple[_ShareKey, ...] = (source,) if via is None else (via, (via, source))
        if self.items and not self._has_capacity(() if bypasses_share else shares, size):
            return False
        for share in shares:
            items, used_bytes = self._usage.get(share, (0, 0))
            self._usage[share] = (items + 1, used_bytes + size)
        self.items.append((item, size, shares))
        self.bytes += size
        return True

    def _has_capacity(self, shares: tuple[_ShareKey, ...], size: int) -> bool:
        free, free_bytes = self._items_max - len(self.items), self._bytes_max - self.bytes
        for share in shares:
            items, used_bytes = self._usage.get(share, (0, 0))
            if items >= free or used_bytes + size > free_bytes:
                return False
            # Continue with the free part of this share.
            free, free_bytes = free - items, free_bytes - used_bytes
        return free > 0 and size <= free_bytes

    def pop(self) -> T:
        """Remove and return the oldest item; raises IndexError if the queue is empty."""
        item, size, shares = self.items.popleft()
        self.bytes -= size
        for share in shares:
            items, used_bytes = self._usage[share]
            if items == 1:
                del self._usage[share]
            else:
                self._usage[share] = (items - 1, used_bytes - size)
        return item

    @property
    def oldest(self) -> T | None:
        return self.items[0][0] if self.items else None

    def pop_all(self) -> Iterator[T]:
        """Remove and yield all items, oldest first."""
        while self.items:
            yield self.pop()

    def __len__(self) -> int:
        return len(self.items)
