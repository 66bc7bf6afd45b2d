"""What drawings are made of: boxes, and ways between them with texts. As SVG."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

BOX_WIDTH, BOX_HEIGHT = 120, 56
BAR_HEIGHT = 40
_LINE_HEIGHT = 15

_STYLE = """\
  text { font: 13px system-ui, sans-serif; fill: #1f2933; }
  .state { font-weight: 600; font-size: 15px; text-anchor: middle; }
  .halo { stroke: #fff; stroke-width: 5px; stroke-linejoin: round; }
  .middle { text-anchor: middle; }
  .way { fill: none; stroke: #52606d; stroke-width: 1.4; marker-end: url(#tip); }"""


class Way(NamedTuple):
    """Where an arrow runs and where its text stands."""

    path: str
    x: int
    y: int
    """Of the last line of the text."""
    is_centred: bool = True


def across(start: int, end: int, y: int, text_y: int) -> Way:
    """From one box to the next in its row."""
    half = BOX_WIDTH // 2 if end > start else -BOX_WIDTH // 2
    return Way(f"M {start + half} {y} H {end - half}", (start + end) // 2, text_y)


def arc(start: int, end: int, y: int, height: int, text_x: int, text_y: int) -> Way:
    """From one box to another over or under those between them."""
    return Way(f"M {start} {y} C {start} {y + height} {end} {y + height} {end} {y}", text_x, text_y)


def opening(width: int, height: int, title: str) -> list[str]:
    """What every drawing begins with."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<style>\n{_STYLE}\n</style>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="10" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M 0 0 L 10 5 L 0 10 z" fill="#52606d"/>'
        "</marker></defs>",
        f'<rect width="{width}" height="{height}" rx="10" fill="#fff"/>',
    ]


def box(x: int, y: int, width: int, height: int, colour: str, name: str) -> str:
    """A box by its upper left corner, with a name in it."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{colour}" '
        f'stroke="#7b8794"/>\n<text class="state" x="{x + width // 2}" y="{y + height // 2 + 5}">'
        f"{escape(name)}</text>"
    )


def state_box(x: int, y: int, colour: str, name: str) -> str:
    """A box of the usual size around a place."""
    return box(x - BOX_WIDTH // 2, y - BOX_HEIGHT // 2, BOX_WIDTH, BOX_HEIGHT, colour, name)


def arrow(way: Way) -> str:
    """A way without its text."""
    return f'<path class="way" d="{way.path}"/>'


def label(way: Way, lines: list[str]) -> str:
    """The text of a way."""
    first_y = way.y - _LINE_HEIGHT * (len(lines) - 1)
    return "\n".join(
        _line(way, first_y + _LINE_HEIGHT * number, line) for number, line in enumerate(lines)
    )


def _line(way: Way, y: int, text: str) -> str:
    """Text on a halo of its own, which every viewer can draw."""
    kind = " middle" if way.is_centred else ""
    place = f'x="{way.x}" y="{y}"'
    return (
        f'<text class="halo{kind}" {place}>{escape(text)}</text>\n'
        f'<text class="label{kind}" {place}>{escape(text)}</text>'
    )
