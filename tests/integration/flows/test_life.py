"""Beginning flows, waiting for them, and looking at them."""

from __future__ import annotations

import asyncio

import pytest

from postroad.core.errors import ConfigError, UsageError
from postroad.flows import (
    DrainingError,
    FlowContext,
    FlowError,
    FlowNotFoundError,
    FlowSession,
    FlowStatus,
    FlowTimeoutError,
    PeerFlowFailedError,
    flow,
    responder,
)
from postroad.flows.engine.retention import purge_expired
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.flows.nodes import Crowd, FlowNodes, Hanging


@flow
async def double(ctx: FlowContext, number: int) -> int:
    return await ctx.step(lambda: number * 2)


@flow
async def wait_for_go(ctx: FlowContext, number: int = 0) -> int:
    ctx.set_progress(f"waits with {number}")
    return await ctx.wait_for_signal("go", int) + number


async def test_one_flow_per_client_id(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", double)
    first = await alpha.flows.start_flow_with_id("order-7", double, 7)
    second = await alpha.flows.start_flow_with_id("order-7", double, 8)
    assert first.id == second.id
    assert second.client_id == "order-7"
    assert [await handle.result(DEADLINE_S) for handle in (first, second)] == [14, 14]
    after = await alpha.flows.start_flow_with_id("order-7", double, 9)
    assert await after.result(DEADLINE_S) == 14
    assert len(await alpha.flows.admin.list()) == 1


async def test_one_flow_per_client_id_when_many_ask_at_the_same_time(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", double)
    handles = await asyncio.gather(
        *(alpha.flows.start_flow_with_id("order-7", double, number) for number in range(10))
    )
    assert len({handle.id for handle in handles}) == 1
    assert len({await handle.result(DEADLINE_S) for handle in handles}) == 1
    assert len(await alpha.flows.admin.list()) == 1


async def test_results_are_there_after_a_restart(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", double, wait_for_go)
    done = await alpha.flows.start_flow_with_id("order-7", double, 7)
    assert await done.result(DEADLINE_S) == 14
    waiting = await alpha.flows.start_flow_with_id("order-8", wait_for_go, 8)
    await alpha.restart()
    assert (
        await (await alpha.flows.start_flow_with_id("order-7", double, 1)).result(DEADLINE_S) == 14
    )
    attached = await alpha.flows.get_by_client_id("order-8")
    assert (attached.id, attached.name) == (waiting.id, "wait_for_go")
    with pytest.raises(TimeoutError):
        await attached.result(0.01)
    await alpha.flows.signal(attached.id, "go", 1)
    assert await attached.result(DEADLINE_S) == 9
    assert await (await alpha.flows.get_handle(done.id)).result(DEADLINE_S) == 14


async def test_failed_flow_raises_for_each_client(nodes: FlowNodes) -> None:
    @flow
    async def fails(ctx: FlowContext) -> None:
        await ctx.sleep(0)
        raise FlowError("no luck")

    alpha = await nodes.start("alpha", fails)
    handle = await alpha.flows.start_flow_with_id("order-7", fails)
    with pytest.raises(FlowError, match="no luck"):
        await handle.result(DEADLINE_S)
    await alpha.restart()
    with pytest.raises(FlowError, match="no luck"):
        await (await alpha.flows.get_by_client_id("order-7")).result(DEADLINE_S)


async def test_deleted_client_id_can_be_used_again(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", double, wait_for_go)
    handle = await alpha.flows.start_flow_with_id("order-7", wait_for_go, 7)
    with pytest.raises(UsageError, match="cannot delete flow order-7: it is running"):
        await alpha.flows.delete("order-7")
    await alpha.flows.signal(handle.id, "go", 1)
    assert await handle.result(DEADLINE_S) == 8
    await alpha.flows.delete("order-7")
    with pytest.raises(FlowNotFoundError, match="no flow has the client id 'order-7'"):
        await alpha.flows.get_by_client_id("order-7")
    with pytest.raises(FlowNotFoundError, match="no flow has the id or client id 'order-7'"):
        await alpha.flows.delete("order-7")
    with pytest.raises(FlowNotFoundError, match=handle.id):
        await alpha.flows.admin.show(handle.id)
    again = await alpha.flows.start_flow_with_id("order-7", double, 5)
    assert await again.result(DEADLINE_S) == 10


async def test_purged_flow_has_no_result(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", double, retention_s=0.001, client_id_retention_s=1000.0)
    named = await alpha.flows.start_flow_with_id("order-7", double, 7)
    handle = await alpha.begin(double, 1)
    assert [await handle.result(DEADLINE_S), await named.result(DEADLINE_S)] == [2, 14]
    await alpha.restart_flows()

    async def is_gone() -> bool:
        await purge_expired(alpha.flows.engine.store, alpha.flows.config)
        return [view.id for view in await alpha.flows.admin.list()] == [named.id]

    await eventually(is_gone, "only the flow with a client id is left")
    with pytest.raises(FlowNotFoundError):
        await alpha.flows.admin.history(handle.id)
    assert await (await alpha.flows.get_by_client_id("order-7")).result(DEADLINE_S) == 14


async def test_invalid_starts_are_rejected(nodes: FlowNodes) -> None:
    @flow
    async def unknown(ctx: FlowContext) -> None:
        await ctx.sleep(0)

    @responder(double)
    async def respond(ctx: FlowContext, session: FlowSession) -> None:
        await session.receive(int)

    alpha = await nodes.start("alpha", double, respond)
    with pytest.raises(UsageError, match="is no flow of this node"):
        await alpha.begin(unknown)
    with pytest.raises(UsageError, match="responds to double; only that flow starts it"):
        await alpha.flows.start_flow(respond, None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="flow 'double': missing a required argument: 'number'"):
        await alpha.flows.start_flow(double)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="a client id has 1 to 512 characters"):
        await alpha.flows.start_flow_with_id("", double, 1)
    with pytest.raises(FlowNotFoundError, match="no flow has the id or client id"):
        await alpha.flows.admin.show("seven")
    assert await alpha.flows.admin.list() == []


async def test_arguments_of_a_wrong_type_park_the_flow(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", double)
    handle = await alpha.flows.start_flow(double, "seven")  # type: ignore[arg-type]
    parked = await alpha.until(handle.id, FlowStatus.PARKED)
    assert "Expected `int`, got `str`" in str(parked.error)
    await alpha.flows.admin.kill(handle.id)


async def test_flows_are_listed_and_shown(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", double, wait_for_go)
    waiting = [await alpha.begin(wait_for_go, number) for number in range(3)]
    done = await alpha.begin(double, 1)
    await done.result(DEADLINE_S)
    everything = [view.id for view in await alpha.flows.admin.list()]
    assert everything == [done.id, *(view.id for view in reversed(waiting))]
    running = await alpha.until_listed("wait_for_go", FlowStatus.RUNNING, 3)
    assert [view.id for view in running] == [view.id for view in waiting]
    assert [view.id for view in await alpha.flows.admin.list("done")] == [done.id]
    assert await alpha.flows.admin.list(FlowStatus.FAILED) == []
    older = await alpha.flows.admin.list(before=waiting[2].id, limit=1)
    assert [view.id for view in older] == [waiting[1].id]
    with pytest.raises(ConfigError, match="status='asleep' must be one of"):
        await alpha.flows.admin.list("asleep")
    shown = await alpha.flows.admin.show(waiting[1].id)
    assert (shown.name, shown.status, shown.progress) == (
        "wait_for_go", FlowStatus.RUNNING, "waits with 1",
    )  # fmt: skip
    assert (shown.ended_at, shown.error, shown.peer, shown.run) == (None, None, None, 1)
    ended = await alpha.flows.admin.show(done.id)
    assert ended.ended_at is not None and ended.ended_at >= ended.started_at


async def test_progress_is_kept(nodes: FlowNodes) -> None:
    @flow
    async def advance(ctx: FlowContext) -> None:
        for number in range(3):
            ctx.set_progress(f"{number} of 3")
            await ctx.wait_for_signal("next", bool)
        ctx.set_progress("all")

    alpha, handle = await nodes.begin(advance)
    assert (await alpha.flows.admin.show(handle.id)).progress == "0 of 3"
    await alpha.flows.signal(handle.id, "next", True)
    assert (await alpha.flows.admin.show(handle.id)).progress == "1 of 3"
    await alpha.restart()
    assert (await alpha.flows.admin.show(handle.id)).progress == "1 of 3"
    for _ in range(2):
        await alpha.flows.signal(handle.id, "next", True)
    assert (await alpha.until(handle.id, FlowStatus.COMPLETED)).progress == "all"


async def test_flow_timeout_fails_flow(nodes: FlowNodes) -> None:
    @flow(timeout=0.05)
    async def sleepy(ctx: FlowContext, peer: str) -> None:
        session = ctx.open_session(peer)
        await session.send("x")
        await ctx.sleep(60)

    @responder(sleepy)
    async def patient(ctx: FlowContext, session: FlowSession) -> list[str]:
        await session.receive(str)
        try:
            await session.receive(str)
        except PeerFlowFailedError as failed:
            return [str(failed.kind), str(failed)]
        return []

    alpha, beta = await nodes.pair(sleepy, patient)
    handle = await alpha.begin(sleepy, "beta")
    with pytest.raises(FlowTimeoutError, match="flow sleepy took too long"):
        await handle.result(DEADLINE_S)
    assert (await alpha.flows.admin.show(handle.id)).status is FlowStatus.FAILED
    (notified,) = await beta.until_listed("patient", FlowStatus.COMPLETED)
    kind, text = await beta.result(notified.id)
    assert kind == "FlowTimeoutError"
    assert "flow sleepy took too long" in text


async def test_a_flow_takes_too_long_while_a_function_runs(nodes: FlowNodes) -> None:
    hanging = Hanging()

    @flow(timeout=0.2)
    async def stuck(ctx: FlowContext) -> None:
        await ctx.step(hanging.hang)

    _, handle = await nodes.begin(stuck)
    with pytest.raises(FlowTimeoutError, match="flow stuck took too long"):
        await handle.result(DEADLINE_S)
    # On a slow machine its time may be over before the function is called.
    assert hanging.ended == hanging.begun


async def test_a_flow_whose_time_is_over_while_the_node_is_down_fails(nodes: FlowNodes) -> None:
    @flow(timeout=0.1)
    async def sleepy(ctx: FlowContext) -> None:
        await ctx.sleep(60)

    alpha, handle = await nodes.begin(sleepy)
    await alpha.stop_flows()
    await asyncio.sleep(0.12)
    await alpha.start_flows()
    with pytest.raises(FlowTimeoutError):
        await alpha.result(handle.id)


async def test_no_more_than_so_many_at_the_same_time(nodes: FlowNodes) -> None:
    crowd = Crowd(2)

    @flow(concurrency=2)
    async def limited(ctx: FlowContext, number: int) -> int:
        return await ctx.step(crowd.work, number)

    alpha = await nodes.start("alpha", limited)
    handles = [await alpha.begin(limited, number) for number in range(10)]
    assert [await handle.result(DEADLINE_S) for handle in handles] == list(range(10))
    assert crowd.most == 2
    assert len(await alpha.flows.admin.list(FlowStatus.COMPLETED)) == 10


async def test_queued_flows_can_be_killed_and_survive_a_restart(nodes: FlowNodes) -> None:
    @flow(concurrency=1)
    async def single(ctx: FlowContext, number: int) -> int:
        return number + await ctx.wait_for_signal("go", int)

    alpha = await nodes.start("alpha", single)
    first, second, third = [await alpha.begin(single, number) for number in range(3)]
    assert [view.id for view in await alpha.flows.admin.list(FlowStatus.QUEUED)] == [
        third.id,
        second.id,
    ]
    await alpha.flows.admin.kill(second.id)
    await alpha.restart()
    assert [view.id for view in await alpha.flows.admin.list(FlowStatus.QUEUED)] == [third.id]
    await alpha.flows.signal(third.id, "go", 10)
    await alpha.flows.signal(first.id, "go", 20)
    assert await alpha.result(first.id) == 20
    assert await alpha.result(third.id) == 12


async def test_responders_wait_for_room_too(nodes: FlowNodes) -> None:
    @flow
    async def ask(ctx: FlowContext, peer: str, number: int) -> int:
        return await ctx.open_session(peer).send_and_receive(number, int)

    crowd = Crowd(1)

    @responder(ask, concurrency=1)
    async def reply(ctx: FlowContext, session: FlowSession) -> None:
        await session.send(await ctx.step(crowd.work, await session.receive(int)))

    alpha, beta = await nodes.pair(ask, reply)
    handles = [await alpha.begin(ask, "beta", number) for number in range(8)]
    assert [await handle.result(DEADLINE_S) for handle in handles] == list(range(8))
    assert crowd.most == 1
    await beta.until_listed("reply", FlowStatus.COMPLETED, 8)


async def test_draining_node_starts_no_flows(nodes: FlowNodes) -> None:
    @flow
    async def ask(ctx: FlowContext, peer: str) -> str:
        return await ctx.open_session(peer).send_and_receive("x", str)

    @responder(ask)
    async def reply(ctx: FlowContext, session: FlowSession) -> None:
        await session.send(await session.receive(str))

    alpha, beta = await nodes.pair(ask, reply, wait_for_go)
    waiting = await beta.begin(wait_for_go)
    assert await beta.flows.execution.drain(timeout=0.05) == 1
    with pytest.raises(DrainingError, match="starts no new flows"):
        await beta.begin(wait_for_go)
    asking = await alpha.begin(ask, "beta")
    await beta.until_listed("reply", FlowStatus.HELD)
    await beta.flows.signal(waiting.id, "go", 1)
    assert await beta.flows.execution.drain(timeout=10) == 0
    assert await waiting.result(DEADLINE_S) == 1
    await beta.flows.execution.undrain()
    assert await asking.result(DEADLINE_S) == "x"
    another = await beta.begin(wait_for_go)
    await beta.flows.signal(another.id, "go", 2)
    assert await another.result(DEADLINE_S) == 2


async def test_few_in_memory_and_many_at_work(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", wait_for_go, double, loaded_flows_max=4)
    handles = [await alpha.begin(wait_for_go, number) for number in range(40)]

    async def few_are_resident() -> bool:
        # Whoever comes has those that are idle leave.
        await alpha.run(double, 1)
        return len(alpha.flows.engine.loaded_flows) <= 5

    await eventually(few_are_resident, "at most four and the one that came are in memory")
    for number, handle in enumerate(handles):
        await alpha.flows.signal(handle.id, "go", 100 * number)
    assert [await handle.result(DEADLINE_S) for handle in handles] == [
        101 * number for number in range(40)
    ]
