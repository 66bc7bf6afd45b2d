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
    """Those lines that somebody should see; tracebacks are held back until they are whole."""
    # Those of several processes may be mixed.
    held: list[bytes] = []
    ends: list[bytes] = []
    unfinished = 0
    was_dropped = False
    for line in lines:
        if line.startswith(_USUAL):
            continue
        if line.startswith(_TRACEBACK):
            held.append(line)
            unfinished += 1
        elif not unfinished:
            # A blank line may follow what was dropped.
            if not (was_dropped and not line.strip()):
                yield line
            was_dropped = False
        elif line.startswith(b" ") and len(held) < _TRACEBACK_LINES_MAX:
            held.append(line)
        else:
            held.append(line)
            ends.append(line)
            unfinished = unfinished - 1 if len(held) < _TRACEBACK_LINES_MAX else 0
            if not unfinished:
                was_dropped = all(it.startswith(_HANG_UPS) for it in ends)
                yield from () if was_dropped else held
                held, ends = [], []
    # The JVM may end before it has passed on all that its processes print.
    if any(b'  File "' in it and b"pyspark" not in it for it in held):
        yield from held


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
