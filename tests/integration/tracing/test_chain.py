"""One trace through every layer: a call, mail, a flow, and a session with another node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from postroad.durable import Message, SqliteStore, Transaction
from postroad.flows import FlowContext, FlowsConfig, FlowService, FlowSession, flow, responder
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.service import Service, action
from postroad.services.transporters import MemoryHub, MemoryTransporter
from tests.support.deadlines import eventually
from tests.support.durable.mail_pairs import Station, running_station
from tests.support.services.nodes import SHORT

from .traces import begun, recording, trace_ids


async def pack(order: str) -> str:
    return f"packed {order}"


@flow
async def deliver(ctx: FlowContext, peer: str, order: str) -> str:
    packed = await ctx.step(pack, order)
    return await ctx.open_session(peer).send_and_receive(packed, str)


@responder(deliver)
async def receive(ctx: FlowContext, session: FlowSession) -> None:
    await session.send(f"got {await session.receive(str)}")


class Shop(Service):
    """Takes orders, and has them delivered by whoever handles its mail."""

    name = "shop"

    def __init__(self, station: Station) -> None:
        self._station = station

    @action
    async def order(self, ctx: Context, what: str) -> None:
        await self._station.mail.send("orders", what.encode(), to="alpha")


@asynccontextmanager
async def shops(place: Path, config: FlowsConfig) -> AsyncIterator[tuple[Broker, FlowService]]:
    """Nodes alpha, which calls and delivers, and beta, which takes orders and what they bring."""
    hub = MemoryHub()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        alpha = await enter(running_station("alpha", SqliteStore(place / "alpha.db")))
        beta = await enter(running_station("beta", SqliteStore(place / "beta.db"), alpha))
        alpha.meet(beta)
        delivering = await enter(FlowService(alpha.mail, [deliver], config))
        await enter(FlowService(beta.mail, [receive], config))
        caller = await enter(Broker("alpha", transporter=MemoryTransporter(hub), **SHORT))
        shop = Broker("beta", transporter=MemoryTransporter(hub), **SHORT)
        shop.add(Shop(beta))
        await enter(shop)
        await caller.wait_for_services("shop")

        async def on_order(message: Message, tx: Transaction) -> None:
            await delivering.start_flow(deliver, "beta", message.body.decode())

        await alpha.mail.consume("orders", on_order)
        yield caller, delivering


CHAIN = (
    "services: call shop.order @alpha",
    "services: run shop.order @beta",
    "durable: post orders @beta",
    "durable: handle orders @alpha",
    "flows: begin deliver @alpha",
)


@pytest.mark.parametrize("reload", [False, True], ids=["live", "reloaded"])
async def test_a_trace_goes_through_all_layers(tmp_path: Path, reload: bool) -> None:
    async with (
        recording("alpha", "beta") as traces,
        shops(tmp_path, FlowsConfig(replay_every_time=reload)) as (caller, _),
    ):
        with begun("alpha", "user") as user:
            await caller.call("shop.order", {"what": "tea"})
        await traces.until("flows: end deliver @alpha", "flows: end receive @beta")
        spans = traces.all()
        assert trace_ids(spans) == {user.context.trace_id}
        traces.line("test: user @alpha", *CHAIN)
        traces.line(CHAIN[-1], "flows: step pack @alpha")
        traces.line(CHAIN[-1], "flows: end deliver @alpha")
        begin = traces.find(CHAIN[-1])
        said = [it for it in spans if it.name == "say deliver"]
        assert {it.parent_id for it in said} == {begin.span_id}
        respond = traces.find("flows: respond receive @beta")
        assert respond.parent_id in {it.span_id for it in said}
        answered = [it for it in spans if it.name == "say receive"]
        assert {it.parent_id for it in answered} == {respond.span_id}
        heard = [it for it in spans if it.name == "hear deliver"]
        assert {it.parent_id for it in heard} <= {it.span_id for it in answered} and heard
        # One for each thing that was done, however often code was run again for it.
        assert len(heard) == len(answered) and len({it.parent_id for it in heard}) == len(heard)
        assert [it.name for it in spans].count("step pack") == 1
        for name in ("alpha", "beta"):
            kept = traces.of[name].spans(user.context.trace_id)
            assert kept == [it for it in spans if it.node == name]
        assert all(it.is_ok for it in spans)


async def test_traces_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    async with (
        recording("alpha", "beta") as traces,
        shops(tmp_path, FlowsConfig()) as (caller, _),
    ):
        calls: list[Any] = [caller.call("shop.order", {"what": str(it)}) for it in range(10)]
        await asyncio.gather(*calls)

        async def all_ended() -> bool:
            return traces.told().count("flows: end receive @beta") == 10

        await eventually(all_ended, "all flows have ended")
        by_trace: dict[str, list[str]] = {}
        for span in traces.all():
            by_trace.setdefault(span.trace_id, []).append(span.name)
        assert len(by_trace) == 10
        for names in by_trace.values():
            assert names.count("begin deliver") == names.count("respond receive") == 1
            assert names.count("step pack") == names.count("post orders") == 1


async def test_nothing_is_recorded_of_a_trace_that_is_not_sampled(tmp_path: Path) -> None:
    async with (
        recording("alpha", "beta", sample=0.0) as traces,
        shops(tmp_path, FlowsConfig()) as (caller, delivering),
    ):
        await caller.call("shop.order", {"what": "tea"})

        async def has_ended() -> bool:
            return [it.ended_at is not None for it in await delivering.admin.list()] == [True]

        await eventually(has_ended, "the flow has ended")
        assert traces.all() == []
