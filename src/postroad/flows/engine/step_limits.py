"""Limits that steps of all flows share: how many run at a time, and how many begin per second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from postroad.core.errors import UsageError
from postroad.flows.machine.commands import StepLimit


class RatePacer:
    """Spreads starts over time: at most `burst` at once, then one per interval (GCRA). Pure."""

    def __init__(self, interval_s: float, burst: int) -> None:
        self._interval_s = interval_s
        self._allowance_s = (burst - 1) * interval_s
        # When the next start would be due if all starts were evenly spread.
        self._due_s = 0.0

    def reserve(self, now: float) -> float:
        """Count a start, and return the seconds to wait before it."""
        due_s = max(self._due_s, now)
        self._due_s = due_s + self._interval_s
        return max(due_s - self._allowance_s - now, 0.0)


class _Limiter:
    def __init__(self, limit: StepLimit) -> None:
        self.limit = limit
        self._slots = None if limit.concurrency is None else asyncio.Semaphore(limit.concurrency)
        self._pacer = None
        if limit.per_second is not None:
            self._pacer = RatePacer(1 / limit.per_second, limit.burst)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        async with self._slots or nullcontext():
            if self._pacer is not None:
                await asyncio.sleep(self._pacer.reserve(asyncio.get_running_loop().time()))
            yield


class StepLimiters:
    """The limits of a node, by name."""

    def __init__(self) -> None:
        self._limiters: dict[str, _Limiter] = {}

    @asynccontextmanager
    async def slot(self, limit: StepLimit | None) -> AsyncIterator[None]:
        """Wait until a step may begin; raises UsageError if its limit is not the known one."""
        if limit is None:
            yield
            return
        limiter = self._limiters.setdefault(limit.name, _Limiter(limit))
        if limiter.limit != limit:
            raise UsageError(
                f"step limit {limit.name!r} is {limiter.limit} elsewhere, and {limit} here: "
                "use one StepLimit for all steps that share it"
            )
        async with limiter.slot():
            yield
