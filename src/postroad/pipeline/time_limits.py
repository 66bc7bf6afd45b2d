"""Functions that get so much time and no more, also if they loop for ever."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from postroad.core.errors import UsageError

# For functions that catch everything; long enough to get out of here meanwhile.
_AGAIN_S = 0.5


class FunctionTimeoutError(Exception):
    """A function had not ended when its time was up."""


class _TimeLimitReached(BaseException):
    """Raised within a function; no handler of ordinary errors takes it for one."""


class TimeLimitedFunction:
    """A function with a limit on each call. It works in the main thread only.

    Python code is interrupted wherever it is; a call into C is when it comes back.
    """

    def __init__(self, function: Callable[..., Any], limit_s: float) -> None:
        self._function = function
        self._limit_s = limit_s
        self._is_running = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("a function with time_limit_s runs in the main thread only")
        before = signal.signal(signal.SIGALRM, self._on_alarm)
        try:
            return self._run(*args, **kwargs)
        except _TimeLimitReached:
            raise FunctionTimeoutError(f"it took more than {self._limit_s:g} s") from None
        finally:
            self._is_running = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        self._is_running = True
        signal.setitimer(signal.ITIMER_REAL, self._limit_s, _AGAIN_S)
        try:
            return self._function(*args, **kwargs)
        finally:
            # An alarm does nothing after this, and before it, no harm.
            self._is_running = False

    def _on_alarm(self, signum: int, frame: FrameType | None) -> None:
        if self._is_running:
            raise _TimeLimitReached
