"""A bounded queue that nobody can fill alone.

No source may hold more of it than what is still free. So one that floods gets half at most, the
next one half of the rest, and it takes many of them to leave no place for somebody new.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """First in, first out, with a limit on items and on their bytes.

    Args:
        items_max: how many items it holds.
        bytes_max: how large they may be together; a single one may always enter an empty queue.
    """

    __slots__ = ("_bytes", "_bytes_max", "_held", "_items", "_items_max")

    def __init__(self, items_max: int, bytes_max: int) -> None:
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._items: deque[tuple[T, int, str]] = deque()
        self._bytes = 0
        # Items and bytes of each source that has any.
        self._held: dict[str, tuple[int, int]] = {}

    def offer(self, item: T, size: int, source: str, *, is_owed: bool = False) -> bool:
        """Take an item in, unless the source has its share already.

        What is owed, because work was done for it, needs a place but no share.
        """
        items, held_bytes = self._held.get(source, (0, 0))
        share = (0, 0) if is_owed else (items, held_bytes)
        if self._items and not self._has_room(*share, size):
            return False
        self._held[source] = (items + 1, held_bytes + size)
        self._items.append((item, size, source))
        self._bytes += size
        return True

    def _has_room(self, items: int, held_bytes: int, size: int) -> bool:
        has_place = items < self._items_max - len(self._items)
        return has_place and held_bytes + size <= self._bytes_max - self._bytes

    def take(self) -> T:
        """The oldest item; IndexError if there is none."""
        item, size, source = self._items.popleft()
        self._bytes -= size
        items, held_bytes = self._held[source]
        if items == 1:
            del self._held[source]
        else:
            self._held[source] = (items - 1, held_bytes - size)
        return item

    @property
    def oldest(self) -> T | None:
        """The item to be taken next, if there is one."""
        return self._items[0][0] if self._items else None

    def take_all(self) -> Iterator[T]:
        """Everything, oldest first, until it is empty."""
        while self._items:
            yield self.take()

    @property
    def bytes(self) -> int:
        """The size of all items."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._items)
