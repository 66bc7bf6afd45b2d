"""The calls that wait for an answer.

Each is in the table under its id until it is answered, times out, is given up, or its node is lost.
Answers to anything else are orphans: late, doubled, or meant for somebody else.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

PENDING_MAX = 50_000
"""Calls in flight of one node, as in the original system; more are refused."""

# Times of calls that are over stay in the heap until they are a nuisance.
_STALE_MIN = 256


class Added(enum.Enum):
    """What became of a call that was to be added."""

    ADDED = "added"
    FULL = "full"
    KNOWN = "known"


class PendingCalls(Generic[T]):
    """The table. What is waiting is up to the user: a future, a stream, a number.

    Args:
        pending_max: calls it holds.
    """

    def __init__(self, pending_max: int = PENDING_MAX) -> None:
        self._pending_max = pending_max
        # What waits, the node it was sent to, and until when.
        self._calls: dict[str, tuple[T, str | None, float]] = {}
        self._times: list[tuple[float, str]] = []
        self.orphans = 0
        """Answers nobody waited for."""

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, id: str) -> bool:
        return id in self._calls

    def add(
        self, id: str, value: T, *, node_id: str | None = None, deadline: float = math.inf
    ) -> Added:
        """A call is about to be sent.

        Args:
            id: of the call.
            value: what waits.
            node_id: the node it is sent to; None if a queue decides.
            deadline: when it times out.
        """
        if id in self._calls:
            return Added.KNOWN
        if len(self._calls) >= self._pending_max:
            return Added.FULL
        self._calls[id] = value, node_id, deadline
        if deadline < math.inf:
            if len(self._times) > 2 * len(self._calls) + _STALE_MIN:
                self._compact()
            heappush(self._times, (deadline, id))
        return Added.ADDED

    def get(self, id: str) -> T | None:
        """What waits for an answer, if there will be more of them; None counts an orphan."""
        call = self._calls.get(id)
        if call is None:
            self.orphans += 1
            return None
        return call[0]

    def take(self, id: str) -> T | None:
        """What waits for the only or last answer; None counts an orphan."""
        call = self._calls.pop(id, None)
        if call is None:
            self.orphans += 1
            return None
        return call[0]

    def give_up(self, id: str) -> T | None:
        """The caller does not wait any longer; an answer will be an orphan."""
        call = self._calls.pop(id, None)
        return None if call is None else call[0]

    def lose_node(self, node_id: str, is_lost: Callable[[T], bool] = lambda _: True) -> list[T]:
        """Take out what was sent to a node, in order: all of it, or what is said to be lost."""
        calls = self._calls
        sent = ((id, value) for id, (value, sent_to, _) in calls.items() if sent_to == node_id)
        lost = [id for id, value in sent if is_lost(value)]
        return [calls.pop(id)[0] for id in lost]

    def expire(self, now: float) -> list[T]:
        """Take out everything whose time is over, the oldest deadline first."""
        expired: list[T] = []
        while self._times and self._times[0][0] <= now:
            deadline, id = heappop(self._times)
            if self._is_current(deadline, id):
                expired.append(self._calls.pop(id)[0])
        return expired

    def deadline(self) -> float:
        """When `expire` must be called."""
        while self._times and not self._is_current(*self._times[0]):
            heappop(self._times)
        return self._times[0][0] if self._times else math.inf

    def drain(self) -> list[T]:
        """Take out everything."""
        values = [value for value, _, _ in self._calls.values()]
        self._calls.clear()
        self._times.clear()
        return values

    def _is_current(self, deadline: float, id: str) -> bool:
        call = self._calls.get(id)
        return call is not None and call[2] == deadline

    def _compact(self) -> None:
        self._times = [time for time in self._times if self._is_current(*time)]
        heapify(self._times)

    def __repr__(self) -> str:
        return f"<PendingCalls: {len(self)} of {self._pending_max}, {self.orphans} orphans>"
