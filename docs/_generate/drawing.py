"""The states of a member and the ways between them, drawn from the machine's own table.

Places are fixed here, what stands at them is not: a way the table gains has no place yet and
fails the drawing, a way it loses is no longer drawn.
"""

from __future__ import annotations

from postroad.cluster import MemberState
from postroad.cluster.membership import TRANSITIONS

from .shapes import BAR_HEIGHT, BOX_HEIGHT, Way, across, arc, arrow, box, label, opening, state_box
from .tables import state_name

_WIDTH, _HEIGHT = 1270, 500
_ROW_Y = 240
_COLUMNS = {
    MemberState.ALIVE: 110,
    MemberState.SUSPECT: 430,
    MemberState.DEAD: 750,
    MemberState.LEFT: 1050,
}
_COLOURS = {
    MemberState.ALIVE: "#d7f0dc",
    MemberState.SUSPECT: "#fdeec4",
    MemberState.DEAD: "#f9d9d6",
    MemberState.LEFT: "#e3e6ea",
}
_TOP_Y, _BOTTOM_Y = 20, 440


def _ways() -> dict[tuple[MemberState | None, MemberState | None], Way]:
    above, below = _ROW_Y - 10, _ROW_Y + 10
    top, bottom = _ROW_Y - BOX_HEIGHT // 2, _ROW_Y + BOX_HEIGHT // 2
    alive, suspect, dead, left = (_COLUMNS[state] for state in MemberState)
    ways: dict[tuple[MemberState | None, MemberState | None], Way] = {
        (MemberState.ALIVE, MemberState.SUSPECT): across(alive, suspect, above, above - 8),
        (MemberState.SUSPECT, MemberState.ALIVE): across(suspect, alive, below, below + 19),
        (MemberState.SUSPECT, MemberState.DEAD): across(suspect, dead, above, above - 8),
        (MemberState.DEAD, MemberState.SUSPECT): across(dead, suspect, below, below + 19),
        (MemberState.DEAD, MemberState.LEFT): across(dead, left, above, above - 8),
        (MemberState.DEAD, MemberState.ALIVE): arc(dead - 20, alive + 30, top, -100, 590, 150),
        (MemberState.ALIVE, MemberState.LEFT): arc(alive + 30, left + 20, bottom, 130, 590, 372),
        (MemberState.SUSPECT, MemberState.LEFT): arc(suspect + 20, left - 10, bottom, 70, 640, 326),
    }
    for state, x in _COLUMNS.items():
        down = f"M {x} {_TOP_Y + BAR_HEIGHT} V {top}"
        ways[None, state] = Way(down, x + 8, _TOP_Y + BAR_HEIGHT + 22, is_centred=False)
        away = f"M {x} {bottom} V {_BOTTOM_Y}"
        ways[state, None] = Way(away, x + 8, _BOTTOM_Y - 12, is_centred=False)
    return ways


def draw_states() -> str:
    """The drawing as SVG."""
    parts = [
        *opening(_WIDTH, _HEIGHT, "States of a member"),
        box(20, _TOP_Y, _WIDTH - 40, BAR_HEIGHT, "#f1f3f5", state_name(None)),
        box(20, _BOTTOM_Y, _WIDTH - 40, BAR_HEIGHT, "#f1f3f5", f"{state_name(None)} any more"),
    ]
    causes = _causes()
    parts += [arrow(_place(pair)) for pair in causes]
    parts += [state_box(x, _ROW_Y, _COLOURS[it], state_name(it)) for it, x in _COLUMNS.items()]
    parts += [label(_place(pair), lines) for pair, lines in causes.items()]
    return "\n".join([*parts, "</svg>", ""])


def _causes() -> dict[tuple[MemberState | None, MemberState | None], list[str]]:
    """Why a node goes each way; causes that leave the state as it is are not drawn."""
    causes: dict[tuple[MemberState | None, MemberState | None], list[str]] = {}
    for (before, cause), after in TRANSITIONS.items():
        if before is not after:
            causes.setdefault((before, after), []).append(cause.value)
    return causes


def _place(pair: tuple[MemberState | None, MemberState | None]) -> Way:
    ways = _ways()
    if pair not in ways:
        raise LookupError(f"the drawing has no place for the way {pair}: add one")
    return ways[pair]
