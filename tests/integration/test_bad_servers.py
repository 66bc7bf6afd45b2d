"""What a broken or hostile server does to a client: typed errors in time, nothing else touched."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from postroad.core.errors import (
    ConnectError,
    ConnectionClosedError,
    MessagingError,
    RemoteHandlerError,
    ReplyTimeoutError,
)
from postroad.net import Address, Limits, MessagingService, Outcome
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.raw_peers import (
    CLUSTER,
    LONG_S,
    RawPeer,
    RawServer,
    Script,
    echo_on,
    failure_of,
    for_ever,
    raw_server,
    virtual_time,
)
from tests.support.wire.pairs import version3_frame
from tests.support.wire.raw_dialects import DIALECTS, Dialect, Version3, serve_echo

Log = pytest.LogCaptureFixture
LIMITS = Limits(
    frame_bytes_max=1 << 20,
    write_buffer_bytes_max=64 * 1024,
    connect_timeout_s=DEADLINE_S,
    handshake_timeout_s=DEADLINE_S,
    frame_timeout_s=DEADLINE_S,
    # Heartbeats are a matter of their own; here they would only be in the way.
    heartbeat_interval_s=0,
    heartbeat_timeout_s=0,
    stop_grace_s=0.2,
)
IMPATIENT = msgspec.structs.replace(LIMITS, handshake_timeout_s=1.0, frame_timeout_s=1.0)
in_all_dialects = pytest.mark.parametrize("dialect", DIALECTS, ids=str)


class Scene:
    """A client with one healthy connection, and a raw server that plays a script."""

    def __init__(
        self,
        client: MessagingService,
        raw: RawServer,
        healthy: Address,
        caplog: Log,
    ) -> None:
        self.client = client
        self.raw = raw
        self._healthy = healthy
        self._caplog = caplog

    async def ask(self, payload: bytes = b"x", timeout: float = LONG_S) -> bytes:
        """Ask the raw server."""
        return await self.client.request(self.raw.address, "echo", payload, timeout=timeout)

    async def check_health(self) -> None:
        """The other connection works and was never replaced."""
        assert await self.client.request(self._healthy, "echo", b"healthy") == b"healthy"
        assert not [record for record in self._caplog.records if record.name == "asyncio"]

    async def expect_closed(self, outcome: Outcome, kind: str | None = None) -> MessagingError:
        """A request ends because its connection does, which is counted and told."""
        error = await failure_of(self.ask(), ConnectionClosedError)
        assert error.outcome is outcome, error
        assert error.peer is not None and error.peer.startswith(str(self.raw.address))
        if kind is not None:
            statistics = self.client.statistics()
            assert statistics.protocol_errors_by_kind == {kind: 1}
            warnings = [
                record for record in self._caplog.records if record.levelno == logging.WARNING
            ]
            assert any(kind in warning.getMessage() for warning in warnings)
        await self.check_health()
        await eventually(
            lambda: self.client.statistics().client_connections == 1, "the bad link is gone"
        )
        assert self.client.statistics().requests_pending == 0
        return error


@asynccontextmanager
async def scene_of(
    dialect: Dialect, caplog: Log, script: Script, limits: Limits = LIMITS
) -> AsyncIterator[Scene]:
    caplog.clear()

    def make(name: str) -> MessagingService:
        return MessagingService(CLUSTER, name, limits=limits, protocol=dialect.protocol)

    async with (
        echo_on(make("healthy")) as healthy,
        make("client") as client,
        raw_server(script) as raw,
    ):
        scene = Scene(client, raw, healthy.address, caplog)
        await scene.check_health()
        yield scene


@in_all_dialects
async def test_well_behaved_raw_server_is_asked_again(dialect: Dialect, caplog: Log) -> None:
    async def script(peer: RawPeer) -> None:
        await serve_echo(dialect, peer)

    async with scene_of(dialect, caplog, script) as scene:
        for number in range(3):
            assert await scene.ask(b"%d" % number) == b"%d" % number
        assert scene.raw.connections == 1


# Handshakes.


def says(*data: bytes) -> Script:
    """A server that says this at once, and then nothing."""

    async def script(peer: RawPeer) -> None:
        peer.send(*data)
        await for_ever()

    return script


@virtual_time
@in_all_dialects
async def test_random_answers_are_refused(dialect: Dialect, caplog: Log) -> None:
    chance = random.Random(f"random answers for {dialect}")

    async def script(peer: RawPeer) -> None:
        peer.send(b"\x7f" + chance.randbytes(chance.randrange(6, 600)))
        await for_ever()

    async with scene_of(dialect, caplog, script) as scene:
        for _ in range(10):
            error = await failure_of(scene.ask(), ConnectionClosedError)
            assert error.outcome is Outcome.NOT_SENT
        assert scene.client.statistics().protocol_errors_by_kind == {"HandshakeRejectedError": 10}
        await scene.check_health()


@virtual_time
@in_all_dialects
async def test_unknown_version_or_preamble_is_refused(dialect: Dialect, caplog: Log) -> None:
    for version in (0, 4, 99, -1):
        async with scene_of(dialect, caplog, says(dialect.answer(version))) as scene:
            error = await scene.expect_closed(Outcome.NOT_SENT, "HandshakeRejectedError")
            assert f"version {version}" in str(error)
    if dialect.profile == "zeebe":
        other = dialect.answer(preamble=b"\0\0\0\1")
        async with scene_of(dialect, caplog, says(other)) as scene:
            await scene.expect_closed(Outcome.NOT_SENT, "HandshakeRejectedError")


@virtual_time
@in_all_dialects
async def test_server_that_never_answers_the_handshake_is_given_up(
    dialect: Dialect, caplog: Log
) -> None:
    async with scene_of(dialect, caplog, says(), IMPATIENT) as scene:
        await scene.expect_closed(Outcome.NOT_SENT, "PeerTimeoutError")
    async with scene_of(dialect, caplog, says()) as scene:
        error = await failure_of(scene.ask(timeout=0.2), ReplyTimeoutError)
        assert error.outcome is Outcome.NOT_SENT
        await scene.check_health()


@in_all_dialects
async def test_answer_split_at_every_byte_is_understood(dialect: Dialect, caplog: Log) -> None:
    opening = dialect.answer() + (dialect.introduction() if dialect.version == 3 else b"")
    cuts = iter(range(1, len(opening)))

    async def script(peer: RawPeer) -> None:
        await peer.expect(dialect.opening())
        cut = next(cuts)
        await peer.send_apart(opening[:cut], opening[cut:])
        request = await dialect.take_first_request(peer)
        reply = dialect.first_reply(request.id, request.payload)
        await peer.send_apart(*(bytes([byte]) for byte in reply), pause_s=0.0005)

    async with scene_of(dialect, caplog, script) as scene:
        calls = [
            scene.client.request(scene.raw.address, "echo", b"hi", timeout=LONG_S, keep_alive=False)
            for _ in range(1, len(opening))
        ]
        assert await asyncio.gather(*calls) == [b"hi"] * len(calls)
        assert scene.client.statistics().protocol_errors == 0


@in_all_dialects
@pytest.mark.parametrize("end", ["close", "reset"])
async def test_server_that_goes_away_fails_the_request(
    dialect: Dialect, end: str, caplog: Log
) -> None:
    async def script(peer: RawPeer) -> None:
        if moment != "at once":
            await peer.expect(dialect.opening())
            peer.send(dialect.answer()[:1])
        if moment == "after the request":
            peer.send(dialect.answer()[1:])
            await dialect.meet(peer)
            await dialect.take_first_request(peer)
        if end == "reset":
            peer.reset()
        else:
            await peer.close()

    for moment in ("at once", "after the answer", "after the request"):
        async with scene_of(dialect, caplog, script) as scene:
            was_sent = moment == "after the request"
            error = await failure_of(scene.ask(), MessagingError)
            assert isinstance(error, ConnectionClosedError | ConnectError)
            assert error.outcome is (Outcome.UNKNOWN if was_sent else Outcome.NOT_SENT)
            await scene.check_health()
            assert scene.raw.connections == 1, "a lost request was sent again"


# Frames.


def then(dialect: Dialect, data: Callable[[int], bytes]) -> Script:
    """A server that answers the first request with these bytes, and then waits."""

    async def script(peer: RawPeer) -> None:
        await dialect.accept(peer)
        request = await dialect.take_first_request(peer)
        before = b"" if dialect.version == 3 else dialect.introduction()
        peer.send(before, data(request.id))
        await peer.until_closed(30)

    return script


@virtual_time
@in_all_dialects
async def test_bad_frame_closes_the_connection(dialect: Dialect, caplog: Log) -> None:
    # Where lengths are unsigned, minus one is four gigabytes.
    is_signed = dialect.version < 3 and dialect.profile == "documented"
    minus_one = "MalformedFrameError" if is_signed else "FrameTooLargeError"
    frames: list[tuple[Callable[[int], bytes], str]] = [
        (lambda id: dialect.oversized(2, 0x7FFF_FFFF), "FrameTooLargeError"),
        (lambda id: dialect.oversized(2, 0xFFFF_FFFF), minus_one),
        (lambda id: dialect.unknown_type(), "MalformedFrameError"),
        (lambda id: dialect.reply(id, b"x", status=9), "MalformedFrameError"),
    ]
    for frame, kind in frames:
        async with scene_of(dialect, caplog, then(dialect, frame)) as scene:
            await scene.expect_closed(Outcome.UNKNOWN, kind)


@in_all_dialects
async def test_every_request_in_flight_ends_with_its_connection(
    dialect: Dialect, caplog: Log
) -> None:
    async def script(peer: RawPeer) -> None:
        await dialect.accept(peer)
        await dialect.take_first_request(peer)
        for _ in range(49):
            await dialect.take_request(peer)
        peer.send(b"" if dialect.version == 3 else dialect.introduction(), dialect.unknown_type())
        await peer.until_closed(30)

    async with scene_of(dialect, caplog, script) as scene:
        ends = await asyncio.gather(*(scene.ask() for _ in range(50)), return_exceptions=True)
        assert all(isinstance(end, ConnectionClosedError) for end in ends)
        assert scene.client.statistics().protocol_errors == 1
        await scene.check_health()


@virtual_time
@in_all_dialects
async def test_error_text_that_is_no_utf8_is_told(dialect: Dialect, caplog: Log) -> None:
    script = then(dialect, lambda id: dialect.reply(id, b"bad \xc3\x28", status=2))
    async with scene_of(dialect, caplog, script) as scene:
        error = await failure_of(scene.ask(), RemoteHandlerError)
        assert "bad \ufffd(" in str(error)
        assert scene.client.statistics().protocol_errors == 0


@virtual_time
@in_all_dialects
async def test_reply_nobody_asked_for_is_ignored_or_refused(dialect: Dialect, caplog: Log) -> None:
    script = then(dialect, lambda id: dialect.reply(id + 1000, b"x") + dialect.reply(id, b"y"))
    async with scene_of(dialect, caplog, script) as scene:
        if dialect.version == 3:
            # The reply in the same piece was asked for, so it may still be delivered.
            await asyncio.gather(scene.ask(), return_exceptions=True)
            await eventually(lambda: scene.client.statistics().protocol_errors, "it is refused")
            statistics = scene.client.statistics()
            assert statistics.protocol_errors_by_kind == {"UnexpectedFrameError": 1}
        else:
            assert await scene.ask() == b"y"
            assert scene.client.statistics().protocol_errors == 0
        assert scene.client.statistics().frames_ignored == 1
        assert "which was never sent" in caplog.text
        await scene.check_health()


@virtual_time
@in_all_dialects
async def test_request_sent_to_a_client_is_ignored_or_refused(
    dialect: Dialect, caplog: Log
) -> None:
    script = then(dialect, lambda id: dialect.request(1, "echo", b"x") + dialect.reply(id, b"y"))
    async with scene_of(dialect, caplog, script) as scene:
        if dialect.version == 3:
            await scene.expect_closed(Outcome.UNKNOWN, "UnexpectedFrameError")
            return
        assert await scene.ask() == b"y"
        assert scene.client.statistics().frames_ignored == 1
        assert "Request frame from " in caplog.text
        assert scene.client.statistics().requests_received == 0


@virtual_time
async def test_bad_hello_is_refused(caplog: Log) -> None:
    dialect = Version3()
    for hello, kind in (
        (dialect.hello(cluster="other"), "HandshakeRejectedError"),
        (dialect.hello(name="client"), "DuplicateNameHandshakeError"),
        (version3_frame(3), "MalformedFrameError"),
        (version3_frame(5, id=1), "UnexpectedFrameError"),
    ):

        async def script(peer: RawPeer, hello: bytes = hello) -> None:
            await dialect.accept_with(peer, hello)
            await peer.until_closed(30)

        async with scene_of(dialect, caplog, script) as scene:
            await scene.expect_closed(Outcome.NOT_SENT, kind)
    async with scene_of(dialect, caplog, then(dialect, lambda id: dialect.hello())) as scene:
        await scene.expect_closed(Outcome.UNKNOWN, "UnexpectedFrameError")


@virtual_time
async def test_server_that_says_goodbye_at_once_is_not_dialed_over_and_over(caplog: Log) -> None:
    dialect = Version3()

    async def script(peer: RawPeer) -> None:
        goodbye = version3_frame(7, b"full", word=3100)
        await dialect.accept_with(peer, dialect.hello() + goodbye)
        await peer.until_closed(30)

    async with scene_of(dialect, caplog, script) as scene:
        error = await failure_of(scene.ask(), ConnectionClosedError)
        assert error.outcome is Outcome.NOT_SENT
        assert scene.raw.connections <= 2
        await scene.check_health()


# Slowness.


@virtual_time
@in_all_dialects
async def test_server_that_never_replies_keeps_its_connection(
    dialect: Dialect, caplog: Log
) -> None:
    async def script(peer: RawPeer) -> None:
        await dialect.accept(peer)
        first = await dialect.take_first_request(peer)
        second = await dialect.take_request(peer)
        peer.send(dialect.first_reply(first.id, b"late"), dialect.reply(second.id, b"in time"))
        await for_ever()

    async with scene_of(dialect, caplog, script) as scene:
        error = await failure_of(scene.ask(timeout=0.2), ReplyTimeoutError)
        assert error.outcome is Outcome.UNKNOWN
        assert await scene.ask() == b"in time"
        assert scene.raw.connections == 1, "a time-out must not close the connection"
        assert scene.client.statistics().replies_late == 1
        assert scene.client.statistics().requests_timed_out == 1
        await scene.check_health()


@virtual_time
@in_all_dialects
async def test_server_that_replies_a_byte_at_a_time_is_given_up(
    dialect: Dialect, caplog: Log
) -> None:
    async def script(peer: RawPeer) -> None:
        await dialect.accept(peer)
        request = await dialect.take_first_request(peer)
        for byte in dialect.first_reply(request.id, bytes(1000)):
            await peer.send_apart(bytes([byte]), pause_s=0.1)

    async with scene_of(dialect, caplog, script, IMPATIENT) as scene:
        await scene.expect_closed(Outcome.UNKNOWN, "PeerTimeoutError")


@virtual_time
@in_all_dialects
async def test_server_that_reads_nothing_gets_little(dialect: Dialect, caplog: Log) -> None:
    async def script(peer: RawPeer) -> None:
        await dialect.accept(peer)
        await dialect.take_first_request(peer)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await for_ever()

    async with scene_of(dialect, caplog, script) as scene:
        payload = bytes(200_000)
        calls = [scene.ask(payload, timeout=0.6) for _ in range(200)]
        ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), DEADLINE_S)
        assert all(isinstance(end, ReplyTimeoutError | ConnectionClosedError) for end in ends), ends
        outcomes = [end.outcome for end in ends if isinstance(end, MessagingError)]
        # What the sockets and the buffer take is sent, the rest waits outside.
        assert outcomes.count(Outcome.NOT_SENT) > 100
        assert scene.client.statistics().requests_pending == 0
        await scene.check_health()
