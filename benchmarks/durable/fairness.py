"""Many peers with mail at once: nobody is starved."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.children import running
from benchmarks.durable.nodes import CLUSTER, QUEUE, mail_node
from benchmarks.harness import Comparison, Contender, Section
from benchmarks.messaging.processes import run
from postroad.durable import (
    DurableQueues,
    DurableQueuesConfig,
    MemoryStore,
    Message,
    OutgoingMessage,
    StaticPeerDirectory,
    Transaction,
)
from postroad.net import MessagingService

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.children import Announce
    from benchmarks.harness import Settings

PEERS = 200
MESSAGES = 400
# Small windows, so that each peer needs many turns.
CONFIG = DurableQueuesConfig(batch_messages_max=20, window_bytes=8_192, windows_max=2)
# What the peer with least has when half of everything has arrived, as a part of the average.
GOAL = 0.5


def fairness_section(settings: Settings) -> Section:
    """How evenly mail reaches many peers that were all away."""
    case = f"{PEERS} peers with {MESSAGES} messages each: the last one at half time"
    return Section(
        title=case,
        unit="of the average",
        contenders=[Contender("postroad", partial(measure, settings))],
        comparisons=[Comparison(case, "postroad", "perfectly fair", GOAL, budget=1.0)],
        rounds_max=3,
    )


def measure(settings: Settings) -> float:
    """One post office in this process's child, all peers in another."""
    with running(run_peers, settings.loop) as peers:
        addresses: dict[str, str] = peers.receive()
        with running(run_office, settings.scratch, settings.loop, addresses):
            value: float = peers.receive(120.0)
    return value


def run_peers(announce: Announce, loop: str) -> None:
    """Body of the process of all peers."""

    async def work() -> None:
        counts: dict[str, int] = {}
        is_half = asyncio.Event()

        async def handle(name: str, message: Message, tx: Transaction) -> None:
            counts[name] += 1
            if sum(counts.values()) >= PEERS * MESSAGES / 2:
                is_half.set()

        async with AsyncExitStack() as stack:
            addresses = {}
            for number in range(PEERS):
                name = f"peer-{number}"
                service = await stack.enter_async_context(MessagingService(CLUSTER, name))
                mail = DurableQueues(service, MemoryStore(), directory=StaticPeerDirectory())
                await stack.enter_async_context(mail)
                counts[name] = 0
                await mail.consume(QUEUE, partial(handle, name))
                addresses[name] = str(service.address)
            announce(addresses)
            await is_half.wait()
            announce(min(counts.values()) / (sum(counts.values()) / PEERS))

    run(work(), loop)


def run_office(announce: Announce, scratch: Path, loop: str, addresses: dict[str, str]) -> None:
    """Body of the process that has mail for all, posted before it knows where they are."""

    async def work() -> None:
        directory = StaticPeerDirectory()
        async with mail_node(scratch, "office", directory, CONFIG) as mail:
            for name in addresses:
                await mail.send_many(
                    [OutgoingMessage(to=name, queue=QUEUE, body=bytes(100))] * MESSAGES
                )
            for name, address in addresses.items():
                directory.set(name, address)
            announce(True)
            await asyncio.Event().wait()

    run(work(), loop)
