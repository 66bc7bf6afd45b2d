"""Threads of which one runs at a time: all orders of their steps, up to a number of preemptions.

A step is a line of a file that is watched, or what one thread does for others: putting something
into a queue, waking the event loop. The threads are real ones, and wait for their turn.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from types import FrameType
from typing import Any, NamedTuple, TypeVarTuple

from tests.support.deadlines import DEADLINE_S

Ts = TypeVarTuple("Ts")

_STEPS_MAX = 10_000


class Abandoned(BaseException):
    """Ends the threads of a run that has failed."""


class Choice(NamedTuple):
    """One moment of a run at which several threads could go on."""

    taken: int
    options: int
    is_preemption: bool
    """Whether any other than the first would interrupt one that could go on."""


class Worker:
    """A thread that waits for its turn."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn = threading.Semaphore(0)
        self.is_over = False
        # What it waits for.
        self.condition: Callable[[], object] | None = None

    @property
    def can_run(self) -> bool:
        return not self.is_over and (self.condition is None or bool(self.condition()))


class Run:
    """One order of steps: choices as given, then each thread for as long as it can."""

    def __init__(self, choices: Sequence[int], watched: str) -> None:
        self._given = choices
        self._watched = watched
        self.choices: list[Choice] = []
        self.failure: BaseException | None = None
        self._workers: list[Worker] = []
        self._current: Worker | None = None
        self._steps = 0
        self._over = threading.Event()

    def execute(self, main: Callable[[], None]) -> None:
        """Run everything that follows from a function to its end."""
        self.spawn(main, "loop")
        self._hand_over()
        if not self._over.wait(DEADLINE_S):
            raise AssertionError(f"a thread does not come back; choices {self.taken}")

    @property
    def taken(self) -> list[int]:
        return [choice.taken for choice in self.choices]

    def spawn(self, function: Callable[[], None], name: str) -> None:
        worker = Worker(name)
        self._workers.append(worker)
        threading.Thread(target=self._run, args=(worker, function), daemon=True).start()

    def _run(self, worker: Worker, function: Callable[[], None]) -> None:
        worker.turn.acquire()
        sys.settrace(self._trace)
        try:
            if self.failure is None:
                function()
        except Abandoned:
            pass
        except BaseException as error:
            self.fail(error)
        finally:
            sys.settrace(None)
            worker.is_over = True
            self._hand_over()

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != self._watched:
            return None
        if event == "line":
            self.step()
        return self._trace

    def step(self) -> None:
        """Let others go on, if it is their turn."""
        self.wait(None)

    def wait(self, condition: Callable[[], object] | None) -> None:
        """Let others go on until something holds."""
        worker = self._current
        if self.failure is not None or worker is None:
            raise Abandoned
        worker.condition = condition
        if self._hand_over() is not worker:
            worker.turn.acquire()
        worker.condition = None
        if self.failure is not None:
            raise Abandoned

    def _hand_over(self) -> Worker | None:
        last, self._current = self._current, self._choose()
        if self._current is None:
            self._over.set()
        elif self._current is not last:
            self._current.turn.release()
        return self._current

    def _choose(self) -> Worker | None:
        if self.failure is not None:
            return next((worker for worker in self._workers if not worker.is_over), None)
        able = [worker for worker in self._workers if worker.can_run]
        self._steps += 1
        if not able or self._steps > _STEPS_MAX:
            waiting = [worker.name for worker in self._workers if not worker.is_over]
            if not waiting:
                return None
            what = "steps without an end" if able else "a deadlock"
            self.fail(AssertionError(f"{what}, of {waiting}"))
            return self._choose()
        goes_on = self._current in able
        if goes_on:
            able.sort(key=lambda task: task is not self._current)
        if len(able) == 1:
            return able[0]
        number = len(self.choices)
        taken = self._given[number] if number < len(self._given) else 0
        self.choices.append(Choice(taken, len(able), goes_on))
        return able[taken]

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error


class ControlledQueue:
    """As queue.SimpleQueue."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._run.step()
        self._items.append(item)

    def get(self) -> Any:
        self._run.wait(lambda: self._items)
        return self._items.popleft()


class ControlledLoop(asyncio.BaseEventLoop):
    """As an event loop that sleeps in its selector until another thread has written to its pipe."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self._ready: deque[asyncio.Handle] = deque()
        self._is_woken = False
        self._is_closed = False

    def run_to_end(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine; the loop is closed then."""
        asyncio._set_running_loop(self)
        try:
            task = asyncio.Task(coroutine, loop=self)
            while not task.done():
                for _ in range(len(self._ready)):
                    self._ready.popleft()._run()
                    self._run.step()
                if not self._ready and not task.done():
                    self._run.wait(lambda: self._is_woken)
                self._is_woken = False
            task.result()
        finally:
            asyncio._set_running_loop(None)
            self._is_closed = True

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        handle = self.call_soon(callback, *args, context=context)
        self._run.step()
        self._is_woken = True
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def is_closed(self) -> bool:
        return self._is_closed

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # Not what comes of futures that nobody asked.
        if "handle" in context and isinstance(error, BaseException):
            self._run.fail(error)


def explore(
    execute: Callable[[Run], None], watched: str, *, preemptions: int, runs_max: int
) -> tuple[int, Run | None]:
    """Try all orders without a preemption, then with one, and so on, up to the first that fails.

    Returns how many were tried, and the one that failed.

    Args:
        execute: runs everything in the order that a run gives.
        watched: the file whose lines are steps.
        preemptions: how often a thread that could go on is interrupted.
        runs_max: how many orders are tried at most.
    """
    count = 0
    for most in range(preemptions + 1):
        choices: list[int] | None = []
        while choices is not None and count < runs_max:
            count += 1
            run = Run(choices, watched)
            execute(run)
            if run.failure is not None:
                return count, run
            choices = _next(run.choices, most)
    return count, None


def _next(choices: list[Choice], preemptions: int) -> list[int] | None:
    """The order after one: its last choice that can be another one is."""
    for index in range(len(choices) - 1, -1, -1):
        choice = choices[index]
        spent = sum(one.is_preemption and one.taken > 0 for one in choices[:index])
        if choice.taken + 1 < choice.options and spent + choice.is_preemption <= preemptions:
            return [*(one.taken for one in choices[:index]), choice.taken + 1]
    return None
