"""Streams over real connections, with readers that are slow and connections that break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from postroad.core.limits import KIB
from postroad.services.broker import Broker
from postroad.services.errors import MoleculerError
from postroad.services.stream_window import WINDOW_BYTES
from postroad.services.transporters import MemoryHub
from postroad.services.transporters.tcp import TcpTransporter
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.raw_peers import holds_for
from tests.support.servers.process import free_port
from tests.support.services.stream_nodes import Files, Pair, Tape, joined
from tests.support.tiers import by_tier

CHUNK = bytes(200 * KIB)


@asynccontextmanager
async def tcp_pair(**settings: Any) -> AsyncIterator[Pair]:
    urls = {node_id: f"127.0.0.1:{free_port()}" for node_id in ("near", "far")}

    def make(node_id: str) -> Broker:
        transporter = TcpTransporter(urls, host="127.0.0.1", gossip_period_s=0.1)
        return Broker(
            node_id, transporter=transporter, serializer="MsgPack", stop_timeout_s=0.5, **settings
        )

    near, far, files = make("near"), make("far"), Files()
    far.add(files)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(near)
        await stack.enter_async_context(far)
        await near.wait_for_services("files", timeout_s=DEADLINE_S)
        await eventually(lambda: near.registry.node("far"), "they know each other")
        await eventually(lambda: far.registry.node("near"), "they know each other")
        yield Pair(MemoryHub(), near, far, files)


async def test_megabytes_there_and_back() -> None:
    async with tcp_pair() as pair:
        number = by_tier(test=64, nightly=256)
        tape = Tape(number, CHUNK)
        stream = await pair.near.call("files.echo", stream=tape.play())
        most = size = 0
        async for chunk in stream:
            size += len(chunk)
            most = max(most, pair.bytes_waiting(pair.near), pair.bytes_waiting(pair.far))
        assert size == number * len(CHUNK)
        assert most <= WINDOW_BYTES + len(CHUNK)
        await pair.until_idle()


async def test_a_sender_waits_for_its_reader() -> None:
    async with tcp_pair() as pair:
        tape = pair.files.tape = Tape(256, CHUNK)
        stream = await pair.near.call("files.get")
        await eventually(lambda: tape.given >= 20, "it sends what it may")
        await holds_for(lambda: tape.given < 30, "no more than that", 0.2)
        assert len(await joined(stream)) == 256 * len(CHUNK)
        await pair.until_idle()
        # A reader that has enough closes what it reads.
        tape = pair.files.tape = Tape(1_000_000, CHUNK)
        async with await pair.near.call("files.get") as stream:
            assert await anext(stream)
        await tape.until_closed()
        await pair.until_idle()


async def test_a_connection_that_breaks() -> None:
    async with tcp_pair() as pair:
        tape = Tape(1_000_000, CHUNK)
        call = asyncio.ensure_future(pair.near.call("files.echo", stream=tape.play()))
        stream = await call
        assert await anext(stream)
        engine = pair.far._engine
        assert engine is not None
        assert engine.network is not None
        await engine.network.transit.transporter.disconnect()
        with pytest.raises(MoleculerError):
            await joined(stream)
        await tape.until_closed()
