"""Nobody in a transaction waits for a flow, whose commits wait for that transaction."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.durable import Message, Transaction
from postroad.flows import FlowContext, FlowHandle, FlowService, flow
from tests.support.deadlines import eventually
from tests.support.flows.nodes import FlowNodes


@flow
async def wait(ctx: FlowContext) -> int:
    return await ctx.wait_for_signal("go", int)


Call = Callable[[FlowService, FlowHandle[Any]], Coroutine[Any, Any, object]]

CALLS: dict[str, Call] = {
    "begin": lambda flows, handle: flows.start_flow(wait),
    "begin_as": lambda flows, handle: flows.start_flow_with_id("me", wait),
    "run": lambda flows, handle: flows.run_flow(wait),
    "result": lambda flows, handle: handle.result(),
    "signal": lambda flows, handle: flows.signal(handle.id, "go", 1),
    "kill": lambda flows, handle: flows.admin.kill(handle.id),
    "pause": lambda flows, handle: flows.admin.pause(handle.id),
    "resume": lambda flows, handle: flows.admin.resume(handle.id),
    "retry": lambda flows, handle: flows.admin.retry(handle.id),
    "fork": lambda flows, handle: flows.admin.fork(handle.id, 0),
    "query": lambda flows, handle: flows.query(handle.id, "what"),
    "schedule": lambda flows, handle: flows.schedules.create("often", "* * * * *", wait),
}


@pytest.mark.parametrize("name", CALLS)
async def test_call_in_a_transaction_is_refused_and_changes_nothing(
    nodes: FlowNodes, name: str
) -> None:
    node = await nodes.start("alpha", wait)
    flows, mail = node.flows, node.station.mail
    handle = await flows.start_flow(wait)
    refused: list[UsageError] = []

    async def handler(message: Message, tx: Transaction) -> None:
        await tx.execute("SELECT 1")
        try:
            await CALLS[name](flows, handle)
        except UsageError as error:
            refused.append(error)
            tx.send("told", b"", to="alpha")

    await mail.consume("orders", handler)
    await mail.send("orders", b"", to="alpha")
    await eventually(lambda: refused, "it is refused")
    assert "the transaction it is called in" in str(refused[0])
    (only,) = await flows.admin.list()
    assert (only.id, str(only.status)) == (handle.id, "running")
    await flows.signal(handle.id, "go", 5)
    assert await handle.result() == 5


async def test_flow_started_before_first_statement_is_outside_transaction(
    nodes: FlowNodes,
) -> None:
    @flow
    async def post(ctx: FlowContext) -> int:
        return await ctx.step(node.station.mail.send, "bills", b"", to="beta")

    node = await nodes.start("alpha", post)
    async with node.station.mail.transaction() as tx:
        handle = await node.flows.start_flow(post)
        await tx.execute("SELECT 1")
    assert await handle.result() > 0
