"""Heartbeats of version 3 over real sockets, and that older documented versions have none."""

from __future__ import annotations

import asyncio
import itertools
import struct
from statistics import median
from typing import Any

import msgspec
import pytest

from postroad import Limits, MessagingService, Outcome
from postroad.core.errors import ConnectionClosed
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import (
    CLUSTER,
    LONG_S,
    RawPeer,
    echo_on,
    failure_of,
    for_ever,
    holds_for,
    raw_client,
    raw_server,
)
from tests.support.wire.pairs import version3_frame
from tests.support.wire.raw_dialects import Dialect, Version3

V3 = Version3()
PING, PONG = 5, 6

SLOW = Limits(heartbeat_interval_s=5, heartbeat_timeout_s=15, stop_grace_s=0.2)
QUICK = Limits(heartbeat_interval_s=0.1, heartbeat_timeout_s=0.4, stop_grace_s=0.2)
BEATING = Limits(heartbeat_interval_s=0.1, heartbeat_timeout_s=1.5, stop_grace_s=0.2)
"""As quick, but nobody is given up because a busy machine held this process up for a moment."""
OFF = Limits(heartbeat_interval_s=0, heartbeat_timeout_s=0, stop_grace_s=0.2)


def node(name: str, limits: Limits, dialect: Dialect = V3) -> MessagingService:
    service = MessagingService(CLUSTER, name, limits=limits, protocol=dialect.protocol)
    return echo_on(service)


def frame_id(frame: bytes) -> int:
    return int(struct.unpack(">Q", frame[8:16])[0])


async def answer_pings(peer: RawPeer, seen: list[int]) -> None:
    """Go on reading; answer pings and echo requests."""
    while True:
        kind, frame = await V3.take_frame(peer)
        seen.append(kind)
        if kind == PING:
            peer.send(version3_frame(PONG, id=frame_id(frame)))
        elif kind == 1:
            peer.send(V3.reply(frame_id(frame), b"reply"))


async def test_server_pings_a_quiet_client() -> None:
    seen: list[int] = []
    async with node("server", BEATING) as server, raw_client(server.address) as peer:
        await V3.dial(peer)
        await V3.take_introduction(peer)
        answering = asyncio.create_task(answer_pings(peer, seen))
        await eventually(lambda: seen.count(PING) >= 20, "pings come")
        assert set(seen) == {PING}
        assert server.statistics().accepted == 1
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


async def test_client_pings_a_quiet_server() -> None:
    seen: list[int] = []

    async def script(peer: RawPeer) -> None:
        await V3.accept_with(peer, V3.hello())
        await answer_pings(peer, seen)

    async with node("client", BEATING) as client, raw_server(script) as server:
        assert await client.request(server.address, "echo") == b"reply"
        await eventually(lambda: seen.count(PING) >= 20, "pings come")
        assert await client.request(server.address, "echo") == b"reply"
        assert server.connections == 1


async def test_pings_of_the_peer_are_answered_by_a_server() -> None:
    async with node("server", SLOW) as server, raw_client(server.address) as peer:
        await V3.dial(peer)
        await V3.take_introduction(peer)
        for id in (1, 7, 2**63):
            peer.send(version3_frame(PING, id=id))
            await peer.expect(version3_frame(PONG, id=id))


async def test_pings_of_the_peer_are_answered_by_a_client() -> None:
    async def script(peer: RawPeer) -> None:
        await V3.accept_with(peer, V3.hello())
        request = await V3.take_request(peer)
        peer.send(version3_frame(PING, id=99))
        await peer.expect(version3_frame(PONG, id=99))
        peer.send(V3.reply(request.id, b"after the pong"))
        await for_ever()

    async with node("client", SLOW) as client, raw_server(script) as server:
        assert await client.request(server.address, "echo") == b"after the pong"


@pytest.mark.parametrize("limits", [SLOW, OFF], ids=["slower", "off"])
async def test_pings_come_often_enough_for_the_peers_timeout(limits: Limits) -> None:
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
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    # One may be late on a busy machine.
    assert median(gaps) < 0.3


async def test_server_gives_up_a_peer_that_stops_responding(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with node("server", QUICK) as server, raw_client(server.address) as peer:
        await V3.dial(peer)
        peer.send(V3.request(1, "echo", b"x"))
        assert (await V3.take_first_reply(peer)).payload == b"x"
        started = asyncio.get_running_loop().time()
        await peer.until_closed()
        assert asyncio.get_running_loop().time() - started > 0.3
        assert server.statistics().protocol_errors_by_kind == {"PeerSilent": 1}
    assert "nothing was read for" in caplog.text


async def test_client_gives_up_a_peer_that_stops_responding(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(peer: RawPeer) -> None:
        await V3.accept_with(peer, V3.hello())
        await for_ever()

    async with node("client", QUICK) as client, raw_server(script) as server:
        asked = [
            failure_of(client.request(server.address, "echo", timeout=LONG_S), ConnectionClosed)
            for _ in range(10)
        ]
        for error in await asyncio.gather(*asked):
            assert error.outcome is Outcome.UNKNOWN
        statistics = client.statistics()
        assert statistics.protocol_errors_by_kind == {"PeerSilent": 1}
        assert (statistics.dialed, statistics.requests_pending) == (0, 0)
    assert "nothing was read for" in caplog.text


async def test_client_finds_an_idle_half_open_peer() -> None:
    """Without any request in flight; the next request opens a new connection."""

    async def script(peer: RawPeer) -> None:
        await V3.accept_with(peer, V3.hello())
        request = await V3.take_request(peer)
        peer.send(V3.reply(request.id, b"reply"))
        await for_ever()

    async with node("client", QUICK) as client, raw_server(script) as server:
        await client.request(server.address, "echo")
        await eventually(lambda: client.statistics().dialed == 0, "it is given up")
        assert await client.request(server.address, "echo") == b"reply"
        assert server.connections == 2


async def test_without_heartbeats_silence_is_allowed() -> None:
    async with node("server", OFF) as server, raw_client(server.address) as peer:
        await V3.dial(peer)
        await V3.take_introduction(peer)
        await holds_for(lambda: server.statistics().accepted == 1, "it is kept", 0.6)
        peer.send(V3.request(1, "echo", b"x"))
        assert await V3.take_reply(peer) == (1, 0, b"x")


@pytest.mark.parametrize("dialect", [Dialect(1), Dialect(2)], ids=str)
async def test_older_documented_versions_have_no_heartbeats(dialect: Dialect) -> None:
    async with node("server", QUICK, dialect) as server, raw_client(server.address) as peer:
        await dialect.dial(peer)
        peer.send(dialect.request(1, "echo", b"x"))
        assert await dialect.take_first_reply(peer) == (1, 0, b"x")
        await holds_for(lambda: server.statistics().accepted == 1, "it is kept", 0.7)
        peer.send(dialect.request(2, "echo", b"y"))
        assert await dialect.take_reply(peer) == (2, 0, b"y")


async def test_two_services_stay_connected() -> None:
    async with node("server", BEATING) as server, node("client", BEATING) as client:
        await client.request(server.address, "echo")
        await holds_for(lambda: client.statistics().dialed == 1, "it is kept", 2.5)
        await client.request(server.address, "echo")
        assert client.statistics().connections_opened == 1
        assert server.statistics().protocol_errors == 0


async def test_request_slower_than_the_timeout_is_not_killed() -> None:
    async def slow(_: Any) -> bytes:
        await asyncio.sleep(2.5)
        return b"done"

    async with node("server", BEATING) as server, node("client", BEATING) as client:
        server.subscribe("slow", slow)
        assert await client.request(server.address, "slow", timeout=LONG_S) == b"done"
        assert client.statistics().connections_opened == 1


async def test_server_that_pauses_reading_is_not_given_up() -> None:
    async def slow(_: Any) -> bytes:
        await asyncio.sleep(1.8)
        return b"done"

    limits = msgspec.structs.replace(BEATING, handlers_running_max=1)
    async with node("server", limits) as server, node("client", BEATING) as client:
        server.subscribe("slow", slow)
        asked = [client.request(server.address, "slow", timeout=LONG_S) for _ in range(3)]
        assert await asyncio.gather(*asked) == [b"done"] * 3
        assert client.statistics().connections_lost == 0
        assert client.statistics().protocol_errors == 0
        assert server.statistics().protocol_errors == 0


async def test_statistics_tell_the_round_trip_of_heartbeats() -> None:
    async with node("server", SLOW) as server, node("client", BEATING) as client:
        await client.request(server.address, "echo", b"")
        assert client.statistics().round_trips_s == {}
        await eventually(lambda: bool(client.statistics().round_trips_s), "a round trip")
        (address, seconds), *others = client.statistics().round_trips_s.items()
        assert (address, others) == (str(server.address), [])
        assert 0 <= seconds < BEATING.heartbeat_timeout_s
