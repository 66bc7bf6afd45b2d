"""Reports become rows of seconds, and rows become lines."""

import io

import pytest

from examples.demo.board import MailBoard, Row, TrafficBoard
from examples.demo.books import Counts
from examples.demo.records import Report, Totals, Trouble
from examples.demo.screen import (
    Line,
    LiveScreen,
    NodeState,
    PlainScreen,
    Table,
    Tone,
    open_screen,
)
from examples.demo.tables import (
    MAIL_HEADING,
    TRAFFIC_HEADING,
    format_ms,
    mail_row,
    traffic_foot,
    traffic_row,
)

NODES = [NodeState("alpha", 11, "127.0.0.1:1", "calls"), NodeState("beta", 12, "127.0.0.1:2", "up")]


def report(at_s: float, answered: int = 0, refused: int = 0) -> Report:
    troubles = [Trouble(error="ConnectFailed", outcome="not sent", met=refused)] if refused else []
    totals = Totals(made=answered + 4, answered=answered, troubles=troubles)
    return Report(at_s=at_s, totals=totals, latencies={}, connections=1, reconnects=0)


def board_of(*reports: Report) -> TrafficBoard:
    board = TrafficBoard()
    for each in reports:
        board.add(each)
    return board


def table_of(board: TrafficBoard, log: str = "") -> Table:
    rows = [traffic_row(row) for row in board.rows]
    return Table(NODES, TRAFFIC_HEADING, rows, traffic_foot(board), log)


def test_the_first_report_starts_the_clock() -> None:
    board = board_of(report(100.0, answered=5))
    assert board.rows == []
    assert board.newest is not None


def test_rows_are_differences_between_reports() -> None:
    board = board_of(report(100), report(100.5, 50), report(101, 100), report(101.5, 130, 7))
    assert [(row.second, row.answered, row.rate) for row in board.rows] == [
        (1, 100, 100.0),
        (2, 30, 60.0),
    ]
    assert board.rows[1].errors == {"ConnectFailed (not sent)": 7}
    assert (board.rows[1].in_flight, board.errors_met) == (4, 7)


def test_seconds_without_a_report_have_no_row() -> None:
    board = board_of(report(100), report(101, 10), report(103.5, 20))
    assert [(row.second, row.rate) for row in board.rows] == [(1, 10.0), (4, 4.0)]


def test_notes_stand_with_their_second() -> None:
    board = board_of(report(100), report(100.9))
    board.note("now", 100.95)
    board.note("later", 101.05)
    board.add(report(101.1))
    assert [row.notes for row in board.rows] == [["0.95 s: now"], ["1.05 s: later"]]


@pytest.mark.parametrize(("refused", "rows"), [(0, 1), (3, 2)])
def test_a_last_second_that_hardly_began_counts_if_anything_happened(
    refused: int, rows: int
) -> None:
    board = board_of(report(100), report(101), report(101.2, refused=refused))
    board.end()
    assert len(board.rows) == rows


def test_a_row_names_its_errors() -> None:
    row = Row(second=7, elapsed_s=1.0, answered=1234)
    row.errors["ConnectFailed (not sent)"] = 12
    row.notes.append("6.00 s: bang")
    shown = traffic_row(row)
    note, line = shown.lines
    assert note == Line("  --- 6.00 s: bang", Tone.NEWS)
    assert line.text.split() == ["7", "s", "1,234", "-", "-", "0", "0", "0", "12"]
    assert line.tone is Tone.BAD
    assert [it.text.strip() for it in shown.details] == ["12 ConnectFailed (not sent)"]


def test_a_row_without_errors_names_none() -> None:
    assert traffic_row(Row(second=1)).details == []


def test_rows_of_mail_are_differences_between_counts() -> None:
    board = MailBoard()
    board.add(Counts(at_s=100.0, payments=5, bookings=3, receipts=1))
    board.add(Counts(at_s=100.5, payments=105, bookings=63, receipts=41))
    board.note("bang", 100.7)
    board.add(Counts(at_s=101.0, payments=105, bookings=103, receipts=101))
    (row,) = board.rows
    assert (row.posted, row.handled, row.receipts) == (100, 100, 100)
    assert (row.payments_waiting, row.receipts_waiting) == (2, 2)
    note, line = mail_row(row).lines
    assert note == Line("  --- 0.70 s: bang", Tone.NEWS)
    assert line.text.split() == ["1", "s", "100", "100", "100", "2", "2"]
    assert len(line.text) == len(MAIL_HEADING)


@pytest.mark.parametrize(("receipts", "rows"), [(5, 1), (6, 2)])
def test_the_second_of_the_last_receipt_is_shown(receipts: int, rows: int) -> None:
    board = MailBoard()
    for at_s, count in ((100.0, 0), (101.0, 5), (101.1, receipts)):
        board.add(Counts(at_s=at_s, payments=6, bookings=6, receipts=count))
    board.end()
    assert len(board.rows) == rows


def test_the_foot_sums_up_errors() -> None:
    assert traffic_foot(TrafficBoard()) == []
    (line,) = traffic_foot(board_of(report(100, refused=7)))
    assert line.text.split(maxsplit=1) == [
        "7",
        "ConnectFailed (not sent), 7 of them sent again",
    ]


def test_the_oldest_rows_give_way_on_a_low_terminal() -> None:
    board = board_of(*(report(100.0 + second) for second in range(31)))
    lines = table_of(board, "alpha: careful").fit(15)
    assert len(lines) == 15
    assert lines[-1].text == "last log line: alpha: careful"
    assert any(line.text.startswith("  30 s") for line in lines)
    assert not any(line.text.startswith("   1 s") for line in lines)


def test_plain_lines_are_printed_once() -> None:
    stream = io.StringIO()
    screen = PlainScreen(stream)
    board = board_of(report(100), report(101), report(102))
    for _ in range(3):
        screen.update(table_of(board))
    assert stream.getvalue().count("answers/s") == 1
    assert (stream.getvalue().count("1 s "), stream.getvalue().count("2 s ")) == (1, 0)
    screen.finish(table_of(board, "alpha: careful"))
    assert stream.getvalue().count("2 s ") == 1
    assert stream.getvalue().endswith("last log line: alpha: careful\n")


def test_a_second_table_begins_anew() -> None:
    stream = io.StringIO()
    screen = PlainScreen(stream)
    screen.finish(table_of(board_of(report(100), report(101), report(102))))
    screen.update(Table(NODES, "another heading", []))
    screen.finish(table_of(board_of(report(100), report(101))))
    assert stream.getvalue().count("another heading") == 1
    assert stream.getvalue().count(" 1 s ") == 2


def test_a_live_table_is_drawn_over_itself_and_gives_the_cursor_back() -> None:
    stream = io.StringIO()
    screen = LiveScreen(stream, has_color=False)
    board = board_of(report(100), report(101))
    screen.update(table_of(board))
    drawn = stream.getvalue().count("\n")
    screen.finish(table_of(board))
    assert f"\x1b[{drawn}F\x1b[J" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[?25h\x1b[?7h")
    screen.close()
    assert stream.getvalue().count("\x1b[?25h") == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "kind", "painted"),
    [
        (io.StringIO(), {"TERM": "xterm"}, PlainScreen, "good\n"),
        (Terminal(), {"TERM": "dumb"}, PlainScreen, "good\n"),
        (Terminal(), {"TERM": "xterm"}, LiveScreen, "\x1b[32mgood\x1b[0m\n"),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, LiveScreen, "good\n"),
    ],
)
def test_the_screen_suits_the_stream(
    stream: io.StringIO, environment: dict[str, str], kind: type, painted: str
) -> None:
    screen = open_screen(stream, environment)
    assert type(screen) is kind
    screen.say(Line("good", Tone.GOOD))
    assert stream.getvalue() == painted


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.00123, "1.23"), (0.0123, "12.3"), (0.123, "123"), (1.5, "1,500")],
)
def test_latencies_show_what_matters(seconds: float | None, text: str) -> None:
    assert format_ms(seconds) == text
