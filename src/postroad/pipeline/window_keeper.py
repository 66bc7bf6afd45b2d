"""The windows of a job, kept in its store.

Everything here runs inside the transaction of a commit.
"""

from __future__ import annotations

from collections.abc import Iterable

from .emissions import NewRoot, roots_of
from .job import RetryPolicy
from .pen import Pen
from .program import Program
from .windows import Delta, Extent, WindowState


class WindowKeeper:
    """Changes the windows, and puts what they emit into the pen."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._state = WindowState(program.plan)
        # What the store must say for the state to be that of the store: after a commit that
        # failed it says something else.
        self._version = 0

    def _load(self, pen: Pen) -> WindowState:
        version = pen.panes_version()
        if version != self._version:
            self._state, self._version = WindowState(self._program.plan, pen.panes()), version
        return self._state

    def apply(self, pen: Pen, delta: Delta, now_ms: int) -> None:
        """Add what a batch brings."""
        self._keep(pen, self._load(pen).apply(delta, now_ms / 1000), now_ms)

    def on_time(self, pen: Pen, now_ms: int) -> None:
        """Emit what timers set off."""
        if self._program.windowed:
            self._keep(pen, self._load(pen).on_time(now_ms / 1000), now_ms)

    def on_drained(self, pen: Pen, now_ms: int) -> int:
        """Emit what waits for the end; returns how much that is."""
        if not self._program.windowed:
            return 0
        extents = self._load(pen).on_drained()
        self._keep(pen, extents, now_ms)
        return len(extents)

    def _keep(self, pen: Pen, extents: Iterable[Extent], now_ms: int) -> None:
        for extent in extents:
            for root in roots_of(self._program, extent, now_ms):
                if isinstance(root, NewRoot):
                    pen.put_new(root.root, root.task, root.segment, now_ms)
                else:
                    pen.put_back([root], {root.task: RetryPolicy()}, now_ms, lambda: 0.0)
        changes = self._state.take_changes()
        if changes:
            self._version = pen.change_panes(changes)
