"""Events whose sender waits until one handler of every group has succeeded."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest

from postroad.core.outcome import Outcome
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import (
    EventNotHandledError,
    MoleculerClientError,
    MoleculerError,
    QueueIsFullError,
    RequestRejectedError,
    RequestTimeoutError,
    ServiceNotAvailableError,
    ValidationError,
)
from postroad.services.middleware import Middleware
from postroad.services.packets import EventAck
from postroad.services.schema import ClientInfo
from postroad.services.service import Service, event
from postroad.services.transporters import MemoryHub, MemoryTransporter
from tests.support.deadlines import DEADLINE_S, eventually

EVENT = "order.created"


class Listener(Service):
    """Takes part in one group; does with an event what it is told."""

    def __init__(self, group: str, does: Callable[[Context], Any] | None = None) -> None:
        self.group = group
        self.does = does
        self.heard: list[Any] = []
        self.was_told = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def name(self) -> str:  # type: ignore[override]  # Each has a name of its own.
        return self.group

    @event("order.*")
    async def on_order(self, ctx: Context) -> None:
        self.heard.append(ctx.params)
        self.was_told.set()
        await self.gate.wait()
        if self.does is not None:
            self.does(ctx)


def failing(error: Exception) -> Callable[[Context], Any]:
    def does(ctx: Context) -> None:
        raise error

    return does


class Unsendable(ValueError):
    """Its data cannot be serialized, and neither can much else of it."""


@asynccontextmanager
async def nodes(*services: list[Listener], **settings: Any) -> AsyncIterator[list[Broker]]:
    """A node without services that sends, and one for each list of services."""
    hub = MemoryHub()
    settings = {"start_wait_s": 0.01, "announce_delay_s": 0.0, "stop_delay_s": 0.0, **settings}
    brokers = []
    for number, offered in enumerate([[], *services]):
        broker = Broker(f"n{number}", transporter=MemoryTransporter(hub), **settings)
        broker.add(*offered)
        brokers.append(broker)
    async with AsyncExitStack() as stack:
        for broker in brokers:
            await stack.enter_async_context(broker)
        for broker in brokers:
            for offered in services:
                await broker.wait_for_services([it.name for it in offered], timeout_s=DEADLINE_S)
        yield brokers


def held(group: str) -> Listener:
    """One whose handler waits for its gate."""
    listener = Listener(group)
    listener.gate.clear()
    return listener


async def test_every_group_handles_it_once() -> None:
    mails = Listener("mail"), Listener("mail")
    stock = Listener("stock")
    async with nodes([mails[0], stock], [mails[1]]) as (sender, *_):
        for number in range(4):
            await sender.emit(EVENT, number, ack=True)
        assert stock.heard == [0, 1, 2, 3]
        assert sorted(mails[0].heard + mails[1].heard) == [0, 1, 2, 3]
        assert len(mails[0].heard) == len(mails[1].heard) == 2
        assert len(sender._eventing().acks) == 0


async def test_it_waits_for_handlers_here_and_there() -> None:
    here, there = held("here"), held("there")
    async with nodes([here], [there]) as (_, sender, _other):
        waiting = asyncio.create_task(sender.emit(EVENT, 1, ack=True))
        await here.was_told.wait()
        await there.was_told.wait()
        here.gate.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        there.gate.set()
        await waiting


async def test_failures_are_told_for_each_group() -> None:
    wrong = ValidationError("what is this", data=[{"field": "id"}])
    groups = [
        Listener("good"),
        Listener("bad", failing(wrong)),
        Listener("worse", failing(Unsendable(object()))),
    ]
    async with nodes(groups) as (sender, _):
        with pytest.raises(EventNotHandledError, match="bad: what is this") as raised:
            await sender.emit(EVENT, 1, ack=True)
        failures = raised.value.failures
        assert [*failures] == ["bad", "worse"]
        assert isinstance(failures["bad"], ValidationError)
        assert failures["bad"].data == [{"field": "id"}]
        assert failures["bad"].node_id == "n1"
        assert failures["worse"].name == "Unsendable"  # type: ignore[attr-defined]  # From afar.
        assert not raised.value.retryable
        assert raised.value.outcome is Outcome.REPLIED


async def test_failures_of_this_node_and_odd_ones_are_told_too() -> None:
    error = MoleculerError("odd", data={"what": object()})
    groups = [Listener("bad", failing(KeyError("x"))), Listener("odd", failing(error))]
    async with nodes(groups) as (sender, owner):
        with pytest.raises(EventNotHandledError) as raised:
            await owner.emit(EVENT, ack=True)
        assert isinstance(raised.value.failures["bad"], KeyError)
        with pytest.raises(EventNotHandledError) as raised:
            await sender.emit(EVENT, ack=True, timeout_s=5)
        assert str(raised.value.failures["odd"]).startswith("odd")


async def test_a_broker_without_others_and_its_middlewares() -> None:
    seen: list[str] = []

    class Watching(Middleware):
        def emit(self, next: Any) -> Any:
            async def emit(ctx: Context, groups: Any) -> None:
                seen.append(ctx.event)
                await next(ctx, groups)

            return emit

    mail = Listener("mail")
    broker = Broker("alone", middlewares=[Watching()])
    broker.add(mail)
    async with broker:
        await broker.emit(EVENT, 1, ack=True)
        await broker.context().emit(EVENT, 2, ack=True)
    assert seen == [EVENT, EVENT]
    assert mail.heard == [1, 2]


async def test_only_the_groups_that_are_named_are_waited_for() -> None:
    mail, stock = Listener("mail"), Listener("stock")
    async with nodes([mail, stock]) as (sender, _):
        await sender.emit("nobody.listens", ack=True)
        await sender.emit(EVENT, 1, ack=True, groups=["stock"])
        assert (mail.heard, stock.heard) == ([], [1])
        with pytest.raises(EventNotHandledError) as raised:
            await sender.emit(EVENT, ack=True, groups=["mail", "other"])
        assert [*raised.value.failures] == ["other"]
        assert isinstance(raised.value.failures["other"], ServiceNotAvailableError)


async def test_two_patterns_of_one_group() -> None:
    class Two(Service):
        name = "two"

        def __init__(self) -> None:
            self.heard: list[str] = []

        @event("order.*")
        async def some(self, ctx: Context) -> None:
            self.heard.append("some")

        @event("**")
        def all(self, ctx: Context) -> None:
            self.heard.append("all")
            raise ValueError("one of two")

    two = Two()
    async with nodes([]) as (sender, other):
        await other.launch(two)
        await sender.wait_for_services("two", timeout_s=DEADLINE_S)
        with pytest.raises(EventNotHandledError, match="one of two"):
            await sender.emit(EVENT, ack=True, groups=["two"])
        assert sorted(two.heard[-2:]) == ["all", "some"]


async def test_time_out() -> None:
    slow, quick = held("slow"), Listener("quick")
    async with nodes([slow, quick]) as (sender, _):
        with pytest.raises(EventNotHandledError) as raised:
            await sender.emit(EVENT, ack=True, timeout_s=0.03)
        assert [*raised.value.failures] == ["slow"]
        assert isinstance(raised.value.failures["slow"], RequestTimeoutError)
        assert raised.value.outcome is Outcome.UNKNOWN
        assert raised.value.retryable
        slow.gate.set()
        await eventually(lambda: sender._eventing().acks.orphans > 0)
        # The late one did no harm.
        await sender.emit(EVENT, ack=True)


async def test_a_sender_that_is_ended_waits_no_more() -> None:
    slow = held("slow")
    async with nodes([slow]) as (sender, _):
        waiting = asyncio.create_task(sender.emit(EVENT, ack=True))
        await slow.was_told.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(sender._eventing().acks) == 0
        slow.gate.set()


async def test_the_node_is_lost() -> None:
    slow = held("slow")
    async with nodes([slow]) as (sender, _):
        waiting = asyncio.create_task(sender.emit(EVENT, ack=True))
        await slow.was_told.wait()
        assert sender._transporter is not None
        sender._transporter.listener.node_lost("n1", is_unexpected=True)
        with pytest.raises(EventNotHandledError) as raised:
            await waiting
        assert isinstance(raised.value.failures["slow"], RequestRejectedError)
        assert raised.value.outcome is Outcome.UNKNOWN
        slow.gate.set()


async def test_the_node_stops_meanwhile() -> None:
    slow = held("slow")
    async with nodes([slow], stop_timeout_s=0.02) as (sender, other):
        waiting = asyncio.create_task(sender.emit(EVENT, ack=True))
        await slow.was_told.wait()
        await other.stop()
        with pytest.raises(EventNotHandledError) as raised:
            await waiting
        assert isinstance(
            raised.value.failures["slow"], ServiceNotAvailableError | RequestRejectedError
        )


async def test_a_node_with_too_much_to_do_says_so() -> None:
    slow = held("slow")
    async with nodes([slow], events_max=1) as (sender, _):
        first = asyncio.create_task(sender.emit(EVENT, ack=True))
        await slow.was_told.wait()
        with pytest.raises(EventNotHandledError) as raised:
            await sender.emit(EVENT, ack=True)
        assert isinstance(raised.value.failures["slow"], QueueIsFullError)
        slow.gate.set()
        await first


async def test_too_many_that_wait() -> None:
    slow = held("slow")
    async with nodes([slow], pending_max=2) as (sender, _):
        waiting = [asyncio.create_task(sender.emit(EVENT, ack=True)) for _ in range(2)]
        await eventually(lambda: len(slow.heard) == 2)
        with pytest.raises(QueueIsFullError):
            await sender.emit(EVENT, ack=True)
        slow.gate.set()
        await asyncio.gather(*waiting)


def make_foreign(sender: Broker, node_id: str) -> None:
    """Have a node taken for one of the original system."""
    node = sender.registry.node(node_id)
    assert node is not None
    node.info = msgspec.structs.replace(node.info, client=ClientInfo(type="nodejs"))


async def test_nodes_that_cannot_are_refused_before_anything_is_sent() -> None:
    able, foreign = Listener("able"), Listener("foreign")
    mixed = [Listener("mixed"), Listener("mixed")]
    async with nodes([able, mixed[0]], [foreign, mixed[1]]) as (sender, *_):
        make_foreign(sender, "n2")
        with pytest.raises(MoleculerClientError, match="'n2' in group 'foreign'") as raised:
            await sender.emit(EVENT, ack=True)
        assert raised.value.outcome is Outcome.NOT_SENT
        await sender.emit(EVENT, 2, ack=True, groups=["able"])
        assert (able.heard, foreign.heard) == ([2], [])
        # Those that can are preferred.
        for number in range(4):
            await sender.emit(EVENT, number, ack=True, groups=["mixed"])
        assert [it.heard for it in mixed] == [[0, 1, 2, 3], []]


async def test_acks_that_nobody_asked_for() -> None:
    slow = held("slow")
    async with nodes([slow], [Listener("other")]) as (sender, _, other):
        waiting = asyncio.create_task(sender.emit(EVENT, ack=True, groups=["slow"]))
        await slow.was_told.wait()
        acks = sender._eventing().acks
        ((id, group),) = acks._expected
        ack = EventAck(id=id, success=True, group=group, ver="5", sender="n2")
        assert other._engine is not None
        assert other._engine.network is not None
        transit = other._engine.network.transit
        # From a node that was not asked, for another group, and for nothing known.
        transit.send(ack, "n0")
        transit.send(msgspec.structs.replace(ack, sender="n1", group="other"), "n0")
        transit.send(msgspec.structs.replace(ack, sender="n1", id="unknown"), "n0")
        await eventually(lambda: acks.orphans == 3)
        assert not waiting.done()
        # Twice from the right one.
        for _ in range(2):
            transit.send(msgspec.structs.replace(ack, sender="n1"), "n0")
        await waiting
        slow.gate.set()


async def test_where_the_transporter_chooses() -> None:
    mails = Listener("mail"), Listener("mail")
    stock = Listener("stock", failing(ValueError("sold out")))
    async with nodes([mails[0], stock], [mails[1]], uses_balancer=False) as (sender, *_):
        await sender.emit(EVENT, 1, ack=True, groups=["mail"])
        assert mails[0].heard + mails[1].heard == [1]
        with pytest.raises(EventNotHandledError) as raised:
            await sender.emit(EVENT, 2, ack=True)
        assert [*raised.value.failures] == ["stock"]
        make_foreign(sender, "n2")
        with pytest.raises(MoleculerClientError, match="'n2'"):
            await sender.emit(EVENT, 3, ack=True)
        assert 3 not in mails[0].heard + mails[1].heard
