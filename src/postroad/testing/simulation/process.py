"""Simulated processes: each has its own queue of callbacks.

A handle belongs to the process that its context names. Within a process, callbacks run in the order
in which they were scheduled, as asyncio promises; the order between processes is random.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

from postroad.testing.simulation.simulation import REPORTER, Reporter

if TYPE_CHECKING:
    from postroad.testing.simulation.network.hosts import SimHost

# A coroutine that still waits after so many attempts to close it is abandoned.
_CLOSE_ATTEMPTS_MAX = 100

_never_ending: list[object] = []


def close_tasks(tasks: dict[asyncio.Future[Any], object]) -> None:
    """Close the coroutines of unfinished tasks; their `finally` blocks have no effect.

    Such blocks can create new tasks, which are closed too.
    """
    with _silence():
        while tasks:
            task = next(iter(tasks))
            if isinstance(task, asyncio.Task):
                _close(task)
            tasks.pop(task, None)


def _close(task: asyncio.Task[Any]) -> None:
    # asyncio reads it when a pending task is destroyed.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    if task.done():
        return
    coroutine: Any = task.get_coro()
    for _ in range(_CLOSE_ATTEMPTS_MAX):
        try:
            coroutine.close()
        except BaseException:
            # It awaits again or raised while closing: close it once more.
            continue
        return
    _never_ending.append(task)


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress logs, warnings and reports of tasks that are being closed."""
    hook, disabled = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = lambda _: None
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        sys.unraisablehook = hook


ExceptionHandler: TypeAlias = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]


class SimProcess:
    """Callback queue, tasks and host of one simulated process."""

    def __init__(self, name: str, host: SimHost, report: Reporter | None = None) -> None:
        self.name = name
        self.host = host
        self.queue: deque[asyncio.Handle] = deque()
        # Whether the loop lists it as ready.
        self.is_listed = False
        self.is_paused = False
        self.is_dead = False
        # The offset of its wall clock.
        self.clock_offset_s = 0.0
        # Set by code of the process; None means the default handler of the loop.
        self.exception_handler: ExceptionHandler | None = None
        self.signal_handlers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        # Referenced until they are done: the garbage collector would close them at any time.
        self.tasks: dict[asyncio.Future[Any], object] = {}
        # The context in which all code of the process starts.
        self.context = Context()
        self.context.run(CURRENT_PROCESS.set, self)
        self.context.run(REPORTER.set, report)

    def track(self, task: asyncio.Future[Any]) -> None:
        """Reference a task until it is done."""
        self.tasks[task] = None
        # In the context of the process, so that an unretrieved error is reported for it.
        task.add_done_callback(self.tasks.pop, context=self.context)

    def release_finished(self) -> None:
        for task in [task for task in self.tasks if task.done()]:
            task.remove_done_callback(self.tasks.pop)
            del self.tasks[task]

    def kill(self) -> None:
        """Drop all callbacks; none runs any more."""
        self.is_dead = True
        # A queue that drops callbacks, so that scheduling needs no check.
        self.queue = deque(maxlen=0)

    def __repr__(self) -> str:
        state = "dead" if self.is_dead else "paused" if self.is_paused else "running"
        return f"<SimProcess {self.name} {state}>"


CURRENT_PROCESS: ContextVar[SimProcess | None] = ContextVar("postroad_process", default=None)
"""The process of the code that is running."""
