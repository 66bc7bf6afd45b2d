"""Types of queues are announced, and a queue with two types in one cluster is warned of."""

from __future__ import annotations

import contextlib
import logging
import types
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from postroad import App, Node, Queue, consumer
from postroad.core.errors import ConfigError, UsageError
from postroad.node.app import app_of
from tests.support.deadlines import eventually
from tests.support.node.configs import config_of


class Order(msgspec.Struct):
    item: str
    count: int = 1


class LargerOrder(msgspec.Struct):
    item: str
    count: int = 1
    note: str | None = None


class OtherOrder(msgspec.Struct):
    item: str
    count: str


class Invoice(pydantic.BaseModel):
    total: int


async def start_pair(
    tmp_path: Path, stack: contextlib.AsyncExitStack, alpha: App, beta: App
) -> tuple[Node, Node]:
    first = await stack.enter_async_context(Node(config_of(tmp_path / "alpha"), alpha))
    seeds = [str(first.service.address)]
    config = config_of(tmp_path / "beta", "beta", cluster={"seeds": seeds})
    second = await stack.enter_async_context(Node(config, beta))
    for node, other in ((first, second), (second, first)):
        await eventually(lambda node=node, other=other: knows(node, other))  # type: ignore[misc] # Bound at once.
    return first, second


def knows(node: Node, other: Node) -> bool:
    """Whether a node has heard of the types of another."""
    record = node.broker.registry.node(other.name)
    names = [] if record is None else [service.name for service in record.info.services]
    return "$queues" in names


async def test_schemas_of_typed_queues_are_announced_to_other_nodes(tmp_path: Path) -> None:
    @consumer(Queue("invoices", Invoice))
    def keep(invoice: Invoice) -> None: ...

    alpha = App(queues=[Queue("orders", Order), Queue("raw")], consumers=[keep])
    async with contextlib.AsyncExitStack() as stack:
        app = App(queues=[Queue("parcels📦/eu", Order)])
        first, second = await start_pair(tmp_path, stack, alpha, app)
        assert second.queue_types.schema_at("alpha", "orders") == Queue("x", Order).codec.schema()
        invoices = second.queue_types.schema_at("alpha", "invoices")
        assert invoices is not None
        assert invoices["required"] == ["total"]
        assert second.queue_types.schema_at("alpha", "raw") is None
        assert second.queue_types.schema_at("gamma", "orders") is None
        assert first.queue_types.schema_at("beta", "parcels📦/eu") is not None


async def test_queue_with_two_types_in_a_cluster_is_warned_of_at_the_node_that_declares_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        alpha = App(queues=[Queue("orders", Order), Queue("parcels", Order)])
        beta = App(queues=[Queue("orders", OtherOrder), Queue("parcels", LargerOrder)])
        with caplog.at_level(logging.WARNING):
            await start_pair(tmp_path, stack, alpha, beta)
            await eventually(lambda: "at node alpha" in caplog.text)
    (text,) = {line for line in caplog.messages if "at node alpha" in line}
    assert "queue 'orders' is declared with another type at node alpha: $.count: " in text
    assert "beta may send string, alpha takes integer" in text
    assert "parcels" not in caplog.text


async def test_queue_with_two_types_in_one_app_is_refused(tmp_path: Path) -> None:
    @consumer(Queue("orders", OtherOrder))
    def sell(order: OtherOrder) -> None: ...

    app = App(queues=[Queue("orders", Order)], consumers=[sell])
    with pytest.raises(ConfigError, match="'orders' is declared with two types: Order and Other"):
        await Node(config_of(tmp_path), app).start()


def test_queues_of_a_module_belong_to_its_app() -> None:
    module = types.ModuleType("shop")
    orders = Queue("orders", Order)
    vars(module).update(orders=orders, same=orders)
    assert app_of(module).queues == [orders]
    assert app_of(module).is_empty


async def test_type_without_a_schema_is_not_announced_and_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Unknown:
        """Has no form in JSON."""

    class Fixed(msgspec.Struct):
        note: Any = Unknown()

    async with Node(config_of(tmp_path), App(queues=[Queue("odd", Fixed)])) as node:
        assert "the type of queue 'odd' is not announced: " in caplog.text
        with pytest.raises(UsageError, match=r"Fixed cannot be encoded: TypeError: .*Unknown"):
            await Queue("odd", Fixed).send(Fixed())
        assert not await node.queues.admin.peek("odd")
