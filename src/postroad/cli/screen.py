"""The terminal, or what stands in its place: a pipe or a file gets plain text."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import click

T = TypeVar("T")

_GREEN, _YELLOW, _RED, _DIM = "green", "yellow", "red", "bright_black"
_COLOURS = {
    **dict.fromkeys(("ok", "alive", "running", "ready", "done", "completed", "open"), _GREEN),
    **dict.fromkeys(("warning", "suspect", "paused", "draining", "parked", "waiting"), _YELLOW),
    **dict.fromkeys(("failing", "failed", "dead", "killed", "error", "critical"), _RED),
    **dict.fromkeys(("unknown", "stopped", "left", "debug"), _DIM),
}
# All but tabs and ends of lines.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BAR_CELLS = 30
_REDRAW_S = 0.1


def is_terminal() -> bool:
    """Whether a person looks at the output."""
    return sys.stdout.isatty()


def has_colours() -> bool:
    """Whether it may be coloured."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int | None:
    """How many characters a line has; None where lines have no end."""
    return shutil.get_terminal_size().columns if is_terminal() else None


def paint(word: str, shown: str | None = None) -> str:
    """A word that says how something is, in the colour that says so too.

    Args:
        shown: the word as it is shown, if blanks were added.
    """
    text = word if shown is None else shown
    colour = _COLOURS.get(word.strip().lower())
    return text if colour is None or not has_colours() else click.style(text, fg=colour)


def strong(text: str) -> str:
    """A heading."""
    return click.style(text, bold=True) if has_colours() else text


def visible(text: str) -> str:
    """A text that somebody else wrote: on a terminal it may show what it likes, and do nothing."""
    if not is_terminal() or text.isprintable():
        return text
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def cells_of(text: str) -> int:
    """How many cells of a line a text takes up."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, cells: int) -> str:
    """As much of a text as fits."""
    if cells_of(text) <= cells:
        return text
    kept, room = "", cells - 1
    for character in text:
        room -= _cells(character)
        if room < 0:
            break
        kept += character
    return f"{kept}…"


def pad(text: str, cells: int, *, to_right: bool = False) -> str:
    """A text with blanks to fill its cells."""
    blanks = " " * (cells - cells_of(text))
    return f"{blanks}{text}" if to_right else f"{text}{blanks}"


def redraw(text: str) -> None:
    """Show a text in place of all that is on the terminal."""
    rows = shutil.get_terminal_size().lines
    lines = text.splitlines()
    if len(lines) >= rows:
        lines = [*lines[: rows - 2], f"… {len(lines) - rows + 2:,} more lines"]
    # Each line is cleared behind its text: clearing all first makes the picture flicker.
    body = "".join(f"{line}\x1b[K\n" for line in lines)
    click.echo(f"\x1b[H{body}\x1b[J", nl=False, color=True)


@contextmanager
def full_screen() -> Iterator[None]:
    """Draw on a second page of the terminal, whose lines are cut; the first one comes back."""
    if not is_terminal():
        yield
        return
    click.echo("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H", nl=False, color=True)
    try:
        yield
    finally:
        click.echo("\x1b[?7h\x1b[?25h\x1b[?1049l", nl=False, color=True)


def progress(items: Iterable[T], total: int, label: str) -> Iterator[T]:
    """Go through items, with a bar that a person can watch; nothing is shown to programs."""
    with progress_bar(total, label) as show:
        for done, item in enumerate(items, start=1):
            yield item
            show(done)


@contextmanager
def progress_bar(total: int, label: str) -> Iterator[Callable[[int], None]]:
    """Likewise, where somebody else counts: it is told how many are done."""
    if not sys.stderr.isatty() or total < 2:
        yield lambda done: None
        return
    started = drawn = time.monotonic()

    def show(done: int) -> None:
        nonlocal drawn
        now = time.monotonic()
        if now - drawn >= _REDRAW_S or done == total:
            drawn = now
            click.echo(f"\r\x1b[K{_bar(label, done, total, now - started)}", nl=False, err=True)

    try:
        yield show
    finally:
        click.echo(err=True)


def _bar(label: str, done: int, total: int, elapsed_s: float) -> str:
    filled = round(_BAR_CELLS * min(1.0, done / total))
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    left_s = (total - done) / rate if rate > 0 else 0.0
    return (
        f"{label} [{'#' * filled}{' ' * (_BAR_CELLS - filled)}] {done:,}/{total:,}"
        f" {rate:,.0f}/s, {left_s:.0f} s left"
    )
