"""What the type of a queue costs whoever sends to it."""

from __future__ import annotations

import asyncio
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from benchmarks.children import running
from benchmarks.harness import Comparison, Contender, Section
from benchmarks.messaging.processes import run
from postroad import Node, NodeConfig, Queue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.children import Announce
    from benchmarks.harness import Settings

    Send = Callable[[], Awaitable[int]]

# A sample alternates between the two, so that a slow spell of the machine hits both alike.
SLICE_S = 0.1
GOAL = 1.1


class Order(msgspec.Struct):
    """A message of 100 bytes."""

    item: str
    count: int
    customer: str


ORDERS = Queue("orders", Order)
ORDER = Order("tea", 2, "x" * 60)


def typed_sections(settings: Settings) -> list[Section]:
    """How many times as long as with bytes that are encoded by hand it takes to send a struct."""
    return [
        _section(settings, "one at a time", 1, GOAL),
        # Per message the disk takes so little here that this is about the processor alone.
        _section(settings, "1,000 in flight", 1_000, None),
    ]


def _section(settings: Settings, pace: str, in_flight: int, goal: float | None) -> Section:
    case = f"`Queue.send` of a struct against `queues.send` of its bytes, {pace}"
    return Section(
        title=case,
        unit="times",
        contenders=[Contender("postroad", partial(measure_ratio, settings, in_flight))],
        comparisons=[Comparison(case, "postroad", "its bytes", goal, at_most=True, budget=1.0)],
    )


def measure_ratio(settings: Settings, in_flight: int) -> float:
    """Take one sample of about that duration."""
    with running(run_sender, settings, in_flight) as sender:
        value: float = sender.receive(30 + 3 * settings.seconds)
    return value


def run_sender(announce: Announce, settings: Settings, in_flight: int) -> None:
    """Body of the sending process: a whole node, which sends to itself."""

    async def work() -> None:
        with TemporaryDirectory(dir=settings.scratch) as place:
            config = msgspec.convert({"node": {"name": "alpha", "data": place}}, NodeConfig)
            async with Node(config) as node:
                send, encode = node.queues.send, msgspec.json.Encoder().encode
                ways: list[Send] = [
                    lambda: ORDERS.send(ORDER),
                    lambda: send("orders", encode(ORDER)),
                ]
                for way in ways:
                    await send_for(way, in_flight, settings.warmup_s)
                ratios = []
                for number in range(max(round(settings.seconds / SLICE_S / 2), 1)):
                    # Each is the first of the two as often as the other.
                    order = ways if number % 2 else ways[::-1]
                    took = {way: await send_for(way, in_flight, SLICE_S) for way in order}
                    ratios.append(took[ways[0]] / took[ways[1]])
                announce(median(ratios))

    run(work(), settings.loop)


async def send_for(send: Send, in_flight: int, seconds: float) -> float:
    """Send for so long; the seconds that each message took."""
    count, began_s = 0, perf_counter()

    async def repeat() -> None:
        nonlocal count
        while perf_counter() < began_s + seconds:
            await send()
            count += 1

    await asyncio.gather(*[repeat() for _ in range(in_flight)])
    return (perf_counter() - began_s) / count
