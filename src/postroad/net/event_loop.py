"""Runs a program on the fastest event loop there is."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

T = TypeVar("T")

# Shells give the end by a signal this exit code plus its number.
_SIGNALLED = 128


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes a uvloop where that is installed; None stands for asyncio's own."""
    if find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, on uvloop where that is installed.

    SIGTERM ends the program as Ctrl-C does: `main` is cancelled, so that whatever it runs can say
    goodbye, and the exit code tells of the signal.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_until_terminated(main))


async def _until_terminated(main: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    signals: list[int] = []

    def terminate() -> None:
        signals.append(signal.SIGTERM)
        task.cancel()

    try:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    except (RuntimeError, ValueError):
        # No such signals here, or not the main thread: others decide about this one's end.
        return await main
    try:
        return await main
    except asyncio.CancelledError:
        if signals:
            raise SystemExit(_SIGNALLED + signal.SIGTERM) from None
        raise
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
