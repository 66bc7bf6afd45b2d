"""Each row of the exception table in which the peer answered, or is the wrong one."""

import asyncio

import pytest

from postroad import Message, Outcome
from postroad.core.errors import (
    ConnectFailed,
    ConnectionClosed,
    MalformedPayload,
    MessageTooLarge,
    NoRemoteHandler,
    RemoteHandlerFailure,
    RemoteProtocolFailure,
    RequestTimeout,
    WrongPeer,
)
from tests.support.deadlines import eventually
from tests.support.net.peers import (
    NEWEST,
    Gate,
    Speech,
    check_error,
    every_speech,
    make_service,
    older_speech,
    running_pair,
    turns,
)
from tests.support.net.scripts import RawPeer, RawServer, echo, greet_only, raw_versions

# RemoteProtocolFailure.


@every_speech
@pytest.mark.parametrize("is_async", [False, True])
async def test_handler_that_cannot_parse(speech: Speech, is_async: bool) -> None:
    def refuse(message: Message) -> bytes:
        raise MalformedPayload("no JSON")

    async def refuse_later(message: Message) -> bytes:
        await asyncio.sleep(0)
        return refuse(message)

    async with running_pair(speech) as pair:
        pair.server.subscribe("parse", refuse_later if is_async else refuse)
        with pytest.raises(RemoteProtocolFailure, match="no JSON") as caught:
            await pair.ask("parse", b"{", timeout=4.0)
        check_error(
            caught.value,
            outcome=Outcome.KNOWN,
            retryable=False,
            subject="parse",
            peer=pair.server.address,
            timeout=4.0,
        )
        assert await pair.ask("echo", b"still open") == b"still open"
        assert pair.client.statistics().connections_opened == 1


@raw_versions
async def test_status_of_a_peer_that_could_not_parse(version: int) -> None:
    async def refuse(peer: RawPeer) -> None:
        await peer.greet()
        request = await peer.read_request()
        await peer.reply(request.id, b"", status=3)
        await peer.read_to_end()

    async with RawServer(refuse, version) as server, make_service("client") as client:
        with pytest.raises(RemoteProtocolFailure, match="could not parse") as caught:
            await client.request(server.address, "echo", timeout=4.0)
        assert caught.value.outcome is Outcome.KNOWN


@raw_versions
async def test_invalid_utf8_is_answered_with_that_status(version: int) -> None:
    async with running_pair() as pair:
        with await RawPeer.connect(pair.server.address, version) as peer:
            await peer.request(1, "echo", b"fine")
            await eventually(lambda: pair.server.statistics().replies_sent == 1)
            await peer.request(2, b"\xff\xfe", b"not fine")
            first, second = await peer.read_reply(), await peer.read_reply()
            await peer.read_to_end()
        assert (first.id, first.status, first.payload) == (1, 0, b"fine")
        assert (second.id, second.status) == (2, 3)
        assert b"UTF-8" in second.payload
        assert pair.server.statistics().protocol_errors_by_kind == {"MalformedFrame": 1}


# NoRemoteHandler.


@every_speech
@pytest.mark.parametrize("keep_alive", [True, False])
async def test_no_handler(speech: Speech, keep_alive: bool) -> None:
    async with running_pair(speech) as pair:
        with pytest.raises(NoRemoteHandler, match="no handler for 'nobody'") as caught:
            await pair.ask("nobody", timeout=4.0, keep_alive=keep_alive)
        check_error(
            caught.value,
            outcome=Outcome.KNOWN,
            retryable=True,
            subject="nobody",
            peer=pair.server.address,
            timeout=4.0,
        )
        assert pair.server.statistics().no_handler == 1


@raw_versions
@pytest.mark.parametrize("text", [b"", b"echo", b"a whole sentence"])
async def test_no_handler_with_and_without_text(version: int, text: bytes) -> None:
    async def refuse(peer: RawPeer) -> None:
        await peer.greet()
        request = await peer.read_request()
        await peer.reply(request.id, text, status=1)
        await peer.read_to_end()

    async with RawServer(refuse, version) as server, make_service("client") as client:
        expected = "a whole sentence" if b" " in text else "no handler for 'echo'"
        with pytest.raises(NoRemoteHandler, match=expected):
            await client.request(server.address, "echo")


@raw_versions
async def test_no_handler_while_the_peer_stops(version: int) -> None:
    """A client that does not know yet is told so, and the request before it is finished."""
    gate = Gate()
    async with running_pair() as pair:
        pair.server.subscribe("gate", gate)
        with await RawPeer.connect(pair.server.address, version) as peer:
            await peer.request(1, "gate")
            await eventually(lambda: gate.waiting == 1)
            stopping = asyncio.create_task(pair.server.stop())
            await turns()
            await peer.request(2, "gate")
            if version >= 3:
                assert (await peer.read_frame())[0] == 7
            declined = await peer.read_reply()
            gate.open()
            finished = await peer.read_reply()
            await stopping
        assert (declined.id, declined.status) == (2, 4 if version >= 3 else 1)
        assert (finished.id, finished.status, finished.payload) == (1, 0, b"done")


async def test_a_peer_that_says_it_stops_is_an_error_worth_retrying() -> None:
    async def refuse(peer: RawPeer) -> None:
        await peer.greet()
        request = await peer.read_request()
        await peer.reply(request.id, b"", status=4)
        await peer.read_to_end()

    async with RawServer(refuse) as server, make_service("client") as client:
        with pytest.raises(NoRemoteHandler, match="the peer is stopping") as caught:
            await client.request(server.address, "echo")
        assert caught.value.retryable


# RemoteHandlerFailure.


@every_speech
@pytest.mark.parametrize("text", ["out of cheese", "", "käse\n\x00"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_handler_raises(speech: Speech, text: str, is_async: bool) -> None:
    def fail(_message: Message) -> bytes:
        raise ValueError(text)

    async def fail_later(message: Message) -> bytes:
        await asyncio.sleep(0)
        return fail(message)

    async with running_pair(speech) as pair:
        pair.server.subscribe("fail", fail_later if is_async else fail)
        with pytest.raises(RemoteHandlerFailure) as caught:
            await pair.ask("fail", timeout=4.0)
        assert caught.value.detail == text
        assert caught.value.remote_code == 0
        check_error(
            caught.value,
            outcome=Outcome.KNOWN,
            retryable=False,
            subject="fail",
            peer=pair.server.address,
            timeout=4.0,
        )
        assert await pair.ask("echo", b"still open") == b"still open"
        assert pair.client.statistics().connections_opened == 1
        assert pair.server.statistics().handlers_failed == 1


@pytest.mark.parametrize("is_fast", [False, True])
async def test_postroad_error_travels_with_code_and_retryable(is_fast: bool) -> None:
    def fail(_message: Message) -> bytes:
        raise ConnectFailed("the disk node is away")

    async with running_pair() as pair:
        pair.server.subscribe("fail", fail)
        if is_fast:
            # The second request to a known address and subject takes another way.
            with pytest.raises(RemoteHandlerFailure):
                await pair.ask("fail")
        with pytest.raises(RemoteHandlerFailure, match="the disk node is away") as caught:
            await pair.ask("fail")
        assert caught.value.retryable
        assert caught.value.outcome is Outcome.KNOWN
        assert caught.value.remote_code == ConnectFailed.code


@older_speech
async def test_older_versions_cannot_tell_code_and_retryable(speech: Speech) -> None:
    def fail(_message: Message) -> bytes:
        raise ConnectFailed("the disk node is away")

    async with running_pair(speech) as pair:
        pair.server.subscribe("fail", fail)
        with pytest.raises(RemoteHandlerFailure, match="the disk node is away") as caught:
            await pair.ask("fail")
        assert not caught.value.retryable
        assert caught.value.remote_code == 0


class Unspeakable(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [Unspeakable(), asyncio.CancelledError(), StopIteration()])
@pytest.mark.parametrize("is_async", [False, True])
async def test_odd_exceptions_are_failures_too(error: BaseException, is_async: bool) -> None:
    def fail(_message: Message) -> bytes:
        raise error

    async def fail_later(_message: Message) -> bytes:
        await asyncio.sleep(0)
        raise error

    async with running_pair(server_limits={"stop_grace_s": 0.05}) as pair:
        pair.server.subscribe("fail", fail_later if is_async else fail)
        with pytest.raises(RemoteHandlerFailure):
            await pair.ask("fail", timeout=30.0)
        assert await pair.ask("echo", b"still open") == b"still open"
        assert pair.client.statistics().connections_opened == 1
        assert pair.server.statistics().handlers_running == 0


async def test_long_texts_are_cut() -> None:
    def fail(_message: Message) -> bytes:
        raise ValueError("x" * 1_000_000)

    async with running_pair() as pair:
        pair.server.subscribe("fail", fail)
        with pytest.raises(RemoteHandlerFailure) as caught:
            await pair.ask("fail")
        assert len(caught.value.detail) < 10_000


# MessageTooLarge.


@every_speech
@pytest.mark.parametrize("keep_alive", [True, False])
async def test_message_too_large(speech: Speech, keep_alive: bool) -> None:
    limits = {"frame_bytes_max": 1_000}
    async with running_pair(speech, client_limits=limits, server_limits=limits) as pair:
        fitting = b"x" * (1_000 - len("echo"))
        assert await pair.ask("echo", fitting, keep_alive=keep_alive) == fitting
        with pytest.raises(MessageTooLarge, match="1001 bytes exceeds the 1000") as caught:
            await pair.ask("echo", fitting + b"x", timeout=4.0, keep_alive=keep_alive)
        assert isinstance(caught.value, ValueError)
        check_error(
            caught.value,
            outcome=Outcome.NOT_SENT,
            retryable=False,
            subject="echo",
            peer=pair.server.address,
            timeout=4.0,
        )
        with pytest.raises(MessageTooLarge):
            await pair.tell("echo", fitting + b"x")
        assert await pair.ask("echo", b"still open") == b"still open"


async def test_the_peers_limit_counts() -> None:
    async with running_pair(server_limits={"frame_bytes_max": 1_000}) as pair:
        with pytest.raises(MessageTooLarge, match="exceeds the 1000"):
            await pair.ask("echo", b"x" * 1_000)
        assert pair.server.statistics().protocol_errors == 0


@pytest.mark.parametrize("size", [2_000, 100_000])
@pytest.mark.parametrize("is_async", [False, True])
async def test_reply_too_large_fails_that_request_alone(size: int, is_async: bool) -> None:
    async def answer_later(_message: Message) -> bytes:
        return bytes(size)

    async with running_pair(client_limits={"frame_bytes_max": 1_000}) as pair:
        pair.server.subscribe("big", answer_later if is_async else lambda _: bytes(size))
        with pytest.raises(RemoteHandlerFailure, match=f"{size} bytes exceeds the 1000"):
            await pair.ask("big")
        assert await pair.ask("echo", b"still open") == b"still open"
        assert pair.client.statistics().connections_opened == 1


async def test_subject_too_long() -> None:
    async with running_pair() as pair:
        with pytest.raises(MessageTooLarge, match="subject"):
            await pair.ask("s" * 32_768)
        # Too long in bytes, not in characters.
        with pytest.raises(MessageTooLarge, match="subject"):
            await pair.ask("ä" * 16_384)


# WrongPeer.


@pytest.mark.parametrize("keep_alive", [True, False])
async def test_wrong_peer(keep_alive: bool) -> None:
    async with running_pair() as pair:
        assert await pair.ask("echo", b"1", peer="server", keep_alive=keep_alive) == b"1"
        with pytest.raises(WrongPeer, match="expected node 'other'") as caught:
            await pair.ask("echo", timeout=4.0, peer="other", keep_alive=keep_alive)
        assert "server" in str(caught.value)
        check_error(
            caught.value,
            outcome=Outcome.NOT_SENT,
            retryable=True,
            subject="echo",
            peer=pair.server.address,
            timeout=4.0,
        )
        assert pair.server.statistics().requests_received == 1
        with pytest.raises(WrongPeer):
            await pair.client.send(pair.server.address, "echo", peer="other")


@older_speech
async def test_older_versions_do_not_tell_who_answers(speech: Speech) -> None:
    async with running_pair(speech) as pair:
        assert await pair.ask("echo", b"1", peer="whoever") == b"1"


async def test_two_live_nodes_of_one_name() -> None:
    async with make_service("twin") as first, make_service("twin") as second:
        with pytest.raises(ConnectionClosed, match="named 'twin'") as caught:
            await first.request(second.address, "echo")
        assert caught.value.outcome is Outcome.NOT_SENT


async def test_text_names_the_node_where_it_is_known() -> None:
    async with running_pair() as pair:
        await pair.ask("echo")
        for _ in range(2):
            with pytest.raises(RequestTimeout) as caught:
                await pair.ask("hang", timeout=0.01)
            assert f"{pair.server.address} (server)" in str(caught.value)


async def test_echo_script_is_a_server() -> None:
    """The scripted peers themselves: what the tests above rely on."""
    for version in (2, 3):
        async with RawServer(echo, version) as server, make_service("client") as client:
            assert await client.request(server.address, "echo", b"1") == b"1"
    async with RawServer(greet_only) as server, make_service("client", NEWEST) as client:
        with pytest.raises(RequestTimeout) as caught:
            await client.request(server.address, "echo", b"1", timeout=0.5)
        assert caught.value.outcome is Outcome.UNKNOWN
