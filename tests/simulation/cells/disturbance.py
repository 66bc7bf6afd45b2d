"""How long something has stood still, so that nobody is blamed for being late."""

from __future__ import annotations

from collections.abc import Callable


class Disturbance:
    """Adds up the time during which at least one reason for delay held."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._reasons = 0
        self._since = 0.0
        self._total_s = 0.0

    def begin(self) -> None:
        if not self._reasons:
            self._since = self._now()
        self._reasons += 1

    def end(self) -> None:
        self._reasons -= 1
        if not self._reasons:
            self._total_s += self._now() - self._since

    @property
    def total_s(self) -> float:
        """Seconds until now; the difference of two looks is what lies between them."""
        lasting_s = self._now() - self._since if self._reasons else 0.0
        return self._total_s + lasting_s
