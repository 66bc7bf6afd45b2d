"""Log lines of errors: their text, and suppression of what is repeated."""

from __future__ import annotations

import logging

# Peers influence the keys, so the table must be bounded; it is cleared at this size.
KEYS_MAX = 1_024


class LogThrottle:
    """Admits one occurrence per key and interval. Time is an argument."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        # Key -> time of the last admitted occurrence, and how many were suppressed since.
        self._seen: dict[str, tuple[float, int]] = {}

    def try_acquire(self, key: str, now: float) -> int | None:
        """Return how many were suppressed before this one, or None if it is suppressed too."""
        logged_at, suppressed = self._seen.get(key, (None, 0))
        if logged_at is not None and now - logged_at < self._interval_s:
            self._seen[key] = (logged_at, suppressed + 1)
            return None
        if len(self._seen) >= KEYS_MAX:
            self._seen.clear()
        self._seen[key] = (now, 0)
        return suppressed


class ThrottledLogger:
    """Logger that writes one line per key and interval, with a count of the suppressed ones."""

    def __init__(self, logger: logging.Logger, interval_s: float) -> None:
        self._logger = logger
        self._throttle = LogThrottle(interval_s)

    def log(
        self, key: str, now: float, text: str, *args: object, level: int = logging.WARNING
    ) -> None:
        """Log a line unless one with the same key was logged within the interval."""
        suppressed = self._throttle.try_acquire(key, now)
        if suppressed is None:
            return
        if suppressed:
            text += " (and %d more like it)"
            args = (*args, suppressed)
        self._logger.log(level, text, *args)


def describe_error(error: BaseException) -> str:
    """Return class and text of an error; the class alone where its `__str__` raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
