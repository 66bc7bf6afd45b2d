"""What a broken or hostile client does to a server: it ends alone, counted, logged and in time."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from postroad.net import Limits, MessagingService
from postroad.wire import encode_preamble
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.raw_peers import (
    CLUSTER,
    LONG_S,
    RawPeer,
    echo_on,
    raw_client,
    virtual_time,
)
from tests.support.wire.pairs import version3_frame
from tests.support.wire.raw_dialects import DIALECTS, Dialect, Version3

Log = pytest.LogCaptureFixture
LIMITS = Limits(
    frame_bytes_max=1 << 20,
    write_buffer_bytes_max=64 * 1024,
    handshake_timeout_s=DEADLINE_S,
    frame_timeout_s=1.0,
    heartbeat_interval_s=0.5,
    heartbeat_timeout_s=DEADLINE_S,
    stop_grace_s=0.5,
)
IMPATIENT = msgspec.structs.replace(LIMITS, handshake_timeout_s=1.0)
in_all_dialects = pytest.mark.parametrize("dialect", DIALECTS, ids=str)


class Scene:
    """A server, and a healthy client that was there first and goes on asking all the time."""

    def __init__(self, dialect: Dialect, caplog: Log, limits: Limits) -> None:
        self.dialect = dialect
        self._caplog = caplog
        make = MessagingService
        self.server = make(CLUSTER, "server", limits=limits, protocol=dialect.protocol)
        self.client = make(CLUSTER, "client", limits=LIMITS, protocol=dialect.protocol)
        self.answered = 0
        self._asking: asyncio.Task[None]

    async def start(self) -> None:
        await echo_on(self.server).start()
        await self.client.start()
        await self._ask()
        self._asking = asyncio.create_task(self._go_on_asking())

    async def stop(self) -> None:
        self._asking.cancel()
        await asyncio.gather(self._asking, return_exceptions=True)
        await asyncio.gather(self.client.stop(), self.server.stop())

    async def _ask(self) -> None:
        payload = b"healthy %d" % self.answered
        reply = await self.client.request(self.server.address, "echo", payload, timeout=LONG_S)
        assert reply == payload
        self.answered += 1

    async def _go_on_asking(self) -> None:
        while True:
            await self._ask()
            await asyncio.sleep(0.005)

    async def check_health(self) -> None:
        """The healthy connection answers now, and it is still the first one."""
        before = self.answered
        await eventually(lambda: self.answered > before or self._asking.done(), "an answer")
        if self._asking.done():
            self._asking.result()
        assert self.client.statistics().connections_opened == 1
        assert self.client.statistics().connections_lost == 0
        assert not [record for record in self._caplog.records if record.name == "asyncio"]

    async def expect_refused(self, kind: str, times: int = 1) -> None:
        """The attack was counted and told, and its connections are gone."""
        await eventually(
            lambda: self.server.statistics().server_connections == 1, "only the healthy link"
        )
        statistics = self.server.statistics()
        assert statistics.protocol_errors_by_kind == {kind: times}
        assert statistics.protocol_errors == times
        warnings = [record for record in self._caplog.records if record.levelno == logging.WARNING]
        assert any(kind in warning.getMessage() for warning in warnings)
        assert len(warnings) <= 5, "the log is flooded"
        await self.check_health()

    async def attack(self, *pieces: bytes) -> bytes:
        """Send the pieces at once on a new connection; returns what comes back until its end."""
        async with raw_client(self.server.address) as peer:
            peer.send(*pieces)
            return await peer.until_closed()

    async def expect_echo(self, peer: RawPeer) -> None:
        """It is served like anybody else."""
        await peer.expect(self.dialect.answer())
        assert (await self.dialect.take_first_reply(peer)).payload == b"hi"


@asynccontextmanager
async def scene_of(dialect: Dialect, caplog: Log, limits: Limits = LIMITS) -> AsyncIterator[Scene]:
    caplog.clear()
    scene = Scene(dialect, caplog, limits)
    await scene.start()
    try:
        yield scene
    finally:
        await scene.stop()


def conversation(dialect: Dialect) -> bytes:
    """All that a client sends that asks once."""
    return dialect.opening() + dialect.introduction() + dialect.request(1, "echo", b"hi")


# Handshakes.


@virtual_time
@in_all_dialects
async def test_random_bytes_are_refused(dialect: Dialect, caplog: Log) -> None:
    chance = random.Random(f"random bytes for {dialect}")
    async with scene_of(dialect, caplog) as scene:
        for _ in range(20):
            assert await scene.attack(chance.randbytes(chance.randrange(4, 4096))) == b""
        await scene.expect_refused("HandshakeRejectedError", times=20)
    async with scene_of(dialect, caplog) as scene:
        noise = [chance.randbytes(4096) for _ in range(20)]
        await asyncio.gather(*(scene.attack(dialect.opening(), data) for data in noise))
        await eventually(lambda: scene.server.statistics().server_connections == 1, "all are gone")
        assert scene.server.statistics().protocol_errors == 20
        await scene.check_health()


FOREIGN_OPENINGS = [
    encode_preamble("other") + b"\0\2",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # TLS
    b"\x00",
]


@virtual_time
@in_all_dialects
async def test_foreign_opening_is_refused(dialect: Dialect, caplog: Log) -> None:
    for opening in FOREIGN_OPENINGS:
        async with scene_of(dialect, caplog) as scene:
            assert await scene.attack(opening) == b""
            await scene.expect_refused("HandshakeRejectedError")


@virtual_time
@in_all_dialects
async def test_unknown_version_is_answered_with_the_newest(dialect: Dialect, caplog: Log) -> None:
    async with scene_of(dialect, caplog) as scene:
        for offered in (0, 4, 99, -1, -32768):
            async with raw_client(scene.server.address) as peer:
                peer.send(dialect.opening(version=offered))
                peer.send(dialect.introduction(), dialect.request(1, "echo", b"hi"))
                await scene.expect_echo(peer)
        await scene.check_health()


@virtual_time
@in_all_dialects
async def test_truncated_handshakes_are_given_up(dialect: Dialect, caplog: Log) -> None:
    whole = dialect.opening()
    async with scene_of(dialect, caplog, IMPATIENT) as scene:
        ends = await asyncio.gather(*(scene.attack(whole[:size]) for size in range(len(whole))))
        assert ends == [b""] * len(whole)
        await scene.expect_refused("PeerTimeoutError", times=len(whole))


@in_all_dialects
async def test_client_that_closes_within_the_handshake_is_forgotten(
    dialect: Dialect, caplog: Log
) -> None:
    whole = conversation(dialect)
    async with scene_of(dialect, caplog) as scene:
        for size in range(len(whole)):
            async with raw_client(scene.server.address) as peer:
                peer.send(whole[:size])
        await eventually(
            lambda: scene.server.statistics().server_connections == 1, "all are forgotten"
        )
        assert scene.server.statistics().handlers_running == 0
        await scene.check_health()


@in_all_dialects
async def test_pieces_of_any_size_are_understood(dialect: Dialect, caplog: Log) -> None:
    """Split at every byte, all apart, or a hundred requests at once with the handshake."""
    whole = conversation(dialect)

    async def converse(*pieces: bytes) -> None:
        async with raw_client(scene.server.address) as peer:
            await peer.send_apart(*pieces, pause_s=0.002)
            await scene.expect_echo(peer)

    async with scene_of(dialect, caplog) as scene:
        await asyncio.gather(
            converse(*(bytes([byte]) for byte in whole)),
            *(converse(whole[:cut], whole[cut:]) for cut in range(1, len(whole))),
        )
        async with raw_client(scene.server.address) as peer:
            requests = b"".join(dialect.request(id, "echo", b"%d" % id) for id in range(1, 101))
            peer.send(dialect.opening(), dialect.introduction(), requests)
            await peer.expect(dialect.answer())
            await dialect.take_introduction(peer)
            for id in range(1, 101):
                assert await dialect.take_reply(peer) == (id, 0, b"%d" % id)
        await scene.check_health()
        assert scene.server.statistics().protocol_errors == 0


# Frames.


def bad_frames(dialect: Dialect) -> list[tuple[bytes, str]]:
    # Where lengths are unsigned, minus one is four gigabytes.
    is_signed = dialect.profile == "documented" and dialect.version < 3
    return [
        (dialect.oversized(1, 0x7FFF_FFFF), "FrameTooLargeError"),
        (dialect.oversized(1, (1 << 20) + 17), "FrameTooLargeError"),
        (
            dialect.oversized(1, 0xFFFF_FFFF),
            "MalformedFrameError" if is_signed else "FrameTooLargeError",
        ),
        (dialect.unknown_type(), "MalformedFrameError"),
        (dialect.request(7, b"\xc3\x28"), "MalformedFrameError"),
    ]


@virtual_time
@in_all_dialects
async def test_bad_frame_is_refused(dialect: Dialect, caplog: Log) -> None:
    for frame, kind in bad_frames(dialect):
        async with scene_of(dialect, caplog) as scene:
            await scene.attack(dialect.opening(), dialect.introduction(), frame)
            await scene.expect_refused(kind)


@virtual_time
@in_all_dialects
async def test_frames_before_a_bad_one_are_answered(dialect: Dialect, caplog: Log) -> None:
    """Whether they come with the handshake or later; one without a subject gets a status."""
    good, no_subject = dialect.request(1, "echo", b"hi"), dialect.request(7, b"\xff\xfe", b"x")
    for frames, is_late in (
        (good + dialect.unknown_type(), False),
        (good + dialect.unknown_type(), True),
        (no_subject, True),
    ):
        async with scene_of(dialect, caplog) as scene, raw_client(scene.server.address) as peer:
            if is_late:
                await dialect.dial(peer)
                peer.send(frames)
            else:
                peer.send(dialect.opening(), dialect.introduction(), frames)
                await peer.expect(dialect.answer())
            reply = await dialect.take_first_reply(peer)
            if frames == no_subject:
                assert (reply.id, reply.status) == (7, 3)
            else:
                assert reply == (1, 0, b"hi")
            await peer.until_closed()
            await scene.expect_refused("MalformedFrameError")


@virtual_time
@in_all_dialects
async def test_reply_sent_to_a_server_is_ignored_or_refused(dialect: Dialect, caplog: Log) -> None:
    async with scene_of(dialect, caplog) as scene, raw_client(scene.server.address) as peer:
        await dialect.dial(peer)
        peer.send(dialect.reply(1, b"nobody asked"), dialect.request(2, "echo", b"hi"))
        if dialect.version == 3:
            await peer.until_closed()
            await scene.expect_refused("UnexpectedFrameError")
            return
        assert await dialect.take_first_reply(peer) == (2, 0, b"hi")
        assert scene.server.statistics().frames_ignored == 1
        assert "Reply frame from " in caplog.text
        await scene.check_health()


BAD_SENDERS = {
    1: ["05 0000000000 00000001"],  # no IP address
    # Ports that are too large or negative; hosts of a negative length or no UTF-8.
    2: ["0001 61 00010000", "0001 61 ffffffff", "ffff 61 00000001", "0002 c328 00000001"],
}


@virtual_time
@pytest.mark.parametrize(
    "dialect", [dialect for dialect in DIALECTS if dialect.version < 3], ids=str
)
async def test_bad_sender_address_is_refused(dialect: Dialect, caplog: Log) -> None:
    for sender in BAD_SENDERS[dialect.version]:
        async with scene_of(dialect, caplog) as scene:
            data = bytes.fromhex(sender)
            await scene.attack(dialect.opening(), data, dialect.request(1, "echo"))
            await scene.expect_refused("MalformedFrameError")


V3 = Version3()
VERSION_3_BREACHES: dict[str, tuple[bytes, str]] = {
    "request before hello": (V3.request(1, "echo"), "UnexpectedFrameError"),
    "two hellos": (V3.hello() * 2, "UnexpectedFrameError"),
    "ping with a body": (V3.hello() + version3_frame(5, b"x"), "FrameTooLargeError"),
    "shorter than its header": (V3.hello() + V3.oversized(1, 15), "MalformedFrameError"),
    "subject longer than the frame": (
        V3.hello() + version3_frame(1, b"echo", short=5),
        "MalformedFrameError",
    ),
    "compression nobody agreed on": (
        V3.hello() + version3_frame(1, b"echo" + b"\0\0\0\1x", short=4, flags=2),
        "MalformedFrameError",
    ),
    "hello without fields": (version3_frame(3), "MalformedFrameError"),
    "hello with half a field": (version3_frame(3, b"\0\1\0\xff"), "MalformedFrameError"),
    "hello of 5,000 bytes": (version3_frame(3, bytes(5_000)), "FrameTooLargeError"),
    "hello of a bad name": (V3.hello(name="a b"), "MalformedFrameError"),
    "hello of the server's own name": (V3.hello(name="server"), "DuplicateNameHandshakeError"),
    "hello of another cluster": (V3.hello(cluster="other"), "HandshakeRejectedError"),
    "hello that accepts nothing": (V3.hello(frame_bytes_max=0), "MalformedFrameError"),
    "goodbye that is no UTF-8": (V3.hello() + version3_frame(7, b"\xff"), "MalformedFrameError"),
}


@virtual_time
async def test_version_3_breach_is_refused_with_a_goodbye(caplog: Log) -> None:
    for what, (data, kind) in VERSION_3_BREACHES.items():
        async with scene_of(V3, caplog) as scene:
            received = await scene.attack(V3.opening(), data)
            assert received.startswith(V3.answer()), what
            assert struct.pack(">IB", 16, 7)[4:] in received, f"no goodbye: {what}"
            await scene.expect_refused(kind)


@virtual_time
async def test_clusters_with_the_same_hash_are_kept_apart() -> None:
    async with (
        echo_on(MessagingService("Aa", "server", limits=LIMITS)) as server,
        raw_client(server.address) as peer,
    ):
        peer.send(V3.opening(cluster="BB"), V3.hello(cluster="BB"))
        await peer.until_closed()
        assert server.statistics().protocol_errors_by_kind == {"HandshakeRejectedError": 1}


# Slowness.


@virtual_time
@in_all_dialects
async def test_client_that_sends_a_byte_at_a_time_is_given_up(
    dialect: Dialect, caplog: Log
) -> None:
    """Within the handshake as well as within a frame."""
    for limits, data in (
        (IMPATIENT, dialect.opening()),
        (LIMITS, dialect.request(1, "echo", bytes(1000))[:600]),
    ):
        async with (
            scene_of(dialect, caplog, limits) as scene,
            raw_client(scene.server.address) as peer,
        ):
            if limits is LIMITS:
                await dialect.dial(peer)
            ended = peer.ends()
            for byte in data:
                peer.send(bytes([byte]))
                if ended in (await asyncio.wait([ended], timeout=0.2))[0]:
                    break
            assert ended.done(), "the server waits for ever"
            await scene.expect_refused("PeerTimeoutError")


async def flood(peer: RawPeer, dialect: Dialect, replies: bytes) -> None:
    """Ask for large replies without ever reading one, until the server stops reading."""
    peer.writer.transport.set_write_buffer_limits(high=1 << 16)
    for id in range(1, 400):
        peer.send(dialect.request(id, "echo", replies))
        await peer.writer.drain()


@virtual_time
@in_all_dialects
async def test_client_that_reads_nothing_is_given_up(dialect: Dialect, caplog: Log) -> None:
    async with scene_of(dialect, caplog) as scene, raw_client(scene.server.address) as peer:
        await dialect.dial(peer)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        flooding = asyncio.create_task(flood(peer, dialect, bytes(100_000)))
        try:
            await eventually(
                lambda: scene.server.statistics().server_connections == 1, "it is given up"
            )
            received = scene.server.statistics().bytes_received
            assert received < 100_000 * 200, "a reply is kept for each request"
        finally:
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
            peer.writer.transport.abort()
        await scene.expect_refused("PeerTimeoutError")
