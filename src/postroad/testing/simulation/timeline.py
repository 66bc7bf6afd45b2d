"""Virtual time for pure machines: actions in the order of their moments, no waiting in between."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

from postroad.testing.simulation.failures import LivenessFailure

Action: TypeAlias = Callable[[], None]

# A run of a minute of virtual time needs a few thousand; more means that time stands still.
ACTIONS_MAX = 200_000


class ScheduledAction:
    """An action that is due at a moment, unless it is cancelled."""

    __slots__ = ("_action", "is_cancelled", "time")

    def __init__(self, time: float, action: Action) -> None:
        self.time = time
        self.is_cancelled = False
        self._action = action

    def cancel(self) -> None:
        """Forget the action."""
        self.is_cancelled = True

    def fire(self) -> None:
        """Do it, unless it was cancelled."""
        if not self.is_cancelled:
            self._action()


class Timeline:
    """What will happen, and what time it is."""

    def __init__(self, actions_max: int | None = None) -> None:
        self.now = 0.0
        self.actions = 0
        self._actions_max = ACTIONS_MAX if actions_max is None else actions_max
        self._due: list[tuple[float, int, ScheduledAction]] = []
        # Actions of the same moment happen in the order in which they were planned.
        self._order = count()

    def at(self, time: float, action: Action) -> ScheduledAction:
        """Plan an action; a moment that has passed means now."""
        timer = ScheduledAction(max(time, self.now), action)
        heapq.heappush(self._due, (timer.time, next(self._order), timer))
        return timer

    def after(self, delay_s: float, action: Action) -> ScheduledAction:
        """Plan an action in so many seconds."""
        return self.at(self.now + delay_s, action)

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._due and self._due[0][0] <= until:
            self.now, _, timer = heapq.heappop(self._due)
            self.actions += 1
            if self.actions > self._actions_max:
                raise LivenessFailure(f"{self._actions_max} actions, and no end: time stands still")
            timer.fire()
        self.now = until
