"""Wrappers of task functions: Arrow batches and time limits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from postroad.core.errors import MissingExtra, UsageError
from postroad.pipeline.functions import Function, InvalidResultError
from postroad.pipeline.job import Segment

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowFunction:
    """Calls such a function with one segment, or with many."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def bind(self, **given: Any) -> ArrowFunction:
        """The same with further keyword arguments."""
        return ArrowFunction(partial(self._function, **given))

    def __call__(self, segment: Segment) -> Segment:
        return self._call([segment])[0]

    def call_batch(self, segments: Sequence[Segment]) -> tuple[list[Any], dict[int, Exception]]:
        """Call it with all at once.

        Returns:
            What it made of each, and what it raised, by position: if it raises, those that it
            raises for are found by halves.
        """
        results: list[Any] = [None] * len(segments)
        raised: dict[int, Exception] = {}
        left = [(0, len(segments))] if segments else []
        while left:
            start, stop = left.pop()
            try:
                results[start:stop] = self._call(segments[start:stop])
            except Exception as error:
                if stop - start == 1:
                    raised[start] = error
                else:
                    middle = (start + stop) // 2
                    left += [(start, middle), (middle, stop)]
        return results, raised

    def _call(self, segments: Sequence[Segment]) -> list[Segment]:
        made = self._function(to_record_batch(segments))
        rows = getattr(made, "num_rows", None)
        if rows != len(segments):
            found = f"{rows} rows" if rows is not None else type(made).__name__
            raise InvalidResultError(
                f"an arrow function returns a record batch with a row for each of"
                f" {len(segments)} rows, not {found}"
            )
        made_segments: list[Segment] = made.to_pylist()
        return made_segments


def to_record_batch(segments: Sequence[Segment]) -> pa.RecordBatch:
    """Segments as columns, with all keys that one of them has.

    Raises:
        pyarrow.ArrowInvalid: values of one key do not go together.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra("parquet", "tasks of kind arrow") from None
    names = dict.fromkeys(name for segment in segments for name in segment)
    columns = {name: [segment.get(name) for segment in segments] for name in names}
    return pa.RecordBatch.from_pydict(columns)


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
