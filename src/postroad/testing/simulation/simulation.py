"""What every scenario gets: time, chance and a log, all determined by the seed."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random
from typing import TypeAlias, TypeVar

from postroad.testing.simulation.timeline import Timeline

LINES_MAX = 20_000
"""Lines that are kept, the latest ones: a run must not fill the memory with its log."""

# Where an object lies in memory differs between two runs of one seed.
_MEMORY_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


class EventLog:
    """Lines of virtual time, who, what.

    Args:
        now: tells the virtual time.
        lines_max: how many of the latest lines are kept.
    """

    def __init__(self, now: Callable[[], float], lines_max: int = LINES_MAX) -> None:
        self.now = now
        self.total = 0
        self._lines: deque[str] = deque(maxlen=lines_max)

    @property
    def lines(self) -> list[str]:
        """The lines that were kept."""
        return list(self._lines)

    def add(self, source: str, verb: str, details: str = "") -> None:
        """Write down that somebody did something now."""
        if "\n" in details:
            details = " | ".join(details.splitlines())
        if "0x" in details:
            details = _MEMORY_ADDRESS.sub("0x...", details)
        line = f"{self.now():12.6f}  {source:<8}  {verb:<10}  {details}"
        self.total += 1
        self._lines.append(line.rstrip())

    def __str__(self) -> str:
        left_out = self.total - len(self._lines)
        begin = [f"({left_out} earlier lines left out)"] if left_out else []
        return "\n".join([*begin, *self._lines])


T = TypeVar("T")

Keep: TypeAlias = Mapping[str, Collection[int]]
"""By the name of an optional list, the places in it that a run keeps."""


class Simulation:
    """One run.

    A scenario of pure machines uses the timeline. One of whole nodes makes a `SimCluster` of the
    simulation, whose time is then the simulation's.

    Args:
        seed: decides everything.
        keep: what is left of optional lists; those that are not named are whole.
    """

    def __init__(self, seed: int, keep: Keep | None = None) -> None:
        self.seed = seed
        self.keep: Keep = keep or {}
        # By name, how long the optional lists are as a whole.
        self.optional_items: dict[str, int] = {}
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

    def rng_for(self, part: str) -> Random:
        """Chance for one part, which others cannot disturb by drawing more or less."""
        return Random(f"{self.seed}/{part}")

    def optional(self, name: str, items: Iterable[T]) -> list[T]:
        """What a run has of a list, such as its faults or jobs: everything.

        When it fails, the runner looks for a shorter run that fails like it, and leaves some items
        out. So draw all of them before, and from the same chance whether they are used or not. A
        list may come in parts, by several calls with the same name.
        """
        first = self.optional_items.get(name, 0)
        numbered = list(enumerate(items, start=first))
        self.optional_items[name] = first + len(numbered)
        kept_indexes = self.keep.get(name)
        return [item for index, item in numbered if kept_indexes is None or index in kept_indexes]

    def optional_s(self, name: str, seconds: float) -> float:
        """The same for a time that need not be that long, second by second."""
        whole = math.ceil(seconds)
        return max(0.0, seconds - (whole - len(self.optional(name, range(whole)))))

    def use_clock(self, now: Callable[[], float], actions: Callable[[], int]) -> None:
        """Have something else than the timeline tell the time and count what happens."""
        self._now, self._actions = now, actions
        self.log.now = now


Scenario: TypeAlias = Callable[[Simulation], None]
"""Runs to its end, or raises: a SimulationFailure for a broken rule, anything else is a crash."""
