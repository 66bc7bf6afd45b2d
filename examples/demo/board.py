"""The reports of a run, gathered second by second. Pure: knows neither clock nor terminal."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from .records import Report
from .traffic import Latencies


@dataclass
class Row:
    """One second of the run."""

    second: int
    """Counted from 1, the way people do."""
    elapsed_s: float = 0.0
    answered: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    in_flight: int = 0
    connections: int = 0
    reconnects: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Errors met in this second, by reason."""
    notes: list[str] = field(default_factory=list)
    """What the story did in this second, each with its time."""

    @property
    def rate(self) -> float:
        """Answers in a second."""
        return self.answered / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def is_eventful(self) -> bool:
        """Whether anything but answers came in this second."""
        return bool(self.errors or self.notes)

    def add(self, before: Report, now: Report) -> None:
        """Take up what happened between two reports."""
        self.elapsed_s += now.at_s - before.at_s
        self.answered += now.totals.answered - before.totals.answered
        self.latencies.merge(now.latencies)
        self.in_flight = now.totals.in_flight
        self.connections = now.connections
        self.reconnects = now.reconnects
        self.errors += _errors(now) - _errors(before)


class Board:
    """Rows of seconds and the newest report."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.newest: Report | None = None
        self._started_s = 0.0
        # For the next row.
        self._notes: list[str] = []

    def add(self, report: Report) -> None:
        """Take up a report; the first one only starts the clock."""
        before, self.newest = self.newest, report
        if before is None:
            self._started_s = report.at_s
            return
        second = self._second(report.at_s)
        if not self.rows or second > self.rows[-1].second:
            self.rows.append(Row(second=second, notes=self._notes))
            self._notes = []
        self.rows[-1].add(before, report)

    def note(self, text: str, now_s: float) -> None:
        """Write down what the story does, for the second in which it does it."""
        second = self._second(now_s)
        is_current = self.rows and self.rows[-1].second == second
        notes = self.rows[-1].notes if is_current else self._notes
        notes.append(f"{now_s - self._started_s:.2f} s: {text}")

    def end(self) -> None:
        """Forget a last second that had hardly begun, if nothing happened in it."""
        if len(self.rows) > 1 and self.rows[-1].elapsed_s < 0.5 and not self.rows[-1].is_eventful:
            self.rows.pop()

    @property
    def finished(self) -> list[Row]:
        """Rows that will not change any more."""
        return self.rows[:-1]

    @property
    def errors_met(self) -> int:
        """Errors met since the start."""
        return self.newest.totals.met if self.newest is not None else 0

    def _second(self, now_s: float) -> int:
        return max(1, math.ceil(now_s - self._started_s))


def _errors(report: Report) -> Counter[str]:
    return Counter({trouble.reason: trouble.met for trouble in report.totals.troubles})
