"""Operators reach a flow between any two things it does, however busy it is."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from sqlalchemy.orm import Session as SqlSession

from postroad.core.errors import UsageError
from postroad.durable import MemoryDisk, MemoryStore, Transaction
from postroad.flows import (
    INJECTED,
    FlowContext,
    FlowError,
    FlowKilledError,
    FlowSession,
    FlowStatus,
    FlowTimeoutError,
    StoreConnection,
    flow,
    responder,
)
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_pairs import QUICK
from tests.support.flows.nodes import FlowNode, FlowNodes


def add(number: int) -> int:
    return number + 1


async def add_soon(number: int) -> int:
    return number + 1


async def add_in(number: int, tx: Transaction = INJECTED) -> int:
    ((sum,),) = await tx.execute(f"SELECT {number} + 1")
    return int(sum)


def add_with(number: int, connection: StoreConnection = INJECTED) -> int:
    ((sum,),) = connection.execute(f"SELECT {number} + 1").fetchall()
    return int(sum)


def add_orm(number: int, sql_session: SqlSession = INJECTED) -> int:
    from sqlalchemy import text

    return int(sql_session.execute(text(f"SELECT {number} + 1")).scalar_one())


@flow
async def one(ctx: FlowContext, number: int) -> int:
    await ctx.sleep(0)
    return number + 1


@flow
async def busy(ctx: FlowContext, kind: str, is_told: bool) -> str:
    """Do something quick for ever, or until somebody says that it is enough."""
    doings = DOINGS[kind](ctx)
    if is_told:
        _, value = await ctx.select(doing=doings, enough=ctx.wait_for_signal("enough", str))
        return str(value)
    return str(await doings)


async def do_steps(ctx: FlowContext, function: Any) -> None:
    number = 0
    while True:
        number = await ctx.step(function, number)


async def do_sleeps(ctx: FlowContext) -> None:
    while True:
        await ctx.sleep(0)


async def do_subflows(ctx: FlowContext) -> None:
    number = 0
    while True:
        number = await ctx.run_subflow(one, number)


async def do_branches(ctx: FlowContext) -> None:
    while True:
        await ctx.gather(ctx.sleep(0), ctx.step(add, 1), ctx.run_subflow(one, 1))
        await ctx.select(step=ctx.step(add_soon, 1), sleep=ctx.sleep(0))


async def do_talk(ctx: FlowContext) -> None:
    session = ctx.open_session("alpha")
    while True:
        await session.send_and_receive("ping", str)


async def do_monologue(ctx: FlowContext) -> None:
    session = ctx.open_session("alpha")
    while True:
        await session.send("nobody waits for this")


async def do_timeouts(ctx: FlowContext) -> None:
    while True:
        try:
            await ctx.wait_for_signal("never", str, timeout=0)
        except FlowTimeoutError:
            continue


DOINGS: dict[str, Any] = {
    "steps": lambda flow: do_steps(flow, add),
    "coroutine steps": lambda flow: do_steps(flow, add_soon),
    "tx steps": lambda flow: do_steps(flow, add_in),
    "connection steps": lambda flow: do_steps(flow, add_with),
    "session steps": lambda flow: do_steps(flow, add_orm),
    "sleeps": do_sleeps,
    "subflows": do_subflows,
    "branches": do_branches,
    "talk": do_talk,
    "monologue": do_monologue,
    "timeouts": do_timeouts,
}


@responder(busy)
async def reply(ctx: FlowContext, session: FlowSession) -> None:
    try:
        while True:
            if await session.receive(str) == "ping":
                await session.send("pong")
    except FlowError:
        return


@flow
async def anew(ctx: FlowContext, number: int) -> None:
    """Begin anew without ever waiting for anything."""
    ctx.continue_as_new(number + 1)


async def start(nodes: FlowNodes) -> FlowNode:
    alpha = await nodes.start("alpha", busy, reply, one, anew)
    alpha.meet(alpha.station)
    return alpha


@pytest.mark.parametrize("kind", DOINGS)
async def test_a_busy_flow_can_be_paused_resumed_and_killed(nodes: FlowNodes, kind: str) -> None:
    alpha = await start(nodes)
    handle = await alpha.begin(busy, kind, False)
    await alpha.until_steps(handle.id, 1)
    async with asyncio.timeout(DEADLINE_S):
        await alpha.flows.admin.pause(handle.id)
        steps = len(await alpha.flows.admin.history(handle.id))
        assert (await alpha.flows.admin.show(handle.id)).status is FlowStatus.PAUSED
        with pytest.raises(UsageError, match="paused"):
            await alpha.flows.admin.pause(handle.id)
        await alpha.flows.admin.resume(handle.id)
        await alpha.until_steps(handle.id, steps + 1)
        await alpha.flows.admin.kill(handle.id)
    with pytest.raises(FlowKilledError):
        await alpha.result(handle.id)


@pytest.mark.parametrize("kind", DOINGS)
async def test_busy_flow_receives_signal_and_resumes_after_restart(
    nodes: FlowNodes, kind: str
) -> None:
    alpha = await start(nodes)
    handle = await alpha.begin(busy, kind, True)
    await alpha.until_steps(handle.id, 2)
    # What was cut into several commits is the same when it is run again.
    await alpha.restart_flows()
    steps = len(await alpha.flows.admin.history(handle.id))
    await alpha.until_steps(handle.id, steps + 2)
    async with asyncio.timeout(DEADLINE_S):
        await alpha.flows.signal(handle.id, "enough", "so be it")
    assert await alpha.result(handle.id) == "so be it"


async def test_flow_that_always_continues_as_new_can_be_paused_and_killed(nodes: FlowNodes) -> None:
    alpha = await start(nodes)
    handle = await alpha.begin(anew, 0)
    async with asyncio.timeout(DEADLINE_S):
        await alpha.flows.admin.pause(handle.id)
        assert (await alpha.flows.admin.show(handle.id)).status is FlowStatus.PAUSED
        await alpha.flows.admin.resume(handle.id)
        await alpha.flows.admin.kill(handle.id)
    with pytest.raises(FlowKilledError):
        await alpha.result(handle.id)


async def test_others_go_on_beside_a_flow_that_never_waits(nodes: FlowNodes) -> None:
    alpha = await start(nodes)
    handles = [await alpha.begin(busy, kind, False) for kind in ("sleeps", "timeouts")]
    assert await alpha.run(one, 1) == 2
    for handle in handles:
        await alpha.flows.admin.kill(handle.id)


@pytest.mark.parametrize("kind", ["steps", "tx steps", "sleeps", "talk", "monologue"])
async def test_busy_flow_on_slow_disk_obeys_operators(nodes: FlowNodes, kind: str) -> None:
    disk = MemoryDisk()
    alpha = await nodes.start("alpha", busy, reply, one, make_store=lambda: MemoryStore(disk))
    alpha.meet(alpha.station)
    disk.sync_s = 0.02
    handle = await alpha.begin(busy, kind, True)
    await alpha.until_steps(handle.id, 2)
    async with asyncio.timeout(DEADLINE_S):
        await alpha.flows.admin.pause(handle.id)
        await alpha.flows.admin.resume(handle.id)
        await alpha.flows.signal(handle.id, "enough", "so be it")
    assert await alpha.result(handle.id) == "so be it"


async def test_a_signal_does_not_wait_for_a_step_whose_transaction_is_lost(
    nodes: FlowNodes,
) -> None:
    is_free, has_begun = asyncio.Event(), asyncio.Event()

    async def dawdle(tx: Transaction = INJECTED) -> None:
        await tx.execute("SELECT 1")
        has_begun.set()
        await is_free.wait()

    @flow
    async def slow(ctx: FlowContext) -> str:
        await ctx.gather(ctx.step(dawdle), ctx.wait_for_signal("go", str))
        return "done"

    config = msgspec.structs.replace(QUICK, transaction_timeout_s=0.05)
    alpha = await nodes.start("alpha", slow, mail_config=config)
    handle = await alpha.begin(slow)
    await has_begun.wait()
    async with asyncio.timeout(DEADLINE_S):
        await alpha.flows.signal(handle.id, "go", "now")
    assert not is_free.is_set()
    is_free.set()
