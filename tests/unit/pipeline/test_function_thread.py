"""The thread that functions of a job run in."""

from __future__ import annotations

import asyncio

from postroad.pipeline.function_thread import FunctionThread
from postroad.pipeline.time_limits import interrupt_thread
from tests.support.deadlines import DEADLINE_S


async def test_function_thread_when_interrupted_between_two_calls_runs_the_next() -> None:
    thread = FunctionThread(look_s=0.01)
    try:
        async with asyncio.timeout(DEADLINE_S / 10):
            for number in range(10):
                assert await thread.run(lambda: number) == number  # noqa: B023
                assert thread._thread.ident is not None
                # It idles, and is interrupted when it wakes up.
                interrupt_thread(thread._thread.ident)
    finally:
        thread.abandon()
