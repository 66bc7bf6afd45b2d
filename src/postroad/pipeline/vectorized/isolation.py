"""Functions that may end the process they run in: tried in another one first.

A crash in native code, `os._exit` or a want of memory takes a worker away without an exception, and
with it the segments of all others in its batch. So where a batch has failed again and again, each
function is tried in a copy of the process, which notes how far it is.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import warnings
from collections.abc import Sequence
from typing import Any

from postroad.pipeline.functions import Function

_INDEX = struct.Struct("<q")


class WorkerCrashedError(RuntimeError):
    """A function ended the process that called it."""


def find_crashing_segments(function: Function, segments: Sequence[Any]) -> dict[int, Exception]:
    """The segments that a function must not be called with, by position, and why."""
    deadly: dict[int, Exception] = {}
    with mmap.mmap(-1, _INDEX.size) as progress:
        start = 0
        while start < len(segments):
            status = _try(function, segments, start, progress)
            (place,) = _INDEX.unpack_from(progress)
            if place == len(segments):
                break
            deadly[place] = WorkerCrashedError(
                f"it ended the process that ran it ({_tell(status)})"
            )
            start = place + 1
    return deadly


def _try(function: Function, segments: Sequence[Any], start: int, progress: mmap.mmap) -> int:
    """Call it in another process; returns what that ended with."""
    # Here, because that process may be gone before it has said anything.
    _INDEX.pack_into(progress, 0, start)
    with warnings.catch_warnings():
        # Later Pythons warn of forks beside threads; nothing of theirs is used here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        for place in range(start, len(segments)):
            _INDEX.pack_into(progress, 0, place)
            with contextlib.suppress(Exception):
                function(segments[place])
        _INDEX.pack_into(progress, 0, len(segments))
    finally:
        # Also where SystemExit was raised, which would end the other process too.
        os._exit(1)


def _tell(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"
