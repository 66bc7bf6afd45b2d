"""Functions that may end or block the process they run in: called in a copy of it.

A crash in native code, `os._exit` or a want of memory takes a worker away without an exception, and
with it the segments of all others in its batch; a call into C that never returns blocks it for
ever. So where a batch has failed again and again, functions are called in a forked process, once
for each segment, and what they return comes back through a pipe. Only what was not finished when
that process ended is called again.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from postroad.pipeline.functions import Function, normalize_result
from postroad.pipeline.task_functions import (
    ArrowFunction,
    AsyncFunction,
    Report,
    Results,
    drop_tracebacks,
    map_function,
    to_record_batch,
)
from postroad.pipeline.time_limits import TimeLimit, end_with

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 16
# Segments that one process is forked for: enough to pay for the fork.
_CHILD_SEGMENTS = 512
# The process itself ends most calls in time; it is killed when it had this much longer.
_GRACE_S = 0.5


class WorkerCrashedError(RuntimeError):
    """A function ended the process that called it."""


def call_isolated(
    function: Function, segments: Sequence[Any], limit: TimeLimit | None = None
) -> Results:
    """Call a function with each segment, in other processes; returns what came of each."""
    if isinstance(function, ArrowFunction):
        # It imports Arrow, and what that imports, here and not in every process again.
        to_record_batch([{"n": 0}])
    results: list[Any] = [None] * len(segments)
    raised: dict[int, Exception] = {}
    size = len(segments) if isinstance(function, AsyncFunction) else _CHILD_SEGMENTS
    waiting = [
        list(range(start, min(start + size, len(segments))))
        for start in range(0, len(segments), max(size, 1))
    ]
    while waiting:
        places = waiting.pop()
        child = _Child(function, [segments[place] for place in places], limit)
        for at, result, error in child.outcomes():
            results[places[at]] = result
            if error is not None:
                raised[places[at]] = error
            places[at] = -1
        left = [place for place in places if place >= 0]
        if not left:
            continue
        if not isinstance(function, ArrowFunction | AsyncFunction):
            # Called in order: it is the first one that was not finished.
            raised[left[0]] = child.failure()
            waiting += [left[1:]] if left[1:] else []
        elif len(left) == 1:
            raised[left[0]] = child.failure()
        elif child.is_late:
            waiting += [[place] for place in left]
        else:
            waiting += [left[: len(left) // 2], left[len(left) // 2 :]]
    return results, raised


class _Child:
    """A copy of this process that calls a function and tells what comes of it."""

    def __init__(
        self, function: Function, segments: Sequence[Any], limit: TimeLimit | None
    ) -> None:
        self._limit = limit
        self._status = 0
        self.is_late = False
        """Whether it was killed because a call did not end."""
        self._pipe, pipe = os.pipe()
        parent = os.getpid()
        with warnings.catch_warnings():
            # Later Pythons warn of forks beside threads; nothing of theirs is used here.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = os.fork()
        if not self._process:
            end_with(parent)
            _work(pipe, function, segments, limit)
        os.close(pipe)

    def outcomes(self) -> Iterator[tuple[int, Any, Exception | None]]:
        """What came of each segment that was finished, as it comes."""
        received = bytearray()
        try:
            while self._wait() and (data := os.read(self._pipe, _READ_BYTES)):
                received += data
                while (end := _end_of_first(received)) is not None:
                    message = bytes(received[_LENGTH.size : end])
                    del received[:end]
                    yield _decode(message)
        finally:
            os.close(self._pipe)
            if self.is_late:
                os.kill(self._process, signal.SIGKILL)
            self._status = os.waitpid(self._process, 0)[1]

    def _wait(self) -> bool:
        """Wait for something to read; returns whether there is, before the time is up."""
        limit_s = None if self._limit is None else self._limit.seconds + self._limit.look_s
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        wait_ms = None if limit_s is None else (limit_s + _GRACE_S) * 1000
        self.is_late = not poll.poll(wait_ms)
        return not self.is_late

    def failure(self) -> Exception:
        """What the segment failed with that it ended at."""
        if self.is_late and self._limit is not None:
            return self._limit.error()
        code = os.waitstatus_to_exitcode(self._status)
        reason = f"signal {-code}" if code < 0 else f"exit code {code}"
        return WorkerCrashedError(f"it ended the process that ran it ({reason})")


def _end_of_first(received: bytearray) -> int | None:
    if len(received) < _LENGTH.size:
        return None
    end = _LENGTH.size + int(_LENGTH.unpack_from(received)[0])
    return end if len(received) >= end else None


def _work(
    pipe: int, function: Function, segments: Sequence[Any], limit: TimeLimit | None
) -> NoReturn:
    """Be the other process."""

    def report(place: int, result: Any, error: Exception | None) -> None:
        message = _encode(place, result, error)
        data = memoryview(_LENGTH.pack(len(message)) + message)
        while data:
            data = data[os.write(pipe, data) :]

    try:
        _call_each(function, segments, limit, report)
        os._exit(0)
    finally:
        # Also where SystemExit was raised, which would end the other process too.
        os._exit(1)


def _call_each(
    function: Function, segments: Sequence[Any], limit: TimeLimit | None, report: Report
) -> None:
    if isinstance(function, ArrowFunction | AsyncFunction):
        function.call_batch(segments, limit, report)
        return
    for place, segment in enumerate(segments):
        results, raised = map_function(function, [segment], limit)
        report(place, results[0], raised.get(0))


def _encode(place: int, result: Any, error: Exception | None) -> bytes:
    """What came of a segment, however odd it is."""
    try:
        if error is None:
            # Also of generators, which do not go from one process to another.
            return pickle.dumps((place, normalize_result(result), None))
    except Exception as failure:
        error = failure
    drop_tracebacks(error)
    try:
        encoded = pickle.dumps((place, None, error))
        pickle.loads(encoded)
    except Exception:
        encoded = pickle.dumps((place, None, (type(error).__name__, _text_of(error))))
    return encoded


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception:
        return "its text cannot be read"


def _decode(message: bytes) -> tuple[int, Any, Exception | None]:
    place, result, error = pickle.loads(message)
    if isinstance(error, tuple):
        # One that cannot be sent: another of the same name.
        error = type(error[0], (Exception,), {})(error[1])
    if result is not None:
        result = result[0] if len(result) == 1 else result or None
    return place, result, error
