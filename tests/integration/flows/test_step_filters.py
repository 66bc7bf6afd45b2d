"""Errors after which steps are not tried again."""

from __future__ import annotations

import msgspec

from postroad.durable import SyncTransaction
from postroad.flows import INJECTED, FlowContext, FlowStatus, RetryPolicy, flow
from tests.support.flows.nodes import FlowNodes

SOON = RetryPolicy(max_attempts=4, initial_delay_s=0.001, max_delay_s=0.004)


async def test_an_error_that_is_final_reaches_the_code_at_once_and_when_it_is_replayed(
    nodes: FlowNodes,
) -> None:
    calls: list[str] = []
    policies = [
        msgspec.structs.replace(SOON, retry_on=OSError),
        msgspec.structs.replace(SOON, give_up_on=(KeyError, LookupError)),
        msgspec.structs.replace(SOON, give_up_on=lambda error: "unknown" in str(error)),
    ]

    def fail(name: str) -> None:
        calls.append(name)
        raise IndexError("unknown") if calls.count(name) == 2 else ConnectionResetError("away")

    @flow
    async def give_up(ctx: FlowContext) -> list[str]:
        seen = []
        for number, retry in enumerate(policies):
            try:
                await ctx.step.with_options(retry=retry)(fail, str(number))
            except Exception as error:
                seen.append(repr(error))
        await ctx.wait_for_signal("go", bool)
        return seen

    alpha, handle = await nodes.begin(give_up)
    await alpha.until_steps(handle.id, 3)
    # What is final now matters for steps to come only.
    policies[:] = [SOON] * 3
    await alpha.restart_flows()
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == ["IndexError('unknown')"] * 3
    assert calls == ["0", "0", "1", "1", "2", "2"]


async def test_an_error_that_is_final_and_not_handled_parks_its_flow(nodes: FlowNodes) -> None:
    calls: list[int] = []

    def fail(tx: SyncTransaction = INJECTED) -> None:
        calls.append(1)
        raise ValueError("never")

    @flow
    async def try_once(ctx: FlowContext) -> None:
        await ctx.step.with_options(retry=RetryPolicy(give_up_on=ValueError))(fail)

    alpha, handle = await nodes.begin(try_once)
    parked = await alpha.until(handle.id, FlowStatus.PARKED)
    assert "ValueError: never" in str(parked.error)
    assert calls == [1]
