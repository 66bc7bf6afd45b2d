"""The reports of a run, gathered second by second. Pure: knows neither clock nor terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from .books import BankCounts, ClearingCounts, Counts
from .records import Report, Totals
from .traffic import Latencies


class Timed(Protocol):
    """A report of any kind."""

    @property
    def at_s(self) -> float:
        """On the clock of `time.monotonic`, which all processes of a machine share."""


T = TypeVar("T", bound=Timed)


@dataclass
class Second(Generic[T]):
    """One second of the run."""

    second: int
    """Counted from 1, the way people do."""
    elapsed_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    """What the story did in this second, each with its time."""

    @property
    def is_eventful(self) -> bool:
        """Whether anything but the usual came in this second."""
        return bool(self.notes)

    def add(self, before: T, now: T) -> None:
        """Take up what happened between two reports."""
        self.elapsed_s += now.at_s - before.at_s

    def per_second(self, count: int) -> float:
        """How many that is in a whole second."""
        return count / self.elapsed_s if self.elapsed_s else 0.0


@dataclass
class Row(Second[Report]):
    """One second of requests."""

    answered: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    in_flight: int = 0
    connections: int = 0
    reconnects: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Errors met in this second, by reason."""

    @property
    def rate(self) -> float:
        """Answers in a second."""
        return self.per_second(self.answered)

    @property
    def is_eventful(self) -> bool:
        return bool(self.errors or self.notes)

    def add(self, before: Report, now: Report) -> None:
        super().add(before, now)
        self.answered += now.totals.answered - before.totals.answered
        self.latencies.merge(now.latencies)
        self.in_flight = now.totals.in_flight
        self.connections = now.connections
        self.reconnects = now.reconnects
        self.errors += _errors(now.totals) - _errors(before.totals)


@dataclass
class MailRow(Second[Counts]):
    """One second of mail."""

    posted: int = 0
    handled: int = 0
    receipts: int = 0
    payments_waiting: int = 0
    """Posted and not yet handled, wherever they are."""
    receipts_waiting: int = 0

    @property
    def is_eventful(self) -> bool:
        # The last ones to come are what everybody waited for.
        return bool(self.notes or self.handled or self.receipts)

    def add(self, before: Counts, now: Counts) -> None:
        super().add(before, now)
        self.posted += now.payments - before.payments
        self.handled += now.bookings - before.bookings
        self.receipts += now.receipts - before.receipts
        self.payments_waiting = now.payments - now.bookings
        self.receipts_waiting = now.bookings - now.receipts


@dataclass(frozen=True, kw_only=True)
class CellCounts:
    """What all satellites did until now; `latencies` alone counts since the last time."""

    at_s: float
    totals: Totals
    latencies: Mapping[int, int]
    handled: Mapping[str, int]
    """By the name of each consumer."""
    published: int
    copies: int
    routes: int
    """Ways from satellites to cores."""


@dataclass
class CellsRow(Second[CellCounts]):
    """One second of cells."""

    answered: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    handled: Counter[str] = field(default_factory=Counter)
    published: int = 0
    copies: int = 0
    routes: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Errors met in this second, by reason."""

    @property
    def is_eventful(self) -> bool:
        return bool(self.errors or self.notes)

    def add(self, before: CellCounts, now: CellCounts) -> None:
        super().add(before, now)
        self.answered += now.totals.answered - before.totals.answered
        self.latencies.merge(now.latencies)
        self.handled += Counter(now.handled) - Counter(before.handled)
        self.published += now.published - before.published
        self.copies += now.copies - before.copies
        self.routes = now.routes
        self.errors += _errors(now.totals) - _errors(before.totals)


@dataclass(frozen=True, kw_only=True)
class ServiceCounts:
    """What all nodes of services did until now; `latencies` alone counts since the last time."""

    at_s: float
    totals: Totals
    latencies: Mapping[int, int]
    priced: Mapping[str, int]
    """By the name of each node that tells prices."""
    heard: int
    stream_bytes: int
    nodes: int
    """Those that the sender knows."""


@dataclass
class ServicesRow(Second[ServiceCounts]):
    """One second of services."""

    answered: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    priced: Counter[str] = field(default_factory=Counter)
    heard: int = 0
    stream_bytes: int = 0
    nodes: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Errors met in this second, by reason."""

    @property
    def is_eventful(self) -> bool:
        return bool(self.errors or self.notes)

    def add(self, before: ServiceCounts, now: ServiceCounts) -> None:
        super().add(before, now)
        self.answered += now.totals.answered - before.totals.answered
        self.latencies.merge(now.latencies)
        self.priced += Counter(now.priced) - Counter(before.priced)
        self.heard += now.heard - before.heard
        self.stream_bytes += now.stream_bytes - before.stream_bytes
        self.nodes = now.nodes
        self.errors += _errors(now.totals) - _errors(before.totals)


@dataclass
class FlowsRow(Second[BankCounts]):
    """One second of flows."""

    begun: int = 0
    credited: int = 0
    settled: int = 0
    refused: int = 0
    under_way: int = 0

    @property
    def is_eventful(self) -> bool:
        return bool(self.notes or self.settled or self.refused)

    def add(self, before: BankCounts, now: BankCounts) -> None:
        super().add(before, now)
        self.begun += now.begun - before.begun
        self.credited += now.credited - before.credited
        self.settled += now.settled - before.settled
        self.refused += now.refused - before.refused
        self.under_way = now.under_way


@dataclass
class ClearingRow(Second[ClearingCounts]):
    """One second of clearing."""

    posted: int = 0
    acked: int = 0
    cleared: int = 0
    newest: ClearingCounts = field(default_factory=lambda: ClearingCounts(at_s=0.0))

    @property
    def is_eventful(self) -> bool:
        return bool(self.notes or self.cleared)

    def add(self, before: ClearingCounts, now: ClearingCounts) -> None:
        super().add(before, now)
        self.posted += now.posted - before.posted
        self.acked += now.acked - before.acked
        self.cleared += now.cleared - before.cleared
        self.newest = now


R = TypeVar("R", bound=Second[Any])


class Board(Generic[T, R]):
    """Rows of seconds and the newest report."""

    def __init__(self, make_row: Callable[[int], R]) -> None:
        self.rows: list[R] = []
        self.newest: T | None = None
        self._make_row = make_row
        self._started_s = 0.0
        # For the next row.
        self._notes: list[str] = []

    def add(self, report: T) -> None:
        """Take up a report; the first one only starts the clock."""
        before, self.newest = self.newest, report
        if before is None:
            self._started_s = report.at_s
            return
        second = self._second(report.at_s)
        if not self.rows or second > self.rows[-1].second:
            self.rows.append(self._make_row(second))
            self.rows[-1].notes, self._notes = self._notes, []
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

    def _second(self, now_s: float) -> int:
        return max(1, math.ceil(now_s - self._started_s))


class TrafficBoard(Board[Report, Row]):
    """The reports of callers."""

    def __init__(self) -> None:
        super().__init__(Row)

    @property
    def errors_met(self) -> int:
        """Errors met since the start."""
        return self.newest.totals.met if self.newest is not None else 0


class MailBoard(Board[Counts, MailRow]):
    """What the tables of both nodes held, time after time."""

    def __init__(self) -> None:
        super().__init__(MailRow)


class CellsBoard(Board[CellCounts, CellsRow]):
    """What satellites reported, time after time."""

    def __init__(self) -> None:
        super().__init__(CellsRow)


class ServicesBoard(Board[ServiceCounts, ServicesRow]):
    """What nodes of services reported, time after time."""

    def __init__(self) -> None:
        super().__init__(ServicesRow)


class FlowsBoard(Board[BankCounts, FlowsRow]):
    """What the tables of banks held, time after time."""

    def __init__(self) -> None:
        super().__init__(FlowsRow)


class ClearingBoard(Board[ClearingCounts, ClearingRow]):
    """How far the clearing was, time after time."""

    def __init__(self) -> None:
        super().__init__(ClearingRow)


def _errors(totals: Totals) -> Counter[str]:
    return Counter({trouble.reason: trouble.met for trouble in totals.troubles})
