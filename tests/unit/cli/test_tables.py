"""Tables and records, for people and for pipes."""

from typing import Any

import msgspec
import pytest

from postroad.cli import screen, tables
from postroad.cli.tables import Column, record, render, table


class Row(msgspec.Struct):
    name: str
    depth: int
    oldest_s: float | None
    is_paused: bool
    status: str
    headers: dict[str, str]


class Page(msgspec.Struct):
    title: str
    best: Row
    rows: list[Row]
    note: str | None
    empty: list[Row]


ROWS: list[dict[str, Any]] = [
    {
        "name": "orders",
        "depth": 1200,
        "oldest_s": 3.0,
        "is_paused": True,
        "status": "ok",
        "headers": {},
    },
    {
        "name": "x",
        "depth": 0,
        "oldest_s": None,
        "is_paused": False,
        "status": "failing\nwhy",
        "headers": {},
    },
]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "is_terminal", lambda: True)
    monkeypatch.setattr(tables, "width", lambda: 30)
    monkeypatch.setenv("TERM", "xterm")


def test_table_is_aligned_and_plain_in_a_pipe() -> None:
    assert render(list[Row], ROWS).splitlines() == [
        "NAME    DEPTH  OLDEST  PAUSED  STATUS",
        "orders  1,200   3.0 s  yes     ok",
        "x           0                  failing",
    ]
    assert render(list[Row], []) == "None."


@pytest.mark.usefixtures("terminal")
def test_terminal_gets_colours_unless_they_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"name": "n" * 40, "status": "failing", "depth": 1}]
    columns = [Column("name", False), Column("status", False), Column("depth", True)]
    heading, line = table(columns, rows).splitlines()
    assert heading == "\x1b[1m" + "NAME".ljust(14) + "  STATUS   DEPTH\x1b[0m"
    assert line == "n" * 13 + "…  \x1b[31mfailing\x1b[0m      1"
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in render(list[Row], ROWS)


def test_record_has_fields_and_sections() -> None:
    page = {"title": "two", "best": ROWS[0], "rows": ROWS, "note": None, "empty": []}
    assert render(Page, page).splitlines() == [
        "title: two",
        "",
        "best",
        "name: orders",
        "depth: 1,200",
        "oldest: 3.0 s",
        "paused: yes",
        "status: ok",
        "",
        "rows",
        "NAME    DEPTH  OLDEST  PAUSED  STATUS",
        "orders  1,200   3.0 s  yes     ok",
        "x           0                  failing",
    ]
    assert record(None, {"detail": "a\nb", "id": "1"}) == "detail:\na\nb\nid: 1"
    for value, told in (
        ({"text": "as it is\n"}, "as it is\n"),
        ("word", "word"),
        ([1, 2], "1\n2"),
        (None, "null"),
    ):
        assert render(Any, value) == told, (value, told)
