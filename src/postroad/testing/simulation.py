"""What every scenario gets: time, chance and a log, all determined by the seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

from .event_log import EventLog
from .timeline import Timeline


class Simulation:
    """One run.

    A scenario of pure machines uses the timeline. One of whole nodes makes a `SimCluster` of the
    simulation, whose time is then the simulation's.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.timeline = Timeline()
        self._now: Callable[[], float] = lambda: self.timeline.now
        self._actions: Callable[[], int] = lambda: self.timeline.actions
        self.log = EventLog(self._now)

    @property
    def now(self) -> float:
        """Seconds of virtual time since the start."""
        return self._now()

    @property
    def actions(self) -> int:
        """How much happened so far."""
        return self._actions()

    def rng_of(self, part: str) -> Random:
        """Chance for one part, which others cannot disturb by drawing more or less."""
        return Random(f"{self.seed}/{part}")

    def follow(self, now: Callable[[], float], actions: Callable[[], int]) -> None:
        """Have something else than the timeline tell the time and count what happens."""
        self._now, self._actions = now, actions
        self.log.now = now


Scenario: TypeAlias = Callable[[Simulation], None]
"""Runs to its end, or raises: a SimulationFailure for a broken rule, anything else is a crash."""
