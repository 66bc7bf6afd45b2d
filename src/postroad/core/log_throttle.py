"""Log lines of errors: their text, and suppression of what is repeated."""

from __future__ import annotations

import logging

# Peers influence the keys, so the table must be bounded; it is cleared at this size.
KEYS_MAX = 1_024


class ThrottledLogger:
    """Logger that writes one line per key and interval, with a count of the suppressed ones."""

    def __init__(self, logger: logging.Logger, interval_s: float) -> None:
        self._logger = logger
        self._interval_s = interval_s
        # Key -> time of its last line, and how many were suppressed since.
        self._logged: dict[str, tuple[float, int]] = {}

    def log(
        self, key: str, now: float, text: str, *args: object, level: int = logging.WARNING
    ) -> None:
        """Log a line unless one with the same key was logged within the interval."""
        logged_at, suppressed = self._logged.get(key, (None, 0))
        if logged_at is not None and now - logged_at < self._interval_s:
            self._logged[key] = (logged_at, suppressed + 1)
            return
        if len(self._logged) >= KEYS_MAX:
            self._logged.clear()
        self._logged[key] = (now, 0)
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
