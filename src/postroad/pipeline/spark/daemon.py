"""What Spark starts Python workers from: pyspark's own, without its cries when it is stopped.

A query that is stopped closes the connections of its workers. Each would print a traceback of the
pipe that broke, in the middle of whatever the user sees. And a worker that hangs in a function ends
with this process, whatever that dies of.
"""

from __future__ import annotations

import os
from typing import Any

from pyspark import daemon

from postroad.pipeline.time_limits import end_with

_worker: Any = daemon.worker
_pid = os.getpid()


def _work(*arguments: Any) -> Any:
    end_with(_pid)
    try:
        return _worker(*arguments)
    except BrokenPipeError:
        # Not 0: the process is not to be used again.
        return 1


if __name__ == "__main__":
    daemon.worker = _work  # type: ignore[assignment]
    daemon.manager()
