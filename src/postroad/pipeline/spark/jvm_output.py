"""What Spark's JVM writes to its standard error stream, without what it writes on every run.

When a session stops, Spark closes the connections of its Python processes, and each of them may
print a traceback of the pipe that broke. These processes are Spark's own, and cannot be told to be
quiet.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator

_STDERR = 2
_TRACEBACK = b"Traceback (most recent call last):"
_HANG_UPS = (b"BrokenPipeError:", b"ConnectionResetError:")
_USUAL = (
    b"WARNING: Using incubator modules: ",
    b"PySpark daemon failed to flush the output to the worker process:",
)
# A traceback has fewer lines; more are shown before it is known what they end with.
_TRACEBACK_LINES_MAX = 200


def drop_noise(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Those lines that somebody should see; a traceback is held back until it is whole."""
    traceback: list[bytes] = []
    was_dropped = False
    for line in lines:
        if line.startswith(_USUAL):
            continue
        if line.startswith(_TRACEBACK):
            yield from traceback
            traceback = [line]
        elif not traceback:
            # A blank line may follow what was dropped.
            if not (was_dropped and not line.strip()):
                yield line
            was_dropped = False
        elif line.startswith(b" ") and len(traceback) < _TRACEBACK_LINES_MAX:
            traceback.append(line)
        else:
            was_dropped = line.startswith(_HANG_UPS)
            if not was_dropped:
                yield from (*traceback, line)
            traceback = []
    yield from traceback


class JvmOutput:
    """A pipe for the standard error stream of a JVM; what comes through goes on to our own.

    Attributes:
        descriptor: what the JVM is to write to; ours is closed by `close`.
    """

    def __init__(self) -> None:
        self._reading, self.descriptor = os.pipe()
        self._thread = threading.Thread(target=self._forward, name="jvm-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The JVM has its end of the pipe; with that, forwarding ends."""
        os.close(self.descriptor)

    def join(self, timeout_s: float) -> None:
        """Wait until everything is forwarded."""
        self._thread.join(timeout_s)

    def _forward(self) -> None:
        with os.fdopen(self._reading, "rb") as lines:
            for line in drop_noise(lines):
                os.write(_STDERR, line)
