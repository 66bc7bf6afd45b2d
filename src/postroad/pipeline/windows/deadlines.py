"""Which extents have ended, some seconds ago, by the latest time seen. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from .decimals import plus
from .panes import PaneKey


class WatermarkTimers:
    """The extents that have not ended long enough ago.

    An extent may be gone, or end later than it was to, without this being told: what `upper_of`
    says then is what counts.
    """

    def __init__(self, after_s: float, upper_of: Callable[[PaneKey], float | None]) -> None:
        """
        Args:
            after_s: how long after their end extents are wanted.
            upper_of: tells the end of an extent; None if it is not there.
        """
        self._after_s = float(after_s)
        self._upper_of = upper_of
        self._waiting: list[tuple[float, PaneKey]] = []
        self._keys: set[PaneKey] = set()

    def add(self, key: PaneKey, upper: float) -> None:
        """Wait for the end of an extent, unless it is waited for already."""
        if key not in self._keys:
            self._keys.add(key)
            heapq.heappush(self._waiting, (upper, key))

    def is_passed(self, upper: float, latest: float) -> bool:
        """Whether an extent has ended long enough ago."""
        return latest > plus(upper, self._after_s)

    def take_passed(self, latest: float) -> list[PaneKey]:
        """Those that have ended long enough ago, each once."""
        passed = []
        while self._waiting and self.is_passed(self._waiting[0][0], latest):
            told, key = heapq.heappop(self._waiting)
            self._keys.remove(key)
            upper = self._upper_of(key)
            if upper is None:
                continue
            if upper > told:
                self.add(key, upper)
            else:
                passed.append(key)
        return passed
