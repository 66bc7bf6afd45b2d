"""The life of a flow and the states of a session, drawn from the tables of their machines.

Places are fixed here, what stands at them is not: a way a table gains has no place yet and fails
the drawing, a way it loses is no longer drawn.
"""

from __future__ import annotations

from collections.abc import Mapping

from postroad.flows import life, session
from postroad.flows.life import Status
from postroad.flows.session import State

from .shapes import BAR_HEIGHT, BOX_HEIGHT, BOX_WIDTH, Way, across, arc, arrow, box, label, opening
from .shapes import state_box as _box

_WORKING, _WAITING, _TROUBLED, _OVER = "#d7f0dc", "#fdeec4", "#f9d9d6", "#e3e6ea"

Ways = dict[tuple[str, str], Way]
Causes = dict[tuple[str, str], list[str]]


def draw_life() -> str:
    """What can happen to a flow, as SVG."""
    causes: Causes = {}
    for (before, happening), turn in life.TABLE.items():
        causes.setdefault((before, turn.status), []).append(happening.value)
    rows = {it: (x, _LIFE_Y) for it, x in _LIFE_COLUMNS.items()}
    boxes = [_box(*place, _LIFE_COLOURS[it], it.value) for it, place in rows.items()]
    boxes += [_box(x, y, _OVER, it.value) for it, (x, y) in _LIFE_ENDS.items()]
    boxes.append(_bar(_LIFE_WIDTH, _LIFE_BOTTOM, Status.KILLED))
    head = opening(_LIFE_WIDTH, _LIFE_BOTTOM + 60, "The life of a flow")
    return _draw(head, boxes, causes, _life_ways())


def draw_session() -> str:
    """What changes the state of a session, as SVG."""
    causes: Causes = {}
    for (before, cause), move in session.TABLE.items():
        if move.state is not before:
            is_said = move.reaction.value.startswith("say ")
            text = f"{cause.value} ({move.reaction.value})" if is_said else cause.value
            causes.setdefault((before, move.state), []).append(text)
    colours = [_WAITING, _WAITING, _WORKING, _TROUBLED]
    boxes = [
        _box(x, _SESSION_Y, colour, it.value)
        for (it, x), colour in zip(_SESSION_COLUMNS.items(), colours, strict=True)
    ]
    boxes.append(_bar(_SESSION_WIDTH, _SESSION_BOTTOM, State.CLOSED))
    head = opening(_SESSION_WIDTH, _SESSION_BOTTOM + 60, "One end of a session")
    return _draw(head, boxes, causes, _session_ways())


def _draw(head: list[str], boxes: list[str], causes: Causes, ways: Ways) -> str:
    for pair in causes:
        if pair not in ways:
            raise LookupError(f"the drawing has no place for the way {pair}: add one")
    arrows = [arrow(ways[pair]) for pair in causes]
    labels = [label(ways[pair], lines) for pair, lines in causes.items()]
    return "\n".join([*head, *arrows, *boxes, *labels, "</svg>", ""])


def _bar(width: int, y: int, name: str) -> str:
    return box(20, y, width - 40, BAR_HEIGHT, _OVER, name)


def _down(columns: Mapping[Status, int] | Mapping[State, int], y: int, bar_y: int) -> Ways:
    """From each box to the bar at the bottom."""
    end = Status.KILLED if Status.RUNNING in columns else State.CLOSED
    return {
        (it, end): Way(f"M {x} {y} V {bar_y}", x + 8, bar_y - 12, is_centred=False)
        for it, x in columns.items()
    }


# Where things stand in the life of a flow.

_LIFE_WIDTH, _LIFE_Y, _LIFE_BOTTOM = 1270, 260, 470
_LIFE_COLUMNS = {
    Status.HELD: 100,
    Status.QUEUED: 300,
    Status.RUNNING: 530,
    Status.RETRYING: 760,
    Status.PARKED: 960,
    Status.PAUSED: 1170,
}
_LIFE_COLOURS = {
    Status.HELD: _WAITING,
    Status.QUEUED: _WAITING,
    Status.RUNNING: _WORKING,
    Status.RETRYING: _TROUBLED,
    Status.PARKED: _TROUBLED,
    Status.PAUSED: _WAITING,
}
_LIFE_ENDS = {Status.DONE: (450, 50), Status.FAILED: (610, 50)}


def _life_ways() -> Ways:
    held, queued, running, retrying, parked, paused = _LIFE_COLUMNS.values()
    above, below = _LIFE_Y - 10, _LIFE_Y + 10
    top, bottom = _LIFE_Y - BOX_HEIGHT // 2, _LIFE_Y + BOX_HEIGHT // 2
    left = running - BOX_WIDTH // 2
    done, failed = (x for x, _ in _LIFE_ENDS.values())
    end_y = 50 + BOX_HEIGHT // 2
    loop = f"M {left} {above} C {left - 60} {above - 10} {left - 20} {top - 50} {left + 15} {top}"
    return {
        (Status.HELD, Status.RUNNING): arc(held + 30, left + 12, bottom, 60, 300, bottom + 52),
        (Status.QUEUED, Status.RUNNING): across(queued, running, below, below - 8),
        (Status.QUEUED, Status.PAUSED): arc(queued + 30, paused + 30, bottom, 190, 645, 432),
        (Status.RUNNING, Status.RUNNING): Way(loop, left - 28, top - 22),
        (Status.RUNNING, Status.DONE): _straight(running - 20, top, done, end_y, 466, 140),
        (Status.RUNNING, Status.FAILED): _straight(running + 10, top, failed, end_y, 572, 140),
        (Status.RUNNING, Status.RETRYING): across(running, retrying, above, above - 8),
        (Status.RETRYING, Status.RUNNING): across(retrying, running, below, below + 19),
        (Status.RUNNING, Status.PARKED): arc(running + 34, parked, top, -90, 750, 161),
        (Status.PARKED, Status.RUNNING): arc(parked - 20, running + 44, bottom, 90, 750, 362),
        (Status.RUNNING, Status.PAUSED): arc(running + 50, paused + 20, top, -170, 880, 101),
        (Status.PAUSED, Status.RUNNING): arc(paused - 20, running + 28, bottom, 150, 850, 404),
        (Status.RETRYING, Status.PAUSED): arc(retrying + 40, paused - 20, top, -60, 1050, 190),
        (Status.PARKED, Status.PAUSED): across(parked, paused, above, above - 8),
        **_down(_LIFE_COLUMNS, bottom, _LIFE_BOTTOM),
    }


def _straight(x: int, y: int, end_x: int, end_y: int, text_x: int, text_y: int) -> Way:
    return Way(f"M {x} {y} L {end_x} {end_y}", text_x, text_y)


# Where things stand in a session.

_SESSION_WIDTH, _SESSION_Y, _SESSION_BOTTOM = 1000, 110, 270
_SESSION_COLUMNS = {State.FRESH: 90, State.INITIATING: 360, State.OPEN: 630, State.ENDED: 900}


def _session_ways() -> Ways:
    fresh, initiating, open_, ended = _SESSION_COLUMNS.values()
    top, bottom = _SESSION_Y - BOX_HEIGHT // 2, _SESSION_Y + BOX_HEIGHT // 2
    text_y = _SESSION_Y - 8
    return {
        (State.FRESH, State.INITIATING): across(fresh, initiating, _SESSION_Y, text_y),
        (State.INITIATING, State.OPEN): across(initiating, open_, _SESSION_Y, text_y),
        (State.OPEN, State.ENDED): across(open_, ended, _SESSION_Y, text_y),
        (State.INITIATING, State.ENDED): arc(initiating, ended, top, -70, 630, 46),
        **_down(_SESSION_COLUMNS, bottom, _SESSION_BOTTOM),
    }
