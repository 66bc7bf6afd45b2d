"""Pending operations with deadlines: requests of a client, handlers of a server.

One timer serves all entries. `next_deadline` is never later than the earliest deadline, but may be
earlier, because `pop` leaves it unchanged; `pop_expired` then returns nothing and corrects it. With
thousands of requests of the same timeout that happens about once per timeout.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from postroad.core.timing import NEVER

Waiter = TypeVar("Waiter")


class DeadlineMap(Generic[Waiter]):
    """Waiters by id, each with a deadline."""

    __slots__ = ("entries", "next_deadline")

    def __init__(self) -> None:
        # Public for hot loops that cannot afford a call per message.
        self.entries: dict[int, tuple[Waiter, float]] = {}
        self.next_deadline = NEVER

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, id: int, waiter: Waiter, deadline: float) -> None:
        """Add a waiter. The caller re-arms its timer if `next_deadline` moved forward."""
        self.entries[id] = (waiter, deadline)
        if deadline < self.next_deadline:
            self.next_deadline = deadline

    def pop(self, id: int) -> Waiter | None:
        entry = self.entries.pop(id, None)
        return None if entry is None else entry[0]

    def pop_expired(self, now: float) -> list[tuple[int, Waiter]]:
        """Remove and return all entries whose deadline has passed."""
        if now < self.next_deadline:
            return []
        entries = self.entries
        expired = [(id, entry[0]) for id, entry in entries.items() if entry[1] <= now]
        for id, _ in expired:
            del entries[id]
        self.next_deadline = min((entry[1] for entry in entries.values()), default=NEVER)
        return expired

    def pop_all(self) -> list[tuple[int, Waiter]]:
        waiters = [(id, entry[0]) for id, entry in self.entries.items()]
        self.entries.clear()
        self.next_deadline = NEVER
        return waiters
