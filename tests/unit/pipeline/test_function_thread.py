"""The thread of a job's functions, whose calls are cancelled at any moment."""

from __future__ import annotations

import asyncio
import time
from random import Random

from postroad.pipeline.function_thread import FunctionThread


def spend(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


async def test_call_that_is_cancelled_as_it_ends_does_not_lose_the_next_one() -> None:
    rng = Random(1)
    for _ in range(100):
        thread = FunctionThread(look_s=0.01)
        first = asyncio.create_task(thread.run(lambda: spend(rng.random() * 0.0005)))
        await asyncio.sleep(0)
        spend(rng.random() * 0.0008)
        first.cancel()
        await asyncio.wait([first])
        async with asyncio.timeout(10):
            assert await thread.run(lambda: 7) == 7
        thread.abandon()
