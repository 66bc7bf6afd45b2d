"""What every scenario gets: time, chance and a log, all determined by the seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulation.event_log import EventLog
from tests.simulation.timeline import Timeline


class Simulation:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.timeline = Timeline()
        self.log = EventLog(self.timeline)

    @property
    def now(self) -> float:
        """Seconds of virtual time since the start."""
        return self.timeline.now


Scenario = Callable[[Simulation], None]
"""Runs to its end, or raises: a SimulationFailure for a broken rule, anything else is a crash."""
