"""Whether the steps of a flow become slower the more of them it has behind it.

An old flow and a new one take turns, so that slow moments of the disk hit both alike.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.children import running
from benchmarks.durable.nodes import mail_node
from benchmarks.flows.job import add_one
from benchmarks.harness import Comparison, Contender, Section
from benchmarks.messaging.processes import run
from postroad.durable import StaticPeerDirectory
from postroad.flows import FlowContext, FlowHandle, FlowService, flow

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.children import Announce
    from benchmarks.harness import Settings

STEPS, MEASURED, TURN = 5_000, 500, 50
GOAL = 1.2
TIMEOUT_S = 120.0
EARLY, LATE = f"its first {MEASURED:,} steps", f"its last {MEASURED:,} steps"

# Of the flow whose turn it is: when its steps were done, and whether it has finished its turn.
_times: list[float] = []
_has_finished = asyncio.Event()


def count_up(number: int) -> int:
    """The step that is measured."""
    _times.append(perf_counter())
    return number + 1


async def rest() -> None:
    """The step at the end of a turn."""
    _has_finished.set()


@flow
async def take_steps(ctx: FlowContext, before: int) -> int:
    """Take so many steps, and then turn by turn those that are measured."""
    number = 0
    for _ in range(before):
        number = await ctx.step(add_one, number)
    for _ in range(MEASURED // TURN):
        await ctx.wait_for_signal("go", bool)
        for _ in range(TURN):
            number = await ctx.step(count_up, number)
        await ctx.step(rest)
    return number


class Pair:
    """Takes a sample of both flows in each round."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._early_us = 0.0

    def late_us(self) -> float:
        """Run both flows to their end."""
        with running(run_pair, self._settings.scratch, self._settings.loop) as child:
            self._early_us, late_us = child.receive(TIMEOUT_S)
        return float(late_us)

    def early_us(self) -> float:
        """Of the flows that have just been run."""
        return self._early_us


def section(settings: Settings) -> Section:
    """Time of a step of a flow without and with a long history."""
    pair = Pair(settings)
    case = f"a step of a flow of {STEPS:,} steps"
    return Section(
        title=case,
        unit="µs",
        contenders=[Contender(LATE, pair.late_us), Contender(EARLY, pair.early_us)],
        comparisons=[Comparison(case, LATE, EARLY, goal=GOAL, at_most=True)],
    )


def run_pair(announce: Announce, scratch: Path, loop: str) -> None:
    """Body of the process."""

    async def work() -> None:
        async with (
            mail_node(scratch, "walker", StaticPeerDirectory()) as mail,
            FlowService(mail, [take_steps]) as flows,
        ):
            old = await flows.start_flow(take_steps, STEPS - MEASURED)
            new = await flows.start_flow(take_steps, 0)
            early: list[float] = []
            late: list[float] = []
            for _ in range(MEASURED // TURN):
                late += await _take_turn(flows, old)
                early += await _take_turn(flows, new)
            if (await old.result(), await new.result()) != (STEPS, MEASURED):
                raise ValueError("the flows have lost steps, or taken some twice")
            announce((median(early) * 1e6, median(late) * 1e6))

    run(work(), loop)


async def _take_turn(flows: FlowService, handle: FlowHandle[int]) -> list[float]:
    """Have one of the flows go on; the seconds from each step to the next."""
    _times.clear()
    _has_finished.clear()
    await flows.signal(handle.id, "go", True)
    await _has_finished.wait()
    return [end - start for start, end in pairwise(_times)]
