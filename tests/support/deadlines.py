"""Waiting in tests: for a condition, never for a number of seconds."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

DEADLINE_S = 60.0
"""How long anything may take before a test fails; generous, because machines are busy."""

_POLL_S = 0.002


async def eventually(
    condition: Callable[[], object | Awaitable[object]], what: str = "", timeout: float = DEADLINE_S
) -> None:
    """Return as soon as a condition holds, which may be a coroutine function.

    Args:
        condition: looked at every few milliseconds.
        what: the condition in words, for the failure.
        timeout: seconds after which the test fails.
    """
    ends_at = asyncio.get_running_loop().time() + timeout
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        if asyncio.get_running_loop().time() > ends_at:
            raise AssertionError(f"not within {timeout:g} s: {what or condition}")
        await asyncio.sleep(_POLL_S)


async def reaches(value: Callable[[], object], expected: object, what: str = "") -> None:
    """Return as soon as a value is the expected one."""
    await eventually(lambda: value() == expected, what or f"it is {expected!r}")
