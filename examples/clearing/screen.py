"""Tables on a terminal, redrawn in place, or in a pipe, a line for each second."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TextIO


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
class TableRow:
    """One row of a table."""

    lines: Sequence[Line]


@dataclass(frozen=True)
class Table:
    """How things stand."""

    nodes: Sequence[object]
    """What stands above it, a line each."""
    heading: str
    rows: Sequence[TableRow]
    """The last one may still change."""

    @property
    def head(self) -> list[Line]:
        """What stands above the rows."""
        nodes = [Line(str(node)) for node in self.nodes]
        return [*nodes, Line(""), Line(self.heading, Tone.TITLE)]

    def fit(self, height: int) -> list[Line]:
        """The whole table; the oldest rows give way when the terminal is too low for all."""
        room = max(1, height - len(self.head))
        rows = [line for row in self.rows for line in row.lines]
        return [*self.head, *rows[-room:]]


class Screen(ABC):
    """Where the demo is shown."""

    def __init__(self, stream: TextIO, *, has_color: bool) -> None:
        self._stream = stream
        self._has_color = has_color

    def say(self, *lines: Line) -> None:
        """Print lines that stay."""
        self._write("".join(f"{self._paint(line)}\n" for line in lines))

    @abstractmethod
    def update(self, table: Table) -> None:
        """Show how things stand."""

    @abstractmethod
    def finish(self, table: Table) -> None:
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

    def update(self, table: Table) -> None:
        self._print(table, table.rows[:-1])

    def finish(self, table: Table) -> None:
        self._print(table, table.rows)
        self._printed, self._has_head = 0, False

    def close(self) -> None:
        """Nothing to do: lines leave a stream as it was."""

    def _print(self, table: Table, rows: Sequence[TableRow]) -> None:
        if not self._has_head:
            self._has_head = True
            self.say(*table.head)
        for row in rows[self._printed :]:
            self.say(*row.lines)
        self._printed = max(self._printed, len(rows))


class LiveScreen(Screen):
    """A table that is redrawn in place."""

    _OPEN = "\x1b[?25l\x1b[?7l"  # No cursor, and long lines are cut instead of wrapped.
    _CLOSE = "\x1b[?25h\x1b[?7h"

    def __init__(self, stream: TextIO, *, has_color: bool) -> None:
        super().__init__(stream, has_color=has_color)
        self._drawn = 0
        self._is_open = False

    def update(self, table: Table) -> None:
        columns, height = shutil.get_terminal_size()
        lines = table.fit(height - 1)
        text = "".join(self._paint(Line(it.text[:columns], it.tone)) + "\n" for it in lines)
        back = f"\x1b[{self._drawn}F" if self._drawn else ""
        self._write((self._OPEN if not self._is_open else "") + f"{back}\x1b[J{text}")
        self._is_open = True
        self._drawn = len(lines)

    def finish(self, table: Table) -> None:
        self.update(table)
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
