"""A clock that a test advances, for code that gets its clock as an argument."""

from __future__ import annotations

from postroad.core.errors import UsageError


class ManualClock:
    """A clock that moves only by `advance`; call it to read it.

    clock = ManualClock()
    machine = Machine(clock=clock)
    clock.advance(1.5)
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        """Let time pass; return the new time."""
        if seconds < 0:
            raise UsageError(f"a clock cannot advance by {seconds} s; set `now` to move it back")
        self.now += seconds
        return self.now

    def __repr__(self) -> str:
        return f"<ManualClock {self.now:.6f} s>"
