"""Flows that start others: as children, whose end they wait for, or on their own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.flows import (
    FlowCancelledError,
    FlowContext,
    FlowError,
    FlowKilledError,
    FlowStatus,
    FlowTimeoutError,
    FlowView,
    SyncFlowContext,
    flow,
)
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.flows.nodes import FlowNode, FlowNodes


class Insolvent(FlowError):
    """An error of the application."""


@flow
async def double(ctx: FlowContext, number: int) -> int:
    if number < 0:
        raise Insolvent(f"{number} is too little")
    await ctx.sleep(0)
    return 2 * number


@flow
async def wait_for_go(ctx: FlowContext) -> str:
    return await ctx.wait_for_signal("go", str)


async def children_of(node: FlowNode, id: str) -> list[FlowView]:
    return [view for view in await node.flows.admin.list() if view.parent == id]


async def only_child(node: FlowNode, id: str) -> FlowView:
    children: list[FlowView] = []

    async def is_there() -> bool:
        children[:] = await children_of(node, id)
        return bool(children)

    await eventually(is_there)
    (child,) = children
    return child


async def test_results_of_children_are_those_of_their_code(nodes: FlowNodes) -> None:
    @flow
    async def total(ctx: FlowContext, numbers: list[int]) -> int:
        children = [await ctx.start_child(double, number) for number in numbers]
        results = await ctx.gather(*(child.result() for child in children))
        # A result that is there can be had again.
        assert [await child.result() for child in children] == results
        return sum(results)

    alpha = await nodes.start("alpha", total, double)
    handle = await alpha.begin(total, [1, 2, 3])
    assert await handle.result(DEADLINE_S) == 12
    children = await children_of(alpha, handle.id)
    assert sorted((view.name, view.result) for view in children) == [("double", None)] * 3
    assert {view.status for view in children} == {FlowStatus.COMPLETED}
    kinds = [step.kind.value for step in await alpha.flows.admin.history(handle.id)]
    assert kinds == ["start"] * 3 + ["signal"] * 3


async def test_errors_of_children_are_raised_where_their_result_is_waited_for(
    nodes: FlowNodes,
) -> None:
    @flow
    async def careful(ctx: FlowContext) -> str:
        child = await ctx.start_child(double, -1)
        texts = []
        for _ in range(2):
            try:
                await child.result()
            except Insolvent as error:
                texts.append(str(error))
        return ", ".join(texts)

    alpha = await nodes.start("alpha", careful, double)
    assert await alpha.run(careful) == "-1 is too little, -1 is too little"


async def test_parent_survives_a_restart_and_its_child_is_started_once(nodes: FlowNodes) -> None:
    @flow
    async def parent(ctx: FlowContext) -> str:
        child = await ctx.start_child(wait_for_go)
        return await child.result()

    alpha = await nodes.start("alpha", parent, wait_for_go)
    handle = await alpha.begin(parent)
    child = await only_child(alpha, handle.id)
    await alpha.restart()
    await alpha.flows.signal(child.id, "go", "on")
    assert await alpha.result(handle.id) == "on"
    assert len(await children_of(alpha, handle.id)) == 1


async def test_waiting_for_a_child_may_take_too_long_and_be_done_again(nodes: FlowNodes) -> None:
    @flow
    async def impatient(ctx: FlowContext) -> str:
        child = await ctx.start_child(wait_for_go)
        try:
            return await child.result(timeout=0.01)
        except FlowTimeoutError:
            await ctx.wait_for_signal("once more", bool)
            return f"late: {await child.result()}"

    alpha = await nodes.start("alpha", impatient, wait_for_go)
    handle = await alpha.begin(impatient)
    child = await only_child(alpha, handle.id)

    async def is_late() -> bool:
        return len(await alpha.flows.admin.history(handle.id)) == 2

    await eventually(is_late)
    await alpha.flows.signal(child.id, "go", "on")
    await alpha.flows.signal(handle.id, "once more", True)
    assert await handle.result(DEADLINE_S) == "late: on"


@pytest.mark.parametrize("end", ["fail", "cancel", "kill"])
async def test_children_are_cancelled_when_their_parent_fails(nodes: FlowNodes, end: str) -> None:
    @flow
    async def parent(ctx: FlowContext) -> None:
        await ctx.start_child(wait_for_go)
        done = await ctx.start_child(double, 1)
        await done.result()
        await ctx.wait_for_signal("fail", bool)
        raise Insolvent("no money")

    alpha = await nodes.start("alpha", parent, wait_for_go, double)
    handle = await alpha.begin(parent)

    async def is_waiting() -> bool:
        return len(await alpha.flows.admin.history(handle.id)) == 3

    await eventually(is_waiting)
    await alpha.restart()
    if end == "fail":
        await alpha.flows.signal(handle.id, "fail", True)
    elif end == "cancel":
        await alpha.flows.cancel(handle.id)
    else:
        await alpha.flows.admin.kill(handle.id)
    waiting, done = sorted(await children_of(alpha, handle.id), key=lambda view: -len(view.name))
    failed = await alpha.until(waiting.id, FlowStatus.FAILED)
    reason = "killed" if end == "kill" else "failed"
    assert failed.error == f"FlowCancelledError: its parent, flow {handle.id}, is {reason}"
    assert (await alpha.flows.admin.show(done.id)).status is FlowStatus.COMPLETED


async def test_children_go_on_when_their_parent_completes_or_continues_as_new(
    nodes: FlowNodes,
) -> None:
    @flow
    async def parent(ctx: FlowContext, runs: int) -> int:
        await ctx.start_child(wait_for_go)
        if runs:
            ctx.continue_as_new(runs - 1)
        return runs

    alpha = await nodes.start("alpha", parent, wait_for_go)
    handle = await alpha.begin(parent, 2)
    assert await handle.result(DEADLINE_S) == 0

    async def are_there() -> bool:
        return len(await children_of(alpha, handle.id)) == 3

    await eventually(are_there)
    for child in await children_of(alpha, handle.id):
        await alpha.flows.signal(child.id, "go", "on")
        assert await alpha.result(child.id) == "on"


async def test_child_is_cancelled_by_its_parent_and_killed_by_an_operator(nodes: FlowNodes) -> None:
    @flow
    async def parent(ctx: FlowContext) -> list[str]:
        first, second = await ctx.start_child(wait_for_go), await ctx.start_child(wait_for_go)
        await first.cancel("not needed")
        errors = []
        for child in (first, second):
            try:
                await child.result()
            except (FlowCancelledError, FlowKilledError) as error:
                errors.append(f"{type(error).__name__}: {error}")
        return errors

    alpha = await nodes.start("alpha", parent, wait_for_go)
    handle = await alpha.begin(parent)

    async def kill_the_other() -> bool:
        children = await children_of(alpha, handle.id)
        running = [view for view in children if view.status is FlowStatus.RUNNING]
        if len(children) == 2 and len(running) == 1:
            await alpha.flows.admin.kill(running[0].id, "enough")
            return True
        return False

    await eventually(kill_the_other)
    assert await handle.result(DEADLINE_S) == [
        "FlowCancelledError: not needed",
        "FlowKilledError: enough",
    ]


async def test_flow_that_is_no_child_does_not_follow_the_one_that_started_it(
    nodes: FlowNodes,
) -> None:
    @flow
    async def parent(ctx: FlowContext) -> None:
        ctx.set_progress(await ctx.start_flow(wait_for_go))
        await ctx.wait_for_signal("never", bool)

    alpha = await nodes.start("alpha", parent, wait_for_go)
    handle = await alpha.begin(parent)
    client_id = ""

    async def is_started() -> bool:
        nonlocal client_id
        client_id = (await alpha.flows.admin.show(handle.id)).progress or ""
        return client_id in {view.client_id for view in await alpha.flows.admin.list()}

    await eventually(is_started)
    await alpha.flows.admin.kill(handle.id)
    await alpha.flows.signal(client_id, "go", "on")
    started = await alpha.flows.admin.show(client_id)
    assert started.parent is None
    assert await alpha.result(started.id) == "on"


async def test_child_that_nobody_can_start_is_an_error_of_its_parent(nodes: FlowNodes) -> None:
    @flow
    async def parent(ctx: FlowContext) -> str:
        child = await ctx.start_child(wait_for_go)
        try:
            return await child.result()
        except FlowError as error:
            return str(error)

    alpha = await nodes.start("alpha", parent)
    assert await alpha.run(parent) == "this node has no flow 'wait_for_go'"


async def test_results_and_arguments_that_no_message_holds(nodes: FlowNodes) -> None:
    @flow
    async def large(ctx: FlowContext, content: bytes, size: int) -> bytes:
        return bytes(size)

    @flow
    async def parent(ctx: FlowContext, content_bytes: int, size: int) -> str:
        try:
            child = await ctx.start_child(large, bytes(content_bytes), size)
        except UsageError as error:
            return f"arguments: {error}"
        try:
            return str(len(await child.result()))
        except FlowError as error:
            return f"result: {error}"

    alpha = await nodes.start("alpha", parent, large)
    limit = alpha.flows.engine.mutations.payload_max
    assert await alpha.run(parent, 10, 10) == "10"
    too_large = await alpha.run(parent, limit, 10)
    assert too_large.startswith("arguments: cannot start flow large with")
    assert (await alpha.run(parent, 10, limit)).startswith("result: flow large returned")


async def test_fork_cannot_share_a_child(nodes: FlowNodes) -> None:
    @flow
    async def parent(ctx: FlowContext) -> int:
        await ctx.sleep(0)
        return await (await ctx.start_child(double, 4)).result()

    alpha = await nodes.start("alpha", parent, double)
    handle = await alpha.begin(parent)
    assert await handle.result(DEADLINE_S) == 8
    with pytest.raises(UsageError, match=r"step 1 of flow .* started another flow"):
        await alpha.flows.admin.fork(handle.id, 2)
    fork = await alpha.flows.admin.fork(handle.id, 1)
    assert await alpha.result(fork) == 8
    assert len(await children_of(alpha, fork)) == 1


async def test_fork_of_a_child_is_nobodys_child(nodes: FlowNodes) -> None:
    @flow
    async def parent(ctx: FlowContext) -> int:
        return await (await ctx.start_child(double, 4)).result()

    alpha = await nodes.start("alpha", parent, double)
    handle = await alpha.begin(parent)
    assert await handle.result(DEADLINE_S) == 8
    fork = await alpha.flows.admin.fork((await only_child(alpha, handle.id)).id, 0)
    assert await alpha.result(fork) == 8
    assert (await alpha.flows.admin.show(fork)).parent is None


async def test_changed_arguments_of_a_child_are_found(nodes: FlowNodes) -> None:
    number = 1

    @flow
    async def parent(ctx: FlowContext) -> None:
        await ctx.start_child(double, number)
        await ctx.wait_for_signal("go", bool)

    alpha = await nodes.start("alpha", parent, double)
    handle = await alpha.begin(parent)
    await only_child(alpha, handle.id)
    number = 2
    await alpha.restart()
    await alpha.flows.signal(handle.id, "go", True)
    parked = await alpha.until(handle.id, FlowStatus.PARKED)
    assert "the arguments differ" in str(parked.detail)


async def test_plain_functions_have_children_too(nodes: FlowNodes) -> None:
    @flow
    def total(ctx: SyncFlowContext, numbers: list[int]) -> int:
        children = [ctx.start_child(double, number) for number in numbers]
        ctx.start_child(double, 0).cancel()
        return sum(child.result() for child in children)

    alpha = await nodes.start("alpha", total, double)
    assert await alpha.run(total, [1, 2]) == 6


async def test_many_children(nodes: FlowNodes) -> None:
    @flow
    async def parent(ctx: FlowContext, count: int) -> int:
        children = [await ctx.start_child(double, number) for number in range(count)]
        results: list[Any] = await ctx.gather(*(child.result() for child in children))
        return sum(results)

    alpha = await nodes.start("alpha", parent, double)
    async with asyncio.timeout(DEADLINE_S):
        assert await alpha.run(parent, 400) == 400 * 399
