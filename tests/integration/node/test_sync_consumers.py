"""Consumers and steps that are a plain `def`: in threads, with a transaction without `await`."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad import (
    INJECTED,
    App,
    FlowContext,
    Node,
    Queue,
    RetryPolicy,
    SyncTransaction,
    Transaction,
    consumer,
    current_node,
    flow,
)
from postroad.core.errors import ConfigError, UsageError
from tests.support.deadlines import DEADLINE_S
from tests.support.node.configs import config_of


class Order(msgspec.Struct):
    item: str
    count: int = 1


ORDERS, INVOICES = Queue("orders", Order), Queue("invoices", Order)
ONCE = RetryPolicy(max_attempts=1)


async def forgotten() -> None:
    raise AssertionError("nothing awaits this")


def app_of(*functions: Any, **options: Any) -> App:
    return App(consumers=functions, **options)


async def dead_letter(node: Node) -> str:
    while not (dead := await node.queues.dead_letters.list()):  # noqa: ASYNC110 # It is on disk.
        await asyncio.sleep(0.01)
    return dead[0].detail


async def wait_for_invoices(node: Node, count: int) -> None:
    while len(await node.queues.admin.peek("invoices")) < count:  # noqa: ASYNC110 # It is on disk.
        await asyncio.sleep(0.01)


async def test_plain_consumers_block_nobody_but_their_own_thread(tmp_path: Path) -> None:
    loop, both, freed = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def have_met() -> None:
        loop.call_soon_threadsafe(both.set)

    meeting = threading.Barrier(2, action=have_met)

    @consumer(ORDERS, concurrency=2)
    def meet(order: Order) -> None:
        meeting.wait(DEADLINE_S)
        freed.wait(DEADLINE_S)

    @consumer("plain")
    def meet_untyped(message: object, tx: object) -> None:
        assert isinstance(tx, SyncTransaction)
        freed.set()

    config = config_of(tmp_path)
    async with Node(config, app_of(meet, meet_untyped)) as node, asyncio.timeout(DEADLINE_S):
        await ORDERS.send(Order("tea"))
        await ORDERS.send(Order("milk"))
        await both.wait()  # The loop goes on, although both wait in threads.
        await node.queues.send("plain", b"")
    assert freed.is_set()


@pytest.mark.parametrize("hint", [Transaction, SyncTransaction])
async def test_plain_consumer_works_in_its_transaction(tmp_path: Path, hint: Any) -> None:
    invoices: asyncio.Queue[Order] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def bill(order: Order, tx: SyncTransaction) -> None:
        tx.execute("CREATE TABLE IF NOT EXISTS billed (item TEXT)")
        tx.execute("INSERT INTO billed VALUES (?)", (order.item,))
        billed = tx.run_sync(lambda db: db.execute("SELECT item FROM billed").fetchall())
        id = INVOICES.send(Order(order.item, len(billed)), tx=tx)
        assert type(id) is int
        if order.item == "poison":
            raise OSError("rolls back")

    bill.__annotations__["tx"] = hint

    @consumer(INVOICES)
    def keep(order: Order) -> None:
        assert current_node().name == "alpha"
        loop.call_soon_threadsafe(invoices.put_nowait, order)

    app = app_of(consumer(ORDERS, retry=ONCE)(bill), keep)
    async with Node(config_of(tmp_path), app) as node, asyncio.timeout(DEADLINE_S):
        await ORDERS.send(Order("poison"))
        assert await dead_letter(node) == "OSError: rolls back"
        await ORDERS.send(Order("tea"))
        assert await invoices.get() == Order("tea", 1)
    assert invoices.empty()


async def test_send_without_a_transaction_waits_in_a_thread(tmp_path: Path) -> None:
    @consumer(ORDERS)
    def bill(order: Order) -> None:
        sent: object = INVOICES.send(order)
        assert type(sent) is int

    async with Node(config_of(tmp_path), app_of(bill)) as node, asyncio.timeout(DEADLINE_S):
        await ORDERS.send(Order("tea"))
        await wait_for_invoices(node, 1)


async def test_coroutine_that_a_plain_consumer_forgets_is_an_error(tmp_path: Path) -> None:
    @consumer(ORDERS, retry=ONCE)
    def bill(order: Order) -> None:
        current_node().queues.send("invoices", b"")  # type: ignore[unused-coroutine]
        forgotten()  # type: ignore[unused-coroutine]

    async with Node(config_of(tmp_path), app_of(bill)) as node, asyncio.timeout(DEADLINE_S):
        await ORDERS.send(Order("tea"))
        detail = await dead_letter(node)
    assert "bill is a plain `def` and called DurableQueues.send(), forgotten(), which" in detail


async def test_send_in_a_transaction_needs_no_await(tmp_path: Path) -> None:
    @consumer(ORDERS)
    async def bill(order: Order, tx: Transaction) -> None:
        INVOICES.send(order, tx=tx)  # type: ignore[unused-coroutine]
        ids = [
            await INVOICES.send(order, tx=tx),
            await asyncio.create_task(INVOICES.send(order, tx=tx)),
            *await asyncio.gather(INVOICES.send(order, tx=tx)),
        ]
        assert [type(id) for id in ids] == [int, int, int]

    async with Node(config_of(tmp_path), app_of(bill)) as node, asyncio.timeout(DEADLINE_S):
        await ORDERS.send(Order("tea"))
        await wait_for_invoices(node, 4)


async def test_transaction_of_a_plain_consumer_waits_in_its_thread_only(tmp_path: Path) -> None:
    @consumer(ORDERS, retry=ONCE)
    def bill(order: Order, tx: SyncTransaction) -> Any:
        async def elsewhere() -> None:
            tx.execute("SELECT 1")

        return elsewhere()  # Awaited on the event loop.

    async with Node(config_of(tmp_path), app_of(bill)) as node, asyncio.timeout(DEADLINE_S):
        await ORDERS.send(Order("tea"))
        detail = await dead_letter(node)
    assert "Transaction.execute() cannot wait here" in detail


async def test_plain_step_works_in_its_transaction(tmp_path: Path) -> None:
    def book(item: str, tx: SyncTransaction = INJECTED) -> int:
        tx.execute("CREATE TABLE booked (item TEXT)")
        tx.execute("INSERT INTO booked VALUES (?)", (item,))
        ORDERS.send(Order(item), tx=tx)
        return len(tx.execute("SELECT * FROM booked"))

    def forget(tx: SyncTransaction = INJECTED) -> None:
        tx.send("orders", b"")
        forgotten()  # type: ignore[unused-coroutine]

    def forget_more() -> None:
        forgotten()  # type: ignore[unused-coroutine]

    @flow
    async def deliver(ctx: FlowContext) -> list[str]:
        told = [str(await ctx.step(book, "tea"))]
        for step in (forget, forget_more):
            try:
                await ctx.step(step)
            except UsageError as error:
                told.append(str(error))
        return told

    async with Node(config_of(tmp_path), App(flows=[deliver])) as node:
        async with asyncio.timeout(DEADLINE_S):
            booked, *told = await node.flows.run_flow(deliver)
        assert booked == "1"
        assert len(told) == 2 and all("called forgotten(), which did nothing" in it for it in told)
        assert len(await node.queues.admin.peek("orders")) == 1


def test_coroutine_function_with_a_transaction_of_plain_ones_is_refused() -> None:
    async def bill(order: Order, tx: SyncTransaction) -> None: ...

    with pytest.raises(ConfigError, match="`async def`, so it cannot ask for a SyncTransaction"):
        consumer(ORDERS)(bill)
