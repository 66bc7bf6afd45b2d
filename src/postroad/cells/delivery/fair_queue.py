"""A bounded queue that nobody can fill alone.

No source may hold more of it than what is still free. So one that floods gets half at most, the
next one half of the rest, and it takes many of them to leave no place for somebody new. What comes
by way of another is within the share of that one, which is shared out in the same manner: however
many sources somebody brings, or makes up, they have one share together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

_ShareKey: TypeAlias = str | tuple[str, str]
"""A source, or one that came by way of another, behind that one."""


class FairQueue(Generic[T]):
    """First in, first out, with a limit on items and on their bytes.

    Args:
        items_max: how many items it holds.
        bytes_max: how large they may be together; a single one may always enter an empty queue.
    """

    __slots__ = ("_bytes", "_bytes_max", "_items", "_items_max", "_usage")

    def __init__(self, items_max: int, bytes_max: int) -> None:
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._items: deque[tuple[T, int, tuple[_ShareKey, ...]]] = deque()
        self._bytes = 0
        # Items and bytes of each holder that has any.
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
        """Take an item in, unless the source, or the one it came by, has its share already.

        What is owed, because work was done for it, needs a place but no share.
        """
        shares: tuple[_ShareKey, ...] = (source,) if via is None else (via, (via, source))
        if self._items and not self._has_capacity(() if bypasses_share else shares, size):
            return False
        for share in shares:
            items, used_bytes = self._usage.get(share, (0, 0))
            self._usage[share] = (items + 1, used_bytes + size)
        self._items.append((item, size, shares))
        self._bytes += size
        return True

    def _has_capacity(self, shares: tuple[_ShareKey, ...], size: int) -> bool:
        free, free_bytes = self._items_max - len(self._items), self._bytes_max - self._bytes
        for share in shares:
            items, used_bytes = self._usage.get(share, (0, 0))
            if items >= free or used_bytes + size > free_bytes:
                return False
            # What is still free within its share.
            free, free_bytes = free - items, free_bytes - used_bytes
        return free > 0 and size <= free_bytes

    def pop(self) -> T:
        """The oldest item; IndexError if there is none."""
        item, size, shares = self._items.popleft()
        self._bytes -= size
        for share in shares:
            items, used_bytes = self._usage[share]
            if items == 1:
                del self._usage[share]
            else:
                self._usage[share] = (items - 1, used_bytes - size)
        return item

    @property
    def oldest(self) -> T | None:
        """The item to be taken next, if there is one."""
        return self._items[0][0] if self._items else None

    def pop_all(self) -> Iterator[T]:
        """Everything, oldest first, until it is empty."""
        while self._items:
            yield self.pop()

    @property
    def bytes(self) -> int:
        """The size of all items."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._items)
