"""Signals that do not fit are refused at the door, and end no flow."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from postroad.flows import FlowContext, FlowError, FlowStatus, WrongSignalError, flow
from tests.support.deadlines import DEADLINE_S
from tests.support.flows.nodes import FlowNodes


@flow
async def order(ctx: FlowContext) -> int:
    await ctx.sleep(0)
    return await ctx.wait_for_signal("arrived", int) + await ctx.wait_for_signal("paid", int)


@flow
async def order_of(ctx: FlowContext, names: list[str]) -> list[int]:
    """Nobody can tell from its source what it asks for."""
    await ctx.wait_for_signal("go", bool)
    return [await ctx.wait_for_signal(name, int) for name in names]


async def test_a_wrong_signal_is_refused_and_the_flow_lives_on(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", order)
    handle = await alpha.begin(order)
    for is_paused in (False, True):
        if is_paused:
            await alpha.flows.admin.pause(handle.id)
        for name, value, text in [
            ("arrivedd", 1, "did you mean 'arrived'"),
            ("arrived", "abc", "Expected `int`, got `str`"),
            ("paid", None, "Expected `int`, got `None`"),
        ]:
            with pytest.raises(WrongSignalError, match=text):
                await alpha.flows.signal(handle.id, name, value)
    await alpha.flows.admin.resume(handle.id)
    assert await alpha.rows("SELECT count(*) FROM postroad_flow_mail") == [(0,)]
    await alpha.flows.signal(handle.id, "paid", 1)
    await alpha.flows.signal(handle.id, "arrived", 2)
    assert await alpha.result(handle.id) == 3


async def test_currently_awaited_signal_is_checked(
    nodes: FlowNodes,
) -> None:
    alpha = await nodes.start("alpha", order_of)
    handle = await alpha.begin(order_of, ["a"])
    await alpha.flows.signal(handle.id, "go", True)
    await alpha.until_steps(handle.id, 1)
    with pytest.raises(WrongSignalError, match="signal 'a' cannot have this value: Expected `int`"):
        await alpha.flows.signal(handle.id, "a", "abc")
    await alpha.flows.signal(handle.id, "a", 1)
    assert await alpha.result(handle.id) == [1]


async def test_a_wrong_signal_that_came_too_early_is_dropped_and_reported(
    nodes: FlowNodes, caplog: pytest.LogCaptureFixture
) -> None:
    alpha = await nodes.start("alpha", order_of)
    handle = await alpha.begin(order_of, ["a", "b"])
    for value in ("abc", 1, "x"):
        await alpha.flows.signal(handle.id, "a", value)
    await alpha.restart_flows()
    async with asyncio.timeout(DEADLINE_S):
        await alpha.flows.signal(handle.id, "go", True)
        await alpha.until_steps(handle.id, 2)
        await alpha.restart_flows()
        await alpha.flows.signal(handle.id, "b", 2)
    assert await alpha.result(handle.id) == [1, 2]
    assert "signal discarded: signal 'a' cannot have this value" in caplog.text


async def test_a_flow_that_is_parked_is_logged_with_what_can_be_done(
    nodes: FlowNodes, caplog: pytest.LogCaptureFixture
) -> None:
    def charge() -> None:
        raise RuntimeError("the card was eaten")

    @flow
    async def pay(ctx: FlowContext) -> None:
        await ctx.step(charge)

    alpha = await nodes.start("alpha", pay)
    handle = await alpha.begin(pay)
    await alpha.until(handle.id, FlowStatus.PARKED)
    (record,) = [record for record in caplog.records if "is parked" in record.message]
    assert record.levelname == "WARNING"
    assert f"flow {handle.id} of pay is parked at 0 step(" in record.message
    assert "charge): RuntimeError: the card was eaten." in record.message
    assert f"postroad flow retry {handle.id}" in record.message
    assert 'raise RuntimeError("the card was eaten")' in record.message
    assert re.search(r'File ".*test_wrong_signals.py", line \d+, in charge', record.message)


async def test_a_flow_that_fails_is_logged_with_its_place(
    nodes: FlowNodes, caplog: pytest.LogCaptureFixture
) -> None:
    @flow
    async def pay(ctx: FlowContext) -> None:
        raise FlowError("no money")

    caplog.set_level(logging.INFO)
    alpha, handle = await nodes.begin(pay)
    with pytest.raises(FlowError, match="no money"):
        await alpha.result(handle.id)
    (record,) = [record for record in caplog.records if "has failed" in record.message]
    assert f"flow {handle.id} of pay has failed: FlowError: no money\n" in record.message
    assert re.search(r'File ".*test_wrong_signals.py", line \d+, in pay', record.message)
