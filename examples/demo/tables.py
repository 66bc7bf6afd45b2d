"""What the boards and the reconciliations look like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .board import (
    CellsBoard,
    CellsRow,
    ClearingRow,
    FlowsRow,
    MailRow,
    Row,
    Second,
    ServicesBoard,
    ServicesRow,
    TrafficBoard,
)
from .records import Totals
from .screen import Line, TableRow, Tone
from .verdict import Check, Item

TRAFFIC_HEADING = "  time  answers/s   p50 ms   p99 ms  in flight  connections  reconnects  errors"
MAIL_HEADING = "  time  payments/s  handled/s  receipts/s  payments waiting  receipts waiting"
CELLS_HEADING = (
    "  time  answers/s   p50 ms   p99 ms  sat-1/s  sat-2/s  published/s  copies/s  routes  errors"
)
SERVICES_HEADING = (
    "  time   orders/s   p50 ms   p99 ms  quotes-1/s  quotes-2/s  heard/s  stream MB/s  nodes"
    "  errors"
)
FLOWS_HEADING = "  time  begun/s  credited/s  settled/s  refused/s  under way"
CLEARING_HEADING = "  time  posted/s  acknowledged/s  cleared/s  waiting  pending  replayed  dead"


def traffic_row(row: Row) -> TableRow:
    """One second of requests; which errors callers met is a detail."""
    errors = row.errors.total()
    text = (
        f"{row.second:>4} s  {row.rate:>9,.0f}"
        f"  {format_ms(row.latencies.quantile(0.5)):>7}"
        f"  {format_ms(row.latencies.quantile(0.99)):>7}"
        f"  {row.in_flight:>9,}  {row.connections:>11,}  {row.reconnects:>10,}  {errors:>6,}"
    )
    return _row_with_errors(row, text, row.errors)


def _row_with_errors(row: Second[Any], text: str, errors: Counter[str]) -> TableRow:
    kinds = ", ".join(f"{count:,} {reason}" for reason, count in errors.items())
    return TableRow(
        [*_note_lines(row), Line(text, Tone.BAD if errors else Tone.PLAIN)],
        [Line(f"          {kinds}", Tone.BAD)] if kinds else [],
    )


def traffic_foot(board: TrafficBoard | CellsBoard | ServicesBoard) -> list[Line]:
    """The errors met so far."""
    if board.newest is None:
        return []
    return [Line(text) for text in _error_totals(board.newest.totals)]


def mail_row(row: MailRow) -> TableRow:
    """One second of mail."""
    text = (
        f"{row.second:>4} s  {row.per_second(row.posted):>10,.0f}"
        f"  {row.per_second(row.handled):>9,.0f}  {row.per_second(row.receipts):>10,.0f}"
        f"  {row.payments_waiting:>16,}  {row.receipts_waiting:>16,}"
    )
    return TableRow([*_note_lines(row), Line(text)])


def cells_row(row: CellsRow) -> TableRow:
    """One second of cells; which errors callers met is a detail."""
    text = (
        f"{row.second:>4} s  {row.per_second(row.answered):>9,.0f}"
        f"  {format_ms(row.latencies.quantile(0.5)):>7}"
        f"  {format_ms(row.latencies.quantile(0.99)):>7}"
        f"  {row.per_second(row.handled['sat-1']):>7,.0f}"
        f"  {row.per_second(row.handled['sat-2']):>7,.0f}"
        f"  {row.per_second(row.published):>11,.0f}  {row.per_second(row.copies):>8,.0f}"
        f"  {row.routes:>6,}  {row.errors.total():>6,}"
    )
    return _row_with_errors(row, text, row.errors)


def services_row(row: ServicesRow) -> TableRow:
    """One second of services; which errors callers met is a detail."""
    text = (
        f"{row.second:>4} s  {row.per_second(row.answered):>9,.0f}"
        f"  {format_ms(row.latencies.quantile(0.5)):>7}"
        f"  {format_ms(row.latencies.quantile(0.99)):>7}"
        f"  {row.per_second(row.priced['quotes-1']):>10,.0f}"
        f"  {row.per_second(row.priced['quotes-2']):>10,.0f}"
        f"  {row.per_second(row.heard):>7,.0f}"
        f"  {row.per_second(row.stream_bytes) / 1e6:>11,.1f}"
        f"  {row.nodes:>5,}  {row.errors.total():>6,}"
    )
    return _row_with_errors(row, text, row.errors)


def flows_row(row: FlowsRow) -> TableRow:
    """One second of flows."""
    text = (
        f"{row.second:>4} s  {row.per_second(row.begun):>7,.0f}"
        f"  {row.per_second(row.credited):>10,.0f}  {row.per_second(row.settled):>9,.0f}"
        f"  {row.per_second(row.refused):>9,.0f}  {row.under_way:>9,}"
    )
    return TableRow([*_note_lines(row), Line(text)])


def clearing_row(row: ClearingRow) -> TableRow:
    """One second of clearing."""
    now = row.newest
    text = (
        f"{row.second:>4} s  {row.per_second(row.posted):>8,.0f}"
        f"  {row.per_second(row.acked):>14,.0f}  {row.per_second(row.cleared):>9,.0f}"
        f"  {now.waiting:>7,}  {now.pending:>7,}  {now.replayed:>8,}  {now.dead:>4,}"
    )
    return TableRow([*_note_lines(row), Line(text)])


def reconciliation_lines(items: Sequence[Item], checks: Sequence[Check]) -> list[Line]:
    """The table at the end of a part: the accounts, and what must hold."""
    return [
        Line(""),
        Line("Reconciliation", Tone.TITLE),
        *(Line(f"  {item.what:<28} {item.amount:>11,}  {item.meaning}".rstrip()) for item in items),
        Line(""),
        *check_lines(checks),
        Line(""),
    ]


def check_lines(checks: Sequence[Check]) -> list[Line]:
    """What must hold, and whether it does."""
    return [
        Line(f"  {'ok ' if check.holds else 'NOT'}  {check.text}", _verdict(check.holds))
        for check in checks
    ]


def verdict_line(adds_up: bool) -> Line:
    """The last line of the demo."""
    text = "It all adds up." if adds_up else "It does not add up: see the lines marked NOT."
    return Line(text, _verdict(adds_up))


def format_ms(seconds: float | None) -> str:
    """Milliseconds, with as many decimals as matter."""
    if seconds is None:
        return "-"
    milliseconds = seconds * 1000
    decimals = 0 if milliseconds >= 100 else 1 if milliseconds >= 10 else 2
    return f"{milliseconds:,.{decimals}f}"


def _note_lines(row: Second[Any]) -> list[Line]:
    """What the story did in a second."""
    return [Line(f"  --- {note}", Tone.NEWS) for note in row.notes]


def _error_totals(totals: Totals) -> list[str]:
    return [
        f"  {trouble.met:>7,} {trouble.reason}"
        + (f", {retried:,} of them sent again" if (retried := trouble.met - trouble.failed) else "")
        for trouble in totals.troubles
    ]


def _verdict(is_good: bool) -> Tone:
    return Tone.GOOD if is_good else Tone.BAD
