"""Flows that are cancelled: their code gets an error where it waits, and may undo things."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.core.limits import RetryPolicy
from postroad.flows import (
    FlowCancelledError,
    FlowContext,
    FlowSession,
    FlowStatus,
    PeerFlowFailedError,
    flow,
    responder,
)
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.flows.nodes import FlowNode, FlowNodes


class Bookings:
    """What steps have done, in their order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.gate = asyncio.Event()

    def do(self, what: str) -> str:
        self.calls.append(what)
        return what

    async def hang(self) -> None:
        self.calls.append("hang")
        await self.gate.wait()
        self.calls.append("went on")

    def fail(self) -> None:
        self.calls.append("fail")
        raise ConnectionError("no route")


@pytest.fixture
def bookings() -> Bookings:
    return Bookings()


async def until_recorded(node: FlowNode, id: str, count: int) -> None:
    """Wait until a flow has completed so many things, and waits for the next one."""

    async def is_recorded() -> bool:
        return len(await node.flows.admin.history(id)) == count

    await eventually(is_recorded)


async def ended(node: FlowNode, id: str, status: FlowStatus) -> str | None:
    return (await node.until(id, status)).error


async def test_compensation_runs_steps_and_the_flow_fails(
    nodes: FlowNodes, bookings: Bookings
) -> None:
    @flow
    async def travel(ctx: FlowContext) -> None:
        await ctx.step(bookings.do, "book")
        try:
            await ctx.sleep(3600)
        except FlowCancelledError:
            await ctx.step(bookings.do, "refund")
            raise

    alpha = await nodes.start("alpha", travel)
    handle = await alpha.begin(travel)
    await until_recorded(alpha, handle.id, 1)
    await alpha.flows.cancel(handle.id, "the customer has left")
    with pytest.raises(FlowCancelledError, match="the customer has left"):
        await handle.result(DEADLINE_S)
    assert bookings.calls == ["book", "refund"]
    await alpha.restart()
    failed = await alpha.flows.admin.show(handle.id)
    assert failed.status is FlowStatus.FAILED
    assert failed.error == "FlowCancelledError: the customer has left"
    labels = [(step.name, bool(step.error)) for step in await alpha.flows.admin.history(handle.id)]
    assert [is_error for _, is_error in labels] == [False, True, False]
    with pytest.raises(UsageError, match="has ended: it is failed"):
        await alpha.flows.cancel(handle.id)


async def test_code_may_end_well_all_the_same(nodes: FlowNodes) -> None:
    @flow
    async def patient(ctx: FlowContext) -> str:
        try:
            return await ctx.wait_for_signal("go", str)
        except FlowCancelledError as error:
            return f"without: {error}"

    alpha = await nodes.start("alpha", patient)
    handle = await alpha.begin(patient)
    await alpha.flows.cancel(handle.id, "too late")
    assert await handle.result(DEADLINE_S) == "without: too late"


async def test_running_step_is_cancelled_and_not_tried_again(
    nodes: FlowNodes, bookings: Bookings
) -> None:
    @flow
    async def work(ctx: FlowContext) -> None:
        await ctx.step.with_options(retry=RetryPolicy(max_attempts=5))(bookings.hang)

    alpha = await nodes.start("alpha", work)
    handle = await alpha.begin(work)
    await eventually(lambda: bookings.calls == ["hang"])
    await alpha.flows.cancel(handle.id)
    assert await ended(alpha, handle.id, FlowStatus.FAILED) is not None
    bookings.gate.set()
    await alpha.restart()
    assert bookings.calls == ["hang"]


async def test_each_branch_is_cancelled(nodes: FlowNodes, bookings: Bookings) -> None:
    @flow
    async def trip(ctx: FlowContext) -> list[Any]:
        async def leg(name: str) -> str:
            try:
                await ctx.wait_for_signal(name, str)
            except FlowCancelledError:
                return await ctx.step(bookings.do, f"undo {name}")
            return name

        return await ctx.gather(leg("there"), leg("back"))

    alpha = await nodes.start("alpha", trip)
    handle = await alpha.begin(trip)
    await alpha.flows.cancel(handle.id)
    assert await handle.result(DEADLINE_S) == ["undo there", "undo back"]
    assert sorted(bookings.calls) == ["undo back", "undo there"]


async def test_flow_may_go_on_and_be_cancelled_again(nodes: FlowNodes, bookings: Bookings) -> None:
    @flow
    async def stubborn(ctx: FlowContext) -> int:
        for count in range(3):
            try:
                await ctx.wait_for_signal("never", bool)
            except FlowCancelledError:
                await ctx.step(bookings.do, f"no {count}")
        return 3

    alpha = await nodes.start("alpha", stubborn)
    handle = await alpha.begin(stubborn)
    for count in range(3):
        # A step that is cancelled itself would raise.
        await until_recorded(alpha, handle.id, 2 * count)
        await alpha.flows.cancel(handle.id)
    assert await handle.result(DEADLINE_S) == 3


async def test_retried_and_parked_and_paused_flows_get_the_error_where_they_were(
    nodes: FlowNodes, bookings: Bookings
) -> None:
    @flow
    async def work(ctx: FlowContext) -> None:
        try:
            await ctx.step(bookings.fail)
        except FlowCancelledError:
            await ctx.step(bookings.do, "undo")
            raise

    alpha = await nodes.start(
        "alpha", work, max_attempts=2, retry_initial_delay_s=1000.0, retry_max_delay_s=1000.0
    )
    retried = await alpha.begin(work)
    await alpha.until(retried.id, FlowStatus.RETRYING)
    parked = await alpha.begin(work)
    await alpha.until(parked.id, FlowStatus.RETRYING)
    await alpha.flows.admin.retry(parked.id)
    await alpha.until(parked.id, FlowStatus.PARKED)
    paused = await alpha.begin(work)
    await alpha.until(paused.id, FlowStatus.RETRYING)
    await alpha.flows.admin.pause(paused.id)
    for handle in (retried, parked, paused):
        bookings.calls.clear()
        await alpha.flows.cancel(handle.id, "enough")
        assert await ended(alpha, handle.id, FlowStatus.FAILED) == "FlowCancelledError: enough"
        # The step that failed is not tried again.
        assert bookings.calls == ["undo"]


async def test_flow_that_has_not_started_fails_without_running(
    nodes: FlowNodes, bookings: Bookings
) -> None:
    @flow(concurrency=1)
    async def work(ctx: FlowContext) -> None:
        await ctx.step(bookings.do, "begin")
        await ctx.wait_for_signal("go", bool)

    alpha = await nodes.start("alpha", work)
    first, second = await alpha.begin(work), await alpha.begin(work)
    await alpha.until(second.id, FlowStatus.QUEUED)
    await alpha.flows.cancel(second.id, "not wanted")
    assert await ended(alpha, second.id, FlowStatus.FAILED) == "FlowCancelledError: not wanted"
    await alpha.flows.signal(first.id, "go", True)
    await first.result(DEADLINE_S)
    assert bookings.calls == ["begin"]


@flow
async def ask(ctx: FlowContext, peer: str) -> str:
    session = ctx.open_session(peer)
    await session.send("how much?")
    return await session.receive(str)


@responder(ask)
async def answer(ctx: FlowContext, session: FlowSession) -> None:
    try:
        await session.receive(str)
        await session.receive(str)
    except PeerFlowFailedError as error:
        await ctx.step(print, error)
        raise


async def test_peers_learn_that_a_cancelled_flow_has_failed(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(ask, answer)
    handle = await alpha.begin(ask, "beta")
    (answering,) = await beta.until_listed("answer", FlowStatus.RUNNING)
    await alpha.flows.cancel(handle.id)
    with pytest.raises(FlowCancelledError):
        await handle.result(DEADLINE_S)
    error = await ended(beta, answering.id, FlowStatus.FAILED)
    assert "PeerFlowFailedError" in str(error)
