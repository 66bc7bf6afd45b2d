"""Calls within one node."""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.children import running
from benchmarks.harness import Comparison, Contender, Section
from benchmarks.messaging.processes import run

if TYPE_CHECKING:
    from benchmarks.children import Announce
    from benchmarks.harness import Settings

GOAL = 250_000.0
_AT_ONCE = 1_000


def section(settings: Settings) -> Section:
    """Calls of an action of the same node, one after the other."""
    case = "call of the same node"
    ours = "postroad services"
    measure = partial(_sample, settings.loop, settings.seconds)
    return Section(
        title=case,
        unit="calls/s",
        contenders=[Contender(ours, measure)],
        comparisons=[Comparison(case, ours, "goal", goal=1.0, budget=GOAL)],
    )


def _sample(loop: str, seconds: float) -> float:
    with running(call_on, loop, seconds) as child:
        return float(child.receive(60.0 + seconds))


def call_on(announce: Announce, loop: str, seconds: float) -> None:
    """Call for some seconds, and announce the rate."""
    from benchmarks.services.nodes import Maths
    from postroad.services import Broker

    async def measure() -> None:
        broker = Broker("single")
        broker.add(Maths())
        async with broker:
            calls, start = 0, perf_counter()
            while perf_counter() - start < seconds:
                for _ in range(_AT_ONCE):
                    await broker.call("math.add", {"a": 5, "b": 3})
                calls += _AT_ONCE
                await asyncio.sleep(0)
            announce(calls / (perf_counter() - start))

    run(measure(), loop)
