"""A time limit for each test: one that hangs fails alone, and says where everything stood.

A test has 300 seconds, or those of its marker `timeout`. Then the stacks of all threads and tasks
are printed and its own task is cancelled. A test that takes no notice is interrupted by a signal;
if even that does not help, its process ends, and pytest-xdist starts another one for the rest.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

LIMIT_S = 300.0
GRACE_S = 20.0
"""How long a test may take to notice that it was cancelled, and that it was interrupted."""


class TimeLimitExceeded(BaseException):
    """A test hangs. Not an Exception, so that no code under test can swallow it."""


class Watchdog:
    """A pytest plugin with one thread, which looks at the test that runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._item: pytest.Item | None = None
        self._ends_at = 0.0
        self._expired: str | None = None
        self._error = os.dup(2)  # Before pytest captures it.
        signal.signal(signal.SIGALRM, _interrupt)
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        marker = item.get_closest_marker("timeout")
        limit_s = float(marker.args[0]) if marker else LIMIT_S
        self._watch(item, limit_s)
        # For a test that lets no other thread run.
        faulthandler.dump_traceback_later(limit_s + 3 * GRACE_S, exit=True, file=self._error)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._watch(None, 0.0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and self._expired is not None:
            report.sections.append(("time limit", self._expired))
        return report

    def _watch(self, item: pytest.Item | None, limit_s: float) -> None:
        with self._changed:
            self._item, self._expired = item, None
            self._ends_at = time.monotonic() + limit_s
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while True:
                item, ends_at = self._item, self._ends_at
                if item is None:
                    self._changed.wait()
                elif not self._is_over(item, ends_at - time.monotonic()):
                    self._stop(item)

    def _is_over(self, item: pytest.Item, within_s: float) -> bool:
        self._changed.wait_for(lambda: self._item is not item, max(within_s, 0.0))
        return self._item is not item

    def _stop(self, item: pytest.Item) -> None:
        self._expired = f"{item.nodeid} takes too long\n{''.join(_stacks())}"
        self._print(f"\n+++ {self._expired}+++\n")
        for task in _running_tasks():
            if getattr(task.get_coro(), "__name__", "") == getattr(item, "originalname", item.name):
                task.get_loop().call_soon_threadsafe(task.cancel, "the time limit of the test")
        if self._is_over(item, GRACE_S):
            return
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        if not self._is_over(item, GRACE_S):
            self._print(f"+++ {item.nodeid} cannot be stopped: its process ends +++\n")
            os._exit(1)

    def _print(self, text: str) -> None:
        os.write(self._error, text.encode(errors="replace"))


ONE_PROCESS = ("tests/integration/spark/", "tests/browser/", "tests/test_")
"""Folders whose files share what takes long to start."""


class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # pytest-xdist has no types.
    """Gives files to the processes of a run, and does not repeat a test that ended its process."""

    def _split_scope(self, nodeid: str) -> str:
        folders = (it for it in ONE_PROCESS if nodeid.startswith(it))
        return next(folders, super()._split_scope(nodeid))

    def remove_node(self, node: Any) -> str | None:
        workload = self.assigned_work.pop(node)
        rest = {
            scope: [test for test, is_done in unit.items() if not is_done]
            for scope, unit in workload.items()
        }
        left = [test for tests in rest.values() for test in tests]
        if not left:
            return None
        crashed: str = left[0]
        for scope, tests in rest.items():
            # A unit with nothing to do would be given to a process that then waits for ever.
            if unit := OrderedDict((test, False) for test in tests if test != crashed):
                self.workqueue[scope] = unit
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        super()._reschedule(node)
        # A process begins a test when it knows which one is next, or that none is.
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


def _interrupt(number: int, frame: object) -> None:
    raise TimeLimitExceeded("the test takes too long")


def _running_tasks() -> list[asyncio.Task[object]]:
    # Those of all loops: asyncio.all_tasks() must be told of one.
    everything: set[asyncio.Task[object]] = set(asyncio.tasks._all_tasks)  # type: ignore[attr-defined]
    return [task for task in everything if not task.done()]


def _stacks() -> Iterator[str]:
    for id, frame in sys._current_frames().items():
        if id != threading.get_ident():
            yield f"\nthread {id:#x}\n{''.join(traceback.format_stack(frame))}"
    for task in _running_tasks():
        yield f"\n{task!r}\n{''.join(_stack_of(task.get_coro()))}"


def _stack_of(coroutine: object) -> Iterator[str]:
    """Where a coroutine stands, and what it awaits, and so on: a task itself shows one frame."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            yield from traceback.format_stack(frame, limit=1)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
