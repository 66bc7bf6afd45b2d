"""A process that is held up for longer than peers may be silent: it gives up none that live."""

from __future__ import annotations

import asyncio
import time

import msgspec

from postroad.net import Limits, MessagingService
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import (
    CLUSTER,
    LONG_S,
    RawPeer,
    both_loops,
    echo_on,
    raw_client,
    raw_server,
)
from tests.support.wire.raw_dialects import Version3
from tests.support.wire.tunnel_ends import running_tunnels

V3 = Version3()
BEATS = {"heartbeat_interval_s": 0.05, "heartbeat_timeout_s": 0.3}
LIMITS = msgspec.structs.replace(Limits(handshake_timeout_s=0.3, stop_grace_s=0.2), **BEATS)


def node(name: str) -> MessagingService:
    return echo_on(MessagingService(CLUSTER, name, limits=LIMITS))


def hold_up(seconds: float = 0.7) -> None:
    """As a handler does that computes, or a machine that is short of memory."""
    time.sleep(seconds)


async def go_on(service: MessagingService) -> None:
    """Let some heartbeats come."""
    received = service.statistics().bytes_received
    await asyncio.sleep(3 * LIMITS.heartbeat_interval_s)
    await eventually(lambda: service.statistics().bytes_received > received, "heartbeats come")


@both_loops
async def test_process_held_up_keeps_connections_tunnels_and_handshakes() -> None:
    is_met, may_answer = asyncio.Event(), asyncio.Event()

    async def script(peer: RawPeer) -> None:
        is_met.set()
        await may_answer.wait()
        await V3.accept_with(peer, V3.hello())
        request = await V3.take_request(peer)
        peer.send(V3.reply(request.id, b"reply"))
        await peer.until_closed()

    async with (
        node("server") as server,
        node("client") as client,
        running_tunnels(client_limits=BEATS, server_limits=BEATS) as pair,
        node("opening") as opening,
        raw_server(script) as raw,
    ):
        await client.request(server.address, "echo")
        near, far = await pair.open()
        request = asyncio.create_task(opening.request(raw.address, "echo", timeout=LONG_S))
        await is_met.wait()
        hold_up()
        may_answer.set()
        assert await request == b"reply"
        await go_on(server)
        await go_on(pair.server)
        assert await client.request(server.address, "echo", b"x") == b"x"
        assert client.statistics().connections_opened == 1
        assert client.statistics().protocol_errors == server.statistics().protocol_errors == 0
        assert near.reasons == far.reasons == []


@both_loops
async def test_process_held_up_once_gives_up_a_silent_peer() -> None:
    async with node("server") as server, raw_client(server.address) as peer:
        await V3.dial(peer)
        await V3.take_introduction(peer)
        hold_up()
        await peer.until_closed()
        assert server.statistics().protocol_errors_by_kind == {"PeerTimeoutError": 1}


@both_loops
async def test_process_that_is_always_late_gives_up_a_silent_peer() -> None:
    async with node("server") as server, raw_client(server.address):
        await eventually(lambda: server.statistics().server_connections == 1, "it is accepted")
        deadline = time.monotonic() + LONG_S
        while server.statistics().server_connections:
            assert time.monotonic() < deadline
            hold_up(0.1)
            await asyncio.sleep(0)
        assert server.statistics().protocol_errors_by_kind == {"PeerTimeoutError": 1}
