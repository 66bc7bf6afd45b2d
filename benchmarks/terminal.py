"""Everything a run prints: progress lines and the result table."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.harness import Row

HEADINGS = ("case", "unit", "ours", "peer", "peer value", "ratio", "goal", "")
VERDICTS = {True: "met", False: "MISSED", None: ""}


def say(line: str) -> None:
    """Print one line at once, also into a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def format_number(value: float | None) -> str:
    """Three or more significant digits, thousands separated."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def render_table(rows: Sequence[Row]) -> str:
    """The rows as aligned text columns."""
    lines = [HEADINGS, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rendered = ["  ".join(map(_align, cells, widths)).rstrip() for cells in lines]
    return "\n".join([rendered[0], "-" * max(map(len, rendered)), *rendered[1:]])


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.case,
        row.unit,
        format_number(row.ours),
        row.peer,
        format_number(row.peer_value),
        format_number(row.ratio),
        "" if row.goal is None else f"{'<=' if row.at_most else '>='} {row.goal:g}",
        VERDICTS[row.met],
    )


def _align(cell: str, width: int) -> str:
    is_number = cell == "-" or cell.replace(",", "").replace(".", "").isdigit()
    return cell.rjust(width) if is_number else cell.ljust(width)
