"""Named fault points: places where a test may stop, fail or observe the program.

A module declares a point once and reaches it where a crash would hurt most:

    BEFORE_CONNECT = faults.declare("net.dial.before_connect")
    ...
    BEFORE_CONNECT.reach(address=address)

Unarmed, reaching a point costs one call; where that is too much, ask `is_armed` first. A test arms
it by name:

    with faults.armed("net.dial.before_connect", raise_error):
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from postroad.core.errors import UsageError

Action = Callable[..., None]

_points: dict[str, FaultPoint] = {}


class FaultPoint:
    """One named place in the code."""

    __slots__ = ("_action", "is_armed", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_armed = False
        # Set only while a test has armed this point.
        self._action: Action | None = None

    def hit(self, **details: Any) -> None:
        """Say that the program is here; runs the armed action, which may raise."""
        if self._action is not None:
            self._action(**details)

    def __repr__(self) -> str:
        return f"<FaultPoint {self.name}{' armed' if self._action else ''}>"


def declare_fault_point(name: str) -> FaultPoint:
    """Create the point of that name; each name is declared once, at import."""
    if name in _points:
        raise UsageError(f"fault point {name!r} is declared twice")
    point = _points[name] = FaultPoint(name)
    return point


def fault_point_names() -> list[str]:
    """All declared points, sorted."""
    return sorted(_points)


@contextmanager
def arm_fault_point(name: str, action: Action) -> Iterator[FaultPoint]:
    """Run `action(**details)` whenever the point is reached inside the block."""
    point = _points.get(name)
    if point is None:
        raise UsageError(
            f"no fault point {name!r}; there are: {', '.join(fault_point_names()) or 'none'}"
        )
    if point._action is not None:
        raise UsageError(f"fault point {name!r} is armed already")
    point._action, point.is_armed = action, True
    try:
        yield point
    finally:
        point._action, point.is_armed = None, False
