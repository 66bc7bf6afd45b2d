"""Getting rid of tasks that will never run again, without a trace."""

from __future__ import annotations

import asyncio
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# A coroutine that still waits after so many attempts to close it is given up.
_CLOSE_ATTEMPTS_MAX = 100

_never_ending: list[object] = []


def close_tasks(tasks: dict[asyncio.Future[Any], object]) -> None:
    """Close the coroutines of unfinished tasks; what their `finally` does goes nowhere.

    There may be more of them meanwhile: such code can make new tasks.
    """
    with _silence():
        while tasks:
            task = next(iter(tasks))
            if isinstance(task, asyncio.Task):
                _close(task)
            tasks.pop(task, None)


def _close(task: asyncio.Task[Any]) -> None:
    # Read by asyncio when a task is forgotten before it is done.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    if task.done():
        return
    coroutine: Any = task.get_coro()
    for _ in range(_CLOSE_ATTEMPTS_MAX):
        try:
            coroutine.close()
        except BaseException:
            # It waits again or raised while ending: from there it is closed once more.
            continue
        return
    _never_ending.append(task)


@contextmanager
def _silence() -> Iterator[None]:
    """No log, no warning, no report of what nobody can see any more."""
    hook, disabled = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = lambda _: None
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        sys.unraisablehook = hook
