"""Heartbeats of profile `zeebe`, in bytes.

Most of it runs in virtual time, where a peer is silent for exactly as long as a test says.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product

import pytest

from postroad.net import Limits, MessagingService, ProtocolConfig
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import (
    CLUSTER,
    RawPeer,
    both_loops,
    echo_on,
    holds_for,
    raw_client,
    raw_server,
    virtual_time,
)
from tests.support.wire.raw_dialects import RawReply, RawRequest, Zeebe

ZEEBE = Zeebe(2)
SETUP = "internal-heartbeat-setup"
BEAT = "internal-heartbeat"
# What a current client asks for by default, and what a current server answers.
DEFAULT_SETUP = bytes.fromhex("0500 0100 0a00 0200 983a0000 01")
DEFAULT_ANSWER = bytes.fromhex("0200 0200 0a00 0200 01 01")

SLOW = Limits(heartbeat_interval_s=5, heartbeat_timeout_s=15, stop_grace_s=0.2)
QUICK = Limits(heartbeat_interval_s=0.1, heartbeat_timeout_s=0.4, stop_grace_s=0.2)
BEATING = Limits(heartbeat_interval_s=0.1, heartbeat_timeout_s=1.5, stop_grace_s=0.2)
OFF = Limits(heartbeat_interval_s=0, heartbeat_timeout_s=0, stop_grace_s=0.2)


def setup_request(timeout_ms: int, *, payload: bool) -> bytes:
    return struct.pack("<HHHHIB", 5, 1, 10, 2, timeout_ms, payload)


def setup_answer(*, payload: bool) -> bytes:
    return struct.pack("<HHHHBB", 2, 2, 10, 2, 1, payload)


def beat(template: int) -> bytes:
    return struct.pack("<HHHHQ", 8, template, 10, 2, int(time.time() * 1000))


def check_beat(payload: bytes, template: int, *, has_payload: bool) -> None:
    """Empty, or a timestamp of just now."""
    if not has_payload:
        assert payload == b""
        return
    *header, epoch_ms = struct.unpack("<HHHHQ", payload)
    assert header == [8, template, 10, 2]
    assert abs(epoch_ms / 1000 - time.time()) < 60


def zeebe_node(name: str, limits: Limits, *, payload: bool = True) -> MessagingService:
    protocol = ProtocolConfig(profile="zeebe", heartbeat_payload=payload)
    return echo_on(MessagingService(CLUSTER, name, limits=limits, protocol=protocol))


# The server's side of profile zeebe, met by raw clients.


class SetUpClient:
    """A raw client that may ask for heartbeats."""

    def __init__(self, server: MessagingService, peer: RawPeer) -> None:
        self.server = server
        self.peer = peer
        self._id = 0

    async def ask(self, subject: str, payload: bytes = b"") -> RawReply:
        """Send a request and read its reply."""
        self._id += 1
        self.peer.send(ZEEBE.request(self._id, subject, payload))
        if self._id == 1:
            await ZEEBE.take_introduction(self.peer)
        reply = await ZEEBE.take_reply(self.peer)
        assert reply.id == self._id
        return reply

    async def beats_for(self, seconds: float) -> None:
        ends_at = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < ends_at:
            await asyncio.sleep(0.1)
            await self.ask(BEAT)

    async def is_kept_for(self, seconds: float) -> None:
        await holds_for(
            lambda: self.server.statistics().server_connections == 1, "it is kept", seconds
        )
        assert (await self.ask("echo", b"still here")).payload == b"still here"


@asynccontextmanager
async def client_of(limits: Limits, *, payload: bool = True) -> AsyncIterator[SetUpClient]:
    async with (
        zeebe_node("server", limits, payload=payload) as server,
        raw_client(server.address) as peer,
    ):
        await ZEEBE.dial(peer)
        yield SetUpClient(server, peer)


async def seconds_until_closed(peer: RawPeer) -> float:
    started = asyncio.get_running_loop().time()
    assert await peer.until_closed() == b""
    return asyncio.get_running_loop().time() - started


@both_loops
async def test_server_default_setup_is_answered_byte_for_byte() -> None:
    async with (
        zeebe_node("server", SLOW) as server,
        raw_client(server.address) as peer,
    ):
        peer.send(bytes.fromhex("eb6eec8a 0002"))
        await peer.expect(bytes.fromhex("eb6eec8a 0002"))
        sender = b"\0\x09127.0.0.1" + struct.pack(">i", 27998)
        request = b"\x01\x01\x0d" + DEFAULT_SETUP + b"\0\x18" + SETUP.encode()
        peer.send(sender + request)
        await peer.expect(b"\0\x09127.0.0.1" + struct.pack(">i", server.address.port))
        await peer.expect(b"\x02\x01\x0a" + DEFAULT_ANSWER + b"\x00")
        peer.send(b"\x01\x02\x04nohb\0\x04echo")
        await peer.expect(b"\x02\x02\x04nohb\x00")


@virtual_time
async def test_server_agrees_with_the_client_on_the_payload() -> None:
    for server_wants, client_wants in product([True, False], repeat=2):
        both = server_wants and client_wants
        async with client_of(SLOW, payload=server_wants) as client:
            reply = await client.ask(SETUP, setup_request(5_000, payload=client_wants))
            assert reply == (1, 0, setup_answer(payload=both))
            for _ in range(3):
                _, status, payload = await client.ask(BEAT, beat(3) if both else b"")
                assert status == 0
                check_beat(payload, 4, has_payload=both)
            assert (await client.ask("echo", b"x")).payload == b"x"


@virtual_time
async def test_server_setup_of_schema_version_1_or_with_null_has_no_payload() -> None:
    for setup in (bytes.fromhex("0400 0100 0a00 0100 983a0000"), DEFAULT_SETUP[:-1] + b"\xff"):
        async with client_of(SLOW) as client:
            assert await client.ask(SETUP, setup) == (1, 0, setup_answer(payload=False))
            assert await client.ask(BEAT) == (2, 0, b"")


BAD_SETUPS = {
    "timeout 0": setup_request(0, payload=True),
    "too short": b"\x05\0\1",
    "other template": b"\x05\0\x09" + DEFAULT_SETUP[3:],
    "other schema": DEFAULT_SETUP[:4] + b"\x0b\0" + DEFAULT_SETUP[6:],
    "half a body": DEFAULT_SETUP[:10],
}


@virtual_time
async def test_server_bad_setup_installs_nothing() -> None:
    for what, setup in BAD_SETUPS.items():
        async with client_of(QUICK) as client:
            _, status, answer = await client.ask(SETUP, setup)
            assert (status, answer[:9]) == (0, DEFAULT_ANSWER[:9]), what
            assert (await client.ask(BEAT)).status == 1, what
            await client.is_kept_for(10)


@virtual_time
async def test_server_empty_setup_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(SLOW) as client:
        client.peer.send(ZEEBE.request(1, SETUP))
        await client.peer.until_closed(2)
        statistics = client.server.statistics()
        assert statistics.protocol_errors_by_kind == {"MalformedFrameError": 1}
    assert "heartbeat set-up request has no payload" in caplog.text


@virtual_time
async def test_server_without_setup_sends_heartbeats_of_its_own_and_allows_silence() -> None:
    async with client_of(QUICK) as client:
        assert (await client.ask("echo", b"x")).payload == b"x"
        client.peer.send(ZEEBE.request(2, BEAT))
        heartbeat = await ZEEBE.take_request(client.peer)
        assert (heartbeat.subject, heartbeat.payload) == (BEAT, b"")
        assert client.server.statistics().no_handler == 0
        await client.is_kept_for(10)


@virtual_time
async def test_server_closes_when_the_client_falls_silent(caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(SLOW) as client:
        await client.ask(SETUP, setup_request(1500, payload=False))
        await client.beats_for(20)
        assert 1.3 < await seconds_until_closed(client.peer) < 2
        statistics = client.server.statistics()
        assert statistics.protocol_errors_by_kind == {"PeerTimeoutError": 1}
        assert statistics.server_connections == 0
    assert "nothing was received from the peer for" in caplog.text


@virtual_time
async def test_server_takes_the_timeout_of_the_client_whatever_its_own_is() -> None:
    for limits in (QUICK, OFF):
        async with client_of(limits) as client:
            await client.ask(SETUP, setup_request(30_000, payload=False))
            await client.is_kept_for(29)
    for limits in (SLOW, OFF):
        async with client_of(limits) as client:
            await client.ask(SETUP, setup_request(300, payload=False))
            assert 0.25 < await seconds_until_closed(client.peer) < 1


@virtual_time
async def test_server_slow_handler_does_not_count_as_silence() -> None:
    """The client beats on, so it lives, however long its request takes."""
    async with client_of(SLOW) as client:
        done = asyncio.Event()

        async def slow(_: object) -> bytes:
            await done.wait()
            return b"done"

        client.server.serve("slow", slow)
        await client.ask(SETUP, setup_request(1500, payload=False))
        client.peer.send(ZEEBE.request(100, "slow"))
        await client.beats_for(20)
        done.set()
        assert await ZEEBE.take_reply(client.peer) == (100, 0, b"done")


# The client's side of profile zeebe, met by raw servers.


async def take_setup(peer: RawPeer) -> RawRequest:
    """Play the server up to the client's first frame, which must ask for heartbeats."""
    await ZEEBE.accept(peer)
    setup = await ZEEBE.take_first_request(peer)
    assert setup.subject == SETUP
    return setup


async def serve(peer: RawPeer, beats: list[bytes], *, answers_beats: bool = True) -> None:
    """Echo requests, collect heartbeats and answer them."""
    while True:
        request = await ZEEBE.take_request(peer)
        if request.subject != BEAT:
            peer.send(ZEEBE.reply(request.id, request.payload))
            continue
        beats.append(request.payload)
        if answers_beats:
            peer.send(ZEEBE.reply(request.id, beat(4) if request.payload else b""))


@both_loops
async def test_client_asks_for_heartbeats_byte_for_byte() -> None:
    async def script(peer: RawPeer) -> None:
        await peer.expect(bytes.fromhex("eb6eec8a 0002"))
        peer.send(bytes.fromhex("eb6eec8a 0002"))
        await peer.expect(b"\0\x09127.0.0.1" + struct.pack(">i", client.address.port))
        await peer.expect(b"\x01\x01\x0d" + DEFAULT_SETUP + b"\0\x18" + SETUP.encode())
        peer.send(ZEEBE.introduction(), b"\x02\x01\x0a" + DEFAULT_ANSWER + b"\0")
        await peer.expect(b"\x01\x02\x02hi\0\x04echo")
        peer.send(b"\x02\x02\x02hi\0")

    async with zeebe_node("client", SLOW) as client, raw_server(script) as server:
        assert await client.request(server.address, "echo", b"hi") == b"hi"


OLD_ANSWER = bytes.fromhex("0100 0200 0a00 0100 01")
"""Of schema version 1, which has no payload."""


@virtual_time
@pytest.mark.parametrize("answer", [DEFAULT_ANSWER, setup_answer(payload=False), OLD_ANSWER])
@pytest.mark.parametrize("wants", [True, False])
async def test_client_agrees_with_the_server_on_the_payload(answer: bytes, wants: bool) -> None:
    beats: list[bytes] = []

    async def script(peer: RawPeer) -> None:
        setup = await take_setup(peer)
        assert setup.payload == setup_request(1500, payload=wants)
        peer.send(ZEEBE.first_reply(setup.id, answer))
        await serve(peer, beats)

    async with (
        zeebe_node("client", BEATING, payload=wants) as client,
        raw_server(script) as server,
    ):
        assert await client.request(server.address, "echo", b"x") == b"x"
        await eventually(lambda: len(beats) >= 20, "heartbeats are sent")
        for payload in beats:
            check_beat(payload, 3, has_payload=answer == DEFAULT_ANSWER and wants)
        assert await client.request(server.address, "echo", b"x") == b"x"
        assert server.connections == 1


ANSWERS_WITHOUT_HEARTBEATS = {
    "handler failed": ZEEBE.reply(1, b"boom", status=2),
    "not enabled": ZEEBE.reply(1, bytes.fromhex("0200 0200 0a00 0200 00 01")),
    "unreadable": ZEEBE.reply(1, b"?"),
    "empty": ZEEBE.reply(1),
}


@virtual_time
@pytest.mark.parametrize("what", ANSWERS_WITHOUT_HEARTBEATS)
async def test_client_runs_without_heartbeats_if_the_server_has_none(what: str) -> None:
    beats: list[bytes] = []

    async def script(peer: RawPeer) -> None:
        await take_setup(peer)
        peer.send(ZEEBE.introduction(), ANSWERS_WITHOUT_HEARTBEATS[what])
        await serve(peer, beats, answers_beats=False)

    async with zeebe_node("client", QUICK) as client, raw_server(script) as server:
        assert await client.request(server.address, "echo", b"x") == b"x"
        await holds_for(lambda: client.statistics().client_connections == 1, "it is kept", 5)
        assert await client.request(server.address, "echo", b"y") == b"y"
        assert (beats, server.connections) == ([], 1)


@virtual_time
async def test_client_without_heartbeats_asks_for_none() -> None:
    async def script(peer: RawPeer) -> None:
        await ZEEBE.accept(peer)
        request = await ZEEBE.take_first_request(peer)
        assert request == (1, "echo", b"x")
        peer.send(ZEEBE.first_reply(1, b"x"))
        await serve(peer, [])

    async with zeebe_node("client", OFF) as client, raw_server(script) as server:
        assert await client.request(server.address, "echo", b"x") == b"x"
        await holds_for(lambda: client.statistics().client_connections == 1, "it is kept", 10)


@virtual_time
async def test_client_takes_the_reply_of_a_later_request_for_the_answer_to_a_heartbeat() -> None:
    beats: list[bytes] = []

    async def script(peer: RawPeer) -> None:
        setup = await take_setup(peer)
        peer.send(ZEEBE.first_reply(setup.id, DEFAULT_ANSWER))
        await serve(peer, beats, answers_beats=False)

    async with zeebe_node("client", BEATING) as client, raw_server(script) as server:
        for _ in range(100):
            await client.request(server.address, "echo")
            await asyncio.sleep(0.15)
        assert beats
        assert server.connections == 1


@virtual_time
async def test_client_ignores_heartbeat_requests_of_an_older_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(peer: RawPeer) -> None:
        setup = await take_setup(peer)
        peer.send(ZEEBE.first_reply(setup.id, SETUP.encode(), status=1))
        for id in range(1, 6):
            peer.send(ZEEBE.request(id, BEAT))
        await serve(peer, [])

    async with zeebe_node("client", QUICK) as client, raw_server(script) as server:
        for payload in (b"a", b"b"):
            assert await client.request(server.address, "echo", payload) == payload
        assert client.statistics().requests_received == 0
        assert client.statistics().no_handler == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@virtual_time
async def test_client_reply_that_looks_like_a_heartbeat_is_delivered() -> None:
    async with zeebe_node("server", BEATING) as server, zeebe_node("client", BEATING) as client:
        for payload in (beat(4), beat(3), DEFAULT_ANSWER, DEFAULT_SETUP):
            assert await client.request(server.address, "echo", payload) == payload


@virtual_time
@pytest.mark.parametrize("text", [SETUP.encode(), b""], ids=["subject", "no text"])
async def test_client_whose_set_up_is_rejected_keeps_an_idle_server_awake(text: bytes) -> None:
    beats: list[bytes] = []

    async def script(peer: RawPeer) -> None:
        await take_setup(peer)
        peer.send(ZEEBE.introduction(), ZEEBE.reply(1, text, status=1))
        await serve(peer, beats, answers_beats=False)

    async with zeebe_node("client", QUICK) as client, raw_server(script) as server:
        assert await client.request(server.address, "echo", b"x") == b"x"
        await eventually(lambda: len(beats) >= 20, "heartbeats are sent")
        assert set(beats) == {b""}
        assert await client.request(server.address, "echo", b"y") == b"y"
        assert server.connections == 1
