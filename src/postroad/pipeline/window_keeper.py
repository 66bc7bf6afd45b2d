"""The windows of a job, kept in its store.

Everything here runs inside the transaction of a commit.
"""

from __future__ import annotations

from collections.abc import Iterable

from .emissions import EmittedRoot, emit_roots
from .job import RetryPolicy
from .pen import JobStore
from .program import CompiledJob
from .windows import JobWindowDelta, Extent, JobWindowState


class WindowStore:
    """Changes the windows, and puts what they emit into the pen."""

    def __init__(self, program: CompiledJob) -> None:
        self._program = program
        self._state = JobWindowState(program.windows)
        # What the store must say for the state to be that of the store: after a commit that
        # failed it says something else.
        self._version = 0

    def _load(self, pen: JobStore) -> JobWindowState:
        version = pen.panes_version()
        if version != self._version:
            self._state, self._version = JobWindowState(self._program.windows, pen.panes()), version
        return self._state

    def apply(self, pen: JobStore, delta: JobWindowDelta, now_ms: int) -> None:
        """Add what a batch brings."""
        self._keep(pen, self._load(pen).apply(delta, now_ms / 1000), now_ms)

    def fire_timers(self, pen: JobStore, now_ms: int) -> None:
        """Emit what timers set off."""
        if self._program.windowed_tasks:
            self._keep(pen, self._load(pen).on_time(now_ms / 1000), now_ms)

    def fire_drained(self, pen: JobStore, now_ms: int) -> int:
        """Emit what waits for the end; returns how much that is."""
        if not self._program.windowed_tasks:
            return 0
        extents = self._load(pen).on_drained()
        self._keep(pen, extents, now_ms)
        return len(extents)

    def _keep(self, pen: JobStore, extents: Iterable[Extent], now_ms: int) -> None:
        for extent in extents:
            for root in emit_roots(self._program, extent, now_ms):
                if isinstance(root, EmittedRoot):
                    pen.insert_root(root.root, root.task, root.segment, now_ms)
                else:
                    pen.record_failures([root], {root.task: RetryPolicy()}, now_ms, lambda: 0.0)
        changes = self._state.take_changes()
        if changes:
            self._version = pen.write_panes(changes)
