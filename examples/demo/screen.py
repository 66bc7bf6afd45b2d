"""The board on a terminal, redrawn in place, or in a pipe, a line for each second."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TextIO

from .board import Board, Row
from .records import Totals
from .verdict import Evidence, checks, ledger_lines

HEADING = "  time  answers/s   p50 ms   p99 ms  in flight  connections  reconnects  errors"
LAST_LOG = "last log line: "


class Tone(Enum):
    """What a line is about, as its colour shows it; the values are terminal codes."""

    PLAIN = ""
    TITLE = "1"
    FAINT = "2"
    GOOD = "32"
    BAD = "31"
    NEWS = "33"


@dataclass(frozen=True)
class Line:
    """One line and how it is meant."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True)
class NodeState:
    """One node, as the head of the table shows it."""

    name: str
    pid: int
    address: str
    doing: str

    def __str__(self) -> str:
        return f"  {self.name:<6} process {self.pid:<8} {self.address:<16} {self.doing}"


class Screen(ABC):
    """Where the demo is shown."""

    def __init__(self, stream: TextIO, *, has_color: bool) -> None:
        self._stream = stream
        self._has_color = has_color

    def say(self, *lines: Line) -> None:
        """Print lines that stay."""
        self._write("".join(f"{self._paint(line)}\n" for line in lines))

    @abstractmethod
    def update(self, board: Board, nodes: Sequence[NodeState], log: str) -> None:
        """Show how things stand; `log` is the newest line the nodes logged."""

    @abstractmethod
    def finish(self, board: Board, nodes: Sequence[NodeState], log: str) -> None:
        """Show how things stood at the end; what is said later goes below."""

    @abstractmethod
    def close(self) -> None:
        """Leave the terminal as it was found."""

    def _paint(self, line: Line) -> str:
        if not self._has_color or line.tone is Tone.PLAIN or not line.text:
            return line.text
        return f"\x1b[{line.tone.value}m{line.text}\x1b[0m"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class PlainScreen(Screen):
    """Lines only, each once: for pipes, files and terminals that cannot move the cursor."""

    def __init__(self, stream: TextIO, *, has_color: bool = False) -> None:
        super().__init__(stream, has_color=has_color)
        self._printed = 0
        self._has_head = False

    def update(self, board: Board, nodes: Sequence[NodeState], log: str) -> None:
        self._print(board.finished, nodes)

    def finish(self, board: Board, nodes: Sequence[NodeState], log: str) -> None:
        self._print(board.rows, nodes)
        if log:
            self.say(Line(LAST_LOG + log, Tone.FAINT))

    def close(self) -> None:
        """Nothing to do: lines leave a stream as it was."""

    def _print(self, rows: Sequence[Row], nodes: Sequence[NodeState]) -> None:
        if not self._has_head:
            self._has_head = True
            self.say(*(Line(str(node)) for node in nodes), Line(""), Line(HEADING, Tone.TITLE))
        for row in rows[self._printed :]:
            self.say(*row_lines(row), *error_lines(row))
        self._printed = max(self._printed, len(rows))


class LiveScreen(Screen):
    """A table that is redrawn in place."""

    _OPEN = "\x1b[?25l\x1b[?7l"  # No cursor, and long lines are cut instead of wrapped.
    _CLOSE = "\x1b[?25h\x1b[?7h"

    def __init__(self, stream: TextIO, *, has_color: bool) -> None:
        super().__init__(stream, has_color=has_color)
        self._drawn = 0
        self._is_open = False

    def update(self, board: Board, nodes: Sequence[NodeState], log: str) -> None:
        columns, height = shutil.get_terminal_size()
        lines = table_lines(board, nodes, log, height=height - 1)
        text = "".join(self._paint(Line(it.text[:columns], it.tone)) + "\n" for it in lines)
        back = f"\x1b[{self._drawn}F" if self._drawn else ""
        self._write((self._OPEN if not self._is_open else "") + f"{back}\x1b[J{text}")
        self._is_open = True
        self._drawn = len(lines)

    def finish(self, board: Board, nodes: Sequence[NodeState], log: str) -> None:
        self.update(board, nodes, log)
        self._drawn = 0
        self.close()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._write(self._CLOSE)


def open_screen(stream: TextIO, environment: Mapping[str, str] = os.environ) -> Screen:
    """The screen that suits the stream. NO_COLOR turns colours off, TERM=dumb the redrawing."""
    has_color = not environment.get("NO_COLOR")
    if stream.isatty() and environment.get("TERM", "dumb") != "dumb":
        return LiveScreen(stream, has_color=has_color)
    return PlainScreen(stream)


def table_lines(board: Board, nodes: Sequence[NodeState], log: str, *, height: int) -> list[Line]:
    """The whole table; the oldest rows give way when the terminal is too low for all."""
    head = [*(Line(str(node)) for node in nodes), Line(""), Line(HEADING, Tone.TITLE)]
    foot = [Line("")]
    if board.newest is not None:
        foot += [Line(text) for text in _error_totals(board.newest.totals)]
    if log:
        foot.append(Line(LAST_LOG + log, Tone.FAINT))
    room = max(1, height - len(head) - len(foot))
    rows = [line for row in board.rows for line in row_lines(row)]
    return [*head, *rows[-room:], *foot]


def row_lines(row: Row) -> list[Line]:
    """One second of the run, after what the story did in it."""
    errors = row.errors.total()
    text = (
        f"{row.second:>4} s  {row.rate:>9,.0f}"
        f"  {format_ms(row.latencies.quantile(0.5)):>7}"
        f"  {format_ms(row.latencies.quantile(0.99)):>7}"
        f"  {row.in_flight:>9,}  {row.connections:>11,}  {row.reconnects:>10,}  {errors:>6,}"
    )
    notes = [Line(f"  --- {note}", Tone.NEWS) for note in row.notes]
    return [*notes, Line(text, Tone.BAD if errors else Tone.PLAIN)]


def error_lines(row: Row) -> list[Line]:
    """Which errors callers met in one second of the run, if any."""
    kinds = ", ".join(f"{count:,} {reason}" for reason, count in row.errors.items())
    return [Line(f"          {kinds}", Tone.BAD)] if kinds else []


def reconciliation_lines(evidence: Evidence) -> list[Line]:
    """The last table of the demo and its verdict."""
    lines = [Line(""), Line("Reconciliation", Tone.TITLE)]
    lines += [
        Line(f"  {what:<26} {count:>11,}  {meaning}".rstrip())
        for what, count, meaning in ledger_lines(evidence.totals)
    ]
    lines.append(Line(""))
    found = checks(evidence)
    lines += [
        Line(f"  {'ok ' if check.holds else 'NOT'}  {check.text}", _verdict(check.holds))
        for check in found
    ]
    adds_up = all(check.holds for check in found)
    text = "It all adds up." if adds_up else "It does not add up: see the lines marked NOT."
    return [*lines, Line(""), Line(text, _verdict(adds_up))]


def format_ms(seconds: float | None) -> str:
    """Milliseconds, with as many decimals as matter."""
    if seconds is None:
        return "-"
    milliseconds = seconds * 1000
    decimals = 0 if milliseconds >= 100 else 1 if milliseconds >= 10 else 2
    return f"{milliseconds:,.{decimals}f}"


def _error_totals(totals: Totals) -> list[str]:
    return [
        f"  {trouble.met:>7,} {trouble.reason}"
        + (f", {retried:,} of them sent again" if (retried := trouble.met - trouble.failed) else "")
        for trouble in totals.troubles
    ]


def _verdict(is_good: bool) -> Tone:
    return Tone.GOOD if is_good else Tone.BAD
