"""The life of a flow and the states of a session, drawn from the tables of their machines.

Places are fixed here, what stands at them is not: a way a table gains has no place yet and fails
the drawing, a way it loses is no longer drawn.
"""

from __future__ import annotations

from collections.abc import Mapping

from postroad.flows.machine.status import STATUS_TRANSITIONS, FlowStatus
from postroad.flows.sessions import session
from postroad.flows.sessions.session import SessionState

from .shapes import BAR_HEIGHT, BOX_HEIGHT, BOX_WIDTH, Way, across, arc, arrow, box, label, opening
from .shapes import state_box as _box

_WORKING, _WAITING, _TROUBLED, _OVER = "#d7f0dc", "#fdeec4", "#f9d9d6", "#e3e6ea"

Ways = dict[tuple[str, str], Way]
Causes = dict[tuple[str, str], list[str]]


def draw_life() -> str:
    """What can happen to a flow, as SVG."""
    causes: Causes = {}
    for (before, trigger), transition in STATUS_TRANSITIONS.items():
        causes.setdefault((before, transition.status), []).append(trigger.value)
    rows = {status: (x, _LIFE_Y) for status, x in _LIFE_COLUMNS.items()}
    boxes = [_box(*place, _LIFE_COLOURS[status], status.value) for status, place in rows.items()]
    boxes += [_box(x, y, _OVER, status.value) for status, (x, y) in _LIFE_ENDS.items()]
    boxes.append(_bar(_LIFE_WIDTH, _LIFE_BOTTOM, FlowStatus.KILLED))
    head = opening(_LIFE_WIDTH, _LIFE_BOTTOM + 60, "The life of a flow")
    return _draw(head, boxes, causes, _life_ways())


def draw_session() -> str:
    """What changes the state of a session, as SVG."""
    causes: Causes = {}
    for (before, trigger), move in session.SESSION_TRANSITIONS.items():
        if move.state is not before:
            is_sent = move.action.value.startswith("send ")
            text = f"{trigger.value} ({move.action.value})" if is_sent else trigger.value
            causes.setdefault((before, move.state), []).append(text)
    colours = [_WAITING, _WAITING, _WORKING, _TROUBLED]
    boxes = [
        _box(x, _SESSION_Y, colour, it.value)
        for (it, x), colour in zip(_SESSION_COLUMNS.items(), colours, strict=True)
    ]
    boxes.append(_bar(_SESSION_WIDTH, _SESSION_BOTTOM, SessionState.CLOSED))
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


def _down(
    columns: Mapping[FlowStatus, int] | Mapping[SessionState, int], y: int, bar_y: int
) -> Ways:
    """From each box to the bar at the bottom."""
    end = FlowStatus.KILLED if FlowStatus.RUNNING in columns else SessionState.CLOSED
    return {
        (status, end): Way(f"M {x} {y} V {bar_y}", x + 8, bar_y - 12, is_centred=False)
        for status, x in columns.items()
    }


# Where things stand in the life of a flow.

_LIFE_WIDTH, _LIFE_Y, _LIFE_BOTTOM = 1270, 260, 470
_LIFE_COLUMNS = {
    FlowStatus.HELD: 100,
    FlowStatus.QUEUED: 300,
    FlowStatus.RUNNING: 530,
    FlowStatus.RETRYING: 760,
    FlowStatus.PARKED: 960,
    FlowStatus.PAUSED: 1170,
}
_LIFE_COLOURS = {
    FlowStatus.HELD: _WAITING,
    FlowStatus.QUEUED: _WAITING,
    FlowStatus.RUNNING: _WORKING,
    FlowStatus.RETRYING: _TROUBLED,
    FlowStatus.PARKED: _TROUBLED,
    FlowStatus.PAUSED: _WAITING,
}
_LIFE_ENDS = {FlowStatus.COMPLETED: (450, 50), FlowStatus.FAILED: (610, 50)}


def _life_ways() -> Ways:
    held, queued, running, retrying, parked, paused = _LIFE_COLUMNS.values()
    above, below = _LIFE_Y - 10, _LIFE_Y + 10
    top, bottom = _LIFE_Y - BOX_HEIGHT // 2, _LIFE_Y + BOX_HEIGHT // 2
    left = running - BOX_WIDTH // 2
    done, failed = (x for x, _ in _LIFE_ENDS.values())
    end_y = 50 + BOX_HEIGHT // 2
    loop = f"M {left} {above} C {left - 60} {above - 10} {left - 20} {top - 50} {left + 15} {top}"
    return {
        (FlowStatus.HELD, FlowStatus.RUNNING): arc(
            held + 30, left + 12, bottom, 60, 300, bottom + 52
        ),
        (FlowStatus.QUEUED, FlowStatus.RUNNING): across(queued, running, below, below - 8),
        (FlowStatus.QUEUED, FlowStatus.PAUSED): arc(
            queued + 30, paused + 30, bottom, 190, 645, 432
        ),
        **{
            (status, FlowStatus.FAILED): Way(
                f"M {x} {top} V 12 H {failed} V {50 - BOX_HEIGHT // 2}",
                x + 8,
                top - 12,
                is_centred=False,
            )
            for status, x in ((FlowStatus.HELD, held), (FlowStatus.QUEUED, queued))
        },
        (FlowStatus.RUNNING, FlowStatus.RUNNING): Way(loop, left - 28, top - 22),
        (FlowStatus.RUNNING, FlowStatus.COMPLETED): _straight(
            running - 20, top, done, end_y, 466, 140
        ),
        (FlowStatus.RUNNING, FlowStatus.FAILED): _straight(
            running + 10, top, failed, end_y, 572, 140
        ),
        (FlowStatus.RUNNING, FlowStatus.RETRYING): across(running, retrying, above, above - 8),
        (FlowStatus.RETRYING, FlowStatus.RUNNING): across(retrying, running, below, below + 19),
        (FlowStatus.RUNNING, FlowStatus.PARKED): arc(running + 34, parked, top, -90, 750, 161),
        (FlowStatus.PARKED, FlowStatus.RUNNING): arc(
            parked - 20, running + 44, bottom, 90, 750, 362
        ),
        (FlowStatus.RUNNING, FlowStatus.PAUSED): arc(
            running + 50, paused + 20, top, -170, 880, 101
        ),
        (FlowStatus.PAUSED, FlowStatus.RUNNING): arc(
            paused - 20, running + 28, bottom, 150, 850, 404
        ),
        (FlowStatus.RETRYING, FlowStatus.PAUSED): arc(
            retrying + 40, paused - 20, top, -60, 1050, 190
        ),
        (FlowStatus.PARKED, FlowStatus.PAUSED): across(parked, paused, above, above - 8),
        **_down(_LIFE_COLUMNS, bottom, _LIFE_BOTTOM),
    }


def _straight(x: int, y: int, end_x: int, end_y: int, text_x: int, text_y: int) -> Way:
    return Way(f"M {x} {y} L {end_x} {end_y}", text_x, text_y)


# Where things stand in a session.

_SESSION_WIDTH, _SESSION_Y, _SESSION_BOTTOM = 1000, 110, 270
_SESSION_COLUMNS = {
    SessionState.NEW: 90,
    SessionState.INITIATING: 360,
    SessionState.OPEN: 630,
    SessionState.ENDED: 900,
}


def _session_ways() -> Ways:
    fresh, initiating, open_, ended = _SESSION_COLUMNS.values()
    top, bottom = _SESSION_Y - BOX_HEIGHT // 2, _SESSION_Y + BOX_HEIGHT // 2
    text_y = _SESSION_Y - 8
    return {
        (SessionState.NEW, SessionState.INITIATING): across(fresh, initiating, _SESSION_Y, text_y),
        (SessionState.INITIATING, SessionState.OPEN): across(initiating, open_, _SESSION_Y, text_y),
        (SessionState.OPEN, SessionState.ENDED): across(open_, ended, _SESSION_Y, text_y),
        (SessionState.INITIATING, SessionState.ENDED): arc(initiating, ended, top, -70, 630, 46),
        **_down(_SESSION_COLUMNS, bottom, _SESSION_BOTTOM),
    }
