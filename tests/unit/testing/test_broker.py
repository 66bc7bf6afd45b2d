"""The broker for users' unit tests."""

import asyncio
import inspect
import textwrap
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.services.context import Context
from postroad.services.errors import (
    MoleculerError,
    RequestTimeoutError,
    ServiceNotFoundError,
    ValidationError,
)
from postroad.services.middleware import Middleware
from postroad.services.service import Service, action, event
from postroad.testing import TestBroker


class Shop(Service):
    name = "shop"

    def __init__(self) -> None:
        self.heard: list[Any] = []

    @action
    async def order(self, ctx: Context, item: str) -> Any:
        sent = await ctx.call("mail.send", {"about": item}, meta={"lang": "en"})
        await ctx.emit("shop.ordered", {"item": item})
        return sent

    @action
    def price(self, ctx: Context, item: str) -> int:
        return len(item)

    @action
    async def total(self, ctx: Context) -> int:
        return int(await ctx.call("shop.price", {"item": "tea"})) + 1

    @action
    async def spread(self, ctx: Context) -> None:
        await ctx.broadcast("shop.news", 1, groups=["a"])
        await self.broker.broadcast_local("shop.local", 2)

    @event("shop.ordered")
    async def on_ordered(self, ctx: Context) -> None:
        await asyncio.sleep(0.001)
        self.heard.append(ctx.params)
        await ctx.emit("shop.noted")

    @event("shop.noted")
    async def on_noted(self, ctx: Context) -> None:
        await asyncio.sleep(0.001)
        self.heard.append("noted")

    @event("shop.broken")
    def on_broken(self, ctx: Context) -> None:
        raise ValueError("broken")


def example() -> str:
    """The program in the description of the class."""
    text = inspect.getdoc(TestBroker) or ""
    blocks = [block for block in text.split("\n\n") if block.startswith("    ")]
    return textwrap.dedent("\n\n".join(blocks)).partition("\nServices,")[0]


async def test_the_example_runs() -> None:
    names: dict[str, Any] = {
        "Service": Service,
        "action": action,
        "Context": Context,
        "TestBroker": TestBroker,
    }
    program = example()
    assert "async def test_an_order_is_confirmed" in program
    exec(compile(program, "example", "exec"), names)
    await names["test_an_order_is_confirmed"]()


async def test_a_service_is_called() -> None:
    async with TestBroker(Shop()) as broker:
        assert await broker.call("shop.price", {"item": "tea"}) == 3


async def test_calls_are_written_down() -> None:
    async with TestBroker(Shop()) as broker:
        broker.stub("mail.send")
        await broker.call("shop.order", {"item": "tea"}, headers={"h": 1})
        assert [call.action for call in broker.calls] == ["shop.order", "mail.send"]
        (call,) = broker.calls_to("mail.*")
        assert (call.params, call.meta, call.caller) == ({"about": "tea"}, {"lang": "en"}, "shop")
        assert broker.calls_to("shop.order")[0].headers == {"h": 1}
        assert broker.calls_to("shop.order")[0].caller is None


async def test_events_are_recorded() -> None:
    async with TestBroker(Shop()) as broker:
        await broker.call("shop.spread")
        await broker.emit("unheard.of", meta={"m": 1})
        events = [(event.event, event.data, event.groups, event.method) for event in broker.events]
        assert events == [
            ("shop.news", 1, ("a",), "broadcast"),
            ("shop.local", 2, (), "broadcast_local"),
            ("unheard.of", None, (), "emit"),
        ]
        assert broker.events_named("unheard.of")[0].meta == {"m": 1}
        broker.clear_records()
        assert (broker.calls, broker.events) == ([], [])


async def test_stub_returns_raises_or_calls_side_effect() -> None:
    async with TestBroker(Shop()) as broker:
        broker.stub("mail.send", return_value={"ok": True})
        assert await broker.call("mail.send") == {"ok": True}
        broker.stub("mail.send", raises=RequestTimeoutError(data={}))
        with pytest.raises(RequestTimeoutError):
            await broker.call("shop.order", {"item": "tea"})
        assert await broker.call("mail.send", fallback="later") == "later"
        broker.stub("mail.send", side_effect=lambda ctx: ctx.params["n"] + 1)
        assert await broker.call("mail.send", {"n": 1}) == 2

        async def slowly(ctx: Context) -> str:
            ctx.meta["seen"] = True
            return ctx.action

        stub = broker.stub("mail.send", side_effect=slowly)
        ctx = broker.context(meta={"user": 1})
        assert await ctx.call("mail.send", headers={"h": 2}) == "mail.send"
        assert ctx.meta == {"user": 1, "seen": True}
        assert stub.calls[0].meta["user"] == 1
        assert stub.calls[0].headers == {"h": 2}
        broker.unstub("mail.send")
        with pytest.raises(ServiceNotFoundError):
            await broker.call("mail.send")


async def test_stub_overrides_the_service_and_has_one_effect() -> None:
    async with TestBroker(Shop()) as broker:
        broker.stub("shop.price", return_value=100)
        assert await broker.call("shop.total") == 101
        broker.unstub("shop.price")
        assert await broker.call("shop.total") == 4

    broker = TestBroker()
    with pytest.raises(UsageError, match="only one"):
        broker.stub("mail.send", return_value=1, raises=ValueError())


async def test_wait_for_handlers_includes_events_of_handlers_and_durable_ones() -> None:
    shop = Shop()
    async with TestBroker(shop) as broker:
        await broker.emit("shop.ordered", 1)
        await broker.wait_for_handlers()
        assert shop.heard == [1, "noted"]

    shop = Shop()
    async with TestBroker(shop) as broker:
        await broker.emit("shop.noted", durable=True)
        await broker.emit("shop.noted", ack=True)
        await broker.wait_for_handlers()
        assert shop.heard == ["noted", "noted"]
        assert len(broker.events_named("shop.noted")) == 2


async def test_wait_for_handlers_raises_handler_error() -> None:
    async with TestBroker(Shop()) as broker:
        await broker.emit("shop.broken")
        with pytest.raises(ValueError, match="broken"):
            await broker.wait_for_handlers()
        await broker.wait_for_handlers()


async def test_a_stub_stands_in_for_a_service_that_is_waited_for() -> None:
    class Needy(Service):
        name = "needy"
        dependencies = ("v2.mail", "shop")
        dependency_timeout_s = 0.05

    broker = TestBroker(Needy(), Shop())
    broker.stub("v2.mail.send")
    async with broker:
        assert broker.registry.has_service("needy")
    with pytest.raises(MoleculerError, match=r"v2\.mail"):
        await TestBroker(Needy(), Shop()).start()


async def test_all_else_is_as_usual() -> None:
    seen: list[str] = []

    class Watching(Middleware):
        def call(self, next: Any) -> Any:
            async def call(action: str, params: Any, options: Any) -> Any:
                seen.append(action)
                return await next(action, params, options)

            return call

    async with TestBroker(Shop(), middlewares=[Watching()], request_timeout_s=1) as broker:
        broker.stub("mail.send")
        with pytest.raises(ValidationError):
            await broker.call("shop.price", {"item": 1})
        await broker.call("mail.send")
    assert seen == ["shop.price", "mail.send"]
