"""Brokers with mail and durable events on loopback, and services that write down what they hear."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from postroad.durable import (
    DeadLetter,
    DurableQueues,
    DurableQueuesConfig,
    RetryPolicy,
    SqliteStore,
    StaticPeerDirectory,
)
from postroad.net import MessagingService
from postroad.node import DurableEvents
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.service import Service, event
from postroad.services.transporters import MemoryHub, MemoryTransporter
from tests.support.deadlines import DEADLINE_S, eventually

EVENT = "order.created"
MAIL = DurableQueuesConfig(
    bridge_initial_delay_s=0.02, bridge_max_delay_s=0.1, open_timeout_s=1.0, window_timeout_s=2.0
)
AT_ONCE = RetryPolicy(max_attempts=3, initial_delay_s=0.001, max_delay_s=0.005)
TABLE = "CREATE TABLE IF NOT EXISTS heard (name TEXT NOT NULL, number INTEGER NOT NULL)"


class Listener(Service):
    """Takes part in one group; each event leaves a row in a table of its node's store."""

    def __init__(self, group: str, does: Callable[[Context], Any] | None = None) -> None:
        self.group = group
        self.does = does
        self.attempts = 0
        self.contexts: list[Context] = []

    @property
    def name(self) -> str:  # type: ignore[override]  # Each has a name of its own.
        return self.group

    @event("order.*")
    async def on_order(self, ctx: Context, number: int) -> None:
        """Write it down, then do what it is told."""
        self.attempts += 1
        self.contexts.append(ctx)
        await ctx.transaction.execute("INSERT INTO heard VALUES (?, ?)", (self.group, number))
        if self.does is not None:
            result = self.does(ctx)
            if result is not None:
                await result


class Node:
    """One node with everything."""

    def __init__(
        self, name: str, place: Path, hub: MemoryHub, *services: Service, **settings: Any
    ) -> None:
        self.name = name
        self.directory = StaticPeerDirectory()
        self.service = MessagingService("test", name)
        self.mail = DurableQueues(
            self.service, SqliteStore(place / f"{name}.db"), directory=self.directory, config=MAIL
        )
        times: dict[str, Any] = {"start_wait_s": 0.01, "announce_delay_s": 0.0, "stop_delay_s": 0.0}
        self.broker = Broker(name, transporter=MemoryTransporter(hub), **times, **settings)
        self.broker.add(*services)
        self.events = DurableEvents(self.broker, self.mail, retry=AT_ONCE)

    async def start(self) -> None:
        await self.service.start()
        await self.mail.start()
        async with self.mail.transaction() as tx:
            await tx.execute(TABLE)
        await self.broker.start()
        await self.events.start()

    async def stop(self) -> None:
        await self.events.stop()
        await self.broker.stop()
        await self.mail.stop()
        await self.service.stop()

    async def emit(self, number: int, **options: Any) -> None:
        await self.broker.emit(EVENT, {"number": number}, durable=True, **options)

    async def heard(self, name: str) -> list[int]:
        """The numbers that a group has written down here."""
        async with self.mail.transaction() as tx:
            rows = await tx.execute("SELECT number FROM heard WHERE name = ?", (name,))
        return [number for (number,) in rows]

    async def dead(self) -> list[DeadLetter]:
        return list(await self.mail.dead_letters.list())

    async def waiting(self) -> int:
        """Letters that are somewhere at this node."""
        statistics = await self.mail.statistics()
        inbox = sum(it.depth for it in statistics.queues.values())
        return inbox + sum(it.depth for it in statistics.peers.values())


def introduce(*nodes: Node) -> None:
    """Tell nodes where the mail of all others goes."""
    for node in nodes:
        for other in nodes:
            if other is not node:
                node.directory.set(other.name, other.service.address)


@asynccontextmanager
async def started(*nodes: Node) -> AsyncIterator[None]:
    """Nodes that run and know each other."""
    try:
        for node in nodes:
            await node.start()
        introduce(*nodes)
        for node in nodes:
            for other in nodes:
                names = [it.name for it in other.broker.services()]
                await node.broker.wait_for_services(names, timeout_s=DEADLINE_S)
        yield
    finally:
        for node in nodes:
            await node.stop()


async def all_handled(*nodes: Node, but: int = 0) -> None:
    """Wait until there is nothing to do for any node, but for so much."""

    async def suppress_errors() -> bool:
        return sum([await node.waiting() for node in nodes]) == but

    await eventually(suppress_errors)
