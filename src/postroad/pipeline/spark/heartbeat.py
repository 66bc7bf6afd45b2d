"""Signs of life of a Python worker: the coordinator tells a slow batch from one that hangs.

A function that takes too long is interrupted by the worker itself. What cannot be interrupted is a
call in native code that never returns. While one holds the interpreter no thread of the process
runs, and nothing is sent; where it does not, the main thread is seen at the same instruction for
ever, and nothing is sent either.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable

from postroad.pipeline.time_limits import end_with

logger = logging.getLogger("postroad.pipeline")

BEAT_S = 5.0


class Heartbeat:
    """Sends signs of life of this process, from a thread of its own.

    Args:
        send: sends one; may block and may fail.
        limit_s: how long the main thread may be at one instruction while it is busy.
    """

    def __init__(self, send: Callable[[], None], limit_s: float) -> None:
        self.send = send
        self._limit_s = limit_s
        self._main = threading.main_thread().ident
        self._seen: tuple[int, int] | None = None
        self._since_s = 0.0
        self.is_busy = False
        """Whether the main thread is in a task, and not waiting for rows."""
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(BEAT_S)
            if self.is_busy and not self.is_stuck(time.monotonic()):
                try:
                    self.send()
                except Exception:
                    # The coordinator is away, or the job has ended: others notice that.
                    logger.debug("a sign of life was lost", exc_info=True)

    def is_stuck(self, now_s: float) -> bool:
        """Look at the main thread; returns whether it was where it is for too long."""
        frame = sys._current_frames().get(self._main or 0)
        place = None if frame is None else (id(frame), frame.f_lasti)
        if place != self._seen:
            self._seen, self._since_s = place, now_s
        return now_s - self._since_s > self._limit_s


_heartbeats: dict[int, Heartbeat] = {}


def heartbeat(send: Callable[[], None], limit_s: float) -> Heartbeat:
    """That of this process. Processes fork, and threads stay behind."""
    found = _heartbeats.get(os.getpid())
    if found is None:
        found = _heartbeats[os.getpid()] = Heartbeat(send, limit_s)
        if getattr(sys.modules["__main__"].__spec__, "name", None) == "pyspark.daemon":
            # A worker that hangs in a function ends with what started it.
            end_with(os.getppid())
    found.send = send
    return found
