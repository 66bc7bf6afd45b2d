"""What it costs a node to know a large cluster."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.children import running
from benchmarks.harness import Comparison, Contender, Section
from benchmarks.messaging.processes import run

if TYPE_CHECKING:
    from benchmarks.children import Announce
    from benchmarks.harness import Settings

NODES = 200
GOAL = 0.02
_SECONDS = 30.0


def section(settings: Settings) -> Section:
    """Heartbeats and announcements of many nodes, all in one process, by the processor time."""
    case = f"heartbeats and announcements among {NODES} nodes, for each"
    ours = "postroad services"
    return Section(
        title=case,
        unit="of a core",
        contenders=[Contender(ours, partial(_sample, settings.loop))],
        comparisons=[Comparison(case, ours, "goal", goal=1.0, at_most=True, budget=GOAL)],
        rounds_max=1,
    )


def _sample(loop: str) -> float:
    with running(beat_on, loop) as child:
        return float(child.receive(120.0 + _SECONDS))


def beat_on(announce: Announce, loop: str) -> None:
    """Have a cluster in one process stay alive for a while, one node changing after the other."""
    from benchmarks.services.nodes import Counter, Maths
    from postroad.services import Broker
    from postroad.services.transporters import MemoryHub, MemoryTransporter

    async def measure() -> None:
        hub = MemoryHub()
        brokers = [
            Broker(f"node-{number}", transporter=MemoryTransporter(hub), start_wait_s=0.0)
            for number in range(NODES)
        ]
        for broker in brokers:
            broker.add(Maths())
            await broker.start()
        await asyncio.sleep(1.0)
        began, used = time.perf_counter(), time.process_time()
        for broker in brokers:
            await broker.launch(Counter([]))
            await asyncio.sleep(_SECONDS / NODES)
        share = (time.process_time() - used) / (time.perf_counter() - began) / NODES
        announce(share)

    run(measure(), loop)
