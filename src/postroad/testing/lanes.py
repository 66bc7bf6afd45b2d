"""Simulated processes as the loop sees them: each has its own queue of callbacks.

A handle belongs to the lane that its context names. Within a lane callbacks run in the order in
which they were scheduled, as asyncio promises; between lanes chance decides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

from .failures import REPORTER, Reporter

if TYPE_CHECKING:
    from .network.hosts import Host

ExceptionHandler: TypeAlias = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]

# Finished tasks are forgotten whenever there are so many more than at the last time.
_TASKS_STEP = 256


class Lane:
    """One process: its callbacks, its tasks, and where it runs."""

    __slots__ = (
        "_tasks_max",
        "clock_offset_s",
        "context",
        "exception_handler",
        "host",
        "is_dead",
        "is_listed",
        "is_paused",
        "name",
        "queue",
        "signal_handlers",
        "tasks",
    )

    def __init__(self, name: str, host: Host, report: Reporter | None = None) -> None:
        self.name = name
        self.host = host
        self.queue: deque[asyncio.Handle] = deque()
        # Whether the loop has it among those with something to run.
        self.is_listed = False
        self.is_paused = False
        self.is_dead = False
        # What the wall clock shows beyond the simulation's.
        self.clock_offset_s = 0.0
        # Set by code of the process; None has the loop's default handler called.
        self.exception_handler: ExceptionHandler | None = None
        self.signal_handlers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        # Held until they are done: what is forgotten would be closed at a moment of its own.
        self.tasks: list[asyncio.Future[Any]] = []
        self._tasks_max = _TASKS_STEP
        # What everything in the lane begins with.
        self.context = Context()
        self.context.run(CURRENT.set, self)
        self.context.run(REPORTER.set, report)

    def hold(self, task: asyncio.Future[Any]) -> None:
        """Keep a task alive until it is done."""
        self.tasks.append(task)
        if len(self.tasks) > self._tasks_max:
            self.forget_finished()
            self._tasks_max = 2 * len(self.tasks) + _TASKS_STEP

    def forget_finished(self) -> None:
        """Hold only what is not done."""
        self.tasks = [it for it in self.tasks if not it.done()]

    def die(self) -> None:
        """Drop everything that was to run; nothing runs any more."""
        self.is_dead = True
        # Takes callbacks and keeps none, so that scheduling one needs no check.
        self.queue = deque(maxlen=0)

    def __repr__(self) -> str:
        state = "dead" if self.is_dead else "paused" if self.is_paused else "running"
        return f"<Lane {self.name} {state}>"


CURRENT: ContextVar[Lane | None] = ContextVar("postroad_lane", default=None)
"""The lane of the code that runs."""
