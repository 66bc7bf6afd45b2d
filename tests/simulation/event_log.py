"""What happened in a run, one line per event in fixed columns, for a person to read."""

from __future__ import annotations

from tests.simulation.timeline import Timeline


class EventLog:
    """Lines of virtual time, who, what."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.lines: list[str] = []

    def add(self, who: str, verb: str, details: str = "") -> None:
        """Write down that somebody did something now."""
        line = f"{self._timeline.now:12.6f}  {who:<8}  {verb:<10}  {details}"
        self.lines.append(line.rstrip())

    def __str__(self) -> str:
        return "\n".join(self.lines)
