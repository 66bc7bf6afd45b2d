"""Things that happen to flows at the same time, or where nobody expects them."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType

import pytest

from postroad.core.errors import ConfigError, UsageError
from postroad.flows import (
    FlowContext,
    FlowDefinition,
    FlowKilledError,
    FlowService,
    FlowSession,
    FlowStatus,
    FlowTimeoutError,
    SessionRejectedError,
    flow,
    responder,
)
from tests.support.deadlines import DEADLINE_S
from tests.support.flows.nodes import Crowd, FlowNodes


@flow
async def add(ctx: FlowContext, peer: str, first: int, second: int) -> int:
    session = ctx.open_session(peer)
    await session.send(first)
    await ctx.step(str, "between")
    return await session.send_and_receive(second, int)


@responder(add)
async def add_for_others(ctx: FlowContext, session: FlowSession) -> None:
    first = await session.receive(int)
    await ctx.sleep(0)
    await session.send(first + await session.receive(int))


@flow
async def wait_for_go(ctx: FlowContext, number: int = 0) -> int:
    return number + await ctx.wait_for_signal("go", int)


async def test_many_at_the_same_time_in_both_directions(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(add, add_for_others, loaded_flows_max=32)
    there = [await alpha.begin(add, "beta", number, 1) for number in range(60)]
    back = [await beta.begin(add, "alpha", number, 2) for number in range(60)]
    assert [await handle.result(DEADLINE_S) for handle in there] == [
        number + 1 for number in range(60)
    ]
    assert [await handle.result(DEADLINE_S) for handle in back] == [
        number + 2 for number in range(60)
    ]
    for node in (alpha, beta):
        await node.until_listed("add_for_others", FlowStatus.COMPLETED, 60)


async def test_flows_of_a_module(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", wait_for_go)
    await alpha.stop_flows()
    flows = FlowService(alpha.station.mail, sys.modules[__name__], nodes.config)
    async with flows:
        handle = await flows.start_flow(add, "alpha", 1, 2)
        assert await handle.result(DEADLINE_S) == 3


def test_duplicate_flow_names_are_rejected() -> None:
    @flow(name="add")
    async def other(ctx: FlowContext) -> None:
        await ctx.sleep(0)

    @responder(add)
    async def other_responder(ctx: FlowContext, session: FlowSession) -> None:
        await session.close()

    mail = object()
    for definitions, problem in (
        ([add, other], "two flows are called 'add': give one another name"),
        ([add_for_others, other_responder], "both respond to 'add'"),
    ):
        with pytest.raises(ConfigError, match=problem):
            FlowService(mail, definitions)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is no flow: decorate it with @flow"):
        FlowService(mail, [add.function])  # type: ignore[arg-type, list-item]
    # Only what was defined in it counts, and it may be nothing.
    assert list(FlowService(mail, ModuleType("empty")).registry) == []  # type: ignore[arg-type]


async def test_session_waits_for_unknown_node(nodes: FlowNodes) -> None:
    @flow
    async def call_nobody(ctx: FlowContext, peer: str) -> str:
        session = ctx.open_session(peer)
        try:
            return await session.receive(str, timeout=0.05)
        except FlowTimeoutError:
            return await session.receive(str)

    @responder(call_nobody)
    async def be_there(ctx: FlowContext, session: FlowSession) -> None:
        await session.send(f"{session.peer} called")

    alpha = await nodes.start("alpha", call_nobody)
    patient = await alpha.begin(call_nobody, "beta")
    hopeless = await alpha.begin(call_nobody, "nowhere")
    await alpha.until_steps(patient.id, 2)
    await nodes.start("beta", be_there)
    assert await patient.result(DEADLINE_S) == "alpha called"
    await alpha.flows.admin.kill(hopeless.id)
    with pytest.raises(FlowKilledError):
        await hopeless.result(DEADLINE_S)


async def test_operations_on_retrying_flow(nodes: FlowNodes) -> None:
    calls: list[int] = []

    def shaky() -> int:
        calls.append(1)
        if len(calls) <= 3:
            raise ConnectionError("no route")
        return len(calls)

    @flow
    async def work(ctx: FlowContext) -> list[int]:
        return [await ctx.step(shaky), await ctx.wait_for_signal("go", int)]

    alpha = await nodes.start("alpha", work, retry_initial_delay_s=1000.0, retry_max_delay_s=1000.0)
    first, second, third = [await alpha.begin(work) for _ in range(3)]
    for handle in (first, second, third):
        await alpha.until(handle.id, FlowStatus.RETRYING)
        await alpha.flows.signal(handle.id, "go", 7)
    await alpha.flows.admin.pause(first.id)
    await alpha.flows.admin.kill(second.id)
    await alpha.restart_flows()
    await alpha.flows.admin.resume(first.id)
    await alpha.flows.admin.retry(third.id)
    assert sorted([await alpha.result(first.id), await alpha.result(third.id)]) == [[4, 7], [5, 7]]
    with pytest.raises(FlowKilledError):
        await alpha.result(second.id)


async def test_a_flow_that_goes_on_respects_how_many_may_run(nodes: FlowNodes) -> None:
    @flow(concurrency=1)
    async def single(ctx: FlowContext, number: int) -> int:
        return number + await ctx.wait_for_signal("go", int)

    alpha = await nodes.start("alpha", single)
    first, second, third = [await alpha.begin(single, number) for number in range(3)]
    await alpha.flows.admin.pause(first.id)
    await alpha.until(second.id, FlowStatus.RUNNING)
    assert (await alpha.flows.admin.show(third.id)).status is FlowStatus.QUEUED
    await alpha.flows.signal(second.id, "go", 10)
    assert await second.result(DEADLINE_S) == 11
    await alpha.until(third.id, FlowStatus.RUNNING)
    await alpha.flows.admin.kill(third.id)
    await alpha.flows.admin.resume(first.id)
    fourth = await alpha.begin(single, 3)
    assert (await alpha.flows.admin.show(fourth.id)).status is FlowStatus.QUEUED
    await alpha.flows.signal(first.id, "go", 20)
    assert await first.result(DEADLINE_S) == 20
    await alpha.flows.signal(fourth.id, "go", 30)
    assert await fourth.result(DEADLINE_S) == 33


async def test_parked_flows_leave_room_for_others(nodes: FlowNodes) -> None:
    @flow(concurrency=2)
    async def picky(ctx: FlowContext, number: int) -> int:
        await ctx.step(str, number)
        if number % 2:
            raise ValueError(number)
        return number

    alpha = await nodes.start("alpha", picky)
    handles = [await alpha.begin(picky, number) for number in range(8)]
    assert [await handle.result(DEADLINE_S) for handle in handles[::2]] == [0, 2, 4, 6]
    for handle in handles[1::2]:
        await alpha.until(handle.id, FlowStatus.PARKED)
        await alpha.flows.admin.kill(handle.id)
    assert await alpha.run(picky, 10) == 10


async def test_held_flows_start_after_restart(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(add, add_for_others)
    assert await beta.flows.execution.drain(timeout=1) == 0
    handle = await alpha.begin(add, "beta", 1, 2)
    (held,) = await beta.until_listed("add_for_others", FlowStatus.HELD)
    await beta.restart_flows()
    assert await handle.result(DEADLINE_S) == 3
    await beta.until(held.id, FlowStatus.COMPLETED)


async def test_queued_flows_do_not_start_while_draining(
    nodes: FlowNodes,
) -> None:
    @flow(concurrency=1)
    async def single(ctx: FlowContext, number: int) -> int:
        return number + await ctx.wait_for_signal("go", int)

    alpha = await nodes.start("alpha", single)
    first, second = [await alpha.begin(single, number) for number in range(2)]
    assert await alpha.flows.execution.drain(timeout=0.01) == 1
    await alpha.flows.signal(first.id, "go", 10)
    assert await alpha.flows.execution.drain(timeout=10) == 0
    assert (await alpha.flows.admin.show(second.id)).status is FlowStatus.QUEUED
    await alpha.flows.execution.undrain()
    await alpha.flows.signal(second.id, "go", 20)
    assert await second.result(DEADLINE_S) == 21


async def test_no_more_go_on_after_a_start_than_may_run(nodes: FlowNodes) -> None:
    crowd = Crowd(2)
    is_mended: list[bool] = []

    @flow(concurrency=2)
    async def limited(ctx: FlowContext, number: int) -> int:
        if not is_mended:
            raise ValueError("not yet")
        return await ctx.step(crowd.work, number)

    alpha = await nodes.start("alpha", limited)
    handles = [await alpha.begin(limited, number) for number in range(10)]
    await alpha.until_listed("limited", FlowStatus.PARKED, 10)
    is_mended.append(True)
    await alpha.restart_flows()
    # One that is ended while it waits for room keeps nobody back.
    await alpha.flows.admin.kill(handles[4].id)
    for number in (0, 1, 2, 3, 5, 6, 7, 8, 9):
        assert await alpha.result(handles[number].id) == number
    assert crowd.most == 2


async def test_held_flows_start_within_concurrency_limit(nodes: FlowNodes) -> None:
    crowd = Crowd(2)

    @flow
    async def ask(ctx: FlowContext, peer: str, number: int) -> int:
        return await ctx.open_session(peer).send_and_receive(number, int)

    @responder(ask, concurrency=2)
    async def reply(ctx: FlowContext, session: FlowSession) -> None:
        await session.send(await ctx.step(crowd.work, await session.receive(int)))

    alpha = await nodes.start("alpha", ask)
    beta = await nodes.start("beta", wait_for_go)
    handles = [await alpha.begin(ask, "beta", number) for number in range(10)]
    held = await beta.until_listed("ask", FlowStatus.HELD, 10)
    await beta.flows.admin.kill(held[3].id)
    await beta.restart_flows(reply)
    done = await asyncio.gather(
        *(handle.result(DEADLINE_S) for handle in handles), return_exceptions=True
    )
    rejected = [result for result in done if isinstance(result, SessionRejectedError)]
    assert len(rejected) == 1
    assert sorted(result for result in done if isinstance(result, int)) == sorted(
        number for number, result in enumerate(done) if result not in rejected
    )
    assert crowd.most == 2


async def test_a_fork_of_a_flow_with_branches(nodes: FlowNodes) -> None:
    calls: list[int] = []

    async def call(number: int) -> int:
        await asyncio.sleep(0.005 * (3 - number))
        calls.append(number)
        return number * 10

    @flow
    async def spread(ctx: FlowContext) -> list[int]:
        results = await ctx.gather(*(ctx.step(call, number) for number in range(3)))
        return [*results, await ctx.wait_for_signal("go", int)]

    alpha = await nodes.start("alpha", spread)
    handle = await alpha.flows.start_flow_with_id("order-7", spread)
    await alpha.until_steps(handle.id, 3)
    order = [step.place for step in await alpha.flows.admin.history(handle.id)]
    assert order == ["0.2.0", "0.1.0", "0.0.0"]
    copies = [await alpha.flows.admin.fork(handle.id, step) for step in range(4)]
    assert len({handle.id, *copies}) == 5
    for id in (handle.id, *copies):
        await alpha.flows.signal(id, "go", 7)
        assert await alpha.result(id) == [0, 10, 20, 7]
    assert len(calls) == 3 + 3 + 2 + 1
    assert (await alpha.flows.get_by_client_id("order-7")).id == handle.id


async def test_two_branches_wait_for_the_same_signal(nodes: FlowNodes) -> None:
    @flow
    async def both(ctx: FlowContext) -> list[int]:
        return await ctx.gather(ctx.wait_for_signal("go", int), ctx.wait_for_signal("go", int))

    alpha, handle = await nodes.begin(both)
    for number in (1, 2):
        await alpha.flows.signal(handle.id, "go", number)
    assert await handle.result(DEADLINE_S) == [1, 2]


async def test_a_select_with_several_that_are_ready(nodes: FlowNodes) -> None:
    @flow
    async def choose(ctx: FlowContext) -> list[object]:
        await ctx.wait_for_signal("begin", bool)
        first = await ctx.select(a=ctx.wait_for_signal("a", int), b=ctx.wait_for_signal("b", int))
        second = await ctx.select(a=ctx.wait_for_signal("a", int), b=ctx.wait_for_signal("b", int))
        return [*first, *second]

    alpha, handle = await nodes.begin(choose)
    await alpha.flows.signal(handle.id, "b", 2)
    await alpha.flows.signal(handle.id, "a", 1)
    await alpha.flows.signal(handle.id, "begin", True)
    # Neither is lost, whichever comes first.
    assert await handle.result(DEADLINE_S) == ["a", 1, "b", 2]


async def test_arguments_of_all_kinds(nodes: FlowNodes) -> None:
    @flow
    async def take(
        ctx: FlowContext, /, first: int, *rest: str, flag: bool = False, **more: float
    ) -> list[object]:
        await ctx.sleep(0)
        return [first, list(rest), flag, more]

    definition: FlowDefinition[..., list[object]] = take
    alpha = await nodes.start("alpha", definition)
    assert await alpha.run(definition, 1) == [1, [], False, {}]
    arguments = await alpha.run(definition, 1, "a", "b", flag=True, x=1.5)
    assert arguments == [1, ["a", "b"], True, {"x": 1.5}]


async def test_a_flow_without_any_step(nodes: FlowNodes) -> None:
    @flow
    async def at_once(ctx: FlowContext, number: int) -> int:
        return number

    alpha, handle = await nodes.begin(at_once, 7)
    assert await handle.result(DEADLINE_S) == 7
    assert await alpha.flows.admin.history(handle.id) == []
