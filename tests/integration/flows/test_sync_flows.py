"""Flows that are a plain `def`: what they record, and what becomes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.flows import (
    INJECTED,
    FlowContext,
    FlowDefinition,
    FlowError,
    FlowKilledError,
    FlowSession,
    FlowStatus,
    PeerFlowFailedError,
    RetryPolicy,
    SessionEndedError,
    StepId,
    StoreConnection,
    SyncFlowContext,
    SyncFlowSession,
    flow,
    responder,
)
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.flows.nodes import FlowNode, FlowNodes

AnyFlow = FlowDefinition[Any, Any]
closed: list[str] = []
threads: list[str] = []


def add(first: int, second: int) -> int:
    threads.append(threading.current_thread().name)
    return first + second


async def double(number: int) -> int:
    return 2 * number


def insert(text: str, connection: StoreConnection = INJECTED, id: StepId = INJECTED) -> str:
    connection.execute("INSERT INTO notes VALUES (?)", (text,))
    return id.rpartition("/")[2]


def fail(text: str) -> None:
    raise FlowError(text)


# Two forms of the same flows.


def sync_forms() -> tuple[AnyFlow, ...]:
    @flow(name="part")
    def part(ctx: SyncFlowContext, number: int) -> int:
        session = ctx.open_session("alpha")
        return ctx.step(add, number, session.send_and_receive(number, int))

    @responder(part, name="answer part")
    def answer_part(ctx: SyncFlowContext, session: SyncFlowSession) -> None:
        session.send(ctx.step(double, session.receive(int)))

    @flow(name="whole")
    def whole(ctx: SyncFlowContext, number: int) -> list[Any]:
        def pair(first: int) -> list[int]:
            return ctx.gather(partial(ctx.step, add, first, 1), partial(ctx.step, double, first))

        seen: list[Any] = [ctx.step(add, number, 1), ctx.step.with_options(name="two")(double, 2)]
        seen += ctx.gather(partial(pair, 10), partial(pair, 20))
        seen += ctx.select(
            never=partial(ctx.wait_for_signal, "never", bool), soon=partial(ctx.sleep, 0.01)
        )
        seen += [ctx.run_subflow(part, number), ctx.random().random(), str(ctx.uuid())]
        sessions = [ctx.open_session(peer) for peer in ("alpha", "alpha")]
        ctx.send_all(dict.fromkeys(sessions, number))
        seen += ctx.receive_all(sessions, int)
        seen += [sessions[0].peer_info().name, ctx.patched("new"), ctx.name, ctx.version]
        ctx.set_query_handler("seen", lambda: len(seen))
        ctx.set_progress("waits")
        seen.append(ctx.wait_for_signal("go", str))
        try:
            ctx.step.with_options(retry=RetryPolicy(max_attempts=2, initial_delay_s=0.001))(
                fail, "no"
            )
        except FlowError as error:
            seen.append(str(error))
        return seen

    @responder(whole, name="answer whole")
    def answer_whole(ctx: SyncFlowContext, session: SyncFlowSession) -> None:
        session.send(session.receive(int) + 1)
        session.close()

    return part, answer_part, whole, answer_whole


def async_forms() -> tuple[AnyFlow, ...]:
    @flow(name="part")
    async def part(ctx: FlowContext, number: int) -> int:
        session = ctx.open_session("alpha")
        return await ctx.step(add, number, await session.send_and_receive(number, int))

    @responder(part, name="answer part")
    async def answer_part(ctx: FlowContext, session: FlowSession) -> None:
        await session.send(await ctx.step(double, await session.receive(int)))

    @flow(name="whole")
    async def whole(ctx: FlowContext, number: int) -> list[Any]:
        async def pair(first: int) -> list[int]:
            return await ctx.gather(ctx.step(add, first, 1), ctx.step(double, first))

        seen: list[Any] = [
            await ctx.step(add, number, 1),
            await ctx.step.with_options(name="two")(double, 2),
        ]
        seen += await ctx.gather(pair(10), pair(20))
        seen += await ctx.select(never=ctx.wait_for_signal("never", bool), soon=ctx.sleep(0.01))
        seen += [await ctx.run_subflow(part, number), ctx.random().random(), str(ctx.uuid())]
        sessions = [ctx.open_session(peer) for peer in ("alpha", "alpha")]
        await ctx.send_all(dict.fromkeys(sessions, number))
        seen += await ctx.receive_all(sessions, int)
        seen += [(await sessions[0].peer_info()).name, ctx.patched("new"), ctx.name, ctx.version]
        ctx.set_query_handler("seen", lambda: len(seen))
        ctx.set_progress("waits")
        seen.append(await ctx.wait_for_signal("go", str))
        try:
            await ctx.step.with_options(retry=RetryPolicy(max_attempts=2, initial_delay_s=0.001))(
                fail, "no"
            )
        except FlowError as error:
            seen.append(str(error))
        return seen

    @responder(whole, name="answer whole")
    async def answer_whole(ctx: FlowContext, session: FlowSession) -> None:
        await session.send(await session.receive(int) + 1)
        await session.close()

    return part, answer_part, whole, answer_whole


SYNC, ASYNC = sync_forms(), async_forms()


async def until_it_waits(alpha: FlowNode, id: str) -> None:
    async def waits() -> bool:
        return (await alpha.flows.admin.show(id)).progress == "waits"

    await eventually(waits, "the flow waits for its signal")


@pytest.mark.parametrize(("first", "then"), [(SYNC, SYNC), (ASYNC, SYNC), (SYNC, ASYNC)])
async def test_history_of_one_form_replays_in_the_other(
    first: tuple[AnyFlow, ...], then: tuple[AnyFlow, ...], nodes: FlowNodes
) -> None:
    alpha = await nodes.start("alpha", *first)
    handle = await alpha.flows.start_flow(first[2], 5)
    await until_it_waits(alpha, handle.id)
    await alpha.restart_flows(*then)
    assert await alpha.flows.query(handle.id, "seen") == 15
    with pytest.raises(UsageError, match="cannot have this value"):
        await alpha.flows.signal(handle.id, "go", 3)
    await alpha.flows.signal(handle.id, "go", "went")
    result = await alpha.result(handle.id)
    assert result[:7] == [6, 4, [11, 20], [21, 40], "soon", None, 15]
    assert 0 <= result[7] < 1
    assert result[9:] == [6, 6, "answer whole", True, "whole", 1, "went", "no"]
    history = [
        (step.place, str(step.kind), step.name)
        for step in await alpha.flows.admin.history(handle.id)
    ]
    assert sorted(history) == sorted(
        [
            *[("0", "step", "add"), ("1", "step", "two")],
            *[("2.0.0.0.0", "step", "add"), ("2.0.0.1.0", "step", "double")],
            *[("2.1.0.0.0", "step", "add"), ("2.1.0.1.0", "step", "double")],
            ("3.1.0", "sleep", "0.01 s"),
            *[("4.0", "send", "alpha"), ("4.1", "receive", "alpha"), ("4.2", "step", "add")],
            *[("5", "send", "alpha, alpha"), ("6", "receive", "alpha, alpha")],
            *[("7", "info", "alpha"), ("8", "patch", "new"), ("9", "signal", "go")],
            ("10", "step", "fail"),
        ]
    )


async def test_steps_that_are_a_def_run_in_threads(nodes: FlowNodes) -> None:
    @flow
    def sums(ctx: SyncFlowContext) -> int:
        threads.append(threading.current_thread().name)
        return ctx.step(add, 1, 2)

    threads.clear()
    _, handle = await nodes.begin(sums)
    assert await handle.result(DEADLINE_S) == 3
    assert threads[0] == threading.current_thread().name != threads[1]


async def test_step_in_the_transaction_of_the_store_happens_once(nodes: FlowNodes) -> None:
    @flow
    def notes(ctx: SyncFlowContext) -> list[str]:
        first = ctx.step(insert, "first")
        ctx.wait_for_signal("go", bool)
        return [first, ctx.step(insert, "second")]

    alpha = await nodes.start("alpha", notes)
    await alpha.rows("CREATE TABLE notes (text TEXT)")
    handle = await alpha.flows.start_flow(notes)
    await alpha.until_steps(handle.id, 1)
    await alpha.restart_flows()
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == ["0", "2"]
    assert await alpha.rows("SELECT text FROM notes") == [("first",), ("second",)]


def changing(number: int) -> FlowDefinition[[], int]:
    @flow(name="changing")
    def code(ctx: SyncFlowContext) -> int:
        value = ctx.step(double, number) if number else ctx.step(add, 2, 1)
        ctx.wait_for_signal("go", bool)
        return value

    return code


async def test_changed_code_is_parked_with_the_step_that_differs(nodes: FlowNodes) -> None:
    alpha, handle = await nodes.begin(changing(0))
    await alpha.until_steps(handle.id, 1)
    await alpha.restart_flows(changing(4))
    await alpha.flows.signal(handle.id, "go", True)
    view = await alpha.until(handle.id, FlowStatus.PARKED)
    assert "the name was 'add', and is 'double'" in str(view)
    await alpha.restart_flows(changing(0))
    assert await alpha.result(handle.id) == 3


async def test_operators_pause_and_kill_running_sync_flow(nodes: FlowNodes) -> None:
    @flow
    def waits(ctx: SyncFlowContext) -> None:
        try:
            ctx.step(add, 1, 2)
            ctx.wait_for_signal("never", bool)
        finally:
            closed.append(ctx.id)

    alpha, handle = await nodes.begin(waits)
    await alpha.until_steps(handle.id, 1)
    await alpha.flows.admin.pause(handle.id)
    assert (await alpha.flows.admin.show(handle.id)).status is FlowStatus.PAUSED
    assert (before := closed.count(handle.id)) >= 1
    await alpha.flows.admin.resume(handle.id)
    await alpha.flows.admin.kill(handle.id, "enough")
    with pytest.raises(FlowKilledError, match="enough"):
        await handle.result(DEADLINE_S)
    assert closed.count(handle.id) > before


async def test_errors_cross_sessions_of_both_forms(nodes: FlowNodes) -> None:
    @flow
    async def ask(ctx: FlowContext, peer: str) -> str:
        return await ctx.open_session(peer).send_and_receive("tea", str)

    @responder(ask)
    def refuse(ctx: SyncFlowContext, session: SyncFlowSession) -> None:
        raise FlowError(f"no {session.receive(str)}")

    @flow
    def listen(ctx: SyncFlowContext, peer: str) -> str:
        try:
            return ctx.open_session(peer).receive(str, timeout=60)
        except SessionEndedError:
            return "ended"

    @responder(listen)
    async def say_nothing(ctx: FlowContext, session: FlowSession) -> None: ...

    alpha, beta = await nodes.pair(ask, refuse, listen, say_nothing)
    with pytest.raises(PeerFlowFailedError, match="no tea"):
        await alpha.run(ask, "beta")
    assert await beta.run(listen, "alpha") == "ended"


async def test_sync_flow_continues_as_new(nodes: FlowNodes) -> None:
    @flow
    def count(ctx: SyncFlowContext, number: int) -> int:
        if ctx.step(double, number) < 8:
            ctx.continue_as_new(number + 1)
        return number

    alpha, handle = await nodes.begin(count, 1)
    assert await handle.result(DEADLINE_S) == 4
    assert len(await alpha.flows.admin.history(handle.id)) == 1


async def test_sync_flow_mistakes_raise(nodes: FlowNodes) -> None:
    @flow
    def wrong(ctx: SyncFlowContext) -> list[str]:
        def use_in_step() -> None:
            ctx.sleep(1)

        mistakes: list[Callable[[], object]] = [
            lambda: ctx.step(use_in_step),
            lambda: ctx.gather(ctx.step(double, 2)),  # type: ignore[call-overload]  # A mistake.
            lambda: ctx.select(),
        ]
        texts = []
        for mistake in mistakes:
            try:
                mistake()
            except UsageError as error:
                texts.append(str(error))
        return texts

    _, handle = await nodes.begin(wrong)
    in_step, in_gather, in_select = await handle.result(DEADLINE_S)
    assert "belongs to the code of the flow" in in_step
    assert "`lambda: ctx.step(function, argument)`" in in_gather
    assert "needs something to wait for" in in_select
