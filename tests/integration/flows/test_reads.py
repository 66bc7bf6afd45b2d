"""Steps that only read, and are recorded with the next commit of their flow."""

from __future__ import annotations

import asyncio
from typing import Any

from postroad.flows import FlowContext, SyncFlowContext, flow
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.flows.nodes import FlowNode, FlowNodes

looks: list[str] = []
closed: list[str] = []


def look(what: str) -> str:
    looks.append(what)
    return f"{what} {looks.count(what)}"


async def wait(what: str) -> str:
    looks.append(what)
    while what in closed:  # noqa: ASYNC110  # An event belongs to one loop, a test has its own.
        await asyncio.sleep(0.005)
    return f"{what} {looks.count(what)}"


@flow
async def browse(ctx: FlowContext) -> list[str]:
    first = await ctx.read(look, "first")
    ctx.set_query_handler("first", lambda: first)
    return [first, await ctx.read(wait, "second"), await ctx.step(look, "third")]


@flow(name="browse")
def plain_browse(ctx: SyncFlowContext) -> list[str]:
    first = ctx.read(look, "first")
    ctx.set_query_handler("first", lambda: first)
    return [first, ctx.read(wait, "second"), ctx.step(look, "third")]


async def start(nodes: FlowNodes, definition: Any = browse) -> tuple[FlowNode, str]:
    """A flow that has read once, and waits for what it reads next."""
    looks.clear()
    closed.append("second")
    alpha, handle = await nodes.begin(definition)
    await eventually(lambda: "second" in looks, "the second read")
    return alpha, handle.id


async def test_reads_before_a_stop_are_done_again(nodes: FlowNodes) -> None:
    alpha, id = await start(nodes)
    assert await alpha.flows.admin.history(id) == []
    await alpha.restart_flows(plain_browse)
    await eventually(lambda: looks.count("second") == 2, "the second read, again")
    closed.clear()
    result = await alpha.result(id)
    assert result == ["first 2", "second 2", "third 1"]
    assert [step.value for step in await alpha.flows.admin.history(id)] == result


async def test_read_seen_by_query_is_recorded(nodes: FlowNodes) -> None:
    alpha, id = await start(nodes, plain_browse)
    assert await alpha.flows.query(id, "first") == "first 1"
    assert [step.value for step in await alpha.flows.admin.history(id)] == ["first 1"]
    await alpha.restart_flows(browse)
    closed.clear()
    assert (await alpha.result(id))[0] == "first 1"


async def test_flow_that_is_paused_and_resumed_keeps_what_it_read(nodes: FlowNodes) -> None:
    alpha, id = await start(nodes)
    await alpha.flows.admin.pause(id)
    assert [step.value for step in await alpha.flows.admin.history(id)] == ["first 1"]
    closed.clear()
    await alpha.flows.admin.resume(id)
    assert await alpha.result(id) == ["first 1", "second 2", "third 1"]


async def test_many_flows_that_only_read_share_the_disk(nodes: FlowNodes) -> None:
    looks.clear()
    closed.clear()
    alpha = await nodes.start("alpha", browse)
    handles = [await alpha.flows.start_flow(browse) for _ in range(50)]
    results = [await handle.result(DEADLINE_S) for handle in handles]
    assert len({third for _, _, third in results}) == len({first for first, _, _ in results}) == 50
