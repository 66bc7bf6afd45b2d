"""Each row of the exception table in which the peer answered, or is the wrong one."""

import asyncio

import pytest

from postroad.core import errors
from postroad.net import Outcome, RawMessage
from tests.support.deadlines import eventually
from tests.support.net import peers
from tests.support.net.scripts import RawPeer, RawServer, Script, echo, greet_only, raw_versions


def answers(status: int, text: bytes = b"") -> Script:
    """A peer that refuses its first request."""

    async def script(peer: RawPeer) -> None:
        await peer.greet()
        request = await peer.read_request()
        await peer.reply(request.id, text, status=status)
        await peer.read_to_end()

    return script


# RemoteDecodeError.


@peers.every_way
async def test_handler_that_cannot_parse_is_a_protocol_failure(speech: peers.Speech) -> None:
    def refuse(_message: RawMessage) -> bytes:
        raise errors.MalformedPayloadError("no JSON")

    async with peers.running_pair(speech) as pair:
        for handler in (refuse, peers.later(refuse)):
            pair.handle("parse", handler)
            await pair.fails(
                *(errors.RemoteDecodeError, Outcome.REPLIED),
                subject="parse",
                payload=b"{",
                match="no JSON",
            )
        await pair.is_still_open()


@raw_versions
async def test_status_of_a_peer_that_could_not_parse_is_a_protocol_failure(version: int) -> None:
    async with RawServer(answers(3), version) as server, peers.make_service("client") as client:
        with pytest.raises(errors.RemoteDecodeError, match="could not parse") as caught:
            await client.request(server.address, "echo")
        assert caught.value.outcome is Outcome.REPLIED


@raw_versions
async def test_subject_of_invalid_utf8_is_answered_with_that_status(version: int) -> None:
    async with peers.running_pair() as pair:
        with await RawPeer.connect(pair.server.address, version) as peer:
            await peer.request(1, "echo", b"fine")
            await eventually(lambda: pair.server.statistics().replies_sent == 1)
            await peer.request(2, b"\xff\xfe", b"not fine")
            first, second = await peer.read_reply(), await peer.read_reply()
            await peer.read_to_end()
        assert (first.id, first.status, first.payload) == (1, 0, b"fine")
        assert (second.id, second.status) == (2, 3)
        assert b"UTF-8" in second.payload
        assert pair.server.statistics().protocol_errors_by_kind == {"MalformedFrameError": 1}


# NoHandlerError.


@peers.every_way
async def test_request_without_handler_is_retryable(speech: peers.Speech) -> None:
    async with peers.running_pair(speech) as pair:
        for keep_alive in (True, False):
            await pair.fails(
                *(errors.NoHandlerError, Outcome.REPLIED),
                subject="nobody",
                match="no handler for 'nobody'",
                retryable=True,
                keep_alive=keep_alive,
            )
        assert pair.server.statistics().no_handler == 2


@raw_versions
async def test_no_handler_reply_of_raw_peer_with_or_without_text_raises(version: int) -> None:
    for text, expected in (
        (b"", "no handler for 'echo'"),
        (b"echo", "no handler for 'echo'"),
        (b"a whole sentence", "a whole sentence"),
    ):
        async with (
            RawServer(answers(1, text), version) as server,
            peers.make_service("client") as client,
        ):
            with pytest.raises(errors.NoHandlerError, match=expected):
                await client.request(server.address, "echo")


@raw_versions
async def test_request_while_the_peer_stops_is_declined(version: int) -> None:
    """A client that does not know yet is told so, and the request before it is finished."""
    async with peers.running_pair() as pair:
        with await RawPeer.connect(pair.server.address, version) as peer:
            await peer.request(1, "gate")
            await eventually(lambda: pair.gate.waiting == 1)
            stopping = asyncio.create_task(pair.server.stop())
            await peers.turns()
            await peer.request(2, "gate")
            if version >= 3:
                assert (await peer.read_frame())[0] == 7
            declined = await peer.read_reply()
            pair.gate.open()
            finished = await peer.read_reply()
            await stopping
        assert (declined.id, declined.status) == (2, 4 if version >= 3 else 1)
        assert (finished.id, finished.status, finished.payload) == (1, 0, b"done")


async def test_request_declined_by_a_stopping_peer_is_retryable() -> None:
    async with RawServer(answers(4)) as server, peers.make_service("client") as client:
        await peers.expect_failure(
            *(client, server.address, errors.NoHandlerError, Outcome.REPLIED),
            match="the peer is stopping",
            retryable=True,
        )


# RemoteHandlerError.


@peers.every_way
async def test_handler_that_raises_is_a_failure_with_its_text(speech: peers.Speech) -> None:
    async with peers.running_pair(speech) as pair:
        texts = ["out of cheese", "", "käse\n\x00"]
        for text in texts:

            def fail(_message: RawMessage, text: str = text) -> bytes:
                raise ValueError(text)

            for handler in (fail, peers.later(fail)):
                pair.handle("fail", handler)
                error = await pair.fails(errors.RemoteHandlerError, Outcome.REPLIED, subject="fail")
                assert (error.detail, error.remote_code) == (text, 0)
        await pair.is_still_open()
        assert pair.server.statistics().handlers_failed == 2 * len(texts)


@peers.every_way
async def test_postroad_error_travels_with_code_and_retryable(speech: peers.Speech) -> None:
    """Older versions can tell neither."""

    def fail(_message: RawMessage) -> bytes:
        raise errors.ConnectError("the disk node is away")

    async with peers.running_pair(speech) as pair:
        pair.server.serve("fail", fail)
        # The second request to a known address and subject takes another way.
        for _ in range(2):
            with pytest.raises(errors.RemoteHandlerError, match="the disk node is away") as caught:
                await pair.ask("fail")
            assert caught.value.outcome is Outcome.REPLIED
            assert caught.value.retryable is (speech in (peers.NEWEST, peers.LOCAL))
            assert caught.value.remote_code == (
                errors.ConnectError.code if caught.value.retryable else 0
            )


class Unspeakable(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@peers.here_or_there
async def test_handler_that_raises_odd_exceptions_is_a_failure_too(speech: peers.Speech) -> None:
    async with peers.running_pair(speech, server_limits={"stop_grace_s": 0.05}) as pair:
        for error in (Unspeakable(), asyncio.CancelledError(), StopIteration(), TimeoutError()):

            def fail(_message: RawMessage, error: BaseException = error) -> bytes:
                raise error

            async def fail_later(_message: RawMessage, error: BaseException = error) -> bytes:
                await asyncio.sleep(0)
                raise error

            for handler in (fail, fail_later):
                pair.handle("fail", handler)
                with pytest.raises(errors.RemoteHandlerError):
                    await pair.ask("fail", timeout=30.0)
        await pair.is_still_open()
        assert pair.server.statistics().handlers_running == 0


async def test_long_texts_are_cut() -> None:
    def fail(_message: RawMessage) -> bytes:
        raise ValueError("x" * 1_000_000)

    async with peers.running_pair() as pair:
        pair.server.serve("fail", fail)
        with pytest.raises(errors.RemoteHandlerError) as caught:
            await pair.ask("fail")
        assert len(caught.value.detail) < 10_000


# MessageTooLargeError.


@peers.every_way
async def test_message_too_large_is_not_sent(speech: peers.Speech) -> None:
    limits = {"frame_bytes_max": 1_000}
    async with peers.running_pair(speech, client_limits=limits, server_limits=limits) as pair:
        fitting = b"x" * (1_000 - len("echo"))
        for keep_alive in (True, False):
            assert await pair.ask("echo", fitting, keep_alive=keep_alive) == fitting
            error = await pair.fails(
                *(errors.MessageTooLargeError, Outcome.NOT_SENT),
                payload=fitting + b"x",
                match="1001 bytes exceeds the 1000",
                retryable=False,
                keep_alive=keep_alive,
            )
            assert isinstance(error, ValueError)
        with pytest.raises(errors.MessageTooLargeError):
            await pair.tell("echo", fitting + b"x")
        assert await pair.ask("echo", b"still open") == b"still open"


async def test_message_too_large_for_the_peer_alone_is_not_sent() -> None:
    async with peers.running_pair(server_limits={"frame_bytes_max": 1_000}) as pair:
        with pytest.raises(errors.MessageTooLargeError, match="exceeds the 1000"):
            await pair.ask("echo", b"x" * 1_000)
        assert pair.server.statistics().protocol_errors == 0


@peers.here_or_there
async def test_reply_too_large_fails_that_request_alone(speech: peers.Speech) -> None:
    limits = {"frame_bytes_max": 1_000}
    async with peers.running_pair(speech, client_limits=limits, server_limits=limits) as pair:
        for size in (2_000, 100_000):

            def answer(_message: RawMessage, size: int = size) -> bytes:
                return bytes(size)

            for handler in (answer, peers.later(answer)):
                pair.handle("big", handler)
                with pytest.raises(
                    errors.RemoteHandlerError, match=f"{size} bytes exceeds the 1000"
                ):
                    await pair.ask("big")
        await pair.is_still_open()


async def test_subject_too_long_is_not_sent() -> None:
    async with peers.running_pair() as pair:
        # The second is too long in bytes, not in characters.
        for subject in ("s" * 32_768, "ä" * 16_384):
            with pytest.raises(errors.MessageTooLargeError, match="subject"):
                await pair.ask(subject)


# WrongPeerError.


@peers.here_or_there
async def test_peer_of_another_name_gets_nothing(speech: peers.Speech) -> None:
    async with peers.running_pair(speech) as pair:
        for keep_alive in (True, False):
            assert await pair.ask("echo", b"1", peer="server", keep_alive=keep_alive) == b"1"
            error = await pair.fails(
                *(errors.WrongPeerError, Outcome.NOT_SENT),
                match="expected node 'other'",
                peer="other",
                keep_alive=keep_alive,
            )
            assert "server" in str(error)
        statistics = pair.server.statistics()
        assert statistics.requests_received + statistics.local_requests == 2
        with pytest.raises(errors.WrongPeerError):
            await pair.tell("echo", peer="other")


@peers.older_speech
async def test_request_whose_peer_cannot_be_checked_is_not_sent(speech: peers.Speech) -> None:
    async with peers.running_pair(speech) as pair:
        await pair.fails(
            *(errors.WrongPeerError, Outcome.NOT_SENT),
            match=r"cannot check that node 'server' answers there: .* use TLS or version 3",
            peer="server",
        )
        assert await pair.ask("echo", b"1") == b"1"
        assert pair.server.statistics().requests_received == 1


async def test_peer_of_the_same_name_is_refused() -> None:
    async with peers.make_service("twin") as first, peers.make_service("twin") as second:
        with pytest.raises(errors.ConnectionClosedError, match="named 'twin'") as caught:
            await first.request(second.address, "echo")
        assert caught.value.outcome is Outcome.NOT_SENT


async def test_text_names_the_node_where_it_is_known() -> None:
    async with peers.running_pair() as pair:
        await pair.ask("echo")
        for _ in range(2):
            with pytest.raises(errors.ReplyTimeoutError) as caught:
                await pair.ask("hang", timeout=0.01)
            assert f"{pair.server.address} (server)" in str(caught.value)


async def test_scripted_peers_are_servers() -> None:
    """What the tests above rely on."""
    for version in (2, 3):
        async with RawServer(echo, version) as server, peers.make_service("client") as client:
            assert await client.request(server.address, "echo", b"1") == b"1"
            assert server.accepted == 1
    async with (
        RawServer(greet_only) as server,
        peers.make_service("client", peers.NEWEST) as client,
    ):
        with pytest.raises(errors.ReplyTimeoutError) as caught:
            await client.request(server.address, "echo", b"1", timeout=0.5)
        assert caught.value.outcome is Outcome.UNKNOWN
