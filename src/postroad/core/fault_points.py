"""Named fault points: places where a test can interrupt, fail or observe the program.

A module declares a point once and hits it where a crash would do the most damage:

    BEFORE_CONNECT = declare_fault_point("net.dial.before_connect")
    ...
    BEFORE_CONNECT.hit(address=address)

Hitting an unarmed point costs one call; on hot paths check `is_armed` first. A test arms a point by
its name:

    with arm_fault_point("net.dial.before_connect", raise_error):
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from postroad.core.errors import UsageError

FaultAction = Callable[..., None]

_points: dict[str, FaultPoint] = {}


class FaultPoint:
    """A named place in the code."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_armed = False
        # Set only while a test has armed this point.
        self._action: FaultAction | None = None

    def hit(self, **details: Any) -> None:
        """Run the armed action, if any; it may raise."""
        if self._action is not None:
            self._action(**details)

    def __repr__(self) -> str:
        return f"<FaultPoint {self.name}{' armed' if self._action else ''}>"


def declare_fault_point(name: str) -> FaultPoint:
    """Create the point with this name; each name is declared once, at import."""
    if name in _points:
        raise UsageError(f"fault point {name!r} is already declared; choose another name")
    point = _points[name] = FaultPoint(name)
    return point


def fault_point_names() -> list[str]:
    """Return the names of all declared points, sorted."""
    return sorted(_points)


@contextmanager
def arm_fault_point(name: str, action: FaultAction) -> Iterator[FaultPoint]:
    """Run `action(**details)` whenever the point is hit inside the block."""
    point = _points.get(name)
    if point is None:
        raise UsageError(
            f"unknown fault point {name!r}; declared: {', '.join(fault_point_names()) or 'none'}"
        )
    if point._action is not None:
        raise UsageError(f"fault point {name!r} is already armed")
    point._action, point.is_armed = action, True
    try:
        yield point
    finally:
        point._action, point.is_armed = None, False
