"""Which event loop tests run on."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Callable

import pytest

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def loop_name() -> str:
    """Say which event loop this run uses."""
    default = "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"
    name = os.environ.get("POSTROAD_LOOP") or default
    if name not in ("asyncio", "uvloop"):
        raise pytest.UsageError(f"POSTROAD_LOOP is {name!r}; it must be asyncio or uvloop")
    return name


def loop_factory(name: str) -> LoopFactory:
    if name == "asyncio":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop
