"""Nodes that leave the choice of who gets a call or an event to the transporter."""

import asyncio
from typing import Any

import pytest

from postroad.services.breakers import BreakerConfig
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import (
    MoleculerServerError,
    RequestTimeoutError,
    ServiceNotAvailableError,
    ServiceNotFoundError,
)
from postroad.services.service import Service, action, event
from postroad.services.transporters import MemoryHub, MemoryTransporter
from tests.support.deadlines import eventually
from tests.support.services.nodes import SHORT, Gate, Nodes


class Worker(Service):
    name = "worker"

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.gate = Gate()

    @action
    async def am_i(self, ctx: Context) -> str:
        ctx.meta["by"] = ctx.broker.node_id
        return ctx.broker.node_id

    @action(visibility="protected")
    def own(self, ctx: Context) -> str:
        return ctx.broker.node_id

    @action
    async def fail(self, ctx: Context) -> None:
        raise MoleculerServerError("broken")

    @action
    async def wait(self, ctx: Context) -> str:
        await self.gate.passed()
        return "done"

    @event("user.*")
    async def on_user(self, ctx: Context) -> None:
        self.heard.append(ctx.event)

    @event("pay", group="money")
    def on_pay(self, ctx: Context) -> None:
        self.heard.append(ctx.event)


async def three(nodes: Nodes, **settings: Any) -> list[Worker]:
    workers = [Worker() for _ in range(3)]
    for number, worker in enumerate(workers):
        await nodes.add(f"node-{number}", worker, uses_balancer=False, **settings)
    return workers


async def test_calls_are_spread_over_all_nodes_unless_one_is_chosen(nodes: Nodes) -> None:
    await three(nodes)
    outside = await nodes.add("outside", uses_balancer=False)
    for broker in (outside, nodes.brokers[0]):
        answered = {await broker.call("worker.am_i") for _ in range(6)}
        assert answered == {"node-0", "node-1", "node-2"}
    for broker in nodes.brokers:
        assert {await broker.call("worker.am_i", node_id="node-1") for _ in range(3)} == {"node-1"}
    for broker in nodes.brokers[:3]:
        assert {await broker.call("worker.own") for _ in range(3)} == {broker.node_id}
        told = [(await broker.call("$node.options"))["nodeID"] for _ in range(3)]
        assert {*told} == {broker.node_id}
    ctx = nodes.brokers[0].context()
    assert await ctx.call("worker.am_i") == ctx.meta["by"]
    choosing = await nodes.add("choosing")
    assert len({await choosing.call("worker.am_i") for _ in range(3)}) == 3


async def test_nobody_has_it(nodes: Nodes) -> None:
    await three(nodes)
    with pytest.raises(ServiceNotFoundError):
        await nodes.brokers[0].call("worker.nix")
    for broker in nodes.brokers[1:]:
        await broker.stop()
    await nodes.brokers[0].remove("worker")
    registry = nodes.brokers[0].registry
    await eventually(lambda: not registry.has_service("worker"), "all are gone")
    with pytest.raises(ServiceNotAvailableError):
        await nodes.brokers[0].call("worker.am_i")


async def test_one_of_each_group_gets_an_event(nodes: Nodes) -> None:
    workers = await three(nodes)
    for _ in range(6):
        await nodes.brokers[0].emit("user.created")
        await nodes.brokers[0].emit("pay")
    await eventually(lambda: sum(len(it.heard) for it in workers) == 12, "all are handled")
    for worker in workers:
        assert {*worker.heard} == {"user.created", "pay"}
    await nodes.brokers[0].emit("user.created", groups=["money"])
    await nodes.brokers[0].emit("nobody.hears.this")
    await nodes.brokers[0].broadcast("user.all")
    await eventually(lambda: all("user.all" in it.heard for it in workers), "all heard it")
    assert sum(len(it.heard) for it in workers) == 15


async def test_services_come_and_go(nodes: Nodes) -> None:
    near = await nodes.add("near", uses_balancer=False)
    far = await nodes.add("far", uses_balancer=False)
    for _ in range(2):
        await near.launch(Worker())
        await far.wait_for_services("worker", timeout_s=30)
        assert await far.call("worker.am_i") == "near"
        await near.remove("worker")
        await nodes.settle()
    other = Worker()
    await far.launch(other)
    assert [await far.call("worker.am_i") for _ in range(2)] == ["far", "far"]


async def test_a_node_that_stops_gets_nothing_new(nodes: Nodes) -> None:
    workers = await three(nodes)
    calls = [asyncio.ensure_future(nodes.brokers[0].call("worker.wait")) for _ in range(3)]
    for worker in workers:
        await worker.gate.reached()
    stopping = asyncio.ensure_future(nodes.brokers[1].stop())
    await eventually(lambda: not _listens(nodes.hub, "node-1"), "it listens no more")
    found = [await nodes.brokers[0].call("worker.am_i") for _ in range(6)]
    assert {*found} == {"node-0", "node-2"}
    for worker in workers:
        worker.gate.open()
    assert await asyncio.gather(*calls) == ["done"] * 3
    await stopping


def _listens(hub: MemoryHub, node_id: str) -> bool:
    listeners = [who for it in hub._queues.values() for _, who in it]
    return any(it.topics.node_id == node_id for it in listeners)


async def test_breakers_leave_the_choice_to_the_transporter(nodes: Nodes) -> None:
    await three(nodes, breaker=BreakerConfig(is_enabled=True, requests_min=1))
    for _ in range(5):
        with pytest.raises(MoleculerServerError):
            await nodes.brokers[0].call("worker.fail")


async def test_a_call_that_nobody_takes_ends_in_time(nodes: Nodes) -> None:
    await three(nodes)
    for worker in nodes.brokers:
        assert worker._transporter is not None
        await worker._transporter.listen_balanced([])
    with pytest.raises(RequestTimeoutError):
        await nodes.brokers[0].call("worker.am_i", timeout_s=0.05)


class Unbalanced(MemoryTransporter):
    balances = False


async def test_who_cannot_balance_says_so(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker("near", transporter=Unbalanced(nodes.hub), uses_balancer=False, **SHORT)
    broker.add(Worker())
    async with broker:
        assert await broker.call("worker.am_i") == "near"
    assert "does not balance by itself; brokers do" in caplog.text
