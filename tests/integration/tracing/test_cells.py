"""Spans of messages to cells, over cores in between, and of services whose packets they carry."""

from __future__ import annotations

import asyncio

import pytest

from postroad.cells import CellMessage, NoRouteError
from postroad.cells.delivery.envelope import HEADERS_MAX
from postroad.core import tracing
from postroad.core.errors import RemoteHandlerError
from postroad.core.tracing import SpanKind
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.service import Service, action, event
from postroad.services.transporters.cells import CellsTransporter
from tests.support.cells.nodes import Domains, Inbox
from tests.support.deadlines import eventually
from tests.support.services.nodes import SHORT

from .traces import begun, recording, trace_ids

NODES = ("C1", "S1", "S2")
HOPS = ("cells: call echo@S2 @S1", "cells: forward echo@S2 @C1", "cells: handle echo @S2")


async def echo(message: CellMessage) -> bytes:
    await asyncio.sleep(0)
    return message.payload


async def test_every_hop_of_a_call_is_a_span() -> None:
    async with recording(*NODES) as traces, Domains(1, 2) as domains:
        domains["S2"].add_function("echo", echo)
        assert await domains["S1"].call("echo@S2", b"hello") == b"hello"
        called, passed, handled = traces.line(*HOPS)
        assert [it.kind for it in (called, passed, handled)] == [
            SpanKind.CLIENT, SpanKind.INTERNAL, SpanKind.SERVER,
        ]  # fmt: skip
        assert (called.peer, handled.peer) == ("echo@S2", "System@S1")
        assert len(traces.all()) == 3


async def test_a_way_that_is_known_is_no_way_around_traces() -> None:
    async with Domains(1, 2) as domains:
        domains["S2"].add_function("echo", lambda message: message.payload)
        for _ in range(5):
            await domains["S1"].call("echo@S2", b"hello")
        async with recording(*NODES) as traces:
            await domains["S1"].call("echo@S2", b"hello")
            traces.line(*HOPS)
        assert await domains["S1"].call("echo@S2", b"hello") == b"hello"
        assert len(traces.all()) == 3


async def test_what_a_cell_sends_is_part_of_what_it_handles() -> None:
    async with recording(*NODES) as traces, Domains(1, 2) as domains:
        inbox = Inbox()

        async def ask(message: CellMessage) -> bytes:
            await asyncio.sleep(0)
            domains["S2"].send_nowait("inbox@S1", b"asked")
            return b""

        domains["S1"].add_function("inbox", inbox)
        domains["S2"].add_function("ask", ask)
        await domains["S1"].call("ask@S2", b"")
        await eventually(lambda: bool(inbox.messages))
        traces.line(
            "cells: call ask@S2 @S1",
            "cells: forward ask@S2 @C1",
            "cells: handle ask @S2",
            "cells: send inbox@S1 @S2",
            "cells: forward inbox@S1 @C1",
            "cells: handle inbox @S1",
        )


async def test_a_cell_of_the_same_domain() -> None:
    async with recording(*NODES) as traces, Domains(1, 2) as domains:
        domains["S1"].add_function("echo", lambda message: message.payload)
        assert await domains["S1"].call("echo", b"hello") == b"hello"
        traces.line("cells: call echo @S1", "cells: handle echo @S1")


async def test_failures_are_noted() -> None:
    async with recording(*NODES) as traces, Domains(1, 2) as domains:

        def fail(message: CellMessage) -> bytes:
            raise ValueError("no tea")

        domains["S2"].add_function("fail", fail)
        with pytest.raises(RemoteHandlerError):
            await domains["S1"].call("fail@S2", b"")
        assert traces.find("cells: call fail@S2 @S1").code == RemoteHandlerError.code
        assert traces.find("cells: handle fail @S2").error == "ValueError: no tea"
        with pytest.raises(NoRouteError):
            domains["C1"].send_nowait("nobody@C1", b"")
        assert traces.find("cells: send nobody@C1 @C1").code == NoRouteError.code


async def test_pings_and_commands_are_not_traced() -> None:
    async with recording(*NODES) as traces, Domains(1, 2) as domains:
        await domains["S1"].run_command("System@S2", "info")
        assert traces.all() == []


async def test_headers_without_room_for_a_context_stay_as_they_are() -> None:
    async with recording(*NODES) as traces, Domains(1, 2) as domains:
        inbox = Inbox()
        domains["S1"].add_function("inbox", inbox)
        headers = {f"name{number}": "x" for number in range(HEADERS_MAX)}
        await domains["S1"].call("inbox", b"", headers=headers)
        assert inbox.messages[0].headers == headers
        assert traces.told() == ["cells: call inbox @S1"]


class Greeter(Service):
    """Remembers in which spans it was asked."""

    name = "greeter"

    def __init__(self) -> None:
        self.seen: list[str] = []

    @action
    async def hello(self, ctx: Context) -> str:
        return "hello"

    @event("greeted")
    async def on_greeted(self, ctx: Context) -> None:
        self.seen.append((tracing.current_span_context() or pytest.fail("no span")).trace_id)


async def test_the_hops_of_a_packet_are_part_of_its_call() -> None:
    async with recording(*NODES) as traces, Domains(1, 2) as domains:
        greeter = Greeter()
        caller = Broker("S1", transporter=CellsTransporter(domains["S1"]), **SHORT)
        other = Broker("S2", transporter=CellsTransporter(domains["S2"]), **SHORT)
        other.add(greeter)
        async with other, caller:
            await caller.wait_for_services("greeter")
            noise = traces.told()
            assert noise == [], "what nodes tell each other is not traced"
            with begun("S1") as span:
                assert await caller.call("greeter.hello") == "hello"
                await caller.emit("greeted")
            await traces.until("services: handle greeted @S2")
            calling, _ = traces.line(
                "services: call greeter.hello @S1", "services: run greeter.hello @S2"
            )
            assert calling.peer == "S2"
            emitted, handled = traces.line(
                "services: emit greeted @S1", "services: handle greeted @S2"
            )
            assert (emitted.kind, handled.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
            assert greeter.seen == [span.context.trace_id]
            assert trace_ids(traces.all()) == {span.context.trace_id}
            sent = [it for it in traces.all() if it.layer == "cells" and it.node == "S1"]
            assert calling.span_id in [it.parent_id for it in sent]
            assert [it for it in traces.all() if it.layer == "cells" and it.node == "C1"]
