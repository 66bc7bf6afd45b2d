"""Flows that are started and signaled in a transaction: with it or not at all, and once."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from postroad import INJECTED
from postroad.core.errors import ConfigError, UsageError
from postroad.core.fault_points import arm_fault_point
from postroad.durable import Message, SyncTransaction, Transaction
from postroad.flows import FlowContext, FlowNotFoundError, FlowSession, FlowStatus, flow, responder
from postroad.flows.inbox.requests import QUEUE
from postroad.flows.machine.requests import SignalRequest, StartRequest
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.flows.nodes import FlowNode, FlowNodes


@flow
async def double(ctx: FlowContext, number: int) -> int:
    return number * 2


@flow
async def wait_for_payment(ctx: FlowContext) -> int:
    return await ctx.wait_for_signal("paid", int)


@flow(concurrency=1)
async def one_at_a_time(ctx: FlowContext) -> int:
    return await ctx.wait_for_signal("go", int)


@responder(double)
async def respond(ctx: FlowContext, session: FlowSession) -> None: ...


async def result_of(node: FlowNode, client_id: str) -> object:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                handle = await node.flows.get_by_client_id(client_id)
            except FlowNotFoundError:
                await asyncio.sleep(0.005)
            else:
                return await handle.result()


async def dead_letter_of(node: FlowNode) -> tuple[str, str]:
    """The reason and detail of the only dead letter."""
    dead_letters = node.station.mail.dead_letters
    await eventually(dead_letters.count)
    (dead,) = await dead_letters.list()
    return dead.reason, dead.detail


async def test_flow_starts_if_the_transaction_commits(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", double)
    async with alpha.station.mail.transaction() as tx:
        client_id = tx.start_flow(double, 21)
    assert client_id.startswith("tx:")
    assert await result_of(alpha, client_id) == 42


async def test_nothing_starts_if_the_transaction_rolls_back(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", double)
    with pytest.raises(ZeroDivisionError):
        async with alpha.station.mail.transaction() as tx:
            tx.start_flow_with_id("rolled back", double, 1)
            raise ZeroDivisionError
    async with alpha.station.mail.transaction() as tx:
        tx.start_flow_with_id("committed", double, 2)
    assert await result_of(alpha, "committed") == 4
    assert [view.client_id for view in await alpha.flows.admin.list()] == ["committed"]


async def test_consumer_and_step_start_flows(nodes: FlowNodes) -> None:
    started: list[str] = []

    @flow
    async def parent(ctx: FlowContext) -> str:
        def start(tx: SyncTransaction = INJECTED) -> str:
            return tx.start_flow(double, 4)

        return await ctx.step(start)

    async def handle(message: Message, tx: Transaction) -> None:
        started.append(tx.start_flow(double, int(message.body)))

    alpha = await nodes.start("alpha", double, parent)
    await alpha.station.mail.consume("numbers", handle)
    await alpha.station.mail.send("numbers", b"5")
    await eventually(lambda: started)
    assert await result_of(alpha, started[0]) == 10
    assert await result_of(alpha, await alpha.run(parent)) == 8


async def test_one_flow_starts_for_each_client_id(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", double)
    for number in (1, 2, 3):
        async with alpha.station.mail.transaction() as tx:
            tx.start_flow_with_id("order 7", double, number)
            tx.start_flow_with_id("order 7", double, number + 10)
    handle = await alpha.flows.start_flow_with_id("order 7", double, 4)
    assert await handle.result(DEADLINE_S) == 2
    await eventually(lambda: no_requests(alpha))
    assert len(await alpha.flows.admin.list()) == 1


async def no_requests(node: FlowNode) -> bool:
    return not await node.station.mail.admin.peek(QUEUE)


async def test_signal_arrives_after_the_start_of_its_flow(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", wait_for_payment)
    async with alpha.station.mail.transaction() as tx:
        tx.start_flow_with_id("order", wait_for_payment)
        tx.signal("order", "paid", 5)
    assert await result_of(alpha, "order") == 5
    handle = await alpha.begin(wait_for_payment)
    async with alpha.station.mail.transaction() as tx:
        tx.signal(handle.id, "paid", 6)
    assert await alpha.result(handle.id) == 6


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("paids", 1, "did you mean 'paid'"), ("paid", "much", "Expected `int`, got `str`")],
)
async def test_wrong_signal_is_dead_letter(
    nodes: FlowNodes, name: str, value: object, text: str
) -> None:
    alpha = await nodes.start("alpha", wait_for_payment)
    handle = await alpha.begin(wait_for_payment)
    async with alpha.station.mail.transaction() as tx:
        tx.signal(handle.id, name, value)
        tx.signal(handle.id, "paid", 3)
    assert await alpha.result(handle.id) == 3
    reason, detail = await dead_letter_of(alpha)
    assert reason == "rejected" and text in detail


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_signal_of_a_flow_that_ended_or_never_was_is_a_dead_letter(
    nodes: FlowNodes, is_restarted: bool
) -> None:
    alpha = await nodes.start("alpha", double)
    await alpha.run(double, 1)
    (view,) = await alpha.flows.admin.list()
    if is_restarted:
        await alpha.restart()
    for id, text in [(view.id, "has ended: it is done"), ("nobody", "is not known")]:
        async with alpha.station.mail.transaction() as tx:
            tx.signal(id, "paid", 1)
        reason, detail = await dead_letter_of(alpha)
        assert reason == "rejected" and text in detail
        await alpha.station.mail.dead_letters.drop_many()


async def test_bad_requests_are_dead_letters(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(double, respond)
    encode = msgspec.msgpack.encode
    arguments = double.encode_arguments((1,), {})
    for body, text in [
        (b"\xc1", "not a request"),
        (b"", "not a request"),
        (encode(["stop", "a"]), "not a request"),
        (encode(StartRequest("a", "unknown", arguments)), "no flow 'unknown'"),
        (encode(StartRequest("a", "respond", arguments)), "respond"),
        (encode(StartRequest("", "double", arguments)), "a client id has 1 to 512 characters"),
        (encode(SignalRequest("", "paid", b"")), "is not known"),
    ]:
        await alpha.station.mail.send(QUEUE, body)
        reason, detail = await dead_letter_of(alpha)
        assert reason == "rejected" and text in detail
        await alpha.station.mail.dead_letters.drop_many()
    await beta.station.mail.send(QUEUE, encode(StartRequest("a", "double", arguments)), to="alpha")
    assert "'beta' cannot start or signal flows of this node" in (await dead_letter_of(alpha))[1]
    assert not await alpha.flows.admin.list()


async def test_mistakes_raise_where_they_are_made(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", double)
    async with alpha.station.mail.transaction() as tx:
        with pytest.raises(UsageError, match="missing a required argument: 'number'"):
            tx.start_flow(double)  # type: ignore[call-arg]
        with pytest.raises(ConfigError, match="a client id has 1 to 512 characters"):
            tx.start_flow_with_id("", double, 1)
        with pytest.raises(UsageError, match="no signal can be called ''"):
            tx.signal("a", "")
        with pytest.raises(ConfigError, match="a client id has 1 to 512 characters"):
            tx.signal("", "paid")
    with pytest.raises(UsageError, match="the transaction is over"):
        tx.start_flow(double, 1)
    await alpha.stop_flows()
    async with alpha.station.mail.transaction() as tx:
        with pytest.raises(UsageError, match="node 'alpha' runs no flows"):
            tx.start_flow(double, 1)


async def test_requests_wait_for_the_end_of_draining_and_for_a_slot(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", one_at_a_time)
    await alpha.flows.execution.drain()
    async with alpha.station.mail.transaction() as tx:
        tx.start_flow_with_id("a", one_at_a_time)
        tx.start_flow_with_id("b", one_at_a_time)
        tx.signal("b", "go", 2)
        tx.signal("a", "go", 1)
    await eventually(lambda: no_requests(alpha))
    assert {view.status for view in await alpha.flows.admin.list()} == {FlowStatus.HELD}
    await alpha.flows.execution.undrain()
    assert [await result_of(alpha, "a"), await result_of(alpha, "b")] == [1, 2]


@pytest.mark.parametrize(
    "point", ["durable.consumer.dispatched", "flows.commit.durable", "durable.commit.after"]
)
async def test_request_is_done_once_whenever_the_node_stops(nodes: FlowNodes, point: str) -> None:
    alpha = await nodes.start("alpha", double, wait_for_payment)
    reached = asyncio.Event()

    with arm_fault_point(point, lambda **details: reached.set()):
        async with alpha.station.mail.transaction() as tx:
            tx.start_flow_with_id("paid", wait_for_payment)
            tx.signal("paid", "paid", 9)
            tx.start_flow_with_id("double", double, 4)
        await asyncio.wait_for(reached.wait(), DEADLINE_S)
        await alpha.restart()
    assert await result_of(alpha, "paid") == 9
    assert await result_of(alpha, "double") == 8
    await eventually(lambda: no_requests(alpha))
    assert len(await alpha.flows.admin.list()) == 2
    assert not await alpha.station.mail.dead_letters.list()
