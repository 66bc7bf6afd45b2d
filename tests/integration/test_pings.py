"""Pings of version 3, which older documented versions lack, and heartbeats between services.

Most of it runs in virtual time, where a peer is silent for exactly as long as a test says.
"""

from __future__ import annotations

import asyncio
import struct
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from postroad.core.errors import ConnectionClosedError
from postroad.net import Limits, MessagingService, Outcome
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import (
    CLUSTER,
    LONG_S,
    RawPeer,
    both_loops,
    echo_on,
    failure_of,
    for_ever,
    holds_for,
    raw_client,
    raw_server,
    virtual_time,
)
from tests.support.wire.pairs import version3_frame
from tests.support.wire.raw_dialects import Dialect, Version3, Zeebe

V3 = Version3()
BEATING_DIALECTS = pytest.mark.parametrize("dialect", [Zeebe(2), V3], ids=str)
PING, PONG = 5, 6

SLOW = Limits(heartbeat_interval_s=5, heartbeat_timeout_s=15, stop_grace_s=0.2)
QUICK = Limits(heartbeat_interval_s=0.1, heartbeat_timeout_s=0.4, stop_grace_s=0.2)
BEATING = Limits(heartbeat_interval_s=0.1, heartbeat_timeout_s=1.5, stop_grace_s=0.2)
OFF = Limits(heartbeat_interval_s=0, heartbeat_timeout_s=0, stop_grace_s=0.2)


def node(name: str, limits: Limits, dialect: Dialect = V3) -> MessagingService:
    return echo_on(MessagingService(CLUSTER, name, limits=limits, protocol=dialect.protocol))


def frame_id(frame: bytes) -> int:
    return int(struct.unpack(">Q", frame[8:16])[0])


async def answer_pings(peer: RawPeer, kinds: list[int]) -> None:
    """Go on reading; answer pings and echo requests."""
    while True:
        kind, frame = await V3.take_frame(peer)
        kinds.append(kind)
        if kind == PING:
            peer.send(version3_frame(PONG, id=frame_id(frame)))
        elif kind == 1:
            peer.send(V3.reply(frame_id(frame), b"reply"))


@virtual_time
async def test_pings_go_to_a_quiet_client() -> None:
    kinds: list[int] = []
    async with node("server", BEATING) as server, raw_client(server.address) as peer:
        await V3.dial(peer)
        await V3.take_introduction(peer)
        answering = asyncio.create_task(answer_pings(peer, kinds))
        await eventually(lambda: kinds.count(PING) >= 20, "pings come")
        assert set(kinds) == {PING}
        assert server.statistics().server_connections == 1
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


@virtual_time
async def test_pings_go_to_a_quiet_server() -> None:
    kinds: list[int] = []

    async def script(peer: RawPeer) -> None:
        await V3.accept_with(peer, V3.hello())
        await answer_pings(peer, kinds)

    async with node("client", BEATING) as client, raw_server(script) as server:
        assert await client.request(server.address, "echo") == b"reply"
        await eventually(lambda: kinds.count(PING) >= 20, "pings come")
        assert await client.request(server.address, "echo") == b"reply"
        assert server.connections == 1


@virtual_time
async def test_pings_of_either_peer_are_answered() -> None:
    async def script(peer: RawPeer) -> None:
        await V3.accept_with(peer, V3.hello())
        request = await V3.take_request(peer)
        peer.send(version3_frame(PING, id=99))
        await peer.expect(version3_frame(PONG, id=99))
        peer.send(V3.reply(request.id, b"after the pong"))
        await for_ever()

    async with node("client", SLOW) as client, raw_server(script) as raw:
        assert await client.request(raw.address, "echo") == b"after the pong"
    async with node("server", SLOW) as server, raw_client(server.address) as peer:
        await V3.dial(peer)
        await V3.take_introduction(peer)
        for id in (1, 7, 2**63):
            peer.send(version3_frame(PING, id=id))
            await peer.expect(version3_frame(PONG, id=id))


@virtual_time
async def test_pings_come_often_enough_for_the_peers_timeout() -> None:
    for limits in (SLOW, OFF):
        times: list[float] = []
        async with node("server", limits) as server, raw_client(server.address) as peer:
            peer.send(V3.opening(), V3.hello(heartbeat_timeout_ms=300))
            await peer.expect(V3.answer())
            await V3.take_introduction(peer)
            while len(times) < 6:
                kind, frame = await V3.take_frame(peer)
                assert kind == PING
                times.append(asyncio.get_running_loop().time())
                peer.send(version3_frame(PONG, id=frame_id(frame)))
        assert max(later - earlier for earlier, later in pairwise(times)) < 0.3


@both_loops
async def test_pings_unanswered_by_a_client_end_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with node("server", QUICK) as server, raw_client(server.address) as peer:
        await V3.dial(peer)
        peer.send(V3.request(1, "echo", b"x"))
        assert (await V3.take_first_reply(peer)).payload == b"x"
        started = asyncio.get_running_loop().time()
        await peer.until_closed()
        assert asyncio.get_running_loop().time() - started > 0.3
        assert server.statistics().protocol_errors_by_kind == {"PeerTimeoutError": 1}
    assert "nothing was received from the peer for" in caplog.text


@virtual_time
async def test_pings_find_an_idle_half_open_peer() -> None:
    """Without any request in flight; the next request opens a new connection."""

    async def script(peer: RawPeer) -> None:
        await V3.accept_with(peer, V3.hello())
        request = await V3.take_request(peer)
        peer.send(V3.reply(request.id, b"reply"))
        await for_ever()

    async with node("client", QUICK) as client, raw_server(script) as server:
        await client.request(server.address, "echo")
        await eventually(lambda: client.statistics().client_connections == 0, "it is given up")
        assert await client.request(server.address, "echo") == b"reply"
        assert server.connections == 2


@virtual_time
@pytest.mark.parametrize(
    ("dialect", "limits"), [(V3, OFF), (Dialect(1), QUICK), (Dialect(2), QUICK)], ids=str
)
async def test_silence_is_allowed_without_heartbeats(dialect: Dialect, limits: Limits) -> None:
    """Older documented versions have none, whatever the limits say."""
    async with node("server", limits, dialect) as server, raw_client(server.address) as peer:
        await dialect.dial(peer)
        peer.send(dialect.request(1, "echo", b"x"))
        assert await dialect.take_first_reply(peer) == (1, 0, b"x")
        await holds_for(lambda: server.statistics().server_connections == 1, "it is kept", 10)
        peer.send(dialect.request(2, "echo", b"y"))
        assert await dialect.take_reply(peer) == (2, 0, b"y")


# Heartbeats of either kind.


@virtual_time
@BEATING_DIALECTS
async def test_client_gives_up_a_server_that_stops_responding(
    dialect: Dialect, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(peer: RawPeer) -> None:
        await dialect.accept(peer)
        if dialect.profile == "zeebe":
            setup = await dialect.take_first_request(peer)
            answer = bytes.fromhex("0200 0200 0a00 0200 01 01")
            peer.send(dialect.first_reply(setup.id, answer))
        await for_ever()

    async with node("client", QUICK, dialect) as client, raw_server(script) as server:
        calls = [
            failure_of(
                client.request(server.address, "echo", timeout=LONG_S), ConnectionClosedError
            )
            for _ in range(10)
        ]
        for error in await asyncio.gather(*calls):
            assert error.outcome is Outcome.UNKNOWN
            assert error.elapsed_s is not None and 0.4 <= error.elapsed_s < 1
        statistics = client.statistics()
        assert statistics.protocol_errors_by_kind == {"PeerTimeoutError": 1}
        assert (statistics.client_connections, statistics.requests_pending) == (0, 0)
    assert "PeerTimeoutError: nothing was received from the peer for" in caplog.text


@virtual_time
@BEATING_DIALECTS
async def test_services_that_are_slow_or_quiet_stay_connected(dialect: Dialect) -> None:
    """Also one whose only handler is busy, so that it reads neither requests nor heartbeats."""

    async def slow(_: Any) -> bytes:
        await asyncio.sleep(2.5)
        return b"done"

    for handlers_max in (100, 1):
        limits = msgspec.structs.replace(BEATING, handlers_running_max=handlers_max)
        async with (
            node("server", limits, dialect) as server,
            node("client", BEATING, dialect) as client,
        ):
            server.serve("slow", slow)
            calls = [client.request(server.address, "slow", timeout=LONG_S) for _ in range(3)]
            assert await asyncio.gather(*calls) == [b"done"] * 3
            await asyncio.sleep(20)
            await client.request(server.address, "echo")
            assert client.statistics().connections_opened == 1
            assert client.statistics().connections_lost == 0
            assert client.statistics().protocol_errors == 0
            assert server.statistics().protocol_errors == 0


@virtual_time
async def test_statistics_tell_the_round_trip_of_heartbeats() -> None:
    async with node("server", SLOW) as server, node("client", BEATING) as client:
        await client.request(server.address, "echo", b"")
        assert client.statistics().round_trips_s == {}
        await eventually(lambda: bool(client.statistics().round_trips_s), "a round trip")
        (address, seconds), *others = client.statistics().round_trips_s.items()
        assert (address, others) == (str(server.address), [])
        assert 0 < seconds < BEATING.heartbeat_timeout_s
