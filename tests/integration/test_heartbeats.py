"""Heartbeats of profile `zeebe` over real sockets: every combination, in bytes."""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from postroad import Limits, MessagingService, Outcome, Protocol
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
"""As quick, but nobody is given up because a busy machine held this process up for a moment."""
OFF = Limits(heartbeat_interval_s=0, heartbeat_timeout_s=0, stop_grace_s=0.2)


def setup_request(timeout_ms: int, *, payload: bool) -> bytes:
    return struct.pack("<HHHHIB", 5, 1, 10, 2, timeout_ms, payload)


def setup_answer(*, payload: bool) -> bytes:
    return struct.pack("<HHHHBB", 2, 2, 10, 2, 1, payload)


def beat(template: int, epoch_ms: int | None = None) -> bytes:
    return struct.pack("<HHHHQ", 8, template, 10, 2, epoch_ms or int(time.time() * 1000))


def check_beat(payload: bytes, template: int, *, has_payload: bool) -> None:
    """Empty, or a timestamp of just now."""
    if not has_payload:
        assert payload == b""
        return
    *header, epoch_ms = struct.unpack("<HHHHQ", payload)
    assert header == [8, template, 10, 2]
    assert abs(epoch_ms / 1000 - time.time()) < 5


def zeebe_node(name: str, limits: Limits, *, payload: bool = True) -> MessagingService:
    protocol = Protocol(profile="zeebe", heartbeat_payload=payload)
    return echo_on(MessagingService(CLUSTER, name, limits=limits, protocol=protocol))


# The server's side, met by raw clients.


class SetUpClient:
    """A raw client that has asked for heartbeats."""

    def __init__(self, server: MessagingService, peer: RawPeer) -> None:
        self.server = server
        self.peer = peer
        self._id = 0
        self._is_introduced = False

    async def ask(self, subject: str, payload: bytes = b"") -> RawReply:
        """Send a request and read its reply."""
        self._id += 1
        self.peer.send(ZEEBE.request(self._id, subject, payload))
        if not self._is_introduced:
            self._is_introduced = True
            await ZEEBE.take_introduction(self.peer)
        reply = await ZEEBE.take_reply(self.peer)
        assert reply.id == self._id
        return reply


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


async def test_default_setup_is_answered_byte_for_byte() -> None:
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


@pytest.mark.parametrize("server_wants", [True, False], ids=["server with", "server without"])
@pytest.mark.parametrize("client_wants", [True, False], ids=["client with", "client without"])
async def test_server_agrees_on_the_payload(server_wants: bool, client_wants: bool) -> None:
    both = server_wants and client_wants
    async with client_of(SLOW, payload=server_wants) as client:
        reply = await client.ask(SETUP, setup_request(5_000, payload=client_wants))
        assert reply == (1, 0, setup_answer(payload=both))
        for _ in range(3):
            _, status, payload = await client.ask(BEAT, beat(3) if both else b"")
            assert status == 0
            check_beat(payload, 4, has_payload=both)
        assert (await client.ask("echo", b"x")).payload == b"x"


async def test_schema_version_1_has_no_payload() -> None:
    async with client_of(SLOW) as client:
        old = bytes.fromhex("0400 0100 0a00 0100 983a0000")
        assert await client.ask(SETUP, old) == (1, 0, setup_answer(payload=False))
        assert await client.ask(BEAT) == (2, 0, b"")


async def test_null_in_the_payload_field_counts_as_false() -> None:
    async with client_of(SLOW) as client:
        setup = DEFAULT_SETUP[:-1] + b"\xff"
        assert (await client.ask(SETUP, setup)).payload == setup_answer(payload=False)


BAD_SETUPS = {
    "timeout 0": setup_request(0, payload=True),
    "too short": b"\x05\0\1",
    "other template": b"\x05\0\x09" + DEFAULT_SETUP[3:],
    "other schema": DEFAULT_SETUP[:4] + b"\x0b\0" + DEFAULT_SETUP[6:],
    "half a body": DEFAULT_SETUP[:10],
}


@pytest.mark.parametrize("setup", BAD_SETUPS.values(), ids=BAD_SETUPS.keys())
async def test_setup_that_installs_nothing(setup: bytes) -> None:
    async with client_of(QUICK) as client:
        _, status, answer = await client.ask(SETUP, setup)
        assert (status, answer[:9]) == (0, DEFAULT_ANSWER[:9])
        assert (await client.ask(BEAT)).status == 1
        await holds_for(lambda: client.server.statistics().accepted == 1, "it is kept", 0.6)
        assert await client.ask("echo", b"x") == (3, 0, b"x")


async def test_empty_setup_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(SLOW) as client:
        client.peer.send(ZEEBE.request(1, SETUP))
        await client.peer.until_closed(2)
        statistics = client.server.statistics()
        assert statistics.protocol_errors_by_kind == {"MalformedFrame": 1}
    assert "heartbeat set-up without payload" in caplog.text


async def test_heartbeat_without_setup_has_no_handler() -> None:
    async with client_of(SLOW) as client:
        assert await client.ask(BEAT) == (1, 1, BEAT.encode())


async def test_server_closes_when_the_client_falls_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with client_of(SLOW) as client:
        await client.ask(SETUP, setup_request(1500, payload=False))
        for _ in range(20):
            await asyncio.sleep(0.1)
            await client.ask(BEAT)
        assert 1.2 < await seconds_until_closed(client.peer) < SLOW.heartbeat_timeout_s
        statistics = client.server.statistics()
        assert statistics.protocol_errors_by_kind == {"PeerSilent": 1}
        assert statistics.accepted == 0
    assert "nothing was read for" in caplog.text


async def test_server_keeps_a_silent_client_that_never_set_up_heartbeats() -> None:
    async with client_of(QUICK) as client:
        await client.ask("echo")
        await holds_for(lambda: client.server.statistics().accepted == 1, "it is kept", 0.8)
        assert (await client.ask("echo", b"still here")).payload == b"still here"


@pytest.mark.parametrize("limits", [QUICK, OFF], ids=["shorter", "off"])
async def test_longer_timeout_of_the_client_counts(limits: Limits) -> None:
    async with client_of(limits) as client:
        await client.ask(SETUP, setup_request(30_000, payload=False))
        await holds_for(lambda: client.server.statistics().accepted == 1, "it is kept", 0.7)
        assert (await client.ask("echo", b"x")).payload == b"x"


@pytest.mark.parametrize("limits", [SLOW, OFF], ids=["longer", "off"])
async def test_shorter_timeout_of_the_client_counts(limits: Limits) -> None:
    async with client_of(limits) as client:
        await client.ask(SETUP, setup_request(300, payload=False))
        assert 0.25 < await seconds_until_closed(client.peer) < SLOW.heartbeat_timeout_s


async def test_slow_handler_does_not_count_as_silence() -> None:
    """The client beats on, so it lives, however long its request takes."""
    async with client_of(SLOW) as client:
        done = asyncio.Event()

        async def slow(_: object) -> bytes:
            await done.wait()
            return b"done"

        client.server.subscribe("slow", slow)
        await client.ask(SETUP, setup_request(1500, payload=False))
        client.peer.send(ZEEBE.request(100, "slow"))
        for _ in range(20):
            await asyncio.sleep(0.1)
            await client.ask(BEAT)
        done.set()
        assert await ZEEBE.take_reply(client.peer) == (100, 0, b"done")


# The client's side, met by raw servers.


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


async def test_client_asks_byte_for_byte() -> None:
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


@pytest.mark.parametrize("server_wants", [True, False], ids=["server with", "server without"])
@pytest.mark.parametrize("client_wants", [True, False], ids=["client with", "client without"])
async def test_client_agrees_on_the_payload(server_wants: bool, client_wants: bool) -> None:
    beats: list[bytes] = []

    async def script(peer: RawPeer) -> None:
        setup = await take_setup(peer)
        assert setup.payload == setup_request(1500, payload=client_wants)
        peer.send(ZEEBE.first_reply(setup.id, setup_answer(payload=server_wants)))
        await serve(peer, beats)

    async with (
        zeebe_node("client", BEATING, payload=client_wants) as client,
        raw_server(script) as server,
    ):
        assert await client.request(server.address, "echo", b"x") == b"x"
        await eventually(lambda: len(beats) >= 20, "heartbeats are sent")
        for payload in beats:
            check_beat(payload, 3, has_payload=server_wants and client_wants)
        assert await client.request(server.address, "echo", b"x") == b"x"
        assert server.connections == 1


OLD_ANSWERS = {
    "no handler": ZEEBE.reply(1, SETUP.encode(), status=1),
    "no handler, no text": ZEEBE.reply(1, b"", status=1),
    "handler failed": ZEEBE.reply(1, b"boom", status=2),
    "not enabled": ZEEBE.reply(1, bytes.fromhex("0200 0200 0a00 0200 00 01")),
    "unreadable": ZEEBE.reply(1, b"?"),
    "empty": ZEEBE.reply(1),
}


@pytest.mark.parametrize("answer", OLD_ANSWERS.values(), ids=OLD_ANSWERS.keys())
async def test_client_runs_without_heartbeats(answer: bytes) -> None:
    beats: list[bytes] = []

    async def script(peer: RawPeer) -> None:
        await take_setup(peer)
        peer.send(ZEEBE.introduction(), answer)
        await serve(peer, beats, answers_beats=False)

    async with zeebe_node("client", QUICK) as client, raw_server(script) as server:
        assert await client.request(server.address, "echo", b"x") == b"x"
        await holds_for(lambda: client.statistics().dialed == 1, "it is kept", 0.7)
        assert await client.request(server.address, "echo", b"y") == b"y"
        assert (beats, server.connections) == ([], 1)


async def test_answer_of_schema_version_1_has_no_payload() -> None:
    beats: list[bytes] = []

    async def script(peer: RawPeer) -> None:
        setup = await take_setup(peer)
        peer.send(ZEEBE.first_reply(setup.id, bytes.fromhex("0100 0200 0a00 0100 01")))
        await serve(peer, beats)

    async with zeebe_node("client", BEATING) as client, raw_server(script) as server:
        await client.request(server.address, "echo")
        await eventually(lambda: len(beats) >= 3, "heartbeats are sent")
        assert set(beats) == {b""}


async def test_client_without_heartbeats_asks_for_none() -> None:
    async def script(peer: RawPeer) -> None:
        await ZEEBE.accept(peer)
        request = await ZEEBE.take_first_request(peer)
        assert request == (1, "echo", b"x")
        peer.send(ZEEBE.first_reply(1, b"x"))
        await serve(peer, [])

    async with zeebe_node("client", OFF) as client, raw_server(script) as server:
        assert await client.request(server.address, "echo", b"x") == b"x"
        await holds_for(lambda: client.statistics().dialed == 1, "it is kept", 0.5)


async def test_client_closes_when_heartbeats_go_unanswered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(peer: RawPeer) -> None:
        setup = await take_setup(peer)
        peer.send(ZEEBE.first_reply(setup.id, DEFAULT_ANSWER))
        await for_ever()

    async with zeebe_node("client", QUICK) as client, raw_server(script) as server:
        request = client.request(server.address, "echo", timeout=LONG_S)
        error = await failure_of(request, ConnectionClosed)
        assert error.outcome is Outcome.UNKNOWN
        assert error.elapsed_s is not None and error.elapsed_s > 0.3
        assert client.statistics().protocol_errors_by_kind == {"PeerSilent": 1}
    assert any("PeerSilent" in it.getMessage() for it in caplog.records)


async def test_reply_of_a_later_request_answers_a_heartbeat() -> None:
    beats: list[bytes] = []

    async def script(peer: RawPeer) -> None:
        setup = await take_setup(peer)
        peer.send(ZEEBE.first_reply(setup.id, DEFAULT_ANSWER))
        await serve(peer, beats, answers_beats=False)

    async with zeebe_node("client", BEATING) as client, raw_server(script) as server:
        for _ in range(16):
            await client.request(server.address, "echo")
            await asyncio.sleep(0.15)
        assert beats
        assert server.connections == 1


async def test_heartbeat_requests_of_an_older_server_are_ignored(
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
    assert not [it for it in caplog.records if it.levelno >= logging.WARNING]


async def test_reply_that_looks_like_a_heartbeat_is_delivered() -> None:
    async with zeebe_node("server", BEATING) as server, zeebe_node("client", BEATING) as client:
        for payload in (beat(4), beat(3), DEFAULT_ANSWER, DEFAULT_SETUP):
            assert await client.request(server.address, "echo", payload) == payload


async def test_request_slower_than_the_timeout_is_not_killed() -> None:
    async def slow(_: object) -> bytes:
        await asyncio.sleep(2.5)
        return b"done"

    async with zeebe_node("server", BEATING) as server, zeebe_node("client", BEATING) as client:
        server.subscribe("slow", slow)
        assert await client.request(server.address, "slow", timeout=LONG_S) == b"done"
        assert client.statistics().connections_opened == 1


async def test_server_that_pauses_reading_is_not_given_up() -> None:
    """Its one handler is busy, so it reads neither requests nor heartbeats for a while."""

    async def slow(_: object) -> bytes:
        await asyncio.sleep(1.8)
        return b"done"

    limits = msgspec.structs.replace(BEATING, handlers_running_max=1)
    async with zeebe_node("server", limits) as server, zeebe_node("client", BEATING) as client:
        server.subscribe("slow", slow)
        asked = [client.request(server.address, "slow", timeout=LONG_S) for _ in range(3)]
        assert await asyncio.gather(*asked) == [b"done"] * 3
        assert client.statistics().connections_lost == 0
        assert client.statistics().protocol_errors == 0
