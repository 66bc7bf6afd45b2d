"""A node with a queue and flows, as a process of its own.

`main` takes the data directory and the port of the API. It prints the address of that, and ends
with its input.
"""

from __future__ import annotations

import asyncio
import datetime
import sys
from pathlib import Path

import msgspec

from postroad import Node, Queue, Transaction, consumer, run
from postroad.admin.serving import AdminServer
from postroad.flows import FlowContext, FlowError, SyncFlowContext, flow
from postroad.node.app import app_of
from tests.support.node.configs import config_of


class Order(msgspec.Struct):
    item: str
    count: int = 1


class OutOfStockError(FlowError):
    """There is none left."""


orders = Queue("orders", Order)
packed: list[str] = []


@consumer(orders)
async def pack(order: Order, tx: Transaction) -> None:
    packed.append(order.item)


@flow
def deliver(
    ctx: SyncFlowContext, order: Order, *more: bytes, when: datetime.date | None = None
) -> dict[int, Order]:
    """Wait for a signal, unless there is nothing to deliver."""
    if order.count == 0:
        raise OutOfStockError(f"no {order.item} left")
    ctx.set_query_handler("item", lambda: order)
    count: int = ctx.wait_for_signal("go", int)
    return {len(more): Order(f"{order.item} {when}", count)}


@flow
async def fail(ctx: FlowContext, text: str) -> None:
    raise LookupError(text)


@flow
async def count_packed(ctx: FlowContext) -> list[str]:
    return await ctx.step(packed.copy)


async def serve(directory: str, port: str) -> None:
    config = config_of(
        Path(directory), node={"bind": "127.0.0.1:0"}, admin={"bind": f"127.0.0.1:{port}"}
    )
    app = app_of(sys.modules[__name__])
    async with Node(config, app) as node, AdminServer(node) as admin:
        sys.stdout.write(f"{admin.url}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    run(serve(*sys.argv[1:]))
