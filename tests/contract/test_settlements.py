"""Between two nodes: what a receiver refused is a dead letter of its sender, whatever fails."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import StoreUnavailableError
from postroad.durable import (
    DurableQueues,
    DurableQueuesConfig,
    MemoryDisk,
    MemoryStore,
    StaticPeerDirectory,
)
from postroad.durable.bridges.outbox_ack import OutboxAckMutation
from postroad.durable.store.mutations import Mutation
from postroad.net import MessagingService
from tests.support.deadlines import eventually
from tests.support.durable.nodes import OWN, PEER

CLUSTER = "contract"
CONFIG = DurableQueuesConfig(
    batch_messages_max=1, bridge_initial_delay_s=0.01, bridge_max_delay_s=0.1
)


class Nodes:
    """Alpha and beta; beta takes mail for the queue `open` only."""

    def __init__(self, alpha: MessagingService, beta: MessagingService) -> None:
        self._services = (alpha, beta)
        self.disk = MemoryDisk()
        self.beta = DurableQueues(
            beta,
            MemoryStore(),
            directory=StaticPeerDirectory({OWN: alpha.address}),
            config=CONFIG,
            accepted_queues=("open",),
        )

    def alpha(self) -> DurableQueues:
        """The sender, as often as it starts."""
        alpha, beta = self._services
        directory = StaticPeerDirectory({PEER: beta.address})
        return DurableQueues(alpha, MemoryStore(self.disk), directory=directory, config=CONFIG)


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with MessagingService(CLUSTER, OWN) as alpha, MessagingService(CLUSTER, PEER) as beta:
        nodes = Nodes(alpha, beta)
        async with nodes.beta:
            yield nodes


async def until_settled(mail: DurableQueues) -> None:
    """Return when nothing waits for beta any more."""

    async def is_settled() -> bool:
        return (await mail.statistics()).peers[PEER].depth == 0

    await eventually(is_settled)


async def until_taken(mail: DurableQueues) -> None:
    """Return when there is mail in the queue that beta takes."""

    async def is_taken() -> bool:
        return bool(await mail.admin.peek("open"))

    await eventually(is_taken)


async def dead_bodies(mail: DurableQueues) -> list[bytes]:
    return [dead.message.body for dead in await mail.dead_letters.list()]


class Outage:
    """Makes commits fail that remove what was accepted: the first ones, or all."""

    def __init__(self, times: int) -> None:
        self._times = times
        self.failed = 0

    def __call__(self, units: list[Mutation]) -> None:
        if self.failed < self._times and any(isinstance(unit, OutboxAckMutation) for unit in units):
            self.failed += 1
            raise StoreUnavailableError("away")


async def test_what_was_refused_is_a_dead_letter(nodes: Nodes) -> None:
    async with nodes.alpha() as mail:
        await mail.send("closed", b"refused", to=PEER)
        await mail.send("open", b"taken", to=PEER)
        await until_settled(mail)
        assert await dead_bodies(mail) == [b"refused"]


async def test_a_settlement_that_fails_loses_no_refusal(nodes: Nodes) -> None:
    outage = Outage(1)
    with faults.arm_fault_point("durable.commit.before", outage):
        async with nodes.alpha() as mail:
            await mail.send("closed", b"refused", to=PEER)
            await eventually(lambda: outage.failed, "a settlement was tried")
            await mail.send("open", b"taken", to=PEER)
            await until_settled(mail)
            assert await dead_bodies(mail) == [b"refused"]


async def test_a_sender_that_starts_again_hears_of_what_it_has_not_settled(nodes: Nodes) -> None:
    outage = Outage(1_000)
    with faults.arm_fault_point("durable.commit.before", outage):
        async with nodes.alpha() as mail:
            await mail.send("closed", b"refused", to=PEER)
            await eventually(lambda: outage.failed, "a settlement was tried")
            await mail.send("open", b"taken", to=PEER)
            await until_taken(nodes.beta)
    async with nodes.alpha() as mail:
        await mail.send("open", b"taken later", to=PEER)
        await until_settled(mail)
        assert await dead_bodies(mail) == [b"refused"]
