"""One name, one live node: the second is rejected, and both sides log it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postroad.cluster import ClusterAgent, MembershipEvent
from postroad.cluster.discovery import DiscoveryStatistics
from postroad.cluster.discovery.background import SeedsCallback
from postroad.core.errors import NameConflictError
from postroad.net import Address
from tests.support.cluster.nodes import (
    QUICK,
    Node,
    all_know,
    both_transports,
    make_node,
    running_cluster,
    running_node,
    running_service,
    udp_ports,
)
from tests.support.deadlines import eventually


class Introduction:
    """A discovery that finds nobody until a test says whom."""

    def __init__(self) -> None:
        self._on_seeds: SeedsCallback | None = None

    async def start(self, name: str, address: Address, on_seeds: SeedsCallback) -> None:
        self._on_seeds = on_seeds
        on_seeds(frozenset())

    async def stop(self) -> None:
        self._on_seeds = None

    def introduce(self, *nodes: Node) -> None:
        assert self._on_seeds is not None
        self._on_seeds(frozenset(node.address for node in nodes))

    def statistics(self) -> DiscoveryStatistics:
        return DiscoveryStatistics()


def warnings_of(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(
        record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
    )


async def expect_rejected(
    holder: Node, contact: Node, caplog: pytest.LogCaptureFixture, datagrams: bool
) -> None:
    """A second node of the holder's name does not come in, and both sides say so."""
    async with running_service(holder.name) as service:
        second = make_node(service, contact, datagrams=datagrams)
        with pytest.raises(NameConflictError) as refused:
            await asyncio.wait_for(second.agent.start(), 10)
        assert refused.value.name == holder.name
        assert refused.value.holder == str(holder.address)
        assert str(holder.address) in str(refused.value)
        assert second.agent.failure is refused.value
        await second.agent.stop()
        with pytest.raises(NameConflictError):
            await second.agent.wait_closed()
        assert service.statistics().subscriptions == 0
        assert service.address.port not in udp_ports()
    await eventually(lambda: repr(holder.name) in warnings_of(caplog))
    assert str(service.address) in warnings_of(caplog)


@both_transports
@pytest.mark.parametrize("asks_holder", [True, False], ids=["asks holder", "asks another"])
async def test_second_node_of_a_name_is_rejected(
    datagrams: bool, asks_holder: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_cluster("holder a b", datagrams=datagrams) as nodes:
        holder, a, _ = nodes
        before = [list(node.changes) for node in nodes]
        instance = holder.agent.local_member.instance
        await expect_rejected(holder, holder if asks_holder else a, caplog, datagrams)
        # Others had a chance to hear of it, had it been told.
        holder.agent.set_properties({"still": "here"})
        for node, changes in zip(nodes, before, strict=True):
            await node.until(lambda node: node.see("holder").version == 1, "the holder is here")
            assert node.see("holder").instance == instance
            assert len(node.changes) == len(changes) + 1


async def test_second_node_is_rejected_by_a_lone_holder(caplog: pytest.LogCaptureFixture) -> None:
    async with running_node("holder") as holder:
        await expect_rejected(holder, holder, caplog, datagrams=True)
        assert holder.names == {"holder"}
        assert holder.changes == []


async def test_name_is_free_once_its_holder_is_gone() -> None:
    async with running_cluster("a b c", config=QUICK) as (a, b, c):
        await c.crash()
        # The others still think that it lives; they ask it, and it does not answer.
        async with running_node("c", a, config=QUICK) as successor:
            await all_know([a, b, successor])
            for node in (a, b):
                await node.until_meets(successor.agent.local_member)


@asynccontextmanager
async def two_halves(*, datagrams: bool, with_others: bool) -> AsyncIterator[list[Node]]:
    """The elder and the younger node of one name, and if wanted, a member on the side of each."""
    options: dict[str, Any] = {"config": QUICK, "datagrams": datagrams}
    async with running_node("twin", discovery=Introduction(), **options) as elder:
        # The one that began in a later millisecond is the younger.
        await asyncio.sleep(0.002)
        async with running_node("twin", discovery=Introduction(), **options) as younger:
            assert elder.agent.local_member.instance < younger.agent.local_member.instance
            if not with_others:
                yield [elder, younger]
                return
            async with (
                running_node("a", elder, **options) as a,
                running_node("b", younger, discovery=Introduction(), **options) as b,
            ):
                introduce(b, younger)
                await all_know([elder, a])
                await all_know([younger, b])
                yield [elder, younger, a, b]


def introduce(node: Node, *others: Node) -> None:
    discovery = node.agent._discovery
    assert isinstance(discovery, Introduction)
    discovery.introduce(*others)


async def read_to_end(agent: ClusterAgent) -> list[MembershipEvent]:
    return [change async for change in agent.events()]


@both_transports
async def test_earlier_process_keeps_the_name_after_a_partition(
    datagrams: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_halves(datagrams=datagrams, with_others=True) as (elder, younger, a, b):
        reading = asyncio.create_task(read_to_end(younger.agent))
        introduce(b, younger, a)
        with pytest.raises(NameConflictError, match=str(elder.address)):
            await asyncio.wait_for(younger.agent.wait_closed(), 10)
        with pytest.raises(NameConflictError):
            await asyncio.wait_for(reading, 10)
        assert elder.agent.failure is None
        await all_know([elder, a, b])
        for node in (a, b):
            await node.until_meets(elder.agent.local_member)
        assert f"node name 'twin' is taken by the live node at {elder.address}" in caplog.text


@both_transports
@pytest.mark.parametrize("observer", ["younger", "both"])
async def test_two_lone_nodes_of_one_name_resolve_the_conflict(
    datagrams: bool, observer: str
) -> None:
    async with two_halves(datagrams=datagrams, with_others=False) as (elder, younger):
        if observer != "younger":
            introduce(elder, younger)
        if observer != "elder":
            introduce(younger, elder)
        with pytest.raises(NameConflictError, match=str(elder.address)):
            await asyncio.wait_for(younger.agent.wait_closed(), 10)
        assert elder.agent.failure is None
        assert elder.names == {"twin"}


@both_transports
async def test_of_many_started_together_no_two_stay(datagrams: bool) -> None:
    """Whoever gives way is told. It may be all of them: nobody held the name."""
    async with (
        running_node("a", config=QUICK) as a,
        running_service("same") as first,
        running_service("same") as second,
        running_service("same") as third,
    ):
        services = [first, second, third]
        seeds = [a.address, *(service.address for service in services)]
        nodes = [
            make_node(service, *seeds, config=QUICK, datagrams=datagrams) for service in services
        ]
        starts = (node.agent.start() for node in nodes)
        for error in await asyncio.gather(*starts, return_exceptions=True):
            assert error is None or isinstance(error, NameConflictError)
        await eventually(lambda: sum(node.agent.failure is None for node in nodes) <= 1)
        for winner in (node for node in nodes if node.agent.failure is None):
            await a.until_meets(winner.agent.local_member)
        await asyncio.gather(*(node.agent.stop() for node in nodes))
        await a.until_knows()
