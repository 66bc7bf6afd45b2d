"""All windows of a job, as they are after some batches. Pure: time comes in as an argument.

The same batches give the same state and the same emissions, to the byte, on every machine and
however often the state was stored and loaded in between.
"""

from __future__ import annotations

from collections.abc import Iterable

from postroad.pipeline.windows.compiled import CompiledWindows
from postroad.pipeline.windows.deltas import JobWindowDelta, WindowDelta
from postroad.pipeline.windows.operator import WindowOperator
from postroad.pipeline.windows.panes import Extent, decode_row


class JobWindowState:
    """What the windows of a job hold.

    It is changed by each call that returns extents. If these and the rows of `take_changes` cannot
    be stored together, it must be loaded again from what is stored.
    """

    def __init__(self, plan: CompiledWindows, rows: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """
        Args:
            rows: all that was stored; rows of windows that the job no longer has are left alone.
        """
        self._windows = {window.name: WindowOperator(window) for window in plan.windows}
        for key, value in rows:
            row = decode_row(key, value)
            if row.window in self._windows:
                self._windows[row.window].load(row.group, row.content)

    def apply(self, delta: JobWindowDelta, now_s: float) -> list[Extent]:
        """Add all that a batch brings, and emit what it sets off.

        What is too late is dropped and counted. That depends on earlier batches, and not on the
        order of segments within this one.
        """
        return [
            extent
            for name, contents in self._windows.items()
            for extent in contents.apply(delta.windows.get(name, WindowDelta()), now_s)
        ]

    def on_time(self, now_s: float) -> list[Extent]:
        """Emit what timers set off; to be called at any time."""
        return [extent for contents in self._windows.values() for extent in contents.on_time(now_s)]

    def on_drained(self) -> list[Extent]:
        """There will be no more segments: emit what waits for that."""
        return [extent for contents in self._windows.values() for extent in contents.on_drained()]

    def take_changes(self) -> dict[bytes, bytes | None]:
        """The rows that have changed since the last call; None for those to be deleted.

        Some that are to be deleted may never have been stored.
        """
        return {
            key: value
            for contents in self._windows.values()
            for key, value in contents.take_changes()
        }
