"""Flows keep the span they were begun in, and run in the context of their node."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroad.core import tracing
from postroad.core.tracing import SpanContext
from postroad.durable import Transaction
from postroad.flows import INJECTED, FlowContext, FlowsConfig, StoreConnection, flow
from postroad.flows.errors import FlowError
from tests.support.flows.nodes import FlowNode, FlowNodes

from .traces import begun, recording, trace_ids

NODE = contextvars.ContextVar("node", default="nobody")
seen: list[tuple[str, str]] = []


@pytest.fixture(params=[False, True], ids=["live", "reloaded"])
async def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[FlowNodes]:
    seen.clear()
    config = FlowsConfig(
        replay_every_time=request.param, retry_initial_delay_s=0.005, retry_max_delay_s=0.02
    )
    nodes = FlowNodes(tmp_path, config)
    try:
        yield nodes
    finally:
        await nodes.stop()


def note(where: str) -> None:
    if (where, NODE.get()) not in seen:
        seen.append((where, NODE.get()))


async def on_loop() -> None:
    note("on the loop")


def in_thread() -> None:
    note("in a thread")


async def in_transaction(tx: Transaction = INJECTED) -> None:
    await tx.execute("SELECT 1")
    note("in a transaction")


def with_connection(connection: StoreConnection = INJECTED) -> None:
    note("with a connection")


@flow
async def look(ctx: FlowContext) -> None:
    note("in the flow")
    for function in (on_loop, in_thread, in_transaction, with_connection):
        await ctx.step(function)


async def start(nodes: FlowNodes, name: str, *definitions: Any) -> FlowNode:
    """A node that everything knows the name of."""
    NODE.set(name)
    node = await nodes.start(name, *definitions)
    NODE.set("whoever calls")
    return node


async def test_code_of_users_runs_in_the_context_of_its_node(nodes: FlowNodes) -> None:
    alpha = await start(nodes, "alpha", look)
    await alpha.run(look)
    assert {name for _, name in seen} == {"alpha"} and len(seen) == 5


async def told() -> str:
    context = tracing.current_span_context()
    assert context is not None
    return context.span_id


def told_in_a_thread() -> str:
    context = tracing.current_span_context()
    assert context is not None
    return context.span_id


async def post_something(tx: Transaction = INJECTED) -> None:
    tx.send("notes", b"", to="alpha")


@flow
async def work(ctx: FlowContext) -> list[str]:
    spans = [await ctx.step(told), await ctx.step(told_in_a_thread)]
    await ctx.step(post_something)
    await ctx.sleep(0.001)
    return spans


async def test_steps_are_spans_of_what_began_the_flow(nodes: FlowNodes) -> None:
    async with recording("alpha") as traces:
        alpha = await start(nodes, "alpha", work)
        with begun("alpha") as span:
            result = await alpha.run(work)
        await traces.until("flows: end work @alpha")
        steps = [
            traces.line(
                "test: begin @alpha", "flows: begin work @alpha", f"flows: step {it} @alpha"
            )
            for it in ("told", "told_in_a_thread", "post_something")
        ]
        assert [line[-1].span_id for line in steps[:2]] == result
        assert steps[0][-1].attributes["flow"] == (await alpha.flows.admin.list())[0].id
        traces.line("flows: step post_something @alpha", "durable: post notes @alpha")
        assert trace_ids(traces.all()) == {span.context.trace_id}
        assert len(traces.all()) == 7


@flow
async def fail(ctx: FlowContext) -> None:
    await ctx.step(refuse)


async def refuse() -> None:
    raise FlowError("no tea")


async def test_failures_are_noted(nodes: FlowNodes) -> None:
    async with recording("alpha") as traces:
        alpha = await start(nodes, "alpha", fail)
        with pytest.raises(FlowError):
            await alpha.run(fail)
        await traces.until("flows: end fail @alpha")
        assert traces.find("flows: step refuse @alpha").error == "FlowError: no tea"
        error = traces.find("flows: end fail @alpha").error
        assert error is not None and "no tea" in error


@flow
async def wait(ctx: FlowContext) -> str:
    first = await ctx.step(told)
    await ctx.wait_for_signal("go", str)
    assert await ctx.step(told) != first
    return first


async def test_a_restart_makes_no_span_again(nodes: FlowNodes) -> None:
    async with recording("alpha") as traces:
        alpha = await start(nodes, "alpha", wait)
        handle = await alpha.begin(wait)
        await alpha.until_steps(handle.id, 1)
        await alpha.restart()
        await alpha.restart()
        await alpha.flows.signal(handle.id, "go", "now")
        first = await alpha.result(handle.id)
        await traces.until("flows: end wait @alpha")
        assert [it.name for it in traces.all()] == [
            "begin wait", "step told", "step told", "end wait",
        ]  # fmt: skip
        begin, step, again, _ = traces.all()
        assert step.span_id == first and {step.parent_id, again.parent_id} == {begin.span_id}


async def test_a_flow_that_nobody_traced_is_not_traced_later(nodes: FlowNodes) -> None:
    alpha = await start(nodes, "alpha", look)
    handle = await alpha.begin(look)
    await alpha.result(handle.id)
    async with recording("alpha") as traces:
        await alpha.restart()
        assert traces.all() == []


async def test_nothing_of_whoever_started_the_node_is_a_parent(nodes: FlowNodes) -> None:
    async with recording("alpha") as traces:
        with begun("alpha", "start"):
            alpha = await start(nodes, "alpha", work)
        await alpha.run(work)
        context = SpanContext(traces.find("test: start @alpha").trace_id, "1" * 16)
        assert context.trace_id not in {
            it.trace_id for it in traces.all() if it.layer in ("flows", "durable")
        }
