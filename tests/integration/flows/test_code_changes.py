"""Code that was changed while flows of it were at work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from postroad.core.errors import UsageError
from postroad.flows import (
    FlowContext,
    FlowDefinition,
    FlowHandle,
    FlowSession,
    FlowStatus,
    flow,
    responder,
)
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.flows.nodes import FlowNode, FlowNodes


def first(number: int) -> int:
    return number + 1


def second(number: int) -> int:
    return number + 10


def third(number: int) -> int:
    return number + 100


Work = FlowDefinition[[int], int]
Step = tuple[Callable[[int], int], int]


def work_of(*steps: Step) -> Work:
    """A flow `work` that takes these steps, with something added to what each is given."""

    @flow(name="work")
    async def work(ctx: FlowContext, number: int) -> int:
        for function, more in steps:
            number = await ctx.step(function, number + more)
        await ctx.wait_for_signal("go", bool)
        return number

    return work


@flow(name="work")
async def with_fewer_steps(ctx: FlowContext, number: int) -> int:
    return await ctx.step(first, number)


@flow(name="work")
async def of_another_kind(ctx: FlowContext, number: int) -> int:
    number = await ctx.step(first, number)
    await ctx.sleep(1)
    await ctx.wait_for_signal("go", bool)
    return number


@flow(name="work")
async def that_waits_for_more(ctx: FlowContext, number: int) -> int:
    await ctx.gather(ctx.step(third, 1), ctx.step(third, 2))
    return number


@flow(name="work")
async def that_raises(ctx: FlowContext, number: int) -> int:
    await ctx.step(first, number)
    raise ValueError("before its time")


original = work_of((first, 0), (second, 0))
with_another_step = work_of((first, 0), (third, 0))
with_an_extra_step = work_of((third, 0), (first, 0), (second, 0))
reordered = work_of((second, 0), (first, 0))
with_other_arguments = work_of((first, 0), (second, 1))
CHANGES: list[tuple[Work, list[str]]] = [
    (
        with_another_step,
        [
            "the code of this flow does not match its history at step 1:",
            "    step 0: 0 step(first)",
            "  - step 1: 1 step(second)   (recorded)",
            "  + step 1: the code requests 1 step(third)",
            "    the name was 'second', and is 'third'",
        ],
    ),
    (
        with_an_extra_step,
        [
            "does not match its history at step 0:",
            "  - step 0: 0 step(first)   (recorded)",
            "0 step(third)",
            "    and 1 more recorded after it",
        ],
    ),
    (
        with_fewer_steps,
        ["  - step 1: 1 step(second)   (recorded)", "  + step 1: the code has ended"],
    ),
    (
        reordered,
        [
            "  - step 0: 0 step(first)   (recorded)",
            "0 step(second)",
            "    the name was 'first', and is 'second'",
        ],
    ),
    (
        with_other_arguments,
        ["  - step 1: 1 step(second)   (recorded)", "    the arguments differ"],
    ),
    (
        of_another_kind,
        [
            "  - step 1: 1 step(second)   (recorded)",
            "1 sleep(1 s)",
            "    the kind was step, and is sleep",
        ],
    ),
    (
        that_waits_for_more,
        [
            "  - step 0: 0 step(first)   (recorded)",
            "  + step 0: the code waits for 0.0.0 step(third), 0.1.0 step(third)",
        ],
    ),
    (
        that_raises,
        ["  + step 1: the code has ended: ValueError('before its time')"],
    ),
]


async def begun_before_the_change(nodes: FlowNodes) -> tuple[FlowNode, FlowHandle[int]]:
    """A node, and a flow that has taken both steps and waits for the signal."""
    alpha, handle = await nodes.begin(original, 1)
    await alpha.until_steps(handle.id, 2)
    return alpha, handle


@pytest.mark.parametrize(("changed", "lines"), CHANGES)
async def test_code_that_does_not_fit_is_parked_with_the_difference(
    nodes: FlowNodes, changed: Work, lines: list[str]
) -> None:
    alpha, handle = await begun_before_the_change(nodes)
    await alpha.restart_flows(changed)
    # Nobody looks at it before something happens to it.
    assert (await alpha.flows.admin.show(handle.id)).status is FlowStatus.RUNNING
    with pytest.raises(UsageError, match="is parked"):
        await alpha.flows.query(handle.id, "anything")
    parked = await alpha.until(handle.id, FlowStatus.PARKED)
    assert parked.detail is not None
    for line in lines:
        assert line in parked.detail
    assert "run the old code again, or keep the old path with ctx.patched(id)" in parked.detail
    # Nothing was done meanwhile.
    assert len(await alpha.flows.admin.history(handle.id)) == 2
    await alpha.restart_flows(original)
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == 12


async def test_code_that_does_the_same_in_other_words_fits(nodes: FlowNodes) -> None:
    @flow(name="work")
    async def rewritten(ctx: FlowContext, number: int) -> int:
        for function in (first, second):
            number = await ctx.step(function, number)
        assert await ctx.wait_for_signal("go", bool)
        return number * 2

    alpha, handle = await begun_before_the_change(nodes)
    await alpha.restart_flows(rewritten)
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == 24


async def test_flow_without_code_waits_for_its_code(nodes: FlowNodes) -> None:
    @flow
    async def another(ctx: FlowContext) -> None:
        await ctx.sleep(0)

    alpha, handle = await begun_before_the_change(nodes)
    await alpha.restart_flows(another)
    await alpha.flows.signal(handle.id, "go", True)
    parked = await alpha.until(handle.id, FlowStatus.PARKED)
    assert "this node has no flow called 'work'" in str(parked.error)
    await alpha.restart_flows(original)
    assert await alpha.result(handle.id) == 12


async def test_both_ways_are_kept_apart_by_a_patch(nodes: FlowNodes) -> None:
    calls: list[str] = []

    def check(text: str) -> None:
        calls.append(text)

    @flow(name="work")
    async def patched(ctx: FlowContext, number: int) -> int:
        number = await ctx.step(first, number)
        if ctx.patched("checks"):
            await ctx.step(check, f"new {number}")
        number = await ctx.step(second, number)
        await ctx.wait_for_signal("go", bool)
        # Whoever took the old way once takes it again.
        return number * 2 if ctx.patched("checks") else number

    alpha, before = await begun_before_the_change(nodes)
    await alpha.restart_flows(patched)
    after = await alpha.begin(patched, 1)
    await alpha.until_steps(after.id, 4)
    await alpha.restart_flows()
    for handle in (before, after):
        await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(before.id) == 12
    assert await alpha.result(after.id) == 24
    assert calls == ["new 2"]
    kinds = [step.kind.value for step in await alpha.flows.admin.history(after.id)]
    assert kinds == ["step", "patch", "step", "step", "signal"]
    kinds = [step.kind.value for step in await alpha.flows.admin.history(before.id)]
    assert kinds == ["step", "step", "signal"]


async def test_a_flow_that_comes_to_a_patch_later_takes_the_new_way(nodes: FlowNodes) -> None:
    @flow(name="work")
    async def patched(ctx: FlowContext, number: int) -> int:
        number = await ctx.step(first, number)
        number = await ctx.step(second, number)
        await ctx.wait_for_signal("go", bool)
        if ctx.patched("late"):
            number = await ctx.step(third, number)
        await ctx.wait_for_signal("end", bool)
        return number

    alpha, handle = await begun_before_the_change(nodes)
    await alpha.restart_flows(patched)
    await alpha.flows.signal(handle.id, "go", True)
    await alpha.until_steps(handle.id, 5)
    await alpha.restart_flows()
    await alpha.flows.signal(handle.id, "end", True)
    assert await alpha.result(handle.id) == 112


async def test_patches_in_branches_and_sessions(nodes: FlowNodes) -> None:
    @flow(name="ask")
    async def ask(ctx: FlowContext, peer: str) -> list[int]:
        session = ctx.open_session(peer)

        async def one(number: int) -> int:
            await ctx.step(first, number)
            if ctx.patched("double"):
                number = number * 2
            await ctx.wait_for_signal(f"go {number}", bool)
            return number

        await session.send(1)
        numbers = await ctx.gather(one(1), one(2))
        return [*numbers, await session.receive(int)]

    @responder("ask")
    async def reply(ctx: FlowContext, session: FlowSession) -> None:
        if ctx.patched("says more"):
            await ctx.step(first, 1)
        await session.send(await session.receive(int))

    alpha, _ = await nodes.pair(ask, reply)
    handle = await alpha.begin(ask, "beta")
    await alpha.until_steps(handle.id, 4)
    await alpha.restart_flows()
    for number in (4, 2):
        await alpha.flows.signal(handle.id, f"go {number}", True)
    assert await alpha.result(handle.id) == [2, 4, 1]


async def test_session_with_other_peer_is_replay_mismatch(nodes: FlowNodes) -> None:
    @flow(name="ask")
    async def ask_beta(ctx: FlowContext) -> int:
        return await ctx.open_session("beta").send_and_receive(1, int)

    @flow(name="ask")
    async def ask_gamma(ctx: FlowContext) -> int:
        return await ctx.open_session("gamma").send_and_receive(1, int)

    @flow(name="ask")
    async def ask_something_else(ctx: FlowContext) -> int:
        return await ctx.open_session("beta").send_and_receive(2, int)

    alpha, handle = await nodes.begin(ask_beta)
    await alpha.until_steps(handle.id, 1)
    for changed, difference in (
        (ask_gamma, "the code opens session 1 with 'gamma'\n    it was with 'beta'"),
        (ask_something_else, "the arguments differ"),
    ):
        await alpha.restart_flows(changed)
        with pytest.raises(UsageError, match="is parked"):
            await alpha.flows.query(handle.id, "anything")
        # It is parked with the former code's difference until it was tried with this one.

        async def is_told(text: str = difference) -> bool:
            return text in str((await alpha.until(handle.id, FlowStatus.PARKED)).detail)

        await eventually(is_told, difference)
    await alpha.flows.admin.kill(handle.id)


async def test_a_responder_with_another_name_goes_on_with_its_sessions(nodes: FlowNodes) -> None:
    @flow
    async def ask(ctx: FlowContext, peer: str) -> int:
        return await ctx.open_session(peer).send_and_receive(1, int)

    async def reply(ctx: FlowContext, session: FlowSession) -> None:
        number = await session.receive(int)
        await session.send(number + await ctx.wait_for_signal("go", int))

    before = responder("ask", name="before", concurrency=1)(reply)
    after = responder("ask", name="after", concurrency=1)(reply)
    alpha = await nodes.start("alpha", ask)
    beta = await nodes.start("beta", before)
    handles = [await alpha.begin(ask, "beta") for _ in range(4)]
    replies = await beta.until_listed("before", None, 4)
    await beta.restart_flows(after)
    for view in replies:
        await beta.until(view.id, FlowStatus.RUNNING)
        assert len(await beta.flows.admin.list(FlowStatus.RUNNING)) == 1
        await beta.flows.signal(view.id, "go", 10)
    assert [await handle.result(DEADLINE_S) for handle in handles] == [11] * 4
    assert await beta.flows.execution.drain(timeout=10) == 0
    await beta.until_listed("after", FlowStatus.COMPLETED, 4)
