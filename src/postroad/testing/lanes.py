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
    from .network.hosts import SimHost

ExceptionHandler: TypeAlias = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]


class SimProcess:
    """One process: its callbacks, its tasks, and where it runs."""

    __slots__ = (
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

    def __init__(self, name: str, host: SimHost, report: Reporter | None = None) -> None:
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
        self.tasks: dict[asyncio.Future[Any], object] = {}
        # What everything in the lane begins with.
        self.context = Context()
        self.context.run(CURRENT_PROCESS.set, self)
        self.context.run(REPORTER.set, report)

    def track(self, task: asyncio.Future[Any]) -> None:
        """Keep a task alive until it is done."""
        self.tasks[task] = None
        # In the lane itself, so that a failure nobody asked for is told as this process's.
        task.add_done_callback(self.tasks.pop, context=self.context)

    def forget_finished(self) -> None:
        """Hold only what is not done."""
        for task in [it for it in self.tasks if it.done()]:
            task.remove_done_callback(self.tasks.pop)
            del self.tasks[task]

    def kill(self) -> None:
        """Drop everything that was to run; nothing runs any more."""
        self.is_dead = True
        # Takes callbacks and keeps none, so that scheduling one needs no check.
        self.queue = deque(maxlen=0)

    def __repr__(self) -> str:
        state = "dead" if self.is_dead else "paused" if self.is_paused else "running"
        return f"<Lane {self.name} {state}>"


CURRENT_PROCESS: ContextVar[SimProcess | None] = ContextVar("postroad_lane", default=None)
"""The lane of the code that runs."""
