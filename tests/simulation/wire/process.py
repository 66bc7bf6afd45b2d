"""A process: what a node does happens here, and stops while it is paused."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from postroad.testing import Simulation
from postroad.testing.simulation.timeline import Action, ScheduledAction
from tests.simulation.wire.plan import LATENESS_S_MAX


class Disturbances:
    def __init__(self) -> None:
        self._stretches: list[tuple[float, float]] = []

    def add(self, start: float, end: float) -> None:
        self._stretches.append((start, end))

    def overlaps(self, start: float, end: float) -> list[tuple[float, float]]:
        clipped = [(max(start, first), min(end, last)) for first, last in self._stretches]
        return [(first, last) for first, last in clipped if first < last]


def disturbed_s(sources: Iterable[Disturbances], start: float, end: float) -> float:
    total = 0.0
    covered = start
    for first, last in sorted(part for source in sources for part in source.overlaps(start, end)):
        total += max(0.0, last - max(first, covered))
        covered = max(covered, last)
    return total


# Timers that were due during a pause fire this soon after it.
CATCH_UP_S = 5 * LATENESS_S_MAX


class Process:
    """Runs actions late, as real ones do, and not at all while paused."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.name = name
        self.is_paused = False
        self.resumed_at = 0.0
        self.pauses = Disturbances()
        # Called first after a pause: what has arrived is read before timers are looked at.
        self.readers: list[Callable[[], None]] = []
        self._simulation = simulation
        self._deferred: list[Action] = []

    def at(self, time: float, action: Action) -> ScheduledAction:
        lateness_s = self._simulation.rng.uniform(0, LATENESS_S_MAX)
        timer = ScheduledAction(time, action)
        self._simulation.timeline.at(time + lateness_s, lambda: self.do(timer.fire))
        return timer

    def expect_by(self, time: float, check: Action) -> None:
        """Plan a check, but leave a process that was paused the time to catch up."""

        def look() -> None:
            caught_up = self.resumed_at + CATCH_UP_S
            if self.resumed_at and self._simulation.now < caught_up:
                self.at(caught_up, look)
            else:
                check()

        self.at(time, look)

    def do(self, action: Action) -> None:
        if self.is_paused:
            self._deferred.append(action)
        else:
            action()

    def pause(self, seconds: float) -> None:
        if not self.is_paused:
            self.is_paused = True
            self._simulation.log.add(self.name, "paused", f"for {seconds:.3f} s")
            self.pauses.add(self._simulation.now, self._simulation.now + seconds)
            self._simulation.timeline.after(seconds, self._resume)

    def _resume(self) -> None:
        self.is_paused = False
        self.resumed_at = self._simulation.now
        self._simulation.log.add(self.name, "resumed")
        for read in list(self.readers):
            read()
        deferred, self._deferred = self._deferred, []
        for action in deferred:
            self.do(action)
