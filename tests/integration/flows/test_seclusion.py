"""What code has besides its variables is its own, and the same whenever it is run."""

from __future__ import annotations

import asyncio
import decimal
import gc
import sys
from collections.abc import AsyncIterator
from contextvars import ContextVar
from pathlib import Path

import pytest

from postroad.flows import FlowContext, FlowSession, FlowStatus, flow, responder
from tests.support.flows.nodes import FlowNodes

SHOWN: ContextVar[int] = ContextVar("shown", default=0)


@flow
async def ask(ctx: FlowContext) -> str:
    return await ctx.open_session("alpha").send_and_receive("?", str)


@responder(ask)
async def answer(ctx: FlowContext, session: FlowSession) -> None:
    await session.send(await session.receive(str))


# Variables of a context.


async def test_context_variables_of_code_persist(nodes: FlowNodes) -> None:
    @flow
    async def sets(ctx: FlowContext) -> list[int]:
        token = SHOWN.set(5)
        try:
            await ctx.step(str, 1)
            after_step = SHOWN.get()
            await ctx.wait_for_signal("go", bool)
            after_signal = SHOWN.get()
        finally:
            SHOWN.reset(token)
        return [after_step, after_signal, SHOWN.get()]

    alpha, handle = await nodes.begin(sets)
    await alpha.until_steps(handle.id, 1)
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == [5, 5, 0]
    assert SHOWN.get() == 0


async def test_sums_of_money_are_rounded_alike(nodes: FlowNodes) -> None:
    @flow
    async def divides(ctx: FlowContext) -> str:
        with decimal.localcontext() as context:
            context.prec = 4
            one = await ctx.step(int, 1)
            return str(decimal.Decimal(one) / 3)

    assert await nodes.run(divides) == "0.3333"


async def test_each_branch_has_a_context_of_its_own(nodes: FlowNodes) -> None:
    @flow
    async def forks(ctx: FlowContext) -> list[int]:
        async def branch(number: int) -> int:
            SHOWN.set(SHOWN.get() + number)
            await ctx.step(str, number)
            return SHOWN.get()

        SHOWN.set(10)
        return [*await ctx.gather(branch(1), branch(2)), SHOWN.get()]

    assert await nodes.run(forks) == [11, 12, 10]


# The task that happens to run the code.


async def test_asyncio_timeout_does_not_cancel_other_tasks(nodes: FlowNodes) -> None:
    async def wait_hidden(ctx: FlowContext) -> None:
        async with asyncio.timeout(0.01):
            await ctx.wait_for_signal("go", bool)

    @flow
    async def begins(ctx: FlowContext) -> str:
        return await ctx.open_session("alpha").send_and_receive("?", str)

    @responder(begins)
    async def hastens(ctx: FlowContext, session: FlowSession) -> None:
        await session.receive(str)
        try:
            await wait_hidden(ctx)
        except RuntimeError as error:
            await session.send(str(error))

    @flow
    async def hastens_too(ctx: FlowContext) -> None:
        await wait_hidden(ctx)

    alpha = await nodes.start("alpha", begins, hastens, hastens_too, ask, answer)
    assert "inside a task" in await alpha.run(begins)
    handle = await alpha.begin(hastens_too)
    await alpha.until(handle.id, FlowStatus.PARKED)
    # Longer than any of the timeouts.
    await asyncio.sleep(0.05)
    assert await alpha.run(ask) == "?"


# Generators that code gives up.


async def test_a_generator_that_is_left_is_closed_then_and_there(
    nodes: FlowNodes, caplog: pytest.LogCaptureFixture
) -> None:
    @flow
    async def leaves(ctx: FlowContext) -> list[object]:
        seen: list[object] = []

        async def numbers() -> AsyncIterator[int]:
            try:
                for number in range(3):
                    await ctx.wait_for_signal("next", bool)
                    yield number
            finally:
                seen.append("closed")

        async for number in numbers():
            seen.append(number)
            if number == 1:
                break
        seen.append("after")
        await ctx.wait_for_signal("next", bool)
        return seen

    alpha, handle = await nodes.begin(leaves)
    for _ in range(3):
        await alpha.restart_flows()
        gc.collect()
        await alpha.flows.signal(handle.id, "next", True)
    assert await alpha.result(handle.id) == [0, 1, "closed", "after"]
    await asyncio.sleep(0)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_generator_that_awaits_during_close(
    nodes: FlowNodes, caplog: pytest.LogCaptureFixture
) -> None:
    @flow
    async def counts(ctx: FlowContext) -> list[int]:
        async def numbers() -> AsyncIterator[int]:
            try:
                for number in range(2):
                    yield await ctx.step(int, number)
                    await ctx.wait_for_signal("next", bool)
            finally:
                await ctx.step(str, "first")
                await ctx.step(str, "second")

        return [number async for number in numbers()]

    alpha, handle = await nodes.begin(counts)
    for _ in range(2):
        await alpha.restart_flows()
        gc.collect()
        await alpha.flows.signal(handle.id, "next", True)
    assert await alpha.result(handle.id) == [0, 1]
    assert len(await alpha.flows.admin.history(handle.id)) == 6
    await asyncio.sleep(0)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_code_that_awaits_often_during_close(nodes: FlowNodes) -> None:
    @flow
    async def lingers(ctx: FlowContext) -> str:
        try:
            return await ctx.wait_for_signal("go", str)
        finally:
            for number in range(3):
                await ctx.step(str, number)

    alpha, handle = await nodes.begin(lingers)
    await alpha.restart_flows()
    gc.collect()
    await alpha.flows.signal(handle.id, "go", "gone")
    assert await alpha.result(handle.id) == "gone"
    assert len(await alpha.flows.admin.history(handle.id)) == 4


# Modules.


async def test_an_error_of_a_module_that_a_new_process_has_not_imported(
    nodes: FlowNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_errors.py").write_text("class Late(Exception):\n    '''Comes late.'''\n")
    monkeypatch.syspath_prepend(tmp_path)

    def fail() -> None:
        import late_errors  # type: ignore[import-not-found]

        raise late_errors.Late("too late")

    @flow
    async def fails(ctx: FlowContext) -> str:
        try:
            await ctx.step(fail)
        except Exception as error:
            await ctx.step(str, str(error))
            return await ctx.wait_for_signal("go", str)
        return "never"

    alpha, handle = await nodes.begin(fails)
    await alpha.until_steps(handle.id, 2)
    await alpha.stop_flows()
    del sys.modules["late_errors"]
    await alpha.start_flows()
    await alpha.flows.signal(handle.id, "go", "gone on")
    assert await alpha.result(handle.id) == "gone on"
