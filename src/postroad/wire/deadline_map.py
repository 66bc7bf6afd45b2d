"""Work that awaits an end by a deadline: requests at the client, handlers at the server.

One timer serves all of it. `next_deadline` never lies after the earliest deadline, but it may lie
before it, because ending early leaves it untouched; a sweep then finds nothing and sets it right.
With thousands of requests of the same timeout a sweep happens about once per timeout.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from postroad.core.timing import NEVER

Waiter = TypeVar("Waiter")


class DeadlineMap(Generic[Waiter]):
    """Waiters by id, each with a deadline."""

    __slots__ = ("entries", "next_deadline")

    def __init__(self) -> None:
        # Public to the loops that cannot afford a call per message.
        self.entries: dict[int, tuple[Waiter, float]] = {}
        self.next_deadline = NEVER

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, id: int, waiter: Waiter, deadline: float) -> None:
        """Remember a waiter. The caller re-arms its timer if `next_deadline` moved forward."""
        self.entries[id] = (waiter, deadline)
        if deadline < self.next_deadline:
            self.next_deadline = deadline

    def pop(self, id: int) -> Waiter | None:
        """Forget and return the waiter of that id, if there is one."""
        entry = self.entries.pop(id, None)
        return None if entry is None else entry[0]

    def pop_expired(self, now: float) -> list[tuple[int, Waiter]]:
        """Forget and return everything whose deadline has come."""
        if now < self.next_deadline:
            return []
        entries = self.entries
        expired = [(id, entry[0]) for id, entry in entries.items() if entry[1] <= now]
        for id, _ in expired:
            del entries[id]
        self.next_deadline = min((entry[1] for entry in entries.values()), default=NEVER)
        return expired

    def pop_all(self) -> list[tuple[int, Waiter]]:
        """Forget and return everything."""
        taken = [(id, entry[0]) for id, entry in self.entries.items()]
        self.entries.clear()
        self.next_deadline = NEVER
        return taken
