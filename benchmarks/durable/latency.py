"""From `post` to the handler at low load, against what the disk alone takes."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING

from benchmarks.children import running
from benchmarks.durable.disk import measure_latency_us
from benchmarks.durable.nodes import QUEUE, mail_node
from benchmarks.harness import Comparison, Contender, Section
from benchmarks.messaging.processes import run
from postroad.durable import Message, StaticPeerDirectory, Transaction

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.children import Announce
    from benchmarks.harness import Settings

PAUSE_S = 0.005
WARM_UP = 20
# Times one fsync at the same pace: after a pause the disk and the processor take longer to answer
# than in the middle of work.
GOAL = 3.5
PACED = f"one fsync, {PAUSE_S * 1000:g} ms between them"
BACK_TO_BACK = "one fsync, back to back"


def latency_section(settings: Settings) -> Section:
    """Median microseconds from a call of `post` to the handler in another process."""
    case = "one durable message of 100 B at a time, p50 from post to handled"
    return Section(
        title=case,
        unit="µs",
        contenders=[
            Contender("postroad", partial(measure_us, settings)),
            Contender(
                PACED, partial(measure_latency_us, os.fsync, settings.scratch, pause_s=PAUSE_S)
            ),
            Contender(BACK_TO_BACK, partial(measure_latency_us, os.fsync, settings.scratch)),
        ],
        comparisons=[
            Comparison(case, "postroad", PACED, GOAL, at_most=True),
            Comparison(case, "postroad", BACK_TO_BACK),
        ],
    )


def measure_us(settings: Settings) -> float:
    """Take one sample of a few seconds."""
    with running(run_receiver, settings.scratch, settings.loop) as receiver:
        address: str = receiver.receive()
        arguments = (settings.scratch, settings.loop, address, settings.seconds)
        with running(run_sender, *arguments) as sender:
            value: float = sender.receive(30 + 3 * settings.seconds)
    return value


def run_receiver(announce: Announce, scratch: Path, loop: str) -> None:
    """Body of the receiving process: answers each message with the time it was handled."""

    async def work() -> None:
        async def handle(message: Message, tx: Transaction) -> None:
            tx.reply(message, perf_counter_ns().to_bytes(8, "big"))

        directory = StaticPeerDirectory()
        async with mail_node(scratch, "receiver", directory) as mail:
            await mail.consume(QUEUE, handle)

            mail.service.serve(
                "benchmark.meet",
                lambda message: directory.set("sender", message.payload.decode()),
            )
            announce(str(mail.service.address))
            await asyncio.Event().wait()

    run(work(), loop)


def run_sender(announce: Announce, scratch: Path, loop: str, address: str, seconds: float) -> None:
    """Body of the sending process; the clock is the same in all processes."""

    async def work() -> None:
        async with mail_node(scratch, "sender", StaticPeerDirectory({"receiver": address})) as mail:
            own = str(mail.service.address).encode()
            await mail.service.request(address, "benchmark.meet", own)
            samples = []
            for _ in range(WARM_UP + int(seconds / PAUSE_S / 2)):
                start = perf_counter_ns()
                reply = await mail.request(QUEUE, bytes(100), to="receiver", timeout=10.0)
                samples.append(int.from_bytes(reply.body, "big") - start)
                await asyncio.sleep(PAUSE_S)
            announce(median(samples[WARM_UP:]) / 1000)

    run(work(), loop)
