"""What the scenarios have in common: plans that can be shortened, and agendas."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

import msgspec

from postroad.testing import SimCluster, Simulation

PlanT = TypeVar("PlanT", bound=msgspec.Struct)


def shortened(simulation: Simulation, plan: PlanT, seconds: str, *lists: str) -> PlanT:
    """Leave out what a shorter run does without: items of some fields, and seconds of another."""
    changes: dict[str, Any] = {it: simulation.optional(it, getattr(plan, it)) for it in lists}
    changes[seconds] = simulation.optional_s("seconds", getattr(plan, seconds))
    return msgspec.structs.replace(plan, **changes)


class Agenda:
    """What is done to a cluster from outside, and when."""

    def __init__(self, sim: SimCluster) -> None:
        self._sim = sim
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    def at(self, time: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._due, (time, next(self._order), action))

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self.at(self._sim.now + seconds, action)

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            time, _, action = heapq.heappop(self._due)
            self._sim.run_for(max(0.0, time - self._sim.now))
            action()
        self._sim.run_for(until - self._sim.now)

    def clear(self) -> None:
        self._due.clear()
