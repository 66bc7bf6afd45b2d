"""Several things at the same time inside one flow."""

from __future__ import annotations

import asyncio

import pytest

from postroad.core.errors import UsageError
from postroad.flows import FlowContext, FlowSession, FlowStatus, RetryPolicy, flow, responder
from postroad.flows.errors import FlowError
from tests.support.deadlines import DEADLINE_S
from tests.support.flows.nodes import FlowNodes, Hanging


class Broken(FlowError):
    """Raised by a branch."""


async def later(value: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return value


def fail(text: str) -> None:
    raise Broken(text)


@flow
async def gather_backwards(ctx: FlowContext) -> list[int]:
    return await ctx.gather(*(ctx.step(later, number, 0.05 - number / 100) for number in range(5)))


async def test_gather_results_keep_argument_order(nodes: FlowNodes) -> None:
    alpha, handle = await nodes.begin(gather_backwards)
    assert await handle.result(DEADLINE_S) == [0, 1, 2, 3, 4]
    history = await alpha.flows.admin.history(handle.id)
    # They are recorded as they ended.
    assert sorted(step.place for step in history) == [f"0.{number}.0" for number in range(5)]


@flow
async def gather_nested(ctx: FlowContext) -> list[object]:
    async def pair(number: int) -> list[int]:
        first = await ctx.step(later, number, 0.01)
        rest = await ctx.gather(
            ctx.step(later, number * 10, 0.02), ctx.step(later, number * 100, 0.005)
        )
        return [first, *rest]

    async def rested() -> str:
        await ctx.sleep(0.01)
        return "rested"

    assert await ctx.gather() == []
    return await ctx.gather(pair(1), pair(2), rested(), ctx.gather(rested()))


async def test_branches_have_branches(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", gather_nested)
    expected = [[1, 10, 100], [2, 20, 200], "rested", ["rested"]]
    assert await alpha.run(gather_nested) == expected


async def test_one_of_several_raises_and_the_others_end(nodes: FlowNodes) -> None:
    hanging = Hanging()

    @flow
    async def one_fails(ctx: FlowContext) -> list[str]:
        async def wait() -> None:
            await ctx.step(hanging.hang)

        async def wait_and_fail() -> None:
            await ctx.sleep(0.02)
            await ctx.step(fail, "as told")

        try:
            await ctx.gather(wait(), wait_and_fail(), ctx.sleep(1000))
        except Broken as error:
            return [str(error), *await ctx.gather(ctx.step(str, 1), ctx.step(str, 2))]
        return []

    text, *after = await nodes.run(one_fails)
    assert "as told" in text
    assert after == ["1", "2"]
    assert hanging.ended == ["function"]


@flow
async def keep_errors(ctx: FlowContext) -> list[str]:
    async def broken() -> None:
        raise Broken("in the code")

    results = await ctx.gather(
        ctx.step(later, 1, 0.01),
        ctx.step(fail, "in a function"),
        broken(),
        ctx.sleep(0.001),
        return_exceptions=True,
    )
    return [f"{type(result).__name__}: {result}" for result in results]


async def test_errors_are_results_if_that_is_wanted(nodes: FlowNodes) -> None:
    number, function, code, nothing = await nodes.run(keep_errors)
    assert number == "int: 1"
    assert function.startswith("Broken: ") and "in a function" in function
    assert code.startswith("Broken: ") and "in the code" in code
    assert nothing == "NoneType: None"


async def test_uncaught_branch_error_fails_flow(nodes: FlowNodes) -> None:
    @flow
    async def fails(ctx: FlowContext) -> None:
        await ctx.gather(ctx.sleep(1000), ctx.step(fail, "in a branch"))

    _, handle = await nodes.begin(fails)
    with pytest.raises(Broken, match="in a branch"):
        await handle.result(DEADLINE_S)


async def test_the_first_wins_and_the_others_are_withdrawn(nodes: FlowNodes) -> None:
    hanging = Hanging()

    @flow
    async def race(ctx: FlowContext) -> list[object]:
        async def slow() -> None:
            await ctx.gather(ctx.step(hanging.hang, "first"), ctx.step(hanging.hang, "second"))

        winner = await ctx.select(
            slow=slow(), quick=ctx.step(later, 7, 0.02), signal=ctx.wait_for_signal("never", str)
        )
        return [*winner, await ctx.step(later, 8, 0.001)]

    alpha, handle = await nodes.begin(race)
    assert await handle.result(DEADLINE_S) == ["quick", 7, 8]
    assert sorted(hanging.ended) == ["first", "second"]
    history = await alpha.flows.admin.history(handle.id)
    assert [step.place for step in history] == ["0.1.0", "1"]


async def test_select_with_sleep_is_a_timeout(nodes: FlowNodes) -> None:
    hanging = Hanging()

    @flow
    async def limited(ctx: FlowContext) -> list[object]:
        first = await ctx.select(work=ctx.step(hanging.hang), late=ctx.sleep(0.05))
        second = await ctx.select(late=ctx.sleep(60), work=ctx.step(later, 1, 0.001))
        return [*first, *second]

    assert await nodes.run(limited) == ["late", None, "work", 1]
    assert hanging.ended == ["function"]


async def test_steps_started_with_cancelled_step_run(nodes: FlowNodes) -> None:
    @flow
    async def hasty(ctx: FlowContext) -> list[object]:
        async def quick() -> str:
            return (await ctx.select(tick=ctx.sleep(0), work=ctx.step(later, 2, 60)))[0]

        return await ctx.gather(ctx.step(later, 1, 0.001), quick())

    assert await nodes.run(hasty) == [1, "tick"]


async def test_a_sleep_goes_on_while_a_function_runs(nodes: FlowNodes) -> None:
    is_free = asyncio.Event()

    async def wait() -> str:
        await is_free.wait()
        return "freed"

    async def free() -> None:
        is_free.set()

    @flow
    async def both(ctx: FlowContext) -> list[str]:
        async def free_it() -> None:
            await ctx.sleep(0.03)
            await ctx.step(free)

        return await ctx.gather(ctx.step(wait), free_it())

    assert await nodes.run(both) == ["freed", None]


async def test_a_select_that_raises(nodes: FlowNodes) -> None:
    @flow
    async def fails(ctx: FlowContext) -> str:
        try:
            await ctx.select(bad=ctx.step(fail, "first of all"), good=ctx.sleep(60))
        except Broken as error:
            return str(error)
        return ""

    @flow
    async def of_nothing(ctx: FlowContext) -> str:
        try:
            await ctx.select()
        except UsageError as error:
            return str(error)
        return ""

    alpha = await nodes.start("alpha", fails, of_nothing)
    assert "first of all" in await alpha.run(fails)
    assert "select() needs something to wait for" in await alpha.run(of_nothing)


@flow
async def auction(ctx: FlowContext, peers: list[str]) -> list[str]:
    """Takes the first two bids, from whomever."""
    sessions = {peer: ctx.open_session(peer) for peer in peers}
    bids: list[str] = []
    waiting = dict(sessions)
    while len(bids) < 2:
        name, bid = await ctx.select(**{peer: waiting[peer].receive(str) for peer in waiting})
        del waiting[name]
        bids.append(bid)
    await ctx.send_all(dict.fromkeys(sessions.values(), bids[0]))
    return bids


@responder(auction)
async def bid(ctx: FlowContext, session: FlowSession) -> str:
    await session.send(f"bid {ctx.id}")
    return await session.receive(str)


async def test_the_first_message_of_several_sessions(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", auction)
    beta = await nodes.start("beta", bid)
    gamma = await nodes.start("gamma", bid)
    bids = await alpha.run(auction, ["beta", "gamma"])
    (first,) = await beta.until_listed("bid", FlowStatus.COMPLETED)
    (second,) = await gamma.until_listed("bid", FlowStatus.COMPLETED)
    assert sorted(bids) == sorted([f"bid {first.id}", f"bid {second.id}"])
    assert await beta.result(first.id) == await gamma.result(second.id) == bids[0]


async def test_branch_order_on_shared_list_is_replayed(nodes: FlowNodes) -> None:
    @flow
    async def share(ctx: FlowContext) -> list[object]:
        seen: list[object] = []

        async def add(number: int) -> None:
            seen.append(number)
            await ctx.step(later, number, 0.002 * (number % 3))
            seen.append(number * 10)
            await ctx.sleep(0.002 * (number % 2))
            seen.append(ctx.random().randrange(1000))
            seen.append(await ctx.step(len, list(seen)))

        await ctx.gather(*(add(number) for number in range(6)))
        # Only right if every run so far saw the same list.
        assert await ctx.step(list, list(seen)) == seen
        await ctx.wait_for_signal("check", bool)
        return [seen, await ctx.step.with_options(name="again")(list, list(seen))]

    alpha, handle = await nodes.begin(share)
    await alpha.until_steps(handle.id, 19)
    await alpha.restart_flows()
    await alpha.flows.signal(handle.id, "check", True)
    first, second = await (await alpha.flows.get_handle(handle.id)).result(DEADLINE_S)
    assert first == second
    assert len(first) == 24


async def test_branches_with_retries_at_the_same_time(nodes: FlowNodes) -> None:
    failures = dict.fromkeys(range(4), 2)

    def flaky(number: int) -> int:
        if failures[number]:
            failures[number] -= 1
            raise ValueError(number)
        return number

    @flow
    async def persistent(ctx: FlowContext) -> list[int]:
        retry = RetryPolicy(max_attempts=3, initial_delay_s=0.001, max_delay_s=0.01)
        return await ctx.gather(
            *(ctx.step.with_options(retry=retry)(flaky, number) for number in range(4))
        )

    assert await nodes.run(persistent) == [0, 1, 2, 3]
    assert not any(failures.values())


async def test_commands_of_cancelled_branch_are_ignored(nodes: FlowNodes) -> None:
    @flow
    async def messy(ctx: FlowContext) -> str:
        async def stubborn() -> None:
            try:
                await ctx.sleep(60)
            finally:
                await ctx.step(str, "too late")

        name, _ = await ctx.select(stubborn=stubborn(), quick=ctx.sleep(0.01))
        return f"{name} {await ctx.step(str, 'after')}"

    alpha, handle = await nodes.begin(messy)
    assert await handle.result(DEADLINE_S) == "quick after"
    assert [step.kind for step in await alpha.flows.admin.history(handle.id)] == ["sleep", "step"]


async def test_subflows_at_the_same_time(nodes: FlowNodes) -> None:
    @flow
    async def part(ctx: FlowContext, number: int) -> int:
        await ctx.sleep(0.005)
        return await ctx.step(later, number, 0.001) + 1

    @flow
    async def whole(ctx: FlowContext) -> list[int]:
        return await ctx.gather(*(ctx.run_subflow(part, number) for number in range(5)))

    assert await nodes.run(whole) == [1, 2, 3, 4, 5]
