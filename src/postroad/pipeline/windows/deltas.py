"""What a batch adds to the windows of a job. Pure.

Deltas are made wherever segments are, and merged in any order and any tree: the outcome is the
same, to the byte with the built-in aggregations.
"""

from __future__ import annotations

from typing import Any

import msgspec

from postroad.pipeline.job import Segment
from postroad.pipeline.windows.compiled import NO_TIME, CompiledWindow, CompiledWindows
from postroad.pipeline.windows.encoding import encode_group


class PaneDelta(msgspec.Struct, array_like=True):
    """What is added to one group and extent."""

    lower: float
    latest: float
    """The latest time of its segments."""
    segments: int
    state: Any
    marks: list[int]
    """The triggers that one of its segments sets off, by their place in the job."""


class WindowDelta(msgspec.Struct, array_like=True):
    """What is added to one window."""

    latest: float = NO_TIME
    """The latest time of all its segments."""
    groups: dict[bytes, list[PaneDelta]] = {}
    """For each group its extents in order, sessions being as far apart as they must."""


class JobWindowDelta(msgspec.Struct, array_like=True):
    """What a batch, or a part of one, adds to the windows of a job."""

    windows: dict[str, WindowDelta] = {}


class WindowDeltaBuilder:
    """Gathers segments, and other deltas, into `delta`."""

    def __init__(self, plan: CompiledWindows) -> None:
        self._plan = plan
        self.delta = JobWindowDelta()

    def add(self, task: str, group: object, segment: Segment, *, order: bytes = b"") -> None:
        """Add a segment to the windows of a task, or to none if one of them raises.

        `order` places it among others, for aggregations that keep an order. Raises
        InvalidSegmentError if a window cannot use it, or what a function of the job raised.
        """
        key = encode_group(group)
        # Nothing is added anywhere before everything is known to be fit.
        parts = [
            (window, window.time(segment), window.part(segment, order), window.marks(segment))
            for window in self._plan.of_task(task)
        ]
        for window, time_s, part, marks in parts:
            target = self._of_window(window.name)
            target.latest = max(target.latest, time_s)
            for lower in window.assignment.lowers(time_s):
                line = target.groups.setdefault(key, [])
                _absorb(window, line, PaneDelta(lower, time_s, 1, part, marks))

    def merge(self, delta: JobWindowDelta) -> None:
        """Add another delta, which stays as it is."""
        for name, other in delta.windows.items():
            window, target = self._plan.by_name[name], self._of_window(name)
            target.latest = max(target.latest, other.latest)
            for group, additions in other.groups.items():
                line = target.groups.setdefault(group, [])
                for addition in additions:
                    _absorb(window, line, addition)

    def _of_window(self, name: str) -> WindowDelta:
        return self.delta.windows.setdefault(name, WindowDelta())


def _absorb(window: CompiledWindow, line: list[PaneDelta], extra: PaneDelta) -> None:
    """Put an addition among those of its group, and make one of all that meet."""
    first, after = window.assignment.meeting(line, extra.lower, extra.latest)
    if first == after:
        state = window.aggregation.init()
        line.insert(first, PaneDelta(extra.lower, extra.latest, 0, state, []))
        after += 1
    whole = line[first]
    for other in (*line[first + 1 : after], extra):
        whole.lower = min(whole.lower, other.lower)
        whole.latest = max(whole.latest, other.latest)
        whole.segments += other.segments
        whole.state = window.aggregation.merge(whole.state, other.state)
        if other.marks:
            whole.marks = sorted({*whole.marks, *other.marks})
    del line[first + 1 : after]
