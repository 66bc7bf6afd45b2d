"""Domains with mail and guaranteed queues on loopback, and cells that keep what they get."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from postroad.cells import CellDomain, CellMessage
from postroad.durable import (
    DeadLetter,
    DurableQueues,
    DurableQueuesConfig,
    RetryPolicy,
    SqliteStore,
    StaticPeerDirectory,
)
from postroad.node import GuaranteedConfig, GuaranteedQueues
from tests.support.cells.nodes import Domains
from tests.support.deadlines import eventually

QUEUE = "payments"
MAIL = DurableQueuesConfig(
    bridge_initial_delay_s=0.02, bridge_max_delay_s=0.1, open_timeout_s=1.0, window_timeout_s=2.0
)
QUICK = GuaranteedConfig(
    ask_timeout_s=1.0, remember_s=0.1, look_first_s=0.005, look_max_s=0.05, patience_s=0.05
)
AT_ONCE = RetryPolicy(max_attempts=3, initial_delay_s=0.001, max_delay_s=0.005)


class Node(NamedTuple):
    """A domain, its mail and its guaranteed queues."""

    domain: CellDomain
    mail: DurableQueues
    queues: GuaranteedQueues
    directory: StaticPeerDirectory

    async def dead(self) -> list[DeadLetter]:
        return list(await self.mail.dead_letters.list())

    async def waiting(self) -> dict[str, int]:
        """The mail queues that are not empty."""
        statistics = await self.mail.statistics()
        return {name: it.depth for name, it in statistics.queues.items() if it.depth}


class Nodes:
    """All of them, by the names of their domains."""

    def __init__(self, domains: Domains) -> None:
        self.domains = domains
        self.by_name: dict[str, Node] = {}

    def __getitem__(self, name: str) -> Node:
        return self.by_name[name]

    async def consumer(self, name: str, **options: Any) -> Till:
        """A cell that consumes the queue, which is declared everywhere when all know of it."""
        till = await Till.at(self[name], **options)
        await self.domains.settled()
        await self.declare()
        return till

    async def declare(
        self, queue: str = QUEUE, retry: RetryPolicy = AT_ONCE, **options: Any
    ) -> None:
        """Declare a queue everywhere."""
        for node in self.by_name.values():
            await node.queues.declare(queue, retry=retry, **options)


@asynccontextmanager
async def guaranteed_nodes(
    place: Path,
    cores: int,
    satellites: int,
    *,
    mail: DurableQueuesConfig = MAIL,
    times: GuaranteedConfig = QUICK,
) -> AsyncIterator[Nodes]:
    """Domains that run, and know where each other's mail goes."""
    async with Domains(cores, satellites) as domains:
        nodes = Nodes(domains)
        for name, domain in domains.by_name.items():
            nodes.by_name[name] = await start_node(place, domains, domain, mail, times)
        try:
            yield nodes
        finally:
            for node in nodes.by_name.values():
                await node.queues.stop()
                await node.mail.stop()


async def start_node(
    place: Path,
    domains: Domains,
    domain: CellDomain,
    config: DurableQueuesConfig = MAIL,
    times: GuaranteedConfig = QUICK,
) -> Node:
    """The mail and the queues of a domain."""
    addresses = {name: service.address for name, service in domains.services.items()}
    directory = StaticPeerDirectory(addresses)
    store = SqliteStore(place / f"{domain.name}.db")
    mail = DurableQueues(domain.service, store, directory=directory, config=config)
    queues = GuaranteedQueues(domain, mail, config=times)
    await mail.start()
    await queues.start()
    return Node(domain, mail, queues, directory)


class Till:
    """A handler that keeps a row of each message, and fails as often as it is told to."""

    def __init__(self, node: Node, *, failures: int = 0, error: Exception | None = None) -> None:
        self.node = node
        self.messages: list[CellMessage] = []
        self.attempts: list[bytes] = []
        self._failures = failures
        self._error = error or ValueError("as told")

    @classmethod
    async def at(cls, node: Node, cell: str = "till", **options: Any) -> Till:
        """A cell that consumes the queue, with a table for its rows."""
        async with node.mail.transaction() as tx:
            await tx.execute("CREATE TABLE IF NOT EXISTS paid (number TEXT NOT NULL)")
        till = cls(node, **options)
        node.domain.add_function(cell, till, consume=[QUEUE])
        return till

    async def __call__(self, message: CellMessage) -> None:
        self.attempts.append(message.payload)
        await message.transaction.execute(
            "INSERT INTO paid VALUES (?)", (message.payload.decode(),)
        )
        if self._failures:
            self._failures -= 1
            raise self._error
        self.messages.append(message)

    async def rows(self) -> list[bytes]:
        """What is committed, in the order it was handled."""
        async with self.node.mail.transaction() as tx:
            rows = await tx.execute("SELECT number FROM paid ORDER BY rowid")
        return [number.encode() for (number,) in rows]

    async def until(self, count: int) -> list[bytes]:
        """The rows, when there are so many."""

        async def are_there() -> bool:
            return len(await self.rows()) >= count

        await eventually(are_there, f"{count} rows")
        return await self.rows()


async def until_dead(node: Node, count: int) -> list[DeadLetter]:
    """The dead letters of a node, when there are so many."""

    async def are_dead() -> bool:
        return len(await node.dead()) == count

    await eventually(are_dead, f"{count} dead letters")
    return await node.dead()


async def until_waiting(node: Node, expected: dict[str, int]) -> None:
    """Exactly these mail queues have so many messages."""

    async def are_there() -> bool:
        return await node.waiting() == expected

    await eventually(are_there, f"waiting: {expected}")


async def all_quiet(nodes: Nodes) -> None:
    """Nothing waits anywhere: nothing more will happen."""

    async def suppress_errors() -> bool:
        for node in nodes.by_name.values():
            statistics = await node.mail.statistics()
            depths = [queue.depth for queue in statistics.queues.values()]
            depths += [peer.depth for peer in statistics.peers.values()]
            if any(depths):
                return False
        return True

    await eventually(suppress_errors, "nothing waits")
