"""How often a node asks others, and answers them: at once, but not as often as somebody likes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

AT_ONCE_MAX = 4
"""So often the same node is asked, or answered, at once: what was said meanwhile is new."""
AT_ONCE_PER_S = 10.0
"""How many of these come back each second."""
PAUSE_S = 0.1
"""After that it waits so long, and is done once for all that was wanted meanwhile."""
NAMES_MAX = 1_000
"""Nodes whose pauses are remembered; the oldest are forgotten."""
ANSWERS_MAX = 32
"""Nodes that are answered at once one by one; then there is one answer for all."""
ANSWERS_PER_S = 16.0
"""How many of those answers can be given again each second."""
TO_ALL_S = 1.0
"""Answers for all are so far apart: each goes to every node."""

_EVERYBODY = ""


class Allowance:
    """How often something may be done for each of many nodes: some times at once, then at a rate.

    Args:
        most: times at once.
        per_s: how many of them come back each second.
    """

    def __init__(self, most: int, per_s: float) -> None:
        self._most = most
        self._per_s = per_s
        # What is left, and when that was; the oldest first.
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, node_id: str, now: float) -> bool:
        """Whether it may be done now."""
        left, at = self._left.pop(node_id, (float(self._most), now))
        left = min(self._most, left + (now - at) * self._per_s)
        if len(self._left) >= NAMES_MAX:
            del self._left[next(iter(self._left))]
        self._left[node_id] = (left - 1 if left >= 1 else left), now
        return left >= 1


class Pacing:
    """Does something for each of many nodes: some times at once, then after pauses.

    Args:
        act: is called with the node.
    """

    def __init__(self, act: Callable[[str], None]) -> None:
        self._act = act
        self._loop = asyncio.get_running_loop()
        self._allowance = Allowance(AT_ONCE_MAX, AT_ONCE_PER_S)
        self._due: dict[str, asyncio.TimerHandle] = {}

    def want(self, node_id: str) -> None:
        """Do it now, or when the pause is over."""
        if node_id in self._due:
            return
        if self._allowance.take(node_id, self._loop.time()):
            self._act(node_id)
        elif len(self._due) < NAMES_MAX:
            self._due[node_id] = self._loop.call_later(PAUSE_S, self._do, node_id)

    def close(self) -> None:
        """Do nothing any more of what is due later."""
        for timer in self._due.values():
            timer.cancel()
        self._due.clear()

    def _do(self, node_id: str) -> None:
        del self._due[node_id]
        self._act(node_id)


class Answers:
    """Answers those who ask what this node offers: each, unless so many ask that all are told.

    Args:
        answer: tells one node, or all.
    """

    def __init__(self, answer: Callable[[str | None], None]) -> None:
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._pacing = Pacing(self._answer_one)
        self._allowance = Allowance(ANSWERS_MAX, ANSWERS_PER_S)
        self._to_all: asyncio.TimerHandle | None = None
        self._to_all_at = -math.inf

    def asked(self, node_id: str) -> None:
        """A node asks."""
        self._pacing.want(node_id)

    def close(self) -> None:
        """Answer nobody any more."""
        self._pacing.close()
        if self._to_all is not None:
            self._to_all.cancel()

    def _answer_one(self, node_id: str) -> None:
        if self._to_all is not None:
            return
        now = self._loop.time()
        if self._allowance.take(_EVERYBODY, now):
            self._answer(node_id)
            return
        due = max(now + PAUSE_S, self._to_all_at + TO_ALL_S)
        self._to_all = self._loop.call_at(due, self._answer_all)

    def _answer_all(self) -> None:
        self._to_all = None
        self._to_all_at = self._loop.time()
        self._answer(None)
