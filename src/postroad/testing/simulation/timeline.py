"""Virtual time for pure state machines: actions in the order of their times, without waiting."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

from postroad.testing.simulation.failures import LivenessFailure

Action: TypeAlias = Callable[[], None]

# A run of a minute of virtual time needs a few thousand; more means an endless loop.
ACTIONS_MAX = 200_000


class ScheduledAction:
    """An action that runs at a virtual time, unless it is cancelled."""

    __slots__ = ("_action", "is_cancelled", "time")

    def __init__(self, time: float, action: Action) -> None:
        self.time = time
        self.is_cancelled = False
        self._action = action

    def cancel(self) -> None:
        """Cancel the action."""
        self.is_cancelled = True

    def fire(self) -> None:
        """Run the action, unless it was cancelled."""
        if not self.is_cancelled:
            self._action()


class Timeline:
    """The virtual time, and the actions that are scheduled."""

    def __init__(self, actions_max: int | None = None) -> None:
        self.now = 0.0
        self.actions = 0
        self._actions_max = ACTIONS_MAX if actions_max is None else actions_max
        self._due: list[tuple[float, int, ScheduledAction]] = []
        # Actions of the same time run in the order in which they were scheduled.
        self._order = count()

    def at(self, time: float, action: Action) -> ScheduledAction:
        """Schedule an action; a time in the past means now."""
        timer = ScheduledAction(max(time, self.now), action)
        heapq.heappush(self._due, (timer.time, next(self._order), timer))
        return timer

    def after(self, delay_s: float, action: Action) -> ScheduledAction:
        """Schedule an action after so many seconds."""
        return self.at(self.now + delay_s, action)

    def run(self, until: float) -> None:
        """Run all actions until a time, and set the clock to it."""
        while self._due and self._due[0][0] <= until:
            self.now, _, timer = heapq.heappop(self._due)
            self.actions += 1
            if self.actions > self._actions_max:
                raise LivenessFailure(
                    f"run stopped after {self._actions_max} actions: endless loop?"
                )
            timer.fire()
        self.now = until
