"""The order in which a node opens and closes: nothing is called before what it needs is there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from postroad.cells import Cell, CellMessage
from postroad.durable import Message, Transaction
from postroad.flows import INJECTED, FlowContext, flow
from postroad.node import App, Consuming, Node, current_node
from postroad.node.app import Lifespan
from postroad.services import Context, Service, action
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.node.configs import config_of
from tests.support.services.nodes import Gate


@flow
async def pack(ctx: FlowContext, item: str) -> str:
    return f"packed {item}"


class Shop(Service):
    name = "shop"

    def __init__(self, gate: Gate | None = None) -> None:
        self.gate = gate

    @action
    async def order(self, ctx: Context, item: str) -> str:
        if self.gate is not None:
            await self.gate.passed()
        return await current_node().flows.run_flow(pack, item)

    @action
    async def price(self, ctx: Context) -> int:
        return 3


class Door:
    """A lifespan that the test lets be entered, and that knows whether it is."""

    def __init__(self) -> None:
        self.entering = Gate()
        self.is_open = False

    def lifespan(self) -> Lifespan:
        @asynccontextmanager
        async def lifespan(node: Node) -> AsyncIterator[None]:
            await self.entering.passed()
            self.is_open = True
            yield
            self.is_open = False

        return lifespan

    @asynccontextmanager
    async def holding(self, node: Node) -> AsyncIterator[None]:
        """While a node starts, and is as far as its lifespan; then it goes on, or is stopped."""
        starting = asyncio.create_task(node.start())
        try:
            await self.entering.reached()
            yield
        except BaseException:
            self.entering.open()
            await asyncio.gather(starting, return_exceptions=True)
            await node.stop()
            raise
        self.entering.open()
        await starting


def beside(directory: Path, other: Node, **app: Any) -> Node:
    """A node that finds another."""
    seeds = {"seeds": [str(other.service.address)]}
    return Node(config_of(directory, "beta", cluster=seeds), App(**app))


async def pings(node: Node, other: str) -> bool:
    """Whether another node answers."""
    try:
        await node.broker.ping(other, timeout_s=0.2)
    except TimeoutError:
        return False
    return True


async def test_others_call_services_when_everything_is_there(tmp_path: Path) -> None:
    door = Door()
    async with Node(config_of(tmp_path), App()) as alpha:
        beta = beside(tmp_path, alpha, services=[Shop()], flows=[pack], lifespan=door.lifespan())
        async with door.holding(beta):
            # It can call itself, and begin flows; others know nothing that it has.
            assert await beta.broker.call("shop.order", {"item": "tea"}) == "packed tea"
            # What beta had told before its ping would have come before it.
            await eventually(partial(pings, beta, "alpha"), "beta reaches alpha")
            assert not alpha.broker.registry.has_service("shop")
        await alpha.broker.wait_for_services("shop", timeout_s=DEADLINE_S)
        assert await alpha.broker.call("shop.order", {"item": "milk"}) == "packed milk"
        await beta.stop()


async def test_steps_of_flows_wait_for_everything_they_may_use(tmp_path: Path) -> None:
    door, may_end = Door(), asyncio.Event()
    seen: list[bool] = []
    began = asyncio.Event()

    async def work() -> int:
        seen.append(door.is_open)
        began.set()
        await may_end.wait()
        return int(await current_node().broker.call("shop.price"))

    @flow
    async def buy(ctx: FlowContext) -> int:
        return await ctx.step(work)

    def make_node() -> Node:
        app = App(services=[Shop()], flows=[buy, pack], lifespan=door.lifespan())
        return Node(config_of(tmp_path), app)

    door.entering.open()
    async with make_node() as node:
        begun = await node.flows.start_flow(buy)
        await began.wait()
    began.clear()
    door.entering = Gate()
    node = make_node()
    async with door.holding(node):
        # A flow that is begun now runs; those of the last time would have come first.
        assert await node.flows.run_flow(pack, "tea") == "packed tea"
        assert not began.is_set()
    may_end.set()
    assert await (await node.flows.get_handle(begun.id)).result(DEADLINE_S) == 3
    await node.stop()
    assert seen == [True, True]


async def create_prices(tx: Transaction = INJECTED) -> None:
    await tx.execute("CREATE TABLE IF NOT EXISTS prices (item TEXT)")


async def test_a_lifespan_may_wait_for_flows(tmp_path: Path) -> None:
    results = []

    @flow
    async def prepare(ctx: FlowContext) -> str:
        await ctx.step(create_prices)
        return await ctx.step(lambda: "prepared")

    @asynccontextmanager
    async def lifespan(node: Node) -> AsyncIterator[None]:
        results.append(await node.flows.run_flow(prepare))
        results.append(
            await (await node.flows.start_flow_with_id("once", prepare)).result(DEADLINE_S)
        )
        yield

    async with Node(config_of(tmp_path), App(flows=[prepare], lifespan=lifespan)):
        assert results == ["prepared", "prepared"]


class Clerk(Cell):
    """Asks a service, after the test lets it."""

    def __init__(self, door: Door, gate: Gate) -> None:
        super().__init__("clerk")
        self.door = door
        self.gate = gate
        self.seen: list[object] = []

    async def handle(self, message: CellMessage) -> None:
        self.seen.append(self.door.is_open)
        await self.gate.passed()
        self.seen.append(await current_node().broker.call("shop.price"))
        self.seen.append(self.door.is_open)


async def test_handlers_end_before_what_they_use(tmp_path: Path) -> None:
    door, gate = Door(), Gate()
    seen: list[object] = []
    clerk = Clerk(door, gate)

    async def take(message: Message, tx: Transaction) -> None:
        await gate.passed()
        node = current_node()
        seen.append(await node.broker.call("shop.price"))
        seen.append((await node.flows.start_flow(pack, "tea")).name)
        seen.append(door.is_open)

    door.entering.open()
    app = App(
        services=[Shop(gate)],
        flows=[pack],
        cells=[clerk],
        consumers=[Consuming(queue="orders", handler=take)],
        lifespan=door.lifespan(),
    )
    async with Node(config_of(tmp_path), App()) as alpha:
        beta = beside(tmp_path, alpha, **{it: getattr(app, it) for it in app.__struct_fields__})
        await beta.start()
        await alpha.broker.wait_for_services("shop", timeout_s=DEADLINE_S)
        calling = asyncio.create_task(alpha.broker.call("shop.order", {"item": "milk"}))
        await beta.queues.send("orders", b"", to="beta")
        beta.domain.send_nowait("clerk", b"")
        await gate.reached(3)
        stopping = asyncio.create_task(beta.stop())
        await eventually(lambda: not alpha.broker.registry.has_service("shop"))
        gate.open()
        await stopping
        assert await calling == "packed milk"
    assert seen == [3, "pack", True]
    assert clerk.seen == [True, 3, True]


async def test_a_node_that_drains_is_called_by_itself_alone(tmp_path: Path) -> None:
    async with Node(config_of(tmp_path), App()) as alpha:
        beta = beside(tmp_path, alpha, services=[Shop()])
        async with beta:
            await alpha.broker.wait_for_services("shop", timeout_s=DEADLINE_S)
            assert await beta.drain(5.0) == 0
            await eventually(lambda: not alpha.broker.registry.has_service("shop"))
            assert await beta.broker.call("shop.price") == 3


async def test_services_that_need_each_other_start(tmp_path: Path) -> None:
    """Even between two nodes, of which none is ready before the other."""

    class First(Service):
        name = "first"

    class Second(Service):
        name = "second"
        dependencies = ("first",)

        @action
        async def add(self, ctx: Context) -> int:
            return 1

    class Third(Service):
        name = "third"
        dependencies = ("second",)

        async def started(self) -> None:
            self.sum = await self.broker.call("second.add")

    third = Third()
    alpha = Node(config_of(tmp_path), App(services=[First(), third]))
    starting = asyncio.create_task(alpha.start())
    await eventually(lambda: alpha.readiness.reasons() == ["the services part is being started"])
    async with asyncio.timeout(DEADLINE_S), beside(tmp_path, alpha, services=[Second()]):
        await starting
        assert third.sum == 1
        await alpha.stop()
