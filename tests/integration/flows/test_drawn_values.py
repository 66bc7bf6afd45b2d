"""What code draws is the same whenever it is run: no step can shift it, and no fork shares it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.durable import Transaction
from postroad.flows import INJECTED, FlowContext, FlowStatus, StoreConnection, flow
from tests.support.flows.nodes import FlowNodes


def note(value: str) -> str:
    return value


async def note_later(value: str) -> str:
    return value


DRAWS: dict[str, Callable[[FlowContext], Any]] = {
    "uuid": lambda ctx: ctx.uuid(),
    "random": lambda ctx: ctx.random().random(),
    "bits": lambda ctx: ctx.random().getrandbits(8),
    "choice": lambda ctx: ctx.random().choice([1, 2, 3]),
    "gauss": lambda ctx: ctx.random().gauss(),
    "shuffle": lambda ctx: ctx.random().shuffle([1, 2, 3]),
}


@pytest.mark.parametrize("kind", DRAWS)
async def test_a_step_cannot_draw_what_belongs_to_the_code(nodes: FlowNodes, kind: str) -> None:
    draw = DRAWS[kind]

    @flow
    async def draws(ctx: FlowContext) -> list[str]:
        # Its second value is kept by gauss() until it is asked for.
        ctx.random().gauss()
        first = str(ctx.uuid())

        async def by_coroutine() -> None:
            draw(ctx)

        async def in_transaction(tx: Transaction = INJECTED) -> None:
            draw(ctx)

        def with_connection(connection: StoreConnection = INJECTED) -> None:
            draw(ctx)

        refused = []
        for function in (lambda: draw(ctx), by_coroutine, in_transaction, with_connection):
            try:
                await ctx.step(function)
            except UsageError as error:
                refused.append("belong to the code of the flow" in str(error))
        await ctx.step(note, first)
        second = str(ctx.uuid())
        await ctx.wait_for_signal("go", str)
        return [first, second, str(ctx.uuid()), str(refused)]

    alpha = await nodes.start("alpha", draws)
    ids = [(await alpha.begin(draws)).id for _ in range(2)]
    for id in ids:
        await alpha.until_steps(id, 5)
    await alpha.restart_flows()
    drawn = []
    for id in ids:
        await alpha.flows.signal(id, "go", "on")
        *values, refused = await alpha.result(id)
        assert refused == str([True] * 4)
        drawn += values
    assert len({*drawn}) == 6


async def test_a_query_cannot_draw_what_belongs_to_the_code(nodes: FlowNodes) -> None:
    @flow
    async def answers(ctx: FlowContext) -> str:
        ctx.set_query_handler("draw", lambda: str(ctx.uuid()))
        await ctx.wait_for_signal("go", str)
        return str(ctx.uuid())

    alpha = await nodes.start("alpha", answers)
    handle = await alpha.begin(answers)
    with pytest.raises(UsageError, match="belong to the code of the flow"):
        await alpha.flows.query(handle.id, "draw")
    await alpha.flows.signal(handle.id, "go", "on")
    state = await alpha.state_of(handle.id)
    expected = random.Random(state.seed + (1).to_bytes(8)).getrandbits(128)
    assert await alpha.result(handle.id) == str(uuid.UUID(int=expected, version=4))


async def test_branches_and_subflows_draw_the_same_after_a_restart(nodes: FlowNodes) -> None:
    @flow
    async def draw(ctx: FlowContext) -> str:
        await ctx.step(note_later, "x")
        return str(ctx.uuid())

    @flow
    async def draws(ctx: FlowContext) -> list[str]:
        values = await ctx.gather(*[ctx.run_subflow(draw) for _ in range(3)])
        values.append(str(ctx.uuid()))
        # A step whose arguments are others would not fit its record.
        for value in values:
            await ctx.step(note, value)
        await ctx.wait_for_signal("go", str)
        return [*values, await ctx.run_subflow(draw)]

    alpha = await nodes.start("alpha", draw, draws)
    handle = await alpha.begin(draws)
    await alpha.until_steps(handle.id, 7)
    await alpha.restart_flows()
    await alpha.flows.signal(handle.id, "go", "on")
    assert len({*await alpha.result(handle.id)}) == 5


@flow
async def charge(ctx: FlowContext, is_again: bool = False) -> list[str]:
    drawn = [str(ctx.uuid())]
    await ctx.step(note, drawn[0])
    for _ in range(3):
        drawn.append(str(ctx.uuid()))
        await ctx.step(note, drawn[-1])
    await ctx.wait_for_signal("go", str)
    if not is_again:
        ctx.continue_as_new(is_again=True)
    return [*drawn, str(ctx.random().random())]


async def test_a_fork_draws_values_of_its_own(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", charge)
    handle = await alpha.begin(charge, is_again=True)
    await alpha.until_steps(handle.id, 4)
    fork = await alpha.flows.admin.fork(handle.id, 2)
    await alpha.until_steps(fork, 4)
    # One of a fork shares what that had drawn by then.
    second = await alpha.flows.admin.fork(fork, 3)
    third = await alpha.flows.admin.fork(fork, 1)
    for id in (second, third):
        await alpha.until_steps(id, 4)
    await alpha.restart_flows()
    results = []
    for id in (handle.id, fork, second, third):
        await alpha.flows.signal(id, "go", "on")
        results.append(await alpha.result(id))
    original, forked, of_fork, earlier = results
    assert forked[:2] == original[:2]
    assert of_fork[:3] == forked[:3]
    assert earlier[:1] == original[:1]
    unlike = [*original, *forked[2:], *of_fork[3:], *earlier[1:]]
    assert len({*unlike}) == len(unlike)


async def test_a_fork_that_begins_anew_draws_values_of_its_own(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", charge)
    handle = await alpha.begin(charge)
    await alpha.until_steps(handle.id, 4)
    fork = await alpha.flows.admin.fork(handle.id, 4)
    results = []
    for id in (handle.id, fork):
        await alpha.flows.signal(id, "go", "on")
        await alpha.flows.signal(id, "go", "on")
        results += await alpha.result(id)
    assert len({*results}) == len(results)


async def test_values_come_from_the_entropy_in_the_head_as_they_always_did(
    nodes: FlowNodes,
) -> None:
    alpha = await nodes.start("alpha", charge)
    handle = await alpha.begin(charge, is_again=True)
    await alpha.until_steps(handle.id, 4)
    entropy = (await alpha.state_of(handle.id)).seed
    numbers = random.Random(entropy + (1).to_bytes(8))
    expected = [str(uuid.UUID(int=numbers.getrandbits(128), version=4)) for _ in range(4)]
    await alpha.restart_flows()
    await alpha.flows.signal(handle.id, "go", "on")
    assert await alpha.result(handle.id) == [*expected, str(numbers.random())]
    assert (await alpha.flows.admin.show(handle.id)).status is FlowStatus.COMPLETED
