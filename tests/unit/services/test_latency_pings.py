"""Pings for the choice of the node that answers soonest."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from postroad.services.balancing import Latencies, Latency, RoundRobin
from postroad.services.endpoints import EndpointList
from postroad.services.errors import BrokerDisconnectedError, RequestTimeoutError
from postroad.services.latency_pings import TIMEOUT_S, LatencyPings
from postroad.services.pings import PingResult
from postroad.services.schema import ActionInfo
from tests.support.deadlines import eventually


class Node:
    """A node as endpoints know it."""

    def __init__(self, id: str, hostname: str, *, is_local: bool = False) -> None:
        self.id = id
        self.hostname = hostname
        self.is_local = is_local
        self.is_doubtful = False
        self.cpu: float | None = None


class Cluster:
    """Lists of endpoints, and nodes that answer pings in a time of their own."""

    def __init__(self) -> None:
        self.latencies = Latencies()
        self.lists: list[EndpointList[Any]] = []
        self.pinged: list[str] = []
        self.rounds = asyncio.Semaphore(0)
        self.answers: dict[str, float | Exception] = {}
        self.pings = LatencyPings(
            lambda: self.lists, self.latencies, self.ping, interval_s=0.005, chance=random.Random(1)
        )

    def offer(self, name: str, *nodes: Node, by_latency: bool = True) -> EndpointList[Any]:
        strategy = Latency(random.Random(1), self.latencies) if by_latency else RoundRobin()
        made: EndpointList[Any] = EndpointList(name, "", strategy, prefers_local=True)
        for node in nodes:
            made.put(node, "service", ActionInfo(name=name))
        self.lists.append(made)
        return made

    async def ping(self, node_id: str, timeout_s: float) -> PingResult:
        self.pinged.append(node_id)
        self.rounds.release()
        answer = self.answers.get(node_id, 0.001)
        if isinstance(answer, Exception):
            raise answer
        return PingResult(node_id, answer, 0.0)

    async def after_pings(self, count: int) -> None:
        for _ in range(count):
            await self.rounds.acquire()
        # What came is written down in the next turn.
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@pytest.fixture
async def cluster() -> Any:
    made = Cluster()
    yield made
    await made.pings.stop()


def two_hosts() -> Iterator[Node]:
    yield from (Node("a1", "a"), Node("a2", "a"), Node("b1", "b"))


async def test_one_node_of_each_host_is_pinged(cluster: Cluster) -> None:
    cluster.answers = {"a1": 0.02, "a2": 0.02, "b1": 0.005}
    cluster.offer("x.y", *two_hosts())
    cluster.pings.look()
    await cluster.after_pings(2)
    assert sorted(it[0] for it in cluster.pinged[:2]) == ["a", "b"]
    assert cluster.latencies.average("a") == 20
    assert cluster.latencies.average("b") == 5
    await cluster.after_pings(8)
    assert {*cluster.pinged} == {"a1", "a2", "b1"}


@pytest.mark.parametrize("name", ["x.y", "$node.list"])
async def test_nobody_is_pinged_without_a_reason(cluster: Cluster, name: str) -> None:
    cluster.offer("x.z", *two_hosts(), by_latency=False)
    if name == "x.y":
        cluster.offer(name, Node("a1", "a"))
    else:
        cluster.offer(name, *two_hosts())
    cluster.pings.look()
    assert not cluster.pings.is_running


async def test_it_ends_when_nothing_is_chosen_that_way_any_more(cluster: Cluster) -> None:
    cluster.offer("x.y", *two_hosts())
    cluster.pings.look()
    await cluster.after_pings(2)
    cluster.lists.clear()
    await eventually(lambda: not cluster.pings.is_running, "the pings end")
    cluster.offer("x.y", *two_hosts())
    cluster.pings.look()
    assert cluster.pings.is_running


async def test_hosts_that_are_gone_are_forgotten(cluster: Cluster) -> None:
    found = cluster.offer("x.y", *two_hosts(), Node("c1", "c"))
    cluster.pings.look()
    await cluster.after_pings(3)
    assert cluster.latencies.average("b") is not None
    found.remove("b1", "service")
    await cluster.after_pings(4)
    assert cluster.latencies.average("b") is None
    assert cluster.latencies.average("c") is not None


async def test_host_without_answer_is_far_away(cluster: Cluster) -> None:
    cluster.answers = {"b1": RequestTimeoutError(data={})}
    cluster.offer("x.y", *two_hosts())
    cluster.pings.look()
    await cluster.after_pings(2)
    assert cluster.latencies.average("b") == TIMEOUT_S * 1000


async def test_without_a_connection_nothing_is_learnt(cluster: Cluster) -> None:
    cluster.answers = {"b1": BrokerDisconnectedError()}
    cluster.offer("x.y", *two_hosts())
    cluster.pings.look()
    await cluster.after_pings(4)
    assert cluster.latencies.average("b") is None
    assert cluster.latencies.average("a") is not None


async def test_own_host_is_nearest(cluster: Cluster) -> None:
    cluster.offer("x.y", Node("me", "a", is_local=True), *two_hosts())
    cluster.pings.look()
    await cluster.after_pings(3)
    assert cluster.latencies.average("a") == 0
    assert {*cluster.pinged} == {"b1"}


async def test_stop(cluster: Cluster) -> None:
    cluster.offer("x.y", *two_hosts())
    cluster.pings.look()
    await cluster.after_pings(2)
    await cluster.pings.stop()
    await cluster.pings.stop()
    assert not cluster.pings.is_running
