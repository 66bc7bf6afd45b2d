"""Time limits of task functions: one timer for many calls, and only the call that hangs fails.

In the main thread the timer is a signal, which also interrupts calls such as `time.sleep`. In a
thread of a runner it is the runner that looks, and that raises the same exception in the thread;
this reaches Python code only. A call into C that never returns is found by `isolation`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, TypeAlias

# A call is looked at so often within its limit: it ends at most a quarter too late, never too soon.
_LOOKS = 4
# For functions that catch everything; long enough for the exception to get out meanwhile.
AGAIN_S = 0.5
_LOOK_MIN_S = 0.001
# Four quarters may come to a little less than the whole.
_ROUNDING = 1e-6
# Of <sys/prctl.h>; what a process that was just forked needs is loaded before.
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


_Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


class FunctionTimeoutError(Exception):
    """A function had not ended when its time was up."""


class TimeLimitReached(BaseException):
    """Raised within a function; no handler of ordinary errors takes it for one."""


class TimeLimit:
    """The time that a task has for one segment."""

    __slots__ = ("seconds", "task")

    def __init__(self, task: str, seconds: float) -> None:
        self.task = task
        self.seconds = seconds

    @property
    def look_s(self) -> float:
        """How often to look whether it is over."""
        return max(self.seconds / _LOOKS, _LOOK_MIN_S)

    def error(self) -> FunctionTimeoutError:
        """What a segment fails with."""
        return FunctionTimeoutError(f"task {self.task!r} took more than {self.seconds:g} s for it")


class CallWatch:
    """Interrupts a call that takes too long.

    Use it as a context manager around a series of calls; `position` changes from one to the next.
    """

    __slots__ = (
        "_again_s",
        "_last_s",
        "_limit",
        "_position",
        "_seen",
        "_spent_s",
        "blamed",
        "is_interrupted",
        "is_over",
    )

    def __init__(self, limit: TimeLimit, position: Callable[[], int]) -> None:
        self._limit = limit
        self._position = position
        # The call at the last look, when that was, and the time it was seen to take. A pause of the
        # whole process between two looks counts no more than any other time between two.
        self._seen = -1
        self._last_s = 0.0
        self._spent_s = 0.0
        self._again_s = 0.0
        self.blamed = -1
        """The call that was interrupted last."""
        self.is_over = False
        """Whether nobody waits for the calls any more."""
        self.is_interrupted = False
        """Whether another thread has interrupted one of them."""

    def is_late(self) -> bool:
        """Look; returns whether the present call is to be interrupted now."""
        position, now_s = self._position(), time.monotonic()
        if position != self._seen:
            self._seen, self._spent_s, self._again_s = position, 0.0, self._limit.seconds
        else:
            self._spent_s += min(now_s - self._last_s, self._limit.look_s)
        self._last_s = now_s
        if self._spent_s < self._again_s * (1 - _ROUNDING):
            return False
        self.blamed, self._again_s = position, self._spent_s + AGAIN_S
        return True

    @property
    def is_stuck(self) -> bool:
        """Whether the present call was interrupted, and nothing came of it."""
        is_same = self._position() == self._seen == self.blamed
        return is_same and self._spent_s > 2 * self._limit.seconds + AGAIN_S

    def __enter__(self) -> CallWatch:
        if threading.current_thread() is threading.main_thread():
            _alarmed.append((self, signal.signal(signal.SIGALRM, _on_alarm)))
            signal.setitimer(signal.ITIMER_REAL, self._limit.look_s, self._limit.look_s)
        else:
            _watches[threading.get_ident()] = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_REAL, 0)
            _, before = _alarmed.pop()
            signal.signal(signal.SIGALRM, before)
        else:
            _end_watch(self)


# Of the main thread: the watch that is looked at when the timer fires, and the handler before it.
_alarmed: list[tuple[CallWatch, _Handler]] = []
# Of other threads, by their identity, and those of them that somebody looks at.
_watches: dict[int, CallWatch] = {}
_supervised: set[int] = set()
# Held while a call of another thread is interrupted: it is not when its watch is gone.
_interrupting = threading.Lock()


def _on_alarm(signum: int, frame: FrameType | None) -> None:
    if _alarmed and _alarmed[-1][0].is_late():
        raise TimeLimitReached


def can_interrupt() -> bool:
    """Whether calls in this thread can be interrupted."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main or threading.get_ident() in _supervised


@contextmanager
def supervised_thread() -> Iterator[None]:
    """Within, this thread is one that somebody calls `interrupt_if_late` for."""
    thread = threading.get_ident()
    _supervised.add(thread)
    try:
        yield
    finally:
        _supervised.discard(thread)


def interrupt_if_late(thread: int) -> bool:
    """Interrupt the call of another thread if it is late; true if that did not help before."""
    watch = _watches.get(thread)
    if watch is None:
        return False
    if watch.is_stuck:
        watch.is_over = True
        forget_interruption(thread)
        return True
    if watch.is_late():
        with _interrupting:
            if _watches.get(thread) is watch and watch._position() == watch.blamed:
                watch.is_interrupted = True
                _raise_in(thread, TimeLimitReached)
    return False


def interrupt_thread(thread: int) -> None:
    """Interrupt whatever another thread does, because nobody waits for it any more."""
    with _interrupting:
        watch = _watches.get(thread)
        if watch is not None:
            watch.is_over = watch.is_interrupted = True
        _raise_in(thread, TimeLimitReached)


def _end_watch(watch: CallWatch) -> None:
    """Leave nothing behind in this thread that could interrupt what comes after its calls."""
    thread = threading.get_ident()
    while _watches.get(thread) is watch:
        with suppress(TimeLimitReached), _interrupting:
            del _watches[thread]
    if watch.is_interrupted:
        # It may come only now.
        _be_interrupted()
    if watch.is_over:
        raise TimeLimitReached


def forget_interruption(thread: int) -> None:
    """Take back what another thread does not notice, because a call into C never returns."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)
    _be_interrupted()


def _be_interrupted() -> None:
    """Have this thread notice an interruption, and so end the search for any.

    The interpreter looks in all threads until one has noticed what was raised. While it looks,
    CPython 3.11 hangs at the first call that is traced or profiled, in any thread.
    """
    with suppress(TimeLimitReached):
        _raise_in(threading.get_ident(), TimeLimitReached)
        while True:
            pass


def _raise_in(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def end_with(parent: int) -> None:
    """Have the system kill this process as soon as its parent does not run any more.

    Otherwise a call into C that never ends goes on for ever, and takes a core.
    """
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            # It ended before.
            os._exit(1)
