"""Runs a program on the fastest event loop there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

T = TypeVar("T")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes a uvloop where that is installed; None stands for asyncio's own."""
    if find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, on uvloop where that is installed."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)
