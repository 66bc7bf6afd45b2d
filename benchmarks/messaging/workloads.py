"""The client side of every asyncio contender: the same loops around its own `call`.

`call(payload)` sends one request and is awaited for the reply. Every reply is checked, in all
contenders alike.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING

from benchmarks.messaging.job import MEBIBYTE

if TYPE_CHECKING:
    from benchmarks.messaging.job import Job

Call = Callable[[bytes], Awaitable[bytes]]


async def measure(call: Call, job: Job) -> float:
    """Requests/s, median microseconds or MiB/s, as the job asks."""
    if job.workload == "latency":
        return await _latency_us(call, job)
    rate = await _rate(call, job)
    return rate * job.payload_bytes / MEBIBYTE if job.workload == "goodput" else rate


async def _rate(call: Call, job: Job) -> float:
    payload = os.urandom(job.payload_bytes)
    expected = job.expected(payload)
    completed = 0
    is_over = False

    async def work() -> None:
        nonlocal completed
        while not is_over:
            if await call(payload) != expected:
                raise ValueError("wrong reply")
            completed += 1

    async with asyncio.TaskGroup() as workers:
        for _ in range(job.in_flight):
            workers.create_task(work())
        await asyncio.sleep(job.warmup_s)
        before, start = completed, perf_counter()
        await asyncio.sleep(job.seconds)
        rate = (completed - before) / (perf_counter() - start)
        is_over = True
    return rate


async def _latency_us(call: Call, job: Job) -> float:
    payload = os.urandom(job.payload_bytes)
    await _collect_ns(call, payload, job.warmup_s)
    return median(await _collect_ns(call, payload, job.seconds)) / 1000


async def _collect_ns(call: Call, payload: bytes, seconds: float) -> list[int]:
    samples: list[int] = []
    deadline = perf_counter_ns() + int(seconds * 1e9)
    now = perf_counter_ns()
    while now < deadline:
        start = now
        if await call(payload) != payload:
            raise ValueError("wrong reply")
        now = perf_counter_ns()
        samples.append(now - start)
    return samples
