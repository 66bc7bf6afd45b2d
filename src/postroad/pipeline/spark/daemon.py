"""What Spark starts Python workers from: pyspark's own, without its cries when it is stopped.

A query that is stopped closes the connections of its workers. Each would print a traceback of the
pipe that broke, in the middle of whatever the user sees.
"""

from __future__ import annotations

from typing import Any

from pyspark import daemon

_worker: Any = daemon.worker


def _work(*arguments: Any) -> Any:
    try:
        return _worker(*arguments)
    except BrokenPipeError:
        # Not 0: the process is not to be used again.
        return 1


if __name__ == "__main__":
    daemon.worker = _work  # type: ignore[assignment]
    daemon.manager()
