"""Durable events between nodes with mail."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad.core.errors import ConfigError, Reject, UsageError
from postroad.core.outcome import Outcome
from postroad.durable import DurableQueues, MemoryStore, StaticPeerDirectory
from postroad.net import MessagingService
from postroad.node import DurableEvents
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.durability import METADATA
from postroad.services.errors import MoleculerClientError, UnsendablePacket
from postroad.services.middleware import Middleware
from postroad.services.transporters import MemoryHub
from tests.integration.node.event_nodes import (
    EVENT,
    Listener,
    Node,
    all_handled,
    introduce,
    started,
)
from tests.support.deadlines import eventually


async def test_every_group_handles_each_event_once(tmp_path: Path) -> None:
    hub = MemoryHub()
    sender = Node("sender", tmp_path, hub)
    left = Node("left", tmp_path, hub, Listener("mail"), Listener("stock"))
    right = Node("right", tmp_path, hub, Listener("mail"))
    async with started(sender, left, right):
        for number in range(30):
            await sender.emit(number)
        await all_handled(sender, left, right)
        mail = [await left.heard("mail"), await right.heard("mail")]
        assert sorted(mail[0] + mail[1]) == [*range(30)]
        assert all(mail), "both take their part"
        assert sorted(await left.heard("stock")) == [*range(30)]


async def test_this_node_comes_first(tmp_path: Path) -> None:
    hub = MemoryHub()
    here, there = (Node(name, tmp_path, hub, Listener("mail")) for name in ("here", "there"))
    async with started(here, there):
        for number in range(10):
            await here.emit(number)
        await all_handled(here, there)
        assert sorted(await here.heard("mail")) == [*range(10)]


async def test_what_a_handler_gets(tmp_path: Path) -> None:
    hub, listener = MemoryHub(), Listener("mail")
    sender, other = Node("sender", tmp_path, hub), Node("other", tmp_path, hub, listener)
    async with started(sender, other):
        ctx = sender.broker.context(meta={"user": 1})
        await ctx.emit(EVENT, {"number": 5}, durable=True, headers={"h": b"\x00"})
        await all_handled(sender, other)
        (got,) = listener.contexts
        assert (got.event, got.groups, got.node_id) == (EVENT, ("mail",), "sender")
        assert (got.meta, got.headers, got.level) == ({"user": 1}, {"h": b"\x00"}, 1)
        assert (got.request_id, got.service) == (ctx.request_id, "mail")
        assert got.params == {"number": 5}


async def test_a_node_that_is_away_gets_it_later(tmp_path: Path) -> None:
    hub = MemoryHub()
    sender, other = Node("sender", tmp_path, hub), Node("other", tmp_path, hub, Listener("mail"))
    async with started(sender, other):
        await other.events.stop()
        await other.mail.stop()
        for number in range(5):
            await sender.emit(number)
        await other.broker.stop()
        await other.service.stop()
        again = Node("other", tmp_path, hub, Listener("mail"))
        async with started(again):
            introduce(sender, again)
            await all_handled(sender, again)
            assert sorted(await again.heard("mail")) == [*range(5)]


async def test_a_group_that_is_named_may_come_later(tmp_path: Path) -> None:
    hub = MemoryHub()
    sender = Node("sender", tmp_path, hub)
    async with started(sender):
        await sender.emit(1)
        assert await sender.waiting() == 0
        await sender.emit(2, groups=["late", "never"])
        late = Node("late", tmp_path, hub, Listener("late"))
        async with started(late):
            introduce(sender, late)
            # That of the other group waits on.
            await all_handled(sender, late, but=1)
            assert await late.heard("late") == [2]


async def test_an_event_follows_a_group_that_moved(tmp_path: Path) -> None:
    hub = MemoryHub()
    sender, old = Node("sender", tmp_path, hub), Node("old", tmp_path, hub, Listener("mail"))
    new = Node("new", tmp_path, hub)
    async with started(sender, old, new):
        await old.events.stop()
        await sender.emit(1)
        await eventually(old.waiting)
        await old.broker.remove("mail")
        await new.broker.launch(Listener("mail"))
        await old.broker.wait_for_services("mail", timeout_s=20)
        await old.events.start()
        await all_handled(sender, old, new)
        assert await new.heard("mail") == [1]


async def test_a_handler_that_fails_is_tried_again_and_writes_once(tmp_path: Path) -> None:
    def does(ctx: Context) -> None:
        if listener.attempts < 3:
            raise ValueError("not yet")

    hub, listener = MemoryHub(), Listener("mail", does)
    node = Node("node", tmp_path, hub, listener)
    async with started(node):
        await node.emit(1)
        await all_handled(node)
        assert listener.attempts == 3
        assert await node.heard("mail") == [1]
        assert await node.dead() == []


@pytest.mark.parametrize(
    ("error", "data", "attempts", "reason"),
    [
        (ValueError("never"), {"number": 1}, 3, "failed"),
        (Reject("not this"), {"number": 1}, 1, "rejected"),
        (None, {"number": "one"}, 0, "rejected"),
    ],
    ids=["fails", "rejects", "invalid"],
)
async def test_what_cannot_be_handled_is_a_dead_letter(
    tmp_path: Path, error: Exception | None, data: Any, attempts: int, reason: str
) -> None:
    def does(ctx: Context) -> None:
        assert error is not None
        raise error

    hub, listener = MemoryHub(), Listener("mail", does)
    node = Node("node", tmp_path, hub, listener, Listener("stock"))
    async with started(node):
        await node.broker.emit(EVENT, data, durable=True, groups=["mail"])
        await all_handled(node)
        (dead,) = await node.dead()
        assert dead.reason == reason
        assert listener.attempts == attempts
        assert await node.heard("mail") == []


async def test_events_of_handlers_belong_to_their_transaction(tmp_path: Path) -> None:
    async def goes_on(ctx: Context) -> None:
        await ctx.emit("paid", {"number": 2}, durable=True, groups=["books"])
        if first.attempts == 1:
            raise ValueError("after it was emitted")

    hub = MemoryHub()
    first = Listener("mail", goes_on)
    node, books = Node("node", tmp_path, hub, first), Node("books", tmp_path, hub)

    async with started(node, books):
        await node.emit(1)
        await eventually(lambda: node.heard("mail"))
        # Nobody listens to the second one: it waits, once.
        await all_handled(node, but=1)
        assert (first.attempts, await node.heard("mail")) == (2, [1])


async def test_in_a_transaction_of_the_user(tmp_path: Path) -> None:
    hub, listener = MemoryHub(), Listener("mail")
    node = Node("node", tmp_path, hub, listener)
    async with started(node):
        with pytest.raises(ZeroDivisionError):
            async with node.mail.transaction() as tx:
                await node.emit(1, transaction=tx)
                raise ZeroDivisionError
        async with node.mail.transaction() as tx:
            await tx.execute("INSERT INTO heard VALUES ('mine', 7)")
            await node.emit(2, transaction=tx)
        await all_handled(node)
        assert await node.heard("mail") == [2]
        assert await node.heard("mine") == [7]


async def test_an_idempotency_key(tmp_path: Path) -> None:
    hub = MemoryHub()
    sender = Node("sender", tmp_path, hub, prefers_local=False)
    nodes = [Node(name, tmp_path, hub, Listener("mail")) for name in ("a", "b")]
    async with started(sender, *nodes):
        for _ in range(3):
            await sender.emit(1, idempotency_key="order 1")
            await sender.emit(2, idempotency_key="order 2")
        await all_handled(sender, *nodes)
        heard = [number for node in nodes for number in await node.heard("mail")]
        assert sorted(heard) == [1, 2]


async def test_nodes_that_cannot_are_refused(tmp_path: Path) -> None:
    hub = MemoryHub()
    sender, other = Node("sender", tmp_path, hub), Node("other", tmp_path, hub, Listener("mail"))
    async with started(sender, other):
        known = sender.broker.registry.node("other")
        assert known is not None
        assert known.info.metadata[METADATA] is True
        known.info = msgspec.structs.replace(known.info, metadata={})
        with pytest.raises(MoleculerClientError, match=r"group 'mail' \(other\)") as raised:
            await sender.emit(1)
        assert raised.value.outcome is Outcome.NOT_SENT
        assert await sender.waiting() == 0


async def test_what_cannot_be_written_down(tmp_path: Path) -> None:
    node = Node("node", tmp_path, MemoryHub(), Listener("mail"))
    async with started(node):
        with pytest.raises(UnsendablePacket, match="cannot be kept"):
            await node.broker.emit(EVENT, object(), durable=True)
        await node.mail.send("services.events", b"\xc1 nonsense", to="node")
        await all_handled(node)
        (dead,) = await node.dead()
        assert dead.reason == "rejected"


async def test_without_anything_that_carries_them() -> None:
    async with Broker("a") as broker:
        with pytest.raises(UsageError, match="DurableEvents"):
            await broker.emit(EVENT, durable=True)
        with pytest.raises(UsageError, match="either"):
            await broker.emit(EVENT, durable=True, ack=True)
        with pytest.raises(UsageError, match="only durable events"):
            await broker.emit(EVENT, idempotency_key="x")
        with pytest.raises(UsageError, match="no transaction"):
            broker.context().transaction  # noqa: B018


async def test_wrong_uses(tmp_path: Path) -> None:
    service = MessagingService("test", "node")
    mail = DurableQueues(service, MemoryStore(), directory=StaticPeerDirectory())
    with pytest.raises(ConfigError, match="same node"):
        DurableEvents(Broker("other"), mail)
    broker = Broker("node")
    events = DurableEvents(broker, mail)
    with pytest.raises(UsageError, match="start the broker"):
        await events.start()
    await events.stop()
    async with Broker("node") as running:
        with pytest.raises(UsageError, match="runs already"):
            DurableEvents(running, mail)


async def test_middlewares_are_around_it(tmp_path: Path) -> None:
    seen: list[str] = []

    class Watching(Middleware):
        def emit(self, next: Any) -> Any:
            async def emit(ctx: Context, groups: Any) -> None:
                seen.append(ctx.event)
                await next(ctx, groups)

            return emit

    node = Node("node", tmp_path, MemoryHub(), Listener("mail"), middlewares=[Watching()])
    async with started(node):
        await node.emit(1)
        await all_handled(node)
    assert seen == [EVENT]
