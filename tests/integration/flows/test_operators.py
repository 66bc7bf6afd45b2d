"""What operators do with flows, and what the flows and their peers make of it."""

from __future__ import annotations

import asyncio

import pytest

from postroad.core.errors import UsageError
from postroad.flows import (
    INJECTED,
    FlowContext,
    FlowKilledError,
    FlowNotFoundError,
    FlowSession,
    FlowStatus,
    PeerFlowFailedError,
    StepId,
    flow,
    responder,
)
from postroad.flows.machine.state import parse_flow_id
from tests.support.deadlines import DEADLINE_S
from tests.support.flows.nodes import FlowNodes


@flow
async def count_down(ctx: FlowContext, peer: str, count: int) -> int:
    session = ctx.open_session(peer)
    for number in range(count, 0, -1):
        await session.send(number)
        await ctx.wait_for_signal("next", bool)
    return await session.receive(int)


@responder(count_down)
async def add_up(ctx: FlowContext, session: FlowSession) -> int:
    numbers: list[int] = []
    while not numbers or numbers[-1] > 1:
        numbers.append(await session.receive(int))
    await session.send(sum(numbers))
    return len(numbers)


@flow
async def wait_for_go(ctx: FlowContext) -> int:
    return await ctx.wait_for_signal("go", int)


async def test_killed_flow_notifies_client_and_peer(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(count_down, add_up)
    handle = await alpha.begin(count_down, "beta", 3)
    (adding,) = await beta.until_listed("add_up", FlowStatus.RUNNING)
    await alpha.flows.admin.kill(handle.id, "changed my mind")
    with pytest.raises(FlowKilledError, match="changed my mind"):
        await handle.result(DEADLINE_S)
    failed = await beta.until(adding.id, FlowStatus.FAILED)
    killed = await alpha.flows.admin.show(handle.id)
    assert (killed.status, killed.error) == (FlowStatus.KILLED, "FlowKilledError: changed my mind")
    assert failed.error_id == killed.error_id
    # What an operator says is nothing for others.
    assert "changed my mind" not in str(failed.error)
    with pytest.raises(UsageError, match="has ended: it is killed"):
        await alpha.flows.admin.kill(handle.id)
    await alpha.restart()
    with pytest.raises(FlowKilledError, match="changed my mind"):
        await alpha.result(handle.id)


async def test_killed_responder_notifies_initiator(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(count_down, add_up)
    handle = await alpha.begin(count_down, "beta", 2)
    (adding,) = await beta.until_listed("add_up", FlowStatus.RUNNING)
    await beta.flows.admin.kill(adding.id)
    for _ in range(2):
        await alpha.flows.signal(handle.id, "next", True)
    with pytest.raises(PeerFlowFailedError) as caught:
        await handle.result(DEADLINE_S)
    assert caught.value.kind is None
    assert caught.value.error_id == (await beta.flows.admin.show(adding.id)).error_id


async def test_killing_stops_functions(nodes: FlowNodes) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @flow
    async def stuck(ctx: FlowContext) -> None:
        await ctx.step(hang)

    alpha, handle = await nodes.begin(stuck)
    async with asyncio.timeout(10):
        await began.wait()
        await alpha.flows.admin.kill(handle.id)
        await ended.wait()


async def test_messages_to_paused_flow_are_buffered_in_order(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(count_down, add_up)
    handle = await alpha.begin(count_down, "beta", 5)
    (adding,) = await beta.until_listed("add_up", FlowStatus.RUNNING)
    await beta.flows.admin.pause(adding.id)
    for _ in range(3):
        await alpha.flows.signal(handle.id, "next", True)
    assert (await beta.until(adding.id, FlowStatus.PAUSED)).status is FlowStatus.PAUSED
    await beta.restart()
    assert (await beta.flows.admin.show(adding.id)).status is FlowStatus.PAUSED
    for _ in range(2):
        await alpha.flows.signal(handle.id, "next", True)
    with pytest.raises(TimeoutError):
        await handle.result(0.1)
    await beta.flows.admin.resume(adding.id)
    assert await handle.result(DEADLINE_S) == 15
    assert await beta.result(adding.id) == 5


NAP_S = 0.5


async def test_a_paused_flow_sleeps_on(nodes: FlowNodes) -> None:
    calls: list[str] = []

    @flow
    async def nap(ctx: FlowContext) -> str:
        await ctx.sleep(NAP_S)
        await ctx.step(calls.append, "awake")
        return "rested"

    alpha, handle = await nodes.begin(nap)
    await alpha.flows.admin.pause(handle.id)
    # Nothing tells that a paused flow did not wake.
    await asyncio.sleep(NAP_S + 0.1)
    assert (await alpha.flows.admin.show(handle.id)).status is FlowStatus.PAUSED
    assert calls == []
    await alpha.flows.admin.resume(handle.id)
    assert await handle.result(DEADLINE_S) == "rested"


async def test_invalid_operations_are_rejected(nodes: FlowNodes) -> None:
    alpha, handle = await nodes.begin(wait_for_go)
    with pytest.raises(UsageError, match="a flow that is running cannot resume"):
        await alpha.flows.admin.resume(handle.id)
    with pytest.raises(UsageError, match="a flow that is running cannot retry"):
        await alpha.flows.admin.retry(handle.id)
    await alpha.flows.admin.pause(handle.id)
    message = "a flow that is paused cannot pause; it can resume, cancel, kill"
    with pytest.raises(UsageError, match=message):
        await alpha.flows.admin.pause(handle.id)
    with pytest.raises(UsageError, match="is paused; only running flows can be queried"):
        await alpha.flows.query(handle.id, "anything")
    await alpha.flows.admin.resume(handle.id)
    await alpha.flows.signal(handle.id, "go", 1)
    assert await handle.result(DEADLINE_S) == 1
    for operation in (alpha.flows.admin.retry, alpha.flows.admin.pause, alpha.flows.admin.resume):
        with pytest.raises(UsageError, match="has ended: it is done"):
            await operation(handle.id)
    with pytest.raises(FlowNotFoundError, match="this node has no flow 0000000000000001"):
        await alpha.flows.admin.pause("0000000000000001")


async def test_signals_before_and_after_they_are_asked_for(nodes: FlowNodes) -> None:
    @flow
    async def listen(ctx: FlowContext) -> list[object]:
        await ctx.wait_for_signal("begin", bool)
        seen: list[object] = [await ctx.wait_for_signal("number", int) for _ in range(4)]
        seen.append(await ctx.wait_for_signal("text", str))
        try:
            await ctx.wait_for_signal("number", int, timeout=0.02)
        except TimeoutError as error:
            seen.append(type(error).__name__)
        return seen

    alpha, handle = await nodes.begin(listen)
    await alpha.flows.signal(handle.id, "text", "early")
    await alpha.flows.signal(handle.id, "number", 1)
    await alpha.flows.signal(handle.id, "number", 2)
    await alpha.restart()
    await alpha.flows.signal(handle.id, "number", 3)
    await alpha.flows.admin.pause(handle.id)
    await alpha.flows.signal(handle.id, "begin", True)
    await alpha.flows.admin.resume(handle.id)
    await alpha.flows.signal(handle.id, "number", 4)
    assert await alpha.result(handle.id) == [1, 2, 3, 4, "early", "FlowTimeoutError"]
    assert await alpha.rows("SELECT COUNT(*) FROM postroad_flow_mail") == [(0,)]


async def test_queries_are_answered_by_the_code(nodes: FlowNodes) -> None:
    @flow
    async def collect(ctx: FlowContext) -> list[int]:
        numbers: list[int] = []
        ctx.set_query_handler("numbers", lambda: list(numbers))
        ctx.set_query_handler("count", lambda: len(numbers))
        while (number := await ctx.wait_for_signal("number", int)) > 0:
            numbers.append(number)
        return numbers

    alpha, handle = await nodes.begin(collect)
    assert await alpha.flows.query(handle.id, "count") == 0
    for number in (3, 4):
        await alpha.flows.signal(handle.id, "number", number)
    assert await alpha.flows.query(handle.id, "numbers") == [3, 4]
    await alpha.restart()
    assert await alpha.flows.query(handle.id, "count") == 2
    with pytest.raises(UsageError, match="no handler for query 'names'; its queries are: count"):
        await alpha.flows.query(handle.id, "names")
    await alpha.flows.signal(handle.id, "number", 0)
    assert await alpha.result(handle.id) == [3, 4]
    with pytest.raises(UsageError, match="is done; only running flows can be queried"):
        await alpha.flows.query(handle.id, "count")


async def test_a_flow_that_is_paused_before_it_can_answer(nodes: FlowNodes) -> None:
    @flow
    async def waits(ctx: FlowContext) -> str:
        return await ctx.wait_for_signal("go", str)

    alpha, handle = await nodes.begin(waits)
    await alpha.flows.admin.pause(handle.id)
    with pytest.raises(UsageError, match="is paused: it does not run"):
        await asyncio.wait_for(alpha.flows.engine.pin(parse_flow_id(handle.id)), DEADLINE_S)
    await alpha.flows.admin.resume(handle.id)
    await alpha.flows.signal(handle.id, "go", "gone")
    assert await alpha.result(handle.id) == "gone"


async def test_fork_starts_from_step(nodes: FlowNodes) -> None:
    calls: list[str] = []

    def call(name: str) -> str:
        calls.append(name)
        return f"{name} {len(calls)}"

    @flow
    async def work(ctx: FlowContext, peer: str) -> list[str]:
        done = [await ctx.step(call, name) for name in ("first", "second", "third")]
        return [*done, await ctx.open_session(peer).send_and_receive("x", str)]

    @responder(work)
    async def reply(ctx: FlowContext, session: FlowSession) -> None:
        await session.send(await session.receive(str))

    alpha, beta = await nodes.pair(work, reply)
    handle = await alpha.begin(work, "beta")
    assert await handle.result(DEADLINE_S) == ["first 1", "second 2", "third 3", "x"]
    other = await alpha.flows.admin.fork(handle.id, 2)
    assert other != handle.id
    assert await alpha.result(other) == ["first 1", "second 2", "third 4", "x"]
    assert calls == ["first", "second", "third", "third"]
    assert await handle.result(DEADLINE_S) == ["first 1", "second 2", "third 3", "x"]
    replies = await beta.until_listed("reply", FlowStatus.COMPLETED, 2)
    with pytest.raises(UsageError, match=r"step 3 of flow .* is 3 send\(beta\): a session cannot"):
        await alpha.flows.admin.fork(handle.id, 4)
    with pytest.raises(UsageError, match="from step 9: it has steps 0 to 4"):
        await alpha.flows.admin.fork(handle.id, 9)
    with pytest.raises(UsageError, match="it responds to another flow"):
        await beta.flows.admin.fork(replies[0].id, 0)


async def test_continue_as_new_with_other_arguments(nodes: FlowNodes) -> None:
    ids: list[str] = []

    def note(step_id: StepId = INJECTED) -> None:
        ids.append(step_id)

    @flow
    async def rounds(ctx: FlowContext, peer: str, rounds_left: int, total: int = 0) -> int:
        await ctx.step(note)
        session = ctx.open_session(peer)
        total += await session.send_and_receive(rounds_left, int)
        total += await ctx.wait_for_signal("bonus", int)
        if rounds_left:
            ctx.continue_as_new(peer, rounds_left - 1, total=total)
        return total

    @responder(rounds)
    async def reply(ctx: FlowContext, session: FlowSession) -> None:
        await session.send(10 * await session.receive(int))

    alpha, beta = await nodes.pair(rounds, reply)
    handle = await alpha.begin(rounds, "beta", 3)
    for _ in range(4):
        await alpha.flows.signal(handle.id, "bonus", 1)
    assert await handle.result(DEADLINE_S) == 64
    shown = await alpha.flows.admin.show(handle.id)
    assert shown.run == 4
    assert ids == [f"alpha/{handle.id}/{run}/0" for run in range(1, 5)]
    assert len(await alpha.flows.admin.history(handle.id)) == 4
    await beta.until_listed("reply", FlowStatus.COMPLETED, 4)


async def test_a_flow_that_never_ends_survives_restarts(nodes: FlowNodes) -> None:
    @flow
    async def forever(ctx: FlowContext, count: int) -> int:
        if await ctx.wait_for_signal("tick", bool):
            ctx.continue_as_new(count + 1)
        return count

    alpha, handle = await nodes.begin(forever, 0)
    for _ in range(3):
        await alpha.flows.signal(handle.id, "tick", True)
        await alpha.restart_flows()
    await alpha.flows.signal(handle.id, "tick", False)
    assert await alpha.result(handle.id) == 3
