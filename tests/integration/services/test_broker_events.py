"""Events: groups, wildcards, broadcasts, and what handlers get."""

import asyncio
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import BrokerDisconnectedError, UnsendablePacket
from postroad.services.kinds import Kind
from postroad.services.service import Service, action, event
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.services.nodes import Gate, Nodes, RawNode


class Ear(Service):
    """Hears everything about users; in the group of its name, or another."""

    def __init__(self, name: str = "ear") -> None:
        self.name = name
        self.heard: list[Context] = []

    @property
    def names(self) -> list[str]:
        return [it.event for it in self.heard]

    @event("user.*")
    async def on_user(self, ctx: Context) -> None:
        self.heard.append(ctx)


class Grouped(Ear):
    @event("user.*", group="mail")
    async def on_user(self, ctx: Context) -> None:
        self.heard.append(ctx)


async def quiet(*nodes: Broker) -> None:
    """Wait until no packet is on its way and no handler runs."""
    for _ in range(5):
        await asyncio.sleep(0)
    await eventually(lambda: not sum(it.statistics()["eventsRunning"] for it in nodes), "quiet")


async def test_one_of_each_group_gets_an_event(nodes: Nodes) -> None:
    ears = {name: [Ear(), Grouped("grouped")] for name in ("one", "two", "three")}
    for name, services in ears.items():
        await nodes.add(name, *services)
    outside = await nodes.add("outside")
    for number in range(6):
        await outside.emit("user.created", {"number": number})
    await quiet(*nodes.brokers)
    for place in (0, 1):
        heard = [ctx.params["number"] for it in ears.values() for ctx in it[place].heard]
        assert sorted(heard) == [0, 1, 2, 3, 4, 5]
        assert all(it[place].heard for it in ears.values())


async def test_a_handler_at_this_node_is_preferred(nodes: Nodes) -> None:
    near, far = Ear(), Ear()
    broker = await nodes.add("near", near)
    await nodes.add("far", far)
    for _ in range(3):
        await broker.emit("user.created")
    await quiet(*nodes.brokers)
    assert (len(near.heard), len(far.heard)) == (3, 0)


async def test_only_the_groups_that_were_named(nodes: Nodes) -> None:
    ear, grouped = Ear(), Grouped("grouped")
    near = await nodes.add("near", ear, grouped)
    far = await nodes.add("far")
    for broker in (near, far):
        ear.heard.clear()
        grouped.heard.clear()
        await broker.emit("user.created", groups=["mail"])
        await broker.broadcast("user.broadcast", groups=["ear", "unknown"])
        await broker.emit("user.nobody", groups=["unknown"])
        await quiet(near, far)
        assert (ear.names, grouped.names) == (["user.broadcast"], ["user.created"])


async def test_a_broadcast_comes_to_all(nodes: Nodes) -> None:
    ears = [Ear() for _ in range(3)]
    for number, ear in enumerate(ears):
        await nodes.add(f"node-{number}", ear)
    await nodes.brokers[0].broadcast("user.created", 5)
    await quiet(*nodes.brokers)
    assert [[ctx.params for ctx in it.heard] for it in ears] == [[5], [5], [5]]
    assert all(it.heard[0].is_broadcast for it in ears)
    await nodes.brokers[0].broadcast_local("user.here")
    await quiet(*nodes.brokers)
    assert [it.names[1:] for it in ears] == [["user.here"], [], []]


PATTERNS = {
    "user.created": (["user.created"], ["user", "user.created.now", "User.created"]),
    "user.*": (["user.created"], ["user", "user.created.now"]),
    "user.**": (["user.created", "user.created.now"], ["user", "users.created"]),
    "**": (["user", "user.created.now"], []),
    "*.created": (["user.created"], ["user.created.now", "user.gone"]),
    "user.?reated": (["user.created"], ["user.reated"]),
    "$own.*": (["$own.event"], ["own.event"]),
}


def wild(pattern: str, heard: list[str]) -> Service:
    class Wild(Service):
        name = "wild"

        @event(pattern)
        def on_it(self, ctx: Context) -> None:
            # Of all events of this node, too.
            if not ctx.event.startswith(("$node", "$services", "$broker", "$transporter")):
                heard.append(ctx.event)

    return Wild()


async def test_wildcards(nodes: Nodes) -> None:
    near, far = await nodes.add("near"), await nodes.add("far")
    for pattern, (fits, others) in PATTERNS.items():
        heard: list[str] = []
        await near.launch(wild(pattern, heard))
        await far.wait_for_services("wild", timeout_s=DEADLINE_S)
        for broker in (near, far):
            heard.clear()
            for name in (*fits, *others):
                await broker.emit(name)
            await quiet(near, far)
            assert heard == fits, pattern
        await near.remove("wild")
        await nodes.settle()


async def test_what_a_handler_gets(nodes: Nodes) -> None:
    ear = Ear()
    near, far = await nodes.add("near", ear), await nodes.add("far")
    for broker in (near, far):
        await broker.emit("user.created", {"id": 1}, meta={"m": 1}, headers={"h": 1})
        await broker.emit("user.created")
    await quiet(near, far)
    for ctx, node_id in zip(ear.heard[::2], ("near", "far"), strict=True):
        assert (ctx.event, ctx.params, ctx.meta) == ("user.created", {"id": 1}, {"m": 1})
        assert (ctx.headers, ctx.level, ctx.caller) == ({"h": 1}, 1, None)
        assert (ctx.node_id, ctx.parent_id, ctx.is_broadcast) == (node_id, None, False)
        assert ctx.id != ctx.request_id
    assert [ctx.params for ctx in ear.heard[1::2]] == [None, None]


@pytest.mark.parametrize("where", ["near", "far"])
async def test_events_and_calls_of_a_handler_belong_together(nodes: Nodes, where: str) -> None:
    class Chain(Service):
        name = "chain"

        @action
        async def begin(self, ctx: Context) -> str:
            ctx.meta["begun"] = True
            await ctx.emit("chain.step", {"n": 1}, meta={"more": 1})
            return ctx.id

        @event("chain.step")
        async def on_step(self, ctx: Context) -> None:
            await ctx.broadcast("user.stepped")
            assert await ctx.call("other.tell") == ("chain", 3)

    class Other(Ear):
        @action
        async def tell(self, ctx: Context) -> tuple[str | None, int]:
            return ctx.caller, ctx.level

    other = Other("other")
    near = await nodes.add("near", Chain(), other)
    far = await nodes.add("far")
    broker = near if where == "near" else far
    ctx = broker.context()
    await ctx.call("chain.begin", request_id="root")
    await quiet(near, far)
    assert near.statistics()["eventsFailed"] == 0
    heard = other.heard[0]
    assert (heard.level, heard.caller, heard.request_id) == (3, "chain", "root")
    assert heard.meta == {"begun": True, "more": 1}
    assert ctx.meta == {"begun": True}


async def test_handlers_cannot_harm_each_other(nodes: Nodes) -> None:
    class Rude(Ear):
        @event("user.*")
        def on_user(self, ctx: Context) -> None:  # type: ignore[override]
            ctx.meta["rude"] = True
            self.heard.append(ctx)
            raise ValueError("rude")

    rude, polite = Rude("a-rude"), Ear("b-polite")
    near, far = await nodes.add("near", rude, polite), await nodes.add("far")
    for broker in (near, far):
        await broker.broadcast("user.created", meta={"m": 1})
    await quiet(near, far)
    assert [it.meta for it in polite.heard] == [{"m": 1}, {"m": 1}]
    assert len(rude.heard) == near.statistics()["eventsFailed"] == 2


async def test_params_of_events_are_checked(nodes: Nodes) -> None:
    heard: list[Any] = []

    class Typed(Service):
        name = "typed"

        @event("typed")
        async def on_typed(self, ctx: Context, id: int, name: str = "x") -> None:
            heard.append((id, name))

        @event("schemed", params={"id": "number"})
        async def on_schemed(self, ctx: Context) -> None:
            heard.append(ctx.params)

    near, far = await nodes.add("near", Typed()), await nodes.add("far")
    for name in ("typed", "schemed"):
        await far.emit(name, {"id": 1})
        await far.emit(name, {"id": "x"})
    await quiet(near, far)
    assert heard == [(1, "x"), {"id": 1}]
    assert near.statistics()["eventsFailed"] == 2


async def test_a_handler_that_gives_something_to_wait_for(nodes: Nodes) -> None:
    ear = Ear("inner")

    class Indirect(Service):
        name = "indirect"

        @event("indirect")
        def on_it(self, ctx: Context) -> Any:
            return ear.on_user(ctx)

    near, far = await nodes.add("near", Indirect()), await nodes.add("far")
    await near.emit("indirect")
    await far.emit("indirect")
    await quiet(near, far)
    assert len(ear.heard) == 2


async def test_what_happens_to_nodes_is_told_to_handlers(nodes: Nodes) -> None:
    told: list[tuple[str, Any]] = []

    class Watcher(Service):
        name = "watcher"

        @event("$**")
        def on_anything(self, ctx: Context) -> None:
            told.append((ctx.event, ctx.params))

    near = await nodes.add("near", Watcher())
    names = [name for name, _ in told]
    assert names[-1] == "$broker.started"
    assert ("$services.changed", {"localService": True}) in told
    told.clear()
    far = await nodes.add("far", Ear())
    assert ("$node.connected", {"node": "far", "reconnected": False}) in told
    assert ("$services.changed", {"localService": False}) in told
    await near.ping("far")
    assert told[-1][0] == "$node.pong"
    assert told[-1][1]["nodeID"] == "far"
    told.clear()
    await far.launch(Ear("another"))
    await nodes.settle()
    assert ("$node.updated", {"node": "far"}) in told
    await far.stop()
    gone = ("$node.disconnected", {"node": "far", "unexpected": False})
    await eventually(lambda: gone in told, "it is gone")
    await nodes.add("far")
    assert ("$node.connected", {"node": "far", "reconnected": True}) in told
    await near.stop()
    assert ("$broker.stopped", {}) in told


async def test_an_event_that_cannot_be_sent_is_handled_here(nodes: Nodes) -> None:
    ear = Ear()
    near = await nodes.add("near", ear)
    await nodes.add("far", Ear("other"))
    with pytest.raises(UnsendablePacket):
        await near.emit("user.created", {"x": object()})
    await quiet(near)
    assert len(ear.heard) == 1
    transporter = near._transporter
    assert transporter is not None
    await transporter.disconnect()
    with pytest.raises(BrokerDisconnectedError):
        await near.broadcast("user.created")
    await quiet(near)
    assert len(ear.heard) == 2


async def test_names_that_are_none(nodes: Nodes) -> None:
    near = await nodes.add("near")
    for name in ("", "with space", "a" * 256):
        with pytest.raises(ConfigError):
            await near.emit(name)


# As raw packets.


async def raw_and_ear(nodes: Nodes) -> tuple[Broker, RawNode, Ear, Grouped]:
    ear, grouped = Ear(), Grouped("grouped")
    broker = await nodes.add("near", ear, grouped)
    return broker, await nodes.raw("raw"), ear, grouped


async def test_the_least_of_an_event_is_enough(nodes: Nodes) -> None:
    near, raw, ear, grouped = await raw_and_ear(nodes)
    raw.send(Kind.EVENT, "near", event="user.created")
    await eventually(lambda: ear.heard and grouped.heard, "both heard it")
    raw.send(Kind.EVENT, "near", event="user.created", groups=["mail", "mail", "mail"])
    await eventually(lambda: len(grouped.heard) == 2, "only one heard it")
    await quiet(near)
    assert (ear.heard[0].params, ear.heard[0].meta, ear.heard[0].level) == (None, {}, 1)
    assert (len(ear.heard), len(grouped.heard)) == (1, 2)


async def test_an_event_on_the_wire(nodes: Nodes) -> None:
    near, raw, _, _ = await raw_and_ear(nodes)
    raw.introduce({"name": "far", "fullName": "far", "events": {"user.*": {"name": "user.*"}}})
    await near.wait_for_services("far", timeout_s=30)
    await near.emit("user.created", {"id": 1}, meta={"m": 1})
    await near.broadcast("user.gone")
    packet, broadcast = await raw.next(Kind.EVENT), await raw.next(Kind.EVENT, 2)
    assert [*packet] == [
        *("id", "event", "data", "groups", "broadcast", "meta", "headers", "level", "tracing"),
        *("parentID", "requestID", "caller", "needAck", "ver", "sender"),
    ]
    assert (packet["event"], packet["data"]) == ("user.created", {"id": 1})
    assert (packet["groups"], packet["broadcast"], packet["needAck"]) == (["far"], False, None)
    assert (broadcast["broadcast"], broadcast["data"]) == (True, None)
    assert "groups" not in broadcast


async def test_more_events_than_can_be_handled_are_dropped(nodes: Nodes) -> None:
    gate, handled = Gate(), []

    class Slow(Service):
        name = "slow"

        @event("slow")
        async def on_slow(self, ctx: Context) -> None:
            await gate.passed()
            handled.append(ctx.params)

    near = await nodes.add("near", Slow(), events_max=3)
    far = await nodes.add("far")
    for number in range(10):
        await far.emit("slow", number)
    await eventually(lambda: near.statistics()["eventsDropped"] == 7, "the rest is dropped")
    gate.open()
    await eventually(lambda: handled == [0, 1, 2], "the first were handled")
    await far.emit("slow", 10)
    await eventually(lambda: handled[-1] == 10, "there is room again")
