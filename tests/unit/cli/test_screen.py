"""The terminal: bars, cuts and colours."""

import io

import pytest

from postroad.cli import screen
from tests.support.cases import each


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_has_bars_colours_and_a_height(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [*screen.progress(range(3), 3, "move")] == [0, 1, 2]
    assert capsys.readouterr().err == ""
    terminal = FakeTerminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert [*screen.progress(range(3), 3, "move")] == [0, 1, 2]
    assert f"move [{'#' * 30}] 3/3 " in terminal.getvalue()
    assert screen.paint("failing") == "failing"
    monkeypatch.setattr(screen, "is_terminal", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert screen.paint("failing", "failing  ") == "\x1b[31mfailing  \x1b[0m"
    assert screen.paint("whatever") == "whatever"
    monkeypatch.setenv("TERM", "dumb")
    assert screen.paint("failing") == "failing"


@each(
    ("abc", 3, "abc"),
    ("abcd", 3, "ab…"),
    ("abc", 0, "…"),
    ("日本", 4, "日本"),
    ("日本語", 4, "日…"),
    ("e\u0301tat", 4, "e\u0301tat"),
)
def test_cut(text: str, cells: int, shown: str) -> None:
    assert screen.cut(text, cells) == shown


def test_text_is_safe_and_padded_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert screen.pad("日本", 6) == "日本  "
    assert screen.pad("日本", 6, to_right=True) == "  日本"
    evil = "a\tb\n\x1b[2Jc\r\x9b"
    assert screen.visible(evil) == evil
    monkeypatch.setattr(screen, "is_terminal", lambda: True)
    assert screen.visible(evil) == "a\tb\n\\x1b[2Jc\\x0d\\x9b"


def test_what_is_longer_than_the_terminal_is_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LINES", "5")
    monkeypatch.setenv("COLUMNS", "80")
    screen.redraw("\n".join(str(it) for it in range(10)))
    out = capsys.readouterr().out
    assert "… 7 more lines" in out
    assert "3" not in out.replace("\x1b[H", "")
