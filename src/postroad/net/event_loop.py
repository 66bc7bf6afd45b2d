"""Running a program on uvloop where it is installed, else on asyncio."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

T = TypeVar("T")

# The exit code of a process that ended by a signal is this plus its number, as in shells.
_SIGNALLED = 128


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop where it is installed; None means asyncio's loop."""
    if find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`, on uvloop where it is installed.

    SIGTERM ends the program as Ctrl-C does: `main` is cancelled, so that its services can stop in
    order, and the exit code names the signal.
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
        # Without signals of this kind, or outside the main thread, the caller ends the program.
        return await main
    try:
        return await main
    except asyncio.CancelledError:
        if signals:
            raise SystemExit(_SIGNALLED + signal.SIGTERM) from None
        raise
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
