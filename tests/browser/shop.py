"""The program of the nodes that the browser looks at: `postroad node start` runs it.

There is something of everything: services, a queue whose handler fails until it is told not to,
flows that go well, fail and wait, a cell, a schedule, and names that want to be markup.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import ClassVar, Literal

import msgspec

from postroad.cells import Cell, CellMessage
from postroad.durable import Message, OutgoingMessage, RetryPolicy, Transaction
from postroad.flows import FlowContext, FlowError, flow
from postroad.node import Node, Queue, consumer, current_node
from postroad.services import Context, Service, action, event

MARKUP = "<img src=x onerror=\"document.title='broken in'\">"


class Order(msgspec.Struct):
    """What somebody wants."""

    item: str
    count: int
    customer: str = "ann"


LABELS = Queue("labels", Order)


class Shelves:
    """What has come in; orders of anything else fail."""

    items: ClassVar[set[str]] = set()


# Services.


class Greeter(Service):
    """Greets."""

    name = "greeter"

    @action
    async def hello(
        self,
        ctx: Context,
        name: str,
        times: int = 1,
        tone: Literal["kind", "loud"] = "kind",
    ) -> str:
        """Greet somebody, once or more often."""
        text = " ".join([f"Hello {name}!"] * times)
        return text.upper() if tone == "loud" else text

    @action(description=f"Breaks {MARKUP}")
    async def broken(self, ctx: Context) -> str:
        raise RuntimeError("this greeting never works")


class Shop(Service):
    """Sells."""

    name = "shop"

    @action
    async def order(self, ctx: Context, order: Order) -> str:
        """Take an order; from then on it cannot be lost."""
        node = current_node()
        id = await node.queues.send("orders", msgspec.json.encode(order), to=node.name)
        return f"order {id}"

    @action
    async def restock(self, ctx: Context, item: str) -> bool:
        """From now on orders of this can be handled."""
        Shelves.items.add(item)
        return True

    @action
    async def flood(self, ctx: Context, count: int) -> int:
        """Have so many messages that nobody can handle, each for a reason of its own."""
        node = current_node()
        bodies = [str(number).encode() for number in range(count)]
        drafts = [OutgoingMessage(to=node.name, queue="flood", body=it) for it in bodies]
        return len(await node.queues.send_many(drafts))

    @event("shop.opened")
    async def on_opened(self, ctx: Context) -> None:
        """Somebody opened the shop."""


# Durable messages.


@consumer("orders", retry=RetryPolicy(max_attempts=1))
async def sell(message: Message, tx: Transaction) -> None:
    """Fails until there is some of it."""
    order = msgspec.json.decode(message.body, type=Order)
    if order.item not in Shelves.items:
        raise RuntimeError(f"no {order.item} today")
    await tx.execute("INSERT INTO sold VALUES (?, ?)", (order.item, order.count))


@consumer("flood", retry=RetryPolicy(max_attempts=1))
async def drown(message: Message, tx: Transaction) -> None:
    """Always fails."""
    raise RuntimeError(f"no room for {message.body.decode()}")


@consumer("stubborn", retry=RetryPolicy(initial_delay_s=3600, max_delay_s=3600))
async def insist(message: Message, tx: Transaction) -> None:
    """Fails, and tries again much later."""
    raise RuntimeError(f"not today: {message.body.decode()}")


@consumer("receipts")
async def file(message: Message, tx: Transaction) -> None:
    """Always works."""


# Flows.


def reserve(item: str, count: int) -> dict[str, object]:
    return {"item": item, "count": count, "shelf": "B4"}


def charge(customer: str, cents: int) -> str:
    return f"{customer} paid {cents} cents"


def print_label(item: str) -> str:
    return f"label {MARKUP}" if item == "lamp oil" else f"label for {item}"


def fail(item: str) -> None:
    raise RuntimeError(f"the truck with {item} has a flat tyre")


def refuse(item: str) -> None:
    raise FlowError(f"{item} is not taken back")


@flow
async def buy(ctx: FlowContext, item: str, count: int = 1) -> str:
    """Reserve, charge, pack and send."""
    ctx.set_progress("reserving")
    await ctx.step(reserve, item, count)
    paid = await ctx.step(charge, "ann", 250 * count)
    await ctx.sleep(0.05)
    ctx.set_progress("packing")
    label = await ctx.step(print_label, item)
    return f"{paid}, {label}"


@flow
async def deliver(ctx: FlowContext, item: str) -> None:
    """Fails with an error that nobody expected."""
    await ctx.step(reserve, item, 1)
    await ctx.step(fail, item)


@flow
async def take_back(ctx: FlowContext, item: str) -> None:
    """Refuses."""
    await ctx.step(refuse, item)


@flow
async def approve(ctx: FlowContext, order: Order) -> str:
    """Wait for somebody who says yes."""
    ctx.set_query_handler("order", lambda: order.item)
    ctx.set_progress("waiting for somebody")
    ctx.set_attributes(item=order.item, count=order.count)
    await ctx.step(reserve, order.item, order.count)
    answer = await ctx.wait_for_signal("approved", str)
    await ctx.step(charge, order.customer, 100)
    return answer


# Cells.


class Relay(Cell):
    """Says what it was told."""

    def handle(self, message: CellMessage) -> object:
        return message.body


relay = Relay("relay", consume=["parrots"])
parrot = Relay("parrot")


# Around everything.


@asynccontextmanager
async def lifespan(node: Node) -> AsyncIterator[None]:
    """Keep a little going on while the node runs."""
    async with node.queues.transaction() as tx:
        await tx.execute("CREATE TABLE IF NOT EXISTS sold (item TEXT, count INTEGER)")
    await node.flows.schedules.create("nightly", "30 2 * * *", buy, "paper")
    await node.flows.schedules.create("hourly", "0 * * * *", buy, "ink")
    trading = asyncio.create_task(_trade(node))
    yield
    trading.cancel()
    with suppress(asyncio.CancelledError):
        await trading


async def _trade(node: Node) -> None:
    for number in itertools.count():
        receipt = msgspec.json.encode({"receipt": number})
        await node.queues.send("receipts", receipt, to=node.name, key=str(number % 3))
        await node.broker.call("greeter.hello", {"name": "Ann"})
        await asyncio.sleep(0.05)
