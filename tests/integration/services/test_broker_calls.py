"""Calls: what actions get, what callers get back, and what goes along."""

import asyncio
import contextlib
from contextlib import suppress
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import (
    MaxCallLevelError,
    MoleculerClientError,
    RequestSkippedError,
    RequestTimeoutError,
    ServiceNotAvailableError,
    ServiceNotFoundError,
)
from postroad.services.middleware import Handler, Middleware
from postroad.services.schema import ActionInfo
from postroad.services.service import Service, action
from tests.support.deadlines import eventually
from tests.support.services.nodes import Gate, Nodes


class Greeter(Service):
    name = "greeter"

    def __init__(self) -> None:
        self.gate = Gate()
        self.seen: list[Context] = []

    @action
    async def echo(self, ctx: Context) -> Any:
        self.seen.append(ctx)
        return ctx.params

    @action
    def echo_at_once(self, ctx: Context) -> Any:
        return ctx.params

    @action
    async def tell(self, ctx: Context) -> dict[str, Any]:
        return {
            "level": ctx.level,
            "caller": ctx.caller,
            "request_id": ctx.request_id,
            "parent_id": ctx.parent_id,
            "node_id": ctx.node_id,
            "tracing": ctx.tracing,
            "headers": ctx.headers,
            "meta": dict(ctx.meta),
            "timeout_s": ctx.timeout_s,
        }

    @action
    async def mark(self, ctx: Context, key: str, fails: bool = False) -> None:
        ctx.meta[key] = ctx.broker.node_id
        ctx.response_headers["seen"] = key
        if fails:
            raise MoleculerClientError("no")

    @action
    async def wait(self, ctx: Context) -> str:
        await self.gate.passed()
        return "done"


class Relay(Service):
    """Calls on, from a node of its own."""

    name = "relay"
    version = 2

    @action
    async def on(self, ctx: Context, action: str, params: Any = None) -> Any:
        return [ctx.id, await ctx.call(action, params)]

    @action
    async def mark_twice(self, ctx: Context, fails: bool = False) -> None:
        ctx.meta["own"] = 1
        with contextlib.suppress(MoleculerClientError):
            await ctx.call("greeter.mark", {"key": "first", "fails": fails})
        await ctx.mcall([("greeter.mark", {"key": "second"})], meta={"given": 1})


async def two(nodes: Nodes, **settings: Any) -> tuple[Greeter, Broker, Broker]:
    greeter = Greeter()
    near = await nodes.add("near", greeter, Relay(), **settings)
    return greeter, near, await nodes.add("far", **settings)


async def test_params_come_as_they_were_given(nodes: Nodes) -> None:
    _, *brokers = await two(nodes)
    for broker in brokers:
        for name in ("greeter.echo", "greeter.echo_at_once"):
            for params in ({}, {"a": 1}, [1, "x"], "text", 0, False, 1.5, {"deep": {"er": [None]}}):
                assert await broker.call(name, params) == params
        assert await broker.call("greeter.echo") == {}


async def test_a_call_from_outside_is_the_root_of_its_tree(nodes: Nodes) -> None:
    _, *brokers = await two(nodes)
    for broker in brokers:
        told = await broker.call("greeter.tell", headers={"h": 1}, tracing=True)
        assert told.pop("request_id")
        expected: dict[str, Any] = {
            "level": 1,
            "caller": None,
            "parent_id": None,
            "node_id": broker.node_id,
        }
        expected |= {"headers": {"h": 1}, "tracing": True}
        assert told.items() >= expected.items()
        told = await broker.call("greeter.tell", caller="me", request_id="mine")
        assert (told["caller"], told["request_id"]) == ("me", "mine")


async def test_a_call_within_a_call_knows_where_it_belongs(nodes: Nodes) -> None:
    _, *brokers = await two(nodes)
    options: dict[str, Any] = {"meta": {"m": 1}, "headers": {"not": "inherited"}}
    options |= {"request_id": "root", "tracing": False}
    for broker in brokers:
        id, told = await broker.call("v2.relay.on", {"action": "greeter.tell"}, **options)
        expected = {"level": 2, "caller": "v2.relay", "request_id": "root", "parent_id": id}
        expected |= {"meta": {"m": 1}, "headers": {}, "tracing": False}
        assert told.items() >= expected.items()


async def test_meta_comes_back_through_all_levels_but_not_from_mcall(nodes: Nodes) -> None:
    _, *brokers = await two(nodes)
    meta: dict[str, Any] = {}
    for broker in brokers:
        for fails in (False, True):
            ctx = broker.context(meta={"before": 0})
            await ctx.call("v2.relay.mark_twice", {"fails": fails})
            assert ctx.meta == {"before": 0, "own": 1, "first": "near"}
        await broker.call("greeter.mark", {"key": "x"}, meta=meta)
    assert meta == {}, "what is given to a call is not changed"


async def test_response_headers_come_back(nodes: Nodes) -> None:
    seen: list[Context] = []

    class Watch(Middleware):
        def remote_action(self, next: Handler, action: ActionInfo) -> Handler:
            async def run(ctx: Context) -> Any:
                result = await next(ctx)
                seen.append(ctx)
                return result

            return run

    await two(nodes)
    third = await nodes.add("third", middlewares=[Watch()])
    await third.call("greeter.mark", {"key": "k"})
    assert seen[0].response_headers == {"seen": "k"}
    assert seen[0].node_id == "near"


async def test_callers_get_response_headers_if_they_ask(nodes: Nodes) -> None:
    _, *brokers = await two(nodes)
    for broker in brokers:
        for fails in (False, True):
            received: dict[str, Any] = {"before": 1}
            with suppress(MoleculerClientError):
                await broker.call(
                    "greeter.mark", {"key": "k", "fails": fails}, response_headers=received
                )
            assert received == {"before": 1, "seen": "k"}


# Time.


async def test_a_call_ends_when_its_time_is_over(nodes: Nodes) -> None:
    greeter, *brokers = await two(nodes, request_timeout_s=0.05)
    for broker in brokers:
        for timeout_s in (0.04, None):
            with pytest.raises(RequestTimeoutError) as caught:
                await broker.call("greeter.wait", timeout_s=timeout_s)
            assert caught.value.data == {"action": "greeter.wait", "nodeID": "near"}
    await eventually(lambda: not greeter.gate.waiting, "the action is ended too")


async def test_an_action_has_a_time_for_callers_without_one(nodes: Nodes) -> None:
    class Slow(Service):
        name = "slow"

        @action(timeout_s=0.05)
        async def wait(self, ctx: Context) -> None:
            await asyncio.sleep(30)

        @action(timeout_s=0.5)
        async def tell(self, ctx: Context) -> float:
            return ctx.timeout_s

    near = await nodes.add("near", Slow())
    far = await nodes.add("far")
    for broker in (near, far):
        with pytest.raises(RequestTimeoutError):
            await broker.call("slow.wait")
        assert await broker.call("slow.tell") == 0.5
        assert await broker.call("slow.tell", timeout_s=0.2) == 0.2
        assert await broker.call("slow.tell", timeout_s=0) == 0


async def test_time_shrinks_along_the_chain(nodes: Nodes) -> None:
    _, *brokers = await two(nodes)
    for broker in brokers:
        _, told = await broker.call("v2.relay.on", {"action": "greeter.tell"}, timeout_s=5)
        assert 0 < told["timeout_s"] <= 5
        _, told = await broker.call("v2.relay.on", {"action": "greeter.tell"}, timeout_s=0)
        assert told["timeout_s"] == 10


async def test_a_call_whose_time_is_over_is_not_made(nodes: Nodes) -> None:
    greeter, *brokers = await two(nodes)
    for broker in brokers:
        late = Context(broker, timeout_s=1, started_at=broker.now() - 2)
        assert late.remaining_s() < 0
        with pytest.raises(RequestSkippedError) as caught:
            await late.call("greeter.echo")
        assert caught.value.data == {"action": "greeter.echo", "nodeID": broker.node_id}
        with pytest.raises(RequestSkippedError):
            await broker.call("greeter.echo", timeout_s=-0.001)
    assert greeter.seen == []


async def test_times_at_the_edge(nodes: Nodes) -> None:
    greeter, *brokers = await two(nodes)
    greeter.gate.open()
    for broker in brokers:
        for timeout_s, expected in ((float("inf"), 0), (0, 0), (1e12, 1e12)):
            told = await broker.call("greeter.tell", timeout_s=timeout_s)
            assert told["timeout_s"] == expected
        assert await broker.call("greeter.wait", timeout_s=1e12) == "done"


async def test_whoever_gives_up_leaves_nothing_behind(nodes: Nodes) -> None:
    greeter, _, far = await two(nodes)
    waiting = asyncio.ensure_future(far.call("greeter.wait"))
    await greeter.gate.reached()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert far.statistics()["pending"] == 0
    greeter.gate.open()
    await eventually(lambda: far.statistics()["orphans"] == 1, "the answer comes too late")


# Who gets it.


async def test_an_action_that_nobody_has_is_not_found(nodes: Nodes) -> None:
    _, near, far = await two(nodes)
    for broker in (near, far):
        with pytest.raises(ServiceNotFoundError, match=r"'greeter.nix' is not found"):
            await broker.call("greeter.nix")
        with pytest.raises(ServiceNotFoundError, match="on 'else' node"):
            await broker.call("greeter.echo", node_id="else")
    await near.remove("greeter")
    await nodes.settle()
    for broker in (near, far):
        with pytest.raises(ServiceNotAvailableError):
            await broker.call("greeter.echo")


async def test_a_node_can_be_chosen(nodes: Nodes) -> None:
    class Where(Service):
        name = "where"

        @action
        def am_i(self, ctx: Context) -> str:
            return ctx.broker.node_id

    for name in ("one", "two", "three"):
        await nodes.add(name, Where())
    broker = nodes.brokers[0]
    for name in ("one", "two", "three"):
        assert await broker.call("where.am_i", node_id=name) == name
    assert {await broker.call("where.am_i") for _ in range(4)} == {"one"}
    outside = await nodes.add("outside")
    assert {await outside.call("where.am_i") for _ in range(4)} == {"one", "two", "three"}
    without = await nodes.add("without", Where(), prefers_local=False)
    assert len({await without.call("where.am_i") for _ in range(8)}) == 4


async def test_the_same_key_goes_to_the_same_node(nodes: Nodes) -> None:
    class Shards(Service):
        name = "shards"

        @action(strategy="Shard", strategy_options={"shardKey": "#tenant"})
        def am_i(self, ctx: Context) -> str:
            return ctx.broker.node_id

    for name in ("one", "two", "three"):
        await nodes.add(name, Shards())
    outside = await nodes.add("outside")
    chosen = {}
    for tenant in "abcdefghij":
        found = {await outside.call("shards.am_i", meta={"tenant": tenant}) for _ in range(3)}
        assert len(found) == 1
        chosen[tenant] = found.pop()
    assert len({*chosen.values()}) > 1


async def test_calls_within_calls_have_a_limit(nodes: Nodes) -> None:
    class Deep(Service):
        name = "deep"

        @action
        async def fall(self, ctx: Context) -> int:
            found: int = await ctx.call("deep.fall")
            return found

    near = await nodes.add("near", Deep(), max_call_level=3)
    far = await nodes.add("far", max_call_level=3)
    for broker in (near, far):
        with pytest.raises(MaxCallLevelError) as caught:
            await broker.call("deep.fall")
        assert (caught.value.data["nodeID"], caught.value.data["level"]) == ("near", 3)


# Several at once.


async def test_many_calls_at_once(nodes: Nodes) -> None:
    _, near, far = await two(nodes)
    for broker in (near, far):
        pairs = [("greeter.echo", 1), ("greeter.echo", 2)]
        assert await broker.mcall(pairs) == [1, 2]
        assert await broker.mcall({"x": ("greeter.echo", 1), "y": pairs[1]}) == {"x": 1, "y": 2}
        assert await broker.mcall([]) == []
        with pytest.raises(ServiceNotFoundError):
            await broker.mcall([*pairs, ("greeter.nix", None)])
        settled = await broker.mcall([*pairs, ("greeter.nix", None)], settled=True)
        assert settled[:2] == [1, 2]
        assert isinstance(settled[2], ServiceNotFoundError)


async def test_calls_that_make_no_sense_are_refused(nodes: Nodes) -> None:
    _, near, far = await two(nodes)
    pairs: Any = ["greeter.echo"]
    option: Any = {"timeout": 5}
    for broker in (near, far):
        with pytest.raises(UsageError, match=r"pairs of action and params, not 'greeter.echo'"):
            await broker.mcall(pairs)
        with pytest.raises(UsageError, match="no option 'timeout'; did you mean 'timeout_s'"):
            await broker.call("greeter.echo", **option)
    alone = Broker("alone")
    with pytest.raises(UsageError, match="start it first"):
        await alone.call("greeter.echo")
    with pytest.raises(UsageError, match="start it first"):
        await alone.emit("some.event")


async def test_a_broker_without_others(nodes: Nodes) -> None:
    broker = Broker("alone")
    broker.add(Greeter(), Relay())
    async with broker:
        assert await broker.call("greeter.echo", 5) == 5
        assert (await broker.call("v2.relay.on", {"action": "greeter.tell"}))[1]["level"] == 2
        assert not broker.is_connected
        assert (await broker.ping("alone")).elapsed_s == 0
        with pytest.raises(RequestTimeoutError):
            await broker.ping("else", timeout_s=0.01)
        await broker.emit("some.event")
        await broker.broadcast("some.event")
