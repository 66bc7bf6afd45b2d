"""What the actions of a service take, as JSON Schema."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from postroad.services import Broker, Context, Service, action
from postroad.services.action_schemas import action_schemas, described


class Item(msgspec.Struct):
    name: str


class Shop(Service):
    name = "shop"
    version = 2

    @action
    async def sell(self, ctx: Context, item: Item, count: int = 1) -> None:
        """Typed."""

    @action
    async def restock(self, ctx: Context, params: list[Item]) -> None:
        """All params at once."""

    @action(params={"id": "number"})
    async def find(self, ctx: Context) -> None:
        """By a schema."""

    @action
    async def close(self, ctx: Context) -> None:
        """Takes nothing."""

    @action(name="other")
    async def renamed(self, ctx: Context, id: str) -> AsyncIterator[bytes] | None:
        """Has another name."""


class Bare(Service):
    name = "bare"
    settings = {"$noServiceNamePrefix": True}  # noqa: RUF012

    @action
    async def ping(self, ctx: Context, text: str) -> None:
        """Is called by its own name."""


async def test_actions_say_what_they_take() -> None:
    shop, bare = Shop(), Bare()
    Broker("node-1").add(shop, bare)
    schemas = action_schemas(shop)
    assert [*schemas] == ["v2.shop.sell", "v2.shop.restock", "v2.shop.find", "v2.shop.other"]
    sell = schemas["v2.shop.sell"]
    assert sell["required"] == ["item"]
    assert sell["properties"]["count"] == {"type": "integer", "default": 1}
    assert [*sell["$defs"]] == ["Item"]
    assert schemas["v2.shop.restock"]["type"] == "array"
    assert schemas["v2.shop.find"]["properties"]["id"] == {"type": "number"}
    assert [*action_schemas(bare)] == ["ping"]
    for params in (None, "text", {"id": {"type": "of my own"}}):
        assert described(params) is None, params
