"""Nodes that are stopped and started in the midst of conversations: nobody can tell."""

from __future__ import annotations

import asyncio
import random

import pytest

from postroad.durable import Transaction
from postroad.flows import (
    INJECTED,
    FlowContext,
    FlowSession,
    FlowStatus,
    RetryPolicy,
    SessionEndedError,
    StepId,
    flow,
    responder,
)
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_pairs import until_empty
from tests.support.flows.nodes import FlowNodes

SOON = RetryPolicy(max_attempts=20, initial_delay_s=0.001, max_delay_s=0.01)


async def create_books(tx: Transaction = INJECTED) -> None:
    await tx.execute("CREATE TABLE books (amount INTEGER, step TEXT)")


async def book(amount: int, tx: Transaction = INJECTED, step_id: StepId = INJECTED) -> None:
    await tx.execute(f"INSERT INTO books VALUES ({amount}, '{step_id}')")


@flow
async def open_books(ctx: FlowContext) -> None:
    await ctx.step(create_books)


@flow
async def trade(ctx: FlowContext, buyer: str, bank: str, items: int) -> list[int]:
    """Sells items one by one, each paid through the bank."""
    session = ctx.open_session(buyer)
    paid = []
    for item in range(items):
        price = await session.send_and_receive(item, int)
        await ctx.gather(ctx.step(book, price), ctx.sleep(0.001))
        name, _ = await ctx.select(paid=ctx.run_subflow(collect, bank, price), late=ctx.sleep(1000))
        assert name == "paid"
        paid.append(price)
    return paid


@responder(trade)
async def purchase(ctx: FlowContext, session: FlowSession) -> int:
    bought = 0
    while True:
        try:
            item = await session.receive(int)
        except SessionEndedError:
            return bought
        price = 10 * (item + 1)
        await ctx.step(book, -price)
        await session.send(price)
        bought += 1


@flow
async def collect(ctx: FlowContext, bank: str, amount: int) -> int:
    return await ctx.open_session(bank).send_and_receive(amount, int)


@responder(collect)
async def transfer(ctx: FlowContext, session: FlowSession) -> None:
    amount = await session.receive(int)
    await ctx.step(book, amount)
    await session.send(amount)


async def test_all_nodes_are_stopped_and_started_all_the_time(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", open_books, trade)
    beta = await nodes.start("beta", open_books, purchase)
    gamma = await nodes.start("gamma", open_books, transfer)
    for node in (alpha, beta, gamma):
        await node.run(open_books)
    handles = [await alpha.begin(trade, "beta", "gamma", 6) for _ in range(5)]
    chance = random.Random(7)
    for _ in range(12):
        unlucky = chance.choice([alpha, beta, gamma])
        await asyncio.sleep(chance.random() * 0.03)
        await (unlucky.restart() if chance.random() < 0.3 else unlucky.restart_flows())
    for handle in handles:
        assert await alpha.result(handle.id) == [10, 20, 30, 40, 50, 60]
    for view in await beta.until_listed("purchase", FlowStatus.COMPLETED, 5):
        assert await beta.result(view.id) == 6
    for node, sign in ((alpha, 1), (beta, -1), (gamma, 1)):
        rows = await node.rows("SELECT amount, step FROM books")
        assert sorted(amount * sign for amount, _ in rows) == sorted([10, 20, 30, 40, 50, 60] * 5)
        assert len({step for _, step in rows}) == 30
    for node in (alpha, beta, gamma):
        await until_empty(node.station.mail)
        assert await node.rows("SELECT COUNT(*) FROM postroad_flow_mail") == [(0,)]


async def test_a_sleep_goes_on_while_the_node_is_down(nodes: FlowNodes) -> None:
    @flow
    async def nap(ctx: FlowContext) -> list[float]:
        before = ctx.now()
        await ctx.sleep(0.1)
        return [(ctx.now() - before).total_seconds()]

    @flow
    async def nap_long(ctx: FlowContext) -> None:
        await ctx.sleep(1000)

    alpha = await nodes.start("alpha", nap, nap_long)
    handle, other = await alpha.begin(nap), await alpha.begin(nap_long)
    await alpha.stop()
    await asyncio.sleep(0.11)
    await alpha.start()
    (slept,) = await alpha.result(handle.id)
    assert slept >= 0.1
    shown = await alpha.flows.admin.show(other.id)
    assert shown.status is FlowStatus.RUNNING
    assert shown.wakes_at == pytest.approx(shown.started_at + 1000, abs=1)


async def test_a_function_that_ran_when_the_node_stopped_is_run_again(nodes: FlowNodes) -> None:
    calls: list[str] = []
    ended: list[str] = []
    has_begun = asyncio.Event()

    async def work(step_id: StepId = INJECTED) -> int:
        calls.append(step_id)
        has_begun.set()
        if len(calls) == 1:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(step_id)
        return len(calls)

    @flow
    async def job(ctx: FlowContext) -> int:
        return await ctx.step(work)

    alpha, handle = await nodes.begin(job)
    await has_begun.wait()
    waiting = asyncio.ensure_future(handle.result(DEADLINE_S))
    await asyncio.sleep(0)
    await alpha.stop_flows()
    assert ended == calls
    with pytest.raises(Exception, match="the flows of this node are stopped"):
        await waiting
    await alpha.start_flows()
    assert await alpha.result(handle.id) == 2
    assert len(set(calls)) == 1


async def test_a_peer_that_is_away_gets_everything_later(nodes: FlowNodes) -> None:
    @flow
    async def send_all(ctx: FlowContext, peer: str) -> list[int]:
        session = ctx.open_session(peer)
        for number in range(10):
            await session.send(number)
            await ctx.sleep(0.001)
        return await session.receive(list[int])

    @responder(send_all)
    async def receive_all(ctx: FlowContext, session: FlowSession) -> None:
        await session.send([await session.receive(int) for _ in range(10)])

    alpha, beta = await nodes.pair(send_all, receive_all)
    await beta.stop()
    handles = [await alpha.begin(send_all, "beta") for _ in range(3)]
    await alpha.until_steps(handles[-1].id, 15)
    await alpha.restart()
    await beta.start(alpha.station)
    for handle in handles:
        assert await alpha.result(handle.id) == list(range(10))


async def test_queues_continue_when_only_flows_stop(nodes: FlowNodes) -> None:
    @flow
    async def ask(ctx: FlowContext, peer: str) -> str:
        return await ctx.open_session(peer).send_and_receive("x", str)

    @responder(ask)
    async def reply(ctx: FlowContext, session: FlowSession) -> None:
        await session.send(await session.receive(str) * 2)

    alpha, beta = await nodes.pair(ask, reply)
    await beta.stop_flows()
    handle = await alpha.begin(ask, "beta")
    await until_empty(alpha.station.mail, "beta")
    await beta.start_flows()
    assert await handle.result(DEADLINE_S) == "xx"


async def test_the_same_flows_can_be_started_again(nodes: FlowNodes) -> None:
    @flow
    async def one(ctx: FlowContext) -> int:
        return await ctx.step(lambda: 1)

    alpha = await nodes.start("alpha", one)
    assert await alpha.run(one) == 1
    await alpha.flows.stop()
    await alpha.flows.stop()
    await alpha.flows.start()
    assert await alpha.run(one) == 1
    assert len(await alpha.flows.admin.list()) == 2


async def test_stop_completes_when_caller_is_cancelled(nodes: FlowNodes) -> None:
    @flow
    async def wait(ctx: FlowContext) -> str:
        return await ctx.wait_for_signal("go", str)

    alpha, handle = await nodes.begin(wait)
    for ticks in range(6):
        stopping = asyncio.ensure_future(alpha.flows.stop())
        for _ in range(ticks):
            await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        # Whoever asks again waits for the same.
        await alpha.flows.stop()
        await alpha.start_flows()
    await alpha.flows.signal(handle.id, "go", "on")
    assert await (await alpha.flows.get_handle(handle.id)).result(DEADLINE_S) == "on"
