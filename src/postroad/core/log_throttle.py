"""Keeps repeated log lines from flooding: one line per key and interval, with a count."""

from __future__ import annotations

import logging

# Keys are chosen by peers in part; forgetting them all at this size keeps the table bounded.
KEYS_MAX = 1_024


class LogThrottle:
    """Decides which of many similar occurrences to tell about. Time is an argument."""

    __slots__ = ("_interval_s", "_seen")

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        # Key -> time of the last line told, and how many were kept back since.
        self._seen: dict[str, tuple[float, int]] = {}

    def try_acquire(self, key: str, now: float) -> int | None:
        """How many like it were kept back if this one should be told, else None."""
        told_at, kept_back = self._seen.get(key, (None, 0))
        if told_at is not None and now - told_at < self._interval_s:
            self._seen[key] = (told_at, kept_back + 1)
            return None
        if len(self._seen) >= KEYS_MAX:
            self._seen.clear()
        self._seen[key] = (now, 0)
        return kept_back


class ThrottledLogger:
    """Log lines that come in crowds: one for each key and interval, with a count of the rest."""

    __slots__ = ("_logger", "_throttle")

    def __init__(self, logger: logging.Logger, interval_s: float) -> None:
        self._logger = logger
        self._throttle = LogThrottle(interval_s)

    def log(
        self, key: str, now: float, text: str, *args: object, level: int = logging.WARNING
    ) -> None:
        """Log a line, but not more often than makes sense for its key."""
        kept_back = self._throttle.try_acquire(key, now)
        if kept_back is None:
            return
        if kept_back:
            text += " (and %d more like it)"
            args = (*args, kept_back)
        self._logger.log(level, text, *args)
