"""Queues with a type: values go in and come out, and what does not decode harms nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from postroad import App, Message, Node, Queue, Transaction, consumer
from postroad.core.errors import ConfigError, PostroadError, UsageError
from postroad.core.limits import MIB
from tests.support.deadlines import DEADLINE_S
from tests.support.node.configs import config_of


class Order(msgspec.Struct):
    item: str
    count: int = 1


class Invoice(pydantic.BaseModel):
    total: int


class Plain(msgspec.Struct, omit_defaults=True):
    item: str
    count: int | None = None


class Counted(msgspec.Struct):
    """What `Plain` has become."""

    item: str
    count: list[int] | None = None
    note: str = "none"


class Fussy(pydantic.BaseModel):
    """Raises for 0 when it is encoded, and for 7 when it is decoded."""

    total: int

    @pydantic.field_serializer("total")
    def encode(self, total: int) -> int:
        return 10 // total

    @pydantic.field_validator("total")
    @classmethod
    def check(cls, total: int) -> int:
        return 10 // (total - 7) and total


ORDERS = Queue("orders", Order)
INVOICES = Queue("invoices", Invoice)
RAW = Queue("raw")


async def test_value_goes_through_two_queues_in_one_transaction(tmp_path: Path) -> None:
    invoices: asyncio.Queue[tuple[Invoice, str | None, str]] = asyncio.Queue()

    @consumer(ORDERS)
    async def bill(order: Order, message: Message, tx: Transaction) -> None:
        if message.attempt == 1:
            await INVOICES.send(Invoice(total=-1), tx=tx)
            raise OSError("once")
        await INVOICES.send(Invoice(total=order.count * 5), key=message.key, tx=tx)

    @consumer(INVOICES)
    async def keep(invoice: Invoice, message: Message) -> None:
        invoices.put_nowait((invoice, message.key, message.sender))

    app = App(consumers=[bill, keep])
    async with Node(config_of(tmp_path), app) as node, asyncio.timeout(DEADLINE_S):
        await ORDERS.send(Order("tea", 2), key="customer 1")
        assert await invoices.get() == (Invoice(total=10), "customer 1", node.name)
        assert not await node.queues.dead_letters.list()
        assert invoices.empty()


async def test_body_that_does_not_decode_is_a_dead_letter_and_others_go_on(tmp_path: Path) -> None:
    handled: asyncio.Queue[str] = asyncio.Queue()

    @consumer(ORDERS)
    async def bill(order: Order) -> None:
        handled.put_nowait(order.item)

    app = App(consumers=[bill])
    async with Node(config_of(tmp_path), app) as node, asyncio.timeout(DEADLINE_S):
        await node.queues.send("orders", b'{"item": "tea", "count": "two"}', to=node.name, key="k")
        await ORDERS.send(Order("milk"), key="k")
        assert await handled.get() == "milk"
    # Another run sees what the first one has committed.
    async with Node(config_of(tmp_path), App()) as node:
        (dead,) = await node.queues.dead_letters.list("orders")
    assert (dead.reason, dead.failures) == ("rejected", 1)
    assert "does not decode as Order: Expected `int`, got `str` - at `$.count`" in dead.detail


async def test_type_that_changed_reads_older_messages_or_makes_dead_letters_of_them(
    tmp_path: Path,
) -> None:
    handled: asyncio.Queue[Counted] = asyncio.Queue()
    newer = Queue("orders", Counted)

    @consumer(newer)
    async def bill(order: Counted) -> None:
        handled.put_nowait(order)

    async with Node(config_of(tmp_path), App()) as node:
        for order in (Plain("milk"), Plain("tea", 2), Plain("rice")):
            await Queue("orders", Plain).send(order, key="k")
    async with Node(config_of(tmp_path), App(consumers=[bill])) as node:
        async with asyncio.timeout(DEADLINE_S):
            await newer.send(Counted("salt", [1]), key="k")
            orders = [await handled.get() for _ in range(3)]
    assert orders == [Counted("milk"), Counted("rice"), Counted("salt", [1])]
    async with Node(config_of(tmp_path), App()) as node:
        (dead,) = await node.queues.dead_letters.list("orders")
    assert (dead.reason, dead.message.body) == ("rejected", b'{"item":"tea","count":2}')
    assert "Expected `array | null`, got `int` - at `$.count`" in dead.detail


async def test_encoder_that_raises_stops_nothing_but_its_own_value(tmp_path: Path) -> None:
    fussy = Queue("fussy", Fussy)
    invoices: asyncio.Queue[Fussy] = asyncio.Queue()

    @consumer(fussy)
    async def keep(invoice: Fussy, tx: Transaction) -> None:
        with pytest.raises(UsageError, match=r"Fussy cannot be encoded: .*ZeroDivisionError"):
            await fussy.send(Fussy(total=0), tx=tx)
        invoices.put_nowait(invoice)

    app = App(consumers=[keep])
    async with Node(config_of(tmp_path), app) as node, asyncio.timeout(DEADLINE_S):
        with pytest.raises(UsageError, match=r"Fussy cannot be encoded: .*ZeroDivisionError"):
            await fussy.send(Fussy(total=0))
        await node.queues.send("fussy", b'{"total": 7}')
        await fussy.send(Fussy(total=2))
        assert await invoices.get() == Fussy(total=5)
    async with Node(config_of(tmp_path), App()) as node:
        (dead,) = await node.queues.dead_letters.list("fussy")
    assert "does not decode as Fussy: ZeroDivisionError: " in dead.detail


async def test_option_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    async with Node(config_of(tmp_path), App()) as node:
        with pytest.raises(TypeError, match="after"):
            await ORDERS.send(Order("tea"), after=2)  # type: ignore[call-overload] # Sent so.
        async with node.queues.transaction() as tx:
            with pytest.raises(TypeError, match="after"):
                tx.send("orders", b"", after=2)  # type: ignore[call-arg] # Sent so.
        assert not await node.queues.admin.peek("orders")


async def test_consumer_of_the_message_gets_it_undecoded(tmp_path: Path) -> None:
    bodies: asyncio.Queue[bytes] = asyncio.Queue()

    @consumer(ORDERS)
    async def log(message: Message, tx: Transaction) -> None:
        bodies.put_nowait(message.body)

    @consumer(RAW)
    async def log_raw(body: bytes) -> None:
        bodies.put_nowait(body)

    app = App(consumers=[log, log_raw])
    async with Node(config_of(tmp_path), app) as node, asyncio.timeout(DEADLINE_S):
        await node.queues.send("orders", b"no JSON", to=node.name)
        assert await bodies.get() == b"no JSON"
        await RAW.send(b"\xff")
        assert await bodies.get() == b"\xff"


async def test_value_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    async with Node(config_of(tmp_path), App()) as node:
        async with node.queues.transaction() as tx:
            with pytest.raises(UsageError, match=r"\$\.count"):
                await ORDERS.send(Order("tea", "two"), tx=tx)  # type: ignore[arg-type] # Sent so.
            await ORDERS.send(Order("tea"), tx=tx)
        assert [it.body for it in await node.queues.admin.peek("orders")] == [
            b'{"item":"tea","count":1}'
        ]


async def test_send_outside_of_a_node_says_so() -> None:
    with pytest.raises(UsageError, match="no node"):
        await ORDERS.send(Order("tea"))


@pytest.mark.parametrize("name", ["", "x" * 300, "a\0b"])
def test_queue_with_a_bad_name_is_refused_when_declared(name: str) -> None:
    with pytest.raises((ConfigError, UsageError)):
        Queue(name, Order)


def test_consumer_whose_parameters_cannot_be_filled_is_refused_when_declared() -> None:
    declare: Any = consumer(ORDERS)

    def nothing() -> None: ...
    def another_type(order: int) -> None: ...
    def unknown(order: Order, color: str) -> None: ...
    def many(order: Order, *more: Transaction) -> None: ...
    def unreadable(order: Order, tx: Gone) -> None: ...  # type: ignore[name-defined] # noqa: F821
    def unimported(order: Order, tx: gone.Transaction) -> None: ...  # type: ignore[name-defined] # noqa: F821

    for function, text in (
        (nothing, "takes neither a value nor a Message"),
        (another_type, "order: int"),
        (unknown, "color: str"),
        (many, r"\*more"),
        (unreadable, "tx.*Gone"),
        (unimported, "import the type at run time"),
    ):
        with pytest.raises(ConfigError, match=text):
            declare(function)


@pytest.mark.parametrize("name", ["eu/orders", "orders📦", "Bücher.2026", "a:b@c#d?e=f"])
async def test_queue_with_an_unusual_name_carries_values(name: str, tmp_path: Path) -> None:
    values: asyncio.Queue[Order] = asyncio.Queue()
    queue = Queue(name, Order)

    @consumer(queue)
    async def keep(order: Order) -> None:
        values.put_nowait(order)

    app = App(consumers=[keep])
    async with Node(config_of(tmp_path), app) as node, asyncio.timeout(DEADLINE_S):
        await queue.send(Order("📦/tea"))
        assert await values.get() == Order("📦/tea")
        assert node.queue_types.schemas[name]["title"] == "Order"


async def test_body_of_64_mib_is_refused_at_the_sender_and_others_go_on(tmp_path: Path) -> None:
    async with Node(config_of(tmp_path), App()) as node:
        with pytest.raises(PostroadError, match=r"67,?108,?"):
            await ORDERS.send(Order("x" * (64 * MIB)))
        async with node.queues.transaction() as tx:
            with pytest.raises(PostroadError, match=r"67,?108,?"):
                await ORDERS.send(Order("x" * (64 * MIB)), tx=tx)
            await ORDERS.send(Order("tea"), tx=tx)
        statistics = await node.queues.statistics()
        assert statistics.queues["orders"].depth == 1
