"""What handlers may be and do, in every profile and version, and when both sides differ."""

import asyncio
import gc
from itertools import product
from typing import Any

import pytest

from postroad.core import errors
from postroad.net import Address, RawMessage
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net import peers
from tests.support.net.scripts import RawPeer, RawServer, raw_versions
from tests.support.wire.pairs import version3_frame


@peers.every_way
async def test_echo_of_any_size_comes_back(speech: peers.Speech) -> None:
    async with peers.running_pair(speech) as pair:
        for size in (0, 1, 100, 65_535, 65_536, 1_000_000):
            payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
            # The second request to a known address and subject takes another way.
            for keep_alive in (True, True, False):
                assert await pair.ask("echo", payload, keep_alive=keep_alive) == payload
        if speech == peers.LOCAL:
            assert (await pair.ask("echo", b"1", peer="server"), speech) == (b"1", peers.LOCAL)
            statistics = pair.client.statistics()
            assert (statistics.local_requests, statistics.connections_opened) == (19, 0)
            assert statistics.bytes_sent == 0


@peers.here_or_there
async def test_payloads_that_are_not_bytes_are_sent_or_refused(speech: peers.Speech) -> None:
    async with peers.running_pair(speech) as pair:
        for convert, size in product((bytearray, memoryview), (100, 200_000)):
            for _ in range(2):
                reply = await pair.ask("echo", convert(bytes(size)))
                assert (reply, type(reply)) == (bytes(size), bytes)
        for payload in ("text", None, 7, ["list"]):
            for _ in range(2):
                with pytest.raises(errors.UsageError, match="payload must be bytes"):
                    await pair.ask("echo", payload)  # type: ignore[arg-type]
                assert await pair.ask("echo", b"1") == b"1"


async def test_request_with_senseless_arguments_is_refused() -> None:
    async with peers.running_pair() as pair:
        for _ in range(2):
            with pytest.raises(errors.UsageError, match="UTF-8"):
                await pair.ask("\ud800")
            for timeout in (0, -1.0, float("nan")):
                with pytest.raises(errors.ConfigError, match="timeout"):
                    await pair.ask("echo", timeout=timeout)
            assert await pair.ask("echo", b"1") == b"1"
        assert await pair.ask("echo", b"for ever", timeout=float("inf")) == b"for ever"


@peers.every_way
async def test_message_names_its_sender(speech: peers.Speech) -> None:
    async with peers.running_pair(speech) as pair:
        pair.gate.open()
        before = asyncio.get_running_loop().time()
        assert await pair.ask("gate", b"payload", timeout=DEADLINE_S) == b"done"
        now = asyncio.get_running_loop().time()
        await pair.tell("gate", b"one way")
        await eventually(lambda: len(pair.gate.messages) == 2)
        request, message = pair.gate.messages
        assert (request.payload, request.subject) == (b"payload", "gate")
        assert request.sender == pair.client.address
        assert isinstance(request.sender, Address)
        assert message.deadline is None
        if speech in (peers.NEWEST, peers.LOCAL):
            assert request.peer == pair.client.name
            assert request.deadline is not None
            assert before - 1 < request.deadline - DEADLINE_S <= now + 0.001
        else:
            assert request.peer is None
            assert request.deadline is None


@peers.every_speech
async def test_async_handlers_run_at_once_and_answer_in_any_order(speech: peers.Speech) -> None:
    turn = {number: asyncio.Event() for number in range(5)}

    async def wait_for_turn(message: RawMessage) -> bytes:
        await turn[int(message.payload)].wait()
        return message.payload

    async with peers.running_pair(speech) as pair:
        pair.server.serve("turn", wait_for_turn)
        requests = [asyncio.create_task(pair.ask("turn", b"%d" % number)) for number in range(5)]
        await eventually(lambda: pair.server.statistics().handlers_running == 5)
        for number in (4, 0, 3, 1, 2):
            turn[number].set()
            assert await requests[number] == b"%d" % number
        await pair.is_still_open()


RESULTS: list[tuple[object, bytes]] = [
    (None, b""),
    (bytearray(b"array"), b"array"),
    (memoryview(b"view"), b"view"),
    (b"", b""),
]


@peers.every_way
async def test_handler_may_return_bytes_of_any_kind_and_nothing_else(speech: peers.Speech) -> None:
    async with peers.running_pair(speech) as pair:

        def answer(_message: RawMessage) -> object:
            return returned

        for handler in (answer, peers.later(answer)):
            pair.handle("value", handler)
            for result, reply in RESULTS:
                returned = result
                assert await pair.ask("value") == reply
            for returned in ("text", 7, {}):
                with pytest.raises(
                    errors.RemoteHandlerError, match=f"returned {type(returned).__name__}"
                ):
                    await pair.ask("value")


async def test_handler_may_return_a_future() -> None:
    async with peers.running_pair() as pair:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        pair.server.serve("future", lambda _: future)
        request = asyncio.create_task(pair.ask("future"))
        await eventually(lambda: pair.server.statistics().handlers_running == 1)
        future.set_result(b"at last")
        assert await request == b"at last"


@peers.here_or_there
async def test_payload_changed_after_the_call_does_not_change_the_message(
    speech: peers.Speech,
) -> None:
    buffer = bytearray(b"kept")
    async with peers.running_pair(speech) as pair:
        pair.server.serve("kept", lambda _: buffer)
        payload = bytearray(b"before")
        request = asyncio.create_task(pair.client.request(pair.server.address, "gate", payload))
        await asyncio.sleep(0)
        payload[:] = b"after!"
        await eventually(lambda: pair.gate.waiting == 1)
        assert pair.gate.messages[0].payload == b"before"
        assert type(pair.gate.messages[0].payload) is bytes
        pair.gate.open()
        await request
        reply = await pair.ask("kept")
        buffer[:] = b"lost"
        assert (reply, type(reply)) == (b"kept", bytes)


# One-way.


@peers.every_way
@pytest.mark.parametrize("is_async", [False, True])
async def test_one_way_messages_arrive_in_order_and_unanswered(
    speech: peers.Speech, is_async: bool
) -> None:
    seen: list[bytes] = []

    def take(message: RawMessage) -> None:
        seen.append(message.payload)

    async with peers.running_pair(speech) as pair:
        pair.server.subscribe("log", peers.later(take) if is_async else take)
        for number in range(100):
            await pair.tell("log", b"%d" % number)
        await eventually(lambda: len(seen) == 100)
        assert seen == [b"%d" % number for number in range(100)]
        # Only the zeebe profile's heartbeat set-up has ever been answered.
        assert pair.server.statistics().replies_sent == 0
        if speech != peers.LOCAL:
            assert pair.client.statistics().messages_sent == 100


@peers.every_speech
async def test_one_way_message_to_a_handler_that_replies_is_not_answered(
    speech: peers.Speech,
) -> None:
    """In older versions it looks like a request, so it is, which the sender ignores."""
    async with peers.running_pair(speech) as pair:
        await pair.tell("echo", b"1")
        await eventually(lambda: pair.server.statistics().requests_received == 1)
        await pair.is_still_open()
        if speech == peers.NEWEST:
            assert pair.server.statistics().replies_sent == 1
            assert pair.client.statistics().frames_ignored == 0


@peers.every_way
async def test_request_to_a_consumer_fails(speech: peers.Speech) -> None:
    """In older versions it looks like a message, which the consumer takes."""
    seen: list[RawMessage] = []
    async with peers.running_pair(speech) as pair:
        pair.server.subscribe("log", seen.append)
        if speech in peers.OLDER:
            with pytest.raises(errors.ReplyTimeoutError):
                await pair.ask("log", timeout=0.3)
            assert len(seen) == 1
            return
        with pytest.raises(errors.NoHandlerError, match="one-way messages only; use send"):
            await pair.ask("log")
        assert not seen


@peers.every_way
@pytest.mark.parametrize("is_async", [False, True])
async def test_failing_one_way_handler_affects_no_other_message(
    speech: peers.Speech, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_message: RawMessage) -> None:
        raise ValueError("no room in the log")

    async with peers.running_pair(speech) as pair:
        pair.server.subscribe("log", peers.later(fail) if is_async else fail)
        await pair.tell("log")
        await eventually(lambda: pair.server.statistics().handlers_failed == 1)
        await pair.is_still_open()
    assert "no room in the log" in caplog.text


@peers.every_way
async def test_one_way_message_without_handler_is_counted(
    speech: peers.Speech, caplog: pytest.LogCaptureFixture
) -> None:
    async with peers.running_pair(speech) as pair:
        for _ in range(100):
            await pair.tell("nobody")
        await eventually(lambda: pair.server.statistics().no_handler == 100)
        await pair.is_still_open()
    if speech in (peers.NEWEST, peers.LOCAL):
        lines = [
            record for record in caplog.records if "no handler for 'nobody'" in record.getMessage()
        ]
        assert len(lines) == 1


# Subscribing.


async def test_serve_second_handler_of_subject_is_rejected() -> None:
    async with peers.running_pair() as pair:
        with pytest.raises(errors.ConfigError, match="'echo' has a handler"):
            pair.server.serve("echo", lambda _: b"other")
        assert await pair.ask("echo", b"first") == b"first"
        assert pair.server.unsubscribe("echo")
        assert not pair.server.unsubscribe("echo")
        pair.server.serve("echo", lambda _: b"other")
        assert await pair.ask("echo", b"first") == b"other"


@peers.every_speech
async def test_unsubscribe_lets_running_handlers_finish(speech: peers.Speech) -> None:
    async with peers.running_pair(speech) as pair:
        (request,) = await pair.begin()
        pair.server.unsubscribe("gate")
        with pytest.raises(errors.NoHandlerError):
            await pair.ask("gate")
        pair.gate.open()
        assert await request == b"done"


async def test_subscriptions_before_start_hold() -> None:
    server = peers.make_service("server")
    server.serve("early", lambda _: b"bird")
    async with server, peers.make_service("client") as client:
        assert await client.request(server.address, "early") == b"bird"


# Deadlines, cancellation and late replies.


@peers.every_speech
async def test_timed_out_request_leaves_the_connection_open(speech: peers.Speech) -> None:
    async with peers.running_pair(speech) as pair:
        assert await pair.ask("echo", b"1") == b"1"
        for keep_alive, opened in ((True, 1), (False, 2)):
            with pytest.raises(errors.ReplyTimeoutError):
                await pair.ask("gate", timeout=0.2, keep_alive=keep_alive)
            assert pair.client.statistics().connections_opened == opened
        pair.gate.open()
        assert await pair.ask("echo", b"2") == b"2"
        assert pair.client.statistics().connections_opened == 2
        assert pair.client.statistics().client_connections == 1


@raw_versions
async def test_late_reply_is_ignored_and_counted(version: int) -> None:
    late = asyncio.Event()

    async def answer_late(peer: RawPeer) -> None:
        await peer.greet()
        met = await peer.read_request()
        await peer.reply(met.id, b"met")
        first = await peer.read_request()
        await late.wait()
        if version >= 3:
            assert (await peer.read_frame())[0] == 4
        await peer.reply(first.id, b"late")
        await peer.answer_requests()

    async with RawServer(answer_late, version) as server, peers.make_service("client") as client:
        assert await client.request(server.address, "meet") == b"met"
        with pytest.raises(errors.ReplyTimeoutError):
            await client.request(server.address, "slow", timeout=0.01)
        late.set()
        assert await client.request(server.address, "echo", b"1") == b"1"
        assert client.statistics().replies_late == 1
        assert client.statistics().frames_ignored == 0
        assert server.accepted == 1


@peers.here_or_there
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_cancelled_caller_cancels_handler(speech: peers.Speech, how: str) -> None:
    async with peers.running_pair(speech) as pair:
        # The second request to a known address and subject takes another way.
        for times in (1, 2):
            (request,) = await pair.begin(timeout=0.5 if how == "timeout" else DEADLINE_S)
            if how == "cancel":
                request.cancel()
            with pytest.raises((errors.ReplyTimeoutError, asyncio.CancelledError)):
                await request
            await eventually(lambda: pair.gate.waiting == 0)
            assert pair.gate.cancelled == times
        await eventually(lambda: pair.server.statistics().handlers_running == 0)
        statistics = pair.client.statistics()
        if speech == peers.NEWEST and how == "cancel":
            assert statistics.requests_cancelled == 2
        assert statistics.requests_timed_out == (2 if how == "timeout" else 0)
        assert statistics.requests_pending == 0
        await pair.is_still_open()


@peers.older_speech
async def test_caller_of_an_older_version_cannot_cancel_but_forgets(speech: peers.Speech) -> None:
    async with peers.running_pair(speech) as pair:
        (request,) = await pair.begin()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        pair.gate.open()
        await eventually(lambda: pair.gate.finished == 1)
        assert await pair.ask("echo", b"1") == b"1"
        await eventually(lambda: pair.client.statistics().replies_late == 1)
        assert pair.client.statistics().requests_pending == 0


async def test_request_cancelled_before_its_handler_began_leaves_no_coroutine() -> None:
    """What is not awaited warns, and warnings are errors."""
    async with peers.running_pair() as pair:
        with await RawPeer.connect(pair.server.address) as peer:
            await peer.write(peer.request_bytes(1, "gate") + version3_frame(4, id=1))
            await peer.request(2, "echo", b"1")
            assert (await peer.read_reply()).payload == b"1"
        await eventually(lambda: pair.server.statistics().handlers_running == 0)
        assert pair.gate.finished == 0
        gc.collect()


async def test_handler_without_a_deadline_has_the_time_of_the_limit() -> None:
    async with peers.running_pair(server_limits={"handler_timeout_s": 0.03}) as pair:
        with await RawPeer.connect(pair.server.address) as peer:
            await peer.request(1, "gate")
            reply = await peer.read_reply()
        assert (reply.id, reply.status) == (1, 2)
        assert b"too long" in reply.payload
        assert pair.gate.cancelled == 1
        assert pair.server.statistics().handlers_timed_out == 1


@raw_versions
async def test_id_used_twice_is_answered_twice_unless_the_connection_is_lost(version: int) -> None:
    async with peers.running_pair() as pair:
        with await RawPeer.connect(pair.server.address, version) as peer:
            for _ in range(2):
                await peer.request(7, "gate")
            await eventually(lambda: pair.gate.waiting == 2)
        await eventually(lambda: pair.gate.cancelled == 2)
        await eventually(lambda: pair.server.statistics().server_connections == 0)
        pair.gate.open()
        with await RawPeer.connect(pair.server.address, version) as peer:
            for _ in range(2):
                await peer.request(7, "gate")
            replies = [await peer.read_reply(), await peer.read_reply()]
        assert [(reply.id, reply.status, reply.payload) for reply in replies] == [
            (7, 0, b"done")
        ] * 2


# Versions that differ.


@pytest.mark.parametrize(
    ("client", "server"), [(3, 2), (3, 1), (2, 3), (1, 3), (2, 1), (1, 2), (3, 3)]
)
async def test_mixed_versions_agree_on_the_older(client: int, server: int) -> None:
    speeches = (peers.Speech("documented", client), peers.Speech("documented", server))
    async with peers.running_pair(*speeches) as pair:
        pair.gate.open()
        assert await pair.ask("echo", b"1") == b"1"
        assert await pair.ask("gate") == b"done"
        with pytest.raises(errors.NoHandlerError):
            await pair.ask("nobody")
        # Only version 3 tells a name.
        assert pair.gate.messages[0].peer == ("client" if client == server == 3 else None)
        assert pair.gate.messages[0].sender == pair.client.address


@pytest.mark.parametrize(("client", "server"), [(2, 1), (1, 2)])
async def test_mixed_zeebe_versions_agree(client: int, server: int) -> None:
    async with peers.running_pair(
        peers.Speech("zeebe", client), peers.Speech("zeebe", server)
    ) as pair:
        assert await pair.ask("echo", b"1") == b"1"
        with pytest.raises(errors.NoHandlerError):
            await pair.ask("nobody")


@pytest.mark.parametrize(
    "other", [speech for speech in peers.OLDER if speech.profile == "zeebe"], ids=str
)
async def test_profiles_do_not_mix(other: peers.Speech) -> None:
    for client, server in ((other, peers.NEWEST), (peers.NEWEST, other)):
        async with peers.running_pair(client, server) as pair:
            named = f"as profile '{server.profile}' does; this node is configured with profile"
            with pytest.raises(errors.ConnectionClosedError, match=named) as caught:
                await pair.ask("echo", b"1", timeout=2.0)
            assert caught.value.outcome is errors.Outcome.NOT_SENT
            assert not caught.value.retryable


def test_subscribe_with_one_way_argument_names_both_methods() -> None:
    service = peers.make_service("server")
    outdated: dict[str, Any] = {"one_way": True}
    with pytest.raises(TypeError, match=r"argument 'one_way'.* serve\(\) one that replies"):
        service.subscribe("log", lambda _: None, **outdated)
    assert service.statistics().subscriptions == 0
