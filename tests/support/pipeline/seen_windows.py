"""Windows of a job with what nobody but a test asks about them."""

from __future__ import annotations

import msgspec

from postroad.pipeline.windows import JobWindowDelta, JobWindowState
from postroad.pipeline.windows.deltas import WindowDelta


class SeenWindowState(JobWindowState):
    """Tells what it holds."""

    def __len__(self) -> int:
        """How many panes there are."""
        return sum(len(line) for one in self._windows.values() for line in one._lines.values())

    @property
    def next_timer_s(self) -> float | None:
        """When the next timer goes off; None if none waits for anything."""
        times = [time for one in self._windows.values() for time in one.head.due_s.values()]
        return min(times, default=None)

    def late(self, window: str) -> int:
        """How many segments a window has dropped; one counts for each of its extents."""
        return self._windows[window].head.late

    def latest_s(self, window: str) -> float:
        """The latest time a window has seen; minus infinity before the first."""
        return self._windows[window].head.latest


def encode_delta(delta: JobWindowDelta) -> bytes:
    """A delta as bytes; the same for equal ones."""
    windows = {
        name: WindowDelta(window.latest, dict(sorted(window.groups.items())))
        for name, window in sorted(delta.windows.items())
    }
    return msgspec.msgpack.encode(JobWindowDelta(windows))


decode_delta = msgspec.msgpack.Decoder(JobWindowDelta).decode
