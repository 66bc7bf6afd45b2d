"""Whole nodes: everything a configuration asks for, started, used together, drained and stopped."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from postroad.cells import Cell, CellMessage
from postroad.core.errors import ConfigError, RemoteHandlerError, StoreLockedError, UsageError
from postroad.durable import Message, Transaction
from postroad.flows import FlowContext, flow
from postroad.node import App, Consuming, Layer, Node, current_node
from postroad.services import Context, Service, action
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.node.configs import config_of


class Greeter(Service):
    name = "greeter"

    @action
    async def hello(self, ctx: Context, name: str) -> str:
        return f"Hello {name}!"

    @action
    async def order(self, ctx: Context, item: str) -> None:
        node = current_node()
        await node.queues.send("orders", item.encode(), to=node.name)


class Echo(Cell):
    def __init__(self) -> None:
        super().__init__("echo")

    def handle(self, message: CellMessage) -> Any:
        return message.body


@flow
async def pack(ctx: FlowContext, item: str) -> str:
    return f"packed {item}"


async def test_layers_work_together(tmp_path: Path) -> None:
    packed: asyncio.Queue[str] = asyncio.Queue()

    async def take(message: Message, tx: Transaction) -> None:
        begun = await current_node().flows.start_flow(pack, message.body.decode())
        packed.put_nowait(await begun.result(DEADLINE_S))

    app = App(
        services=[Greeter()],
        flows=[pack],
        consumers=[Consuming(queue="orders", handler=take)],
        cells=[Echo()],
    )
    async with Node(config_of(tmp_path), app) as node:
        assert node.is_running
        assert node.readiness.reasons() == []
        assert await node.broker.call("greeter.hello", {"name": "Ann"}) == "Hello Ann!"
        assert await node.domain.call("echo", "hi") == "hi"
        await node.broker.call("greeter.order", {"item": "tea"})
        assert await asyncio.wait_for(packed.get(), DEADLINE_S) == "packed tea"
    assert node.readiness.reasons() == ["the node is stopped"]
    assert not node.is_running


async def test_nodes_find_each_other(tmp_path: Path) -> None:
    async with Node(config_of(tmp_path, "alpha"), App(services=[Greeter()])) as alpha:
        seeds = {"seeds": [str(alpha.service.address)]}
        beta = Node(config_of(tmp_path, "beta", cluster=seeds), App())
        async with beta:
            await beta.broker.wait_for_services(["greeter"], timeout_s=DEADLINE_S)
            assert await beta.broker.call("greeter.hello", {"name": "Bob"}) == "Hello Bob!"
            pulled = asyncio.Event()

            async def take(message: Message, tx: Transaction) -> None:
                pulled.set()

            await alpha.queues.consume("inbox", take)
            await beta.queues.send("inbox", b"letter", to="alpha")
            await asyncio.wait_for(pulled.wait(), DEADLINE_S)


async def test_what_operators_of_others_may_do_holds_for_commands_to_cells(tmp_path: Path) -> None:
    layers = {"layers": ["cluster", "cells"]}
    config = config_of(tmp_path, "alpha", node=layers, admin={"remote": "off"})
    async with Node(config) as alpha:
        alpha.domain.add_function("till", lambda message: b"")
        seeds = {"seeds": [str(alpha.service.address)]}
        async with Node(config_of(tmp_path, "beta", node=layers, cluster=seeds)) as beta:
            await eventually(lambda: "alpha" in beta.domain.links.by_domain)
            for line in ("kill till", "ps"):
                with pytest.raises(
                    RemoteHandlerError,
                    match="alpha rejected a remote command: remote_commands is 'off'",
                ):
                    await beta.domain.run_command("System@alpha", line)
            assert "till" in await alpha.domain.run_command("System", "ps")


async def test_who_may_be_a_core_is_a_setting(tmp_path: Path) -> None:
    layers = {"layers": ["cluster", "cells"]}
    config = config_of(tmp_path, "alpha", node=layers, cells={"cores": ["alpha"]})
    async with Node(config) as alpha:
        seeds = {"seeds": [str(alpha.service.address)]}
        async with Node(config_of(tmp_path, "beta", node=layers, cluster=seeds)) as beta:
            await eventually(lambda: "alpha" in beta.domain.dialer.failures)
            assert "core beta rejected" in beta.domain.dialer.failures["alpha"]
            assert not alpha.domain.links.by_domain


async def test_code_of_two_nodes_in_a_process_knows_its_own(tmp_path: Path) -> None:
    seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def consumer_of(name: str) -> Consuming:
        async def take(message: Message, tx: Transaction) -> None:
            seen.put_nowait((name, current_node().name))

        return Consuming(queue="orders", handler=take)

    class Where(Service):
        name = "where"

        @action
        async def am_i(self, ctx: Context) -> str:
            return current_node().name

    def app_of(name: str) -> App:
        return App(services=[Where()], consumers=[consumer_of(name)])

    alpha, beta = (Node(config_of(tmp_path, it), app_of(it)) for it in ("alpha", "beta"))
    async with alpha, beta:
        for node in (alpha, beta):
            await node.queues.send("orders", b"", to=node.name)
            name, found = await asyncio.wait_for(seen.get(), DEADLINE_S)
            assert name == found == node.name
            assert await node.broker.call("where.am_i") == node.name


async def test_has_exactly_the_layers_that_it_was_asked_for(tmp_path: Path) -> None:
    config = config_of(tmp_path, node={"layers": ["cluster", "services"]})
    async with Node(config, App(services=[Greeter()])) as node:
        assert await node.broker.call("greeter.hello", {"name": "Ann"}) == "Hello Ann!"
        with pytest.raises(UsageError, match="has no DurableQueues now: its layers are"):
            _ = node.queues
    assert not os.listdir(tmp_path)
    config = config_of(tmp_path, node={"layers": ["cluster"]})
    with pytest.raises(ConfigError, match=r"has services, but .* does not list 'services'"):
        await Node(config, App(services=[Greeter()])).start()
    assert [layer.value for layer in Layer] == ["cluster", "cells", "queues", "services", "flows"]


async def test_starts_once_and_tells_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(config_of(tmp_path, queues={"store": "memory"}))
    with pytest.raises(UsageError, match="start it first"):
        _ = node.queues
    with pytest.raises(UsageError, match="no node runs this code"):
        current_node()
    with caplog.at_level(logging.INFO, "postroad.node"):
        async with node:
            assert f"alpha runs at {node.service.address}, in cluster 'postroad'" in caplog.messages
            with pytest.raises(UsageError, match="was started already"):
                await node.start()
    await node.stop()


async def test_what_was_started_is_stopped_when_the_rest_cannot_be(tmp_path: Path) -> None:
    async with Node(config_of(tmp_path)) as first:
        second = Node(config_of(tmp_path, cluster={"seeds": []}))
        with pytest.raises(StoreLockedError):
            await second.start()
        # Its name and its port are free again.
        assert second.readiness.reasons() == ["the queues part is being started"]
        await second.stop()
        assert first.is_running
    async with Node(config_of(tmp_path)) as again:
        assert again.is_running


async def test_a_lifespan_that_fails_stops_everything(tmp_path: Path) -> None:
    @asynccontextmanager
    async def lifespan(node: Node) -> AsyncIterator[None]:
        raise RuntimeError("no coffee")
        yield

    with pytest.raises(RuntimeError, match="no coffee"):
        await Node(config_of(tmp_path), App(lifespan=lifespan)).start()
    async with Node(config_of(tmp_path)) as node:
        assert node.is_running


async def test_a_lifespan_surrounds_the_program(tmp_path: Path) -> None:
    happened = []

    @asynccontextmanager
    async def lifespan(node: Node) -> AsyncIterator[None]:
        happened.append("in")
        yield
        # Everything it may use is still there.
        await node.queues.send("last-words", b"bye", to=node.name)
        happened.append("out")

    async with Node(config_of(tmp_path), App(lifespan=lifespan)):
        happened.append("runs")
    assert happened == ["in", "runs", "out"]


async def test_draining_takes_nothing_new_and_loses_nothing(tmp_path: Path) -> None:
    handled: list[bytes] = []
    began = asyncio.Event()
    may_end = asyncio.Event()

    async def take(message: Message, tx: Transaction) -> None:
        began.set()
        await may_end.wait()
        handled.append(message.body)

    app = App(consumers=[Consuming(queue="orders", handler=take)])
    async with Node(config_of(tmp_path), app) as node:
        await node.queues.send("orders", b"one", to="alpha")
        await began.wait()
        draining = asyncio.ensure_future(node.drain(10.0))
        await asyncio.sleep(0)
        assert node.readiness.reasons() == ["the node is draining"]
        may_end.set()
        assert await draining == 0
        await node.queues.send("orders", b"two", to="alpha")
        assert handled == [b"one"]
    async with Node(config_of(tmp_path), app) as node:
        await eventually(lambda: len(handled) == 2)
    assert handled == [b"one", b"two"]


async def test_guaranteed_queues_are_declared(tmp_path: Path) -> None:
    config = config_of(tmp_path, cells={"guaranteed": ["payments"]})
    got: asyncio.Queue[Any] = asyncio.Queue()
    async with Node(config) as node:
        node.domain.add_function("till", lambda it: got.put_nowait(it.body), consume=["payments"])
        await node.domain.send("payments", {"amount": 100})
        assert await asyncio.wait_for(got.get(), DEADLINE_S) == {"amount": 100}


async def test_draining_waits_for_steps_and_not_for_flows_that_wait(tmp_path: Path) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        began.set()
        await may_end.wait()
        return "worked"

    @flow
    async def sleep_long(ctx: FlowContext) -> None:
        await ctx.sleep(3600)

    @flow
    async def work_twice(ctx: FlowContext) -> list[str]:
        return [await ctx.step(work), await ctx.step(work)]

    app = App(flows=[sleep_long, work_twice])
    async with Node(config_of(tmp_path), app) as node:
        await node.flows.start_flow(sleep_long)
        begun = await node.flows.start_flow(work_twice)
        await began.wait()
        assert await node.drain(0.1) == 1
        may_end.set()
        assert await node.drain(10.0) == 0
        began.clear()
    async with Node(config_of(tmp_path), app) as node:
        handle = await node.flows.get_handle(begun.id)
        assert await handle.result(DEADLINE_S) == ["worked", "worked"]
        # The first one was not done again.
        assert len(await node.flows.admin.history(begun.id)) == 2


SECRET = "correct horse battery staple"


async def test_nodes_with_one_secret_are_a_cluster_that_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All layers go through it: the tunnels of cells, services and mail too."""
    secret_file = tmp_path / "secret"
    secret_file.write_text(f"{SECRET}\n")
    known = {"node": {"secret_file": str(secret_file)}}
    async with Node(config_of(tmp_path, "a", **known), App(services=[Greeter()])) as a:
        seeds = {"seeds": [str(a.service.address)]}
        config = config_of(tmp_path, "b", node={"secret": SECRET}, cluster=seeds)
        async with Node(config, App()) as b:
            await eventually(lambda: b.agent.member("a") and a.agent.member("b"))
            await b.broker.wait_for_services("greeter", timeout_s=DEADLINE_S)
            assert await b.broker.call("greeter.hello", {"name": "Ann"}) == "Hello Ann!"
        async with Node(config_of(tmp_path, "c", cluster=seeds), App()) as c:
            assert c.agent.member("a") is None
            assert a.agent.member("c") is None
    assert "requires the cluster secret" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [
        ({"bind": "0.0.0.0:0"}, True),
        ({"bind": "127.0.0.1:0"}, False),
        ({"bind": "0.0.0.0:0", "secret": SECRET}, False),
    ],
)
async def test_a_node_that_is_open_to_others_says_so_at_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, str], is_told: bool
) -> None:
    config = config_of(tmp_path, "a", node={**settings, "layers": ["cluster"]})
    async with Node(config, App()):
        warnings = [it.getMessage() for it in caplog.records if it.levelno == logging.WARNING]
        assert any("can join cluster" in text for text in warnings) is is_told
