"""The time, randomness, log and failures of one run, all determined by its seed."""

from __future__ import annotations

import heapq
import math
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from itertools import count
from random import Random
from typing import ClassVar, TypeAlias, TypeVar

import msgspec

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


CRASH_EXIT_CODE = 127
"""The exit code of an unexpected exception."""


class SimulationFailure(Exception):
    """A rule of the scenario is violated."""

    exit_code: ClassVar[int]
    kind: ClassVar[str]


class LivenessFailure(SimulationFailure):
    """Something that must happen did not (liveness)."""

    exit_code = 128
    kind = "liveness"


class SafetyFailure(SimulationFailure):
    """Something happened that must not (safety)."""

    exit_code = 129
    kind = "safety"


Reporter: TypeAlias = Callable[[BaseException], None]

REPORTER: ContextVar[Reporter | None] = ContextVar("postroad_reporter", default=None)
"""Callback for failures of a simulated process; code of a node may swallow exceptions."""


def require(holds: bool, claim: str) -> None:
    """Raise a SafetyFailure unless the claim holds."""
    if not holds:
        failure = SafetyFailure(claim)
        report = REPORTER.get()
        if report is not None:
            report(failure)
        raise failure


TimelineAction: TypeAlias = Callable[[], None]

# A run of a minute of virtual time needs a few thousand; more means an endless loop.
ACTIONS_MAX = 200_000


class ScheduledAction(msgspec.Struct, eq=False):
    """An action that runs at a virtual time, unless it is cancelled."""

    time: float
    action: TimelineAction
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Cancel the action."""
        self.is_cancelled = True


class Timeline:
    """The virtual time, and the actions that are scheduled."""

    def __init__(self, actions_max: int = ACTIONS_MAX) -> None:
        self.now = 0.0
        self.actions = 0
        self._actions_max = actions_max
        self._due: list[tuple[float, int, ScheduledAction]] = []
        # Actions of the same time run in the order in which they were scheduled.
        self._order = count()

    def at(self, time: float, action: TimelineAction) -> ScheduledAction:
        """Schedule an action; a time in the past means now."""
        timer = ScheduledAction(max(time, self.now), action)
        heapq.heappush(self._due, (timer.time, next(self._order), timer))
        return timer

    def after(self, delay_s: float, action: TimelineAction) -> ScheduledAction:
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
            if not timer.is_cancelled:
                timer.action()
        self.now = until


LINES_MAX = 20_000
"""Maximum of log lines, the latest: a run must not fill the memory with its log."""

# The address of an object in memory differs between two runs of one seed.
_MEMORY_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


class EventLog:
    """Events of a run: virtual time, source, verb, details; only the latest lines are stored."""

    def __init__(self, now: Callable[[], float], lines_max: int = LINES_MAX) -> None:
        self.now = now
        self.total = 0
        self._lines: deque[str] = deque(maxlen=lines_max)

    @property
    def lines(self) -> list[str]:
        """The stored lines."""
        return list(self._lines)

    def add(self, source: str, verb: str, details: str = "") -> None:
        """Add a line with the current virtual time."""
        if "\n" in details:
            details = " | ".join(details.splitlines())
        if "0x" in details:
            details = _MEMORY_ADDRESS.sub("0x...", details)
        line = f"{self.now():12.6f}  {source:<8}  {verb:<10}  {details}"
        self.total += 1
        self._lines.append(line.rstrip())

    def __str__(self) -> str:
        omitted = self.total - len(self._lines)
        head = [f"({omitted} earlier lines left out)"] if omitted else []
        return "\n".join([*head, *self._lines])


T = TypeVar("T")

Keep: TypeAlias = Mapping[str, Collection[int]]
"""By the name of an optional list, the indexes of the items that a run uses."""


class Simulation:
    """Seed, time, randomness and log of one run.

    A scenario of pure state machines uses the timeline. A scenario of whole nodes creates a
    `SimCluster` with the simulation, which then uses the time of the cluster.

    Args:
        seed: determines the run.
        keep: the items to use of optional lists; lists without an entry are complete.
    """

    def __init__(self, seed: int, keep: Keep | None = None) -> None:
        self.seed = seed
        self.keep: Keep = keep or {}
        # The lengths of the complete optional lists, by name.
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
        """The number of actions so far."""
        return self._actions()

    def rng_for(self, part: str) -> Random:
        """Return a random source for one part, independent of what other parts draw."""
        return Random(f"{self.seed}/{part}")

    def optional(self, name: str, items: Iterable[T]) -> list[T]:
        """Return the items of a list, such as faults or jobs, that this run uses.

        When a run fails, the runner searches a shorter run with the same failure by leaving items
        out. So draw all items before, and from a random source that does not depend on their use.
        A list may come in parts, by several calls with the same name.
        """
        first = self.optional_items.get(name, 0)
        numbered = list(enumerate(items, start=first))
        self.optional_items[name] = first + len(numbered)
        kept_indexes = self.keep.get(name)
        return [item for index, item in numbered if kept_indexes is None or index in kept_indexes]

    def optional_s(self, name: str, seconds: float) -> float:
        """Return a duration that shrinking may shorten by whole seconds."""
        seconds_max = math.ceil(seconds)
        return max(0.0, seconds - (seconds_max - len(self.optional(name, range(seconds_max)))))

    def use_clock(self, now: Callable[[], float], actions: Callable[[], int]) -> None:
        """Use another clock and counter of actions than those of the timeline."""
        self._now, self._actions = now, actions
        self.log.now = now


Scenario: TypeAlias = Callable[[Simulation], None]
"""Returns at its end, or raises a SimulationFailure; any other exception is a crash."""
