"""What happened in a run, one line per event in fixed columns, for a person to read."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

LINES_MAX = 20_000
"""Lines that are kept, the latest ones: a run must not fill the memory with its log."""

# Where an object lies in memory differs between two runs of one seed.
_MEMORY_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


class EventLog:
    """Lines of virtual time, who, what.

    Args:
        now: tells the virtual time.
        lines_max: how many of the latest lines are kept.
    """

    def __init__(self, now: Callable[[], float], lines_max: int = LINES_MAX) -> None:
        self.now = now
        self.total = 0
        self._lines: deque[str] = deque(maxlen=lines_max)

    @property
    def lines(self) -> list[str]:
        """The lines that were kept."""
        return list(self._lines)

    def add(self, who: str, verb: str, details: str = "") -> None:
        """Write down that somebody did something now."""
        if "\n" in details:
            details = " | ".join(details.splitlines())
        if "0x" in details:
            details = _MEMORY_ADDRESS.sub("0x...", details)
        line = f"{self.now():12.6f}  {who:<8}  {verb:<10}  {details}"
        self.total += 1
        self._lines.append(line.rstrip())

    def __str__(self) -> str:
        left_out = self.total - len(self._lines)
        begin = [f"({left_out} earlier lines left out)"] if left_out else []
        return "\n".join([*begin, *self._lines])
