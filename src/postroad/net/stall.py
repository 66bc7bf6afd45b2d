"""Notices a peer that does not read what is written to it."""

from __future__ import annotations

from postroad.wire import NEVER


class WriteStallDetector:
    """Watches a socket that takes no more: it must take something within the time.

    A peer that never reads would hold the memory of what waits for it for ever.
    """

    __slots__ = ("_allowed_s", "_taken_bytes", "deadline")

    def __init__(self, allowed_s: float) -> None:
        self._allowed_s = allowed_s
        self._taken_bytes = 0
        # When to look whether the socket has taken more; never while it has room.
        self.deadline = NEVER

    def start(self, taken_bytes: int, now: float) -> None:
        """The socket takes no more, and had taken so much."""
        self._taken_bytes = taken_bytes
        self.deadline = now + self._allowed_s

    def extend_until(self, moment: float) -> None:
        """Look no sooner than that."""
        self.deadline = max(self.deadline, moment)

    def stop(self) -> None:
        """The socket has room again."""
        self.deadline = NEVER

    def is_stalled(self, taken_bytes: int, now: float) -> bool:
        """Whether nothing was taken for so long; if something was, the time begins anew."""
        if now < self.deadline:
            return False
        if taken_bytes > self._taken_bytes:
            self.start(taken_bytes, now)
            return False
        self.stop()
        return True
