"""Steps of several flows share a limit: of those that run, and of those that begin per second."""

from __future__ import annotations

import asyncio

from postroad.core.limits import RetryPolicy
from postroad.durable import Transaction
from postroad.flows import INJECTED, FlowContext, FlowStatus, StepLimit, SyncFlowContext, flow
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.flows.nodes import FlowNodes


class Bank:
    """What is called, and how often at the same time."""

    def __init__(self) -> None:
        self.running = self.most = self.calls = 0
        self.starts: list[float] = []
        self.gate = asyncio.Event()

    async def call(self) -> int:
        self.starts.append(asyncio.get_running_loop().time())
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.wait()
        self.running -= 1
        self.calls += 1
        return self.calls

    async def pay(self, *, tx: Transaction = INJECTED) -> None:
        await self.call()
        await tx.execute("SELECT 1")

    def fail_twice(self) -> str:
        self.calls += 1
        if self.calls < 3:
            raise ConnectionError("no line")
        return "through"


async def test_no_more_steps_run_than_their_limit_allows(nodes: FlowNodes) -> None:
    bank, limit = Bank(), StepLimit("bank", concurrency=2)

    @flow
    async def work(ctx: FlowContext) -> None:
        step = ctx.step.with_options(limit=limit)
        await ctx.gather(step(bank.call), step(bank.pay))

    alpha = await nodes.start("alpha", work)
    handles = [await alpha.begin(work) for _ in range(4)]
    await eventually(lambda: bank.running == 2)
    # Those that wait hold neither a transaction nor the flow.
    await alpha.flows.admin.pause(handles[3].id)
    await alpha.flows.admin.resume(handles[3].id)
    bank.gate.set()
    for handle in handles:
        await handle.result(DEADLINE_S)
    assert (bank.most, bank.running) == (2, 0)


async def test_cancelled_step_leaves_its_place_to_others(nodes: FlowNodes) -> None:
    bank, limit = Bank(), StepLimit("bank", concurrency=1)

    @flow
    async def work(ctx: FlowContext) -> int:
        return await ctx.step.with_options(limit=limit)(bank.call)

    alpha = await nodes.start("alpha", work)
    first, second, third = [await alpha.begin(work) for _ in range(3)]
    await eventually(lambda: bank.running == 1)
    await alpha.flows.admin.kill(second.id)
    await alpha.flows.admin.kill(first.id)
    await eventually(lambda: len(bank.starts) == 2)
    bank.gate.set()
    assert await third.result(DEADLINE_S) == 1


async def test_steps_begin_at_their_rate(nodes: FlowNodes) -> None:
    bank, limit = Bank(), StepLimit("bank", per_second=20, burst=2)
    bank.gate.set()

    @flow
    async def work(ctx: FlowContext, count: int) -> None:
        step = ctx.step.with_options(limit=limit)
        await ctx.gather(*(step(bank.call) for _ in range(count)))

    alpha = await nodes.start("alpha", work)
    handles = [await alpha.begin(work, 3) for _ in range(2)]
    for handle in handles:
        await handle.result(DEADLINE_S)
    starts = sorted(bank.starts)
    assert len(starts) == 6
    # Two at once, and four one after the other.
    assert starts[-1] - starts[0] >= 4 / 20 - 0.01


async def test_each_attempt_takes_a_turn_and_plain_functions_have_limits_too(
    nodes: FlowNodes,
) -> None:
    bank, limit = Bank(), StepLimit("bank", per_second=20)

    @flow
    def work(ctx: SyncFlowContext) -> str:
        retry = RetryPolicy(max_attempts=5, initial_delay_s=0.001)
        return ctx.step.with_options(retry=retry, limit=limit)(bank.fail_twice)

    alpha = await nodes.start("alpha", work)
    begun = asyncio.get_running_loop().time()
    assert await alpha.run(work) == "through"
    assert asyncio.get_running_loop().time() - begun >= 2 / 20 - 0.01


async def test_two_limits_of_one_name_are_refused(nodes: FlowNodes) -> None:
    @flow
    async def work(ctx: FlowContext, concurrency: int) -> int:
        limit = StepLimit("bank", concurrency=concurrency)
        return await ctx.step.with_options(limit=limit)(int, "7")

    alpha = await nodes.start("alpha", work)
    assert await alpha.run(work, 1) == 7
    assert await alpha.run(work, 1) == 7
    handle = await alpha.begin(work, 2)
    parked = await alpha.until(handle.id, FlowStatus.PARKED)
    assert "use one StepLimit for all steps that share it" in str(parked.error)
