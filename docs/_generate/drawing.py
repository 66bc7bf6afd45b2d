"""The states of a member and the ways between them, drawn from the machine's own table.

Places are fixed here, what stands at them is not: a way the table gains has no place yet and
fails the drawing, a way it loses is no longer drawn.
"""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from postroad.cluster import State
from postroad.cluster.membership import TRANSITIONS

from .tables import state_name

_WIDTH, _HEIGHT = 1270, 500
_ROW_Y = 240
_BOX_WIDTH, _BOX_HEIGHT = 120, 56
_COLUMNS = {State.ALIVE: 110, State.SUSPECT: 430, State.DEAD: 750, State.LEFT: 1050}
_COLOURS = {
    State.ALIVE: "#d7f0dc",
    State.SUSPECT: "#fdeec4",
    State.DEAD: "#f9d9d6",
    State.LEFT: "#e3e6ea",
}
_TOP_Y, _BOTTOM_Y, _BAR_HEIGHT = 20, 440, 40
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


def _ways() -> dict[tuple[State | None, State | None], Way]:
    above, below = _ROW_Y - 10, _ROW_Y + 10
    top, bottom = _ROW_Y - _BOX_HEIGHT // 2, _ROW_Y + _BOX_HEIGHT // 2
    alive, suspect, dead, left = (_COLUMNS[state] for state in State)
    ways: dict[tuple[State | None, State | None], Way] = {
        (State.ALIVE, State.SUSPECT): _across(alive, suspect, above, above - 8),
        (State.SUSPECT, State.ALIVE): _across(suspect, alive, below, below + 19),
        (State.SUSPECT, State.DEAD): _across(suspect, dead, above, above - 8),
        (State.DEAD, State.SUSPECT): _across(dead, suspect, below, below + 19),
        (State.DEAD, State.LEFT): _across(dead, left, above, above - 8),
        (State.DEAD, State.ALIVE): _arc(dead - 20, alive + 30, top, -100, 590, 150),
        (State.ALIVE, State.LEFT): _arc(alive + 30, left + 20, bottom, 130, 590, 372),
        (State.SUSPECT, State.LEFT): _arc(suspect + 20, left - 10, bottom, 70, 640, 326),
    }
    for state, x in _COLUMNS.items():
        down = f"M {x} {_TOP_Y + _BAR_HEIGHT} V {top}"
        ways[None, state] = Way(down, x + 8, _TOP_Y + _BAR_HEIGHT + 22, is_centred=False)
        away = f"M {x} {bottom} V {_BOTTOM_Y}"
        ways[state, None] = Way(away, x + 8, _BOTTOM_Y - 12, is_centred=False)
    return ways


def _across(start: int, end: int, y: int, text_y: int) -> Way:
    half = _BOX_WIDTH // 2 if end > start else -_BOX_WIDTH // 2
    return Way(f"M {start + half} {y} H {end - half}", (start + end) // 2, text_y)


def _arc(start: int, end: int, y: int, height: int, text_x: int, text_y: int) -> Way:
    return Way(f"M {start} {y} C {start} {y + height} {end} {y + height} {end} {y}", text_x, text_y)


def draw_states() -> str:
    """The drawing as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'role="img" aria-label="States of a member">',
        f"<style>\n{_STYLE}\n</style>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="10" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M 0 0 L 10 5 L 0 10 z" fill="#52606d"/>'
        "</marker></defs>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="10" fill="#fff"/>',
        _box(20, _TOP_Y, _WIDTH - 40, _BAR_HEIGHT, "#f1f3f5", state_name(None)),
        _box(20, _BOTTOM_Y, _WIDTH - 40, _BAR_HEIGHT, "#f1f3f5", f"{state_name(None)} any more"),
    ]
    causes = _causes()
    parts += [f'<path class="way" d="{_place(pair).path}"/>' for pair in causes]
    parts += [_state(state) for state in State]
    parts += [_label(_place(pair), lines) for pair, lines in causes.items()]
    return "\n".join([*parts, "</svg>", ""])


def _causes() -> dict[tuple[State | None, State | None], list[str]]:
    """Why a node goes each way; causes that leave the state as it is are not drawn."""
    causes: dict[tuple[State | None, State | None], list[str]] = {}
    for (before, cause), after in TRANSITIONS.items():
        if before is not after:
            causes.setdefault((before, after), []).append(cause.value)
    return causes


def _place(pair: tuple[State | None, State | None]) -> Way:
    ways = _ways()
    if pair not in ways:
        raise LookupError(f"the drawing has no place for the way {pair}: add one")
    return ways[pair]


def _state(state: State) -> str:
    x, y = _COLUMNS[state] - _BOX_WIDTH // 2, _ROW_Y - _BOX_HEIGHT // 2
    return _box(x, y, _BOX_WIDTH, _BOX_HEIGHT, _COLOURS[state], state_name(state))


def _box(x: int, y: int, width: int, height: int, colour: str, name: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{colour}" '
        f'stroke="#7b8794"/>\n<text class="state" x="{x + width // 2}" y="{y + height // 2 + 5}">'
        f"{escape(name)}</text>"
    )


def _label(way: Way, lines: list[str]) -> str:
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
