"""What handlers may be and do, in every profile and version, and when both sides differ."""

import asyncio
import warnings

import pytest

from postroad import Address, Message
from postroad.core.errors import (
    ConfigError,
    MessagingError,
    NoRemoteHandler,
    RemoteHandlerFailure,
    RequestTimeout,
    UsageError,
)
from tests.support.deadlines import eventually
from tests.support.net.peers import (
    NEWEST,
    OLDER,
    Gate,
    Speech,
    every_speech,
    make_service,
    older_speech,
    running_pair,
)
from tests.support.net.scripts import RawPeer, RawServer, raw_versions
from tests.support.wire.pairs import version3_frame


@every_speech
@pytest.mark.parametrize("size", [0, 1, 100, 65_535, 65_536, 1_000_000])
async def test_echo(speech: Speech, size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with running_pair(speech) as pair:
        for _ in range(2):
            assert await pair.ask("echo", payload) == payload
        assert await pair.ask("echo", payload, keep_alive=False) == payload


@pytest.mark.parametrize("size", [100, 200_000])
@pytest.mark.parametrize("convert", [bytearray, memoryview])
async def test_payloads_that_are_not_bytes(
    size: int, convert: type[bytearray] | type[memoryview]
) -> None:
    payload = bytes(size)
    async with running_pair() as pair:
        for _ in range(2):
            reply = await pair.client.request(pair.server.address, "echo", convert(payload))
            assert reply == payload
            assert type(reply) is bytes


@pytest.mark.parametrize("payload", ["text", None, 7, ["list"]])
async def test_payloads_of_a_wrong_type(payload: object) -> None:
    async with running_pair() as pair:
        for _ in range(2):
            with pytest.raises(UsageError, match="payload must be bytes"):
                await pair.client.request(
                    pair.server.address,
                    "echo",
                    payload,  # type: ignore[arg-type]
                )
            assert await pair.ask("echo", b"1") == b"1"


async def test_subject_that_cannot_be_encoded() -> None:
    async with running_pair() as pair:
        for _ in range(2):
            with pytest.raises(UsageError, match="UTF-8"):
                await pair.ask("\ud800")
            assert await pair.ask("echo", b"1") == b"1"


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
async def test_timeouts_that_make_no_sense(timeout: float) -> None:
    async with running_pair() as pair:
        for _ in range(2):
            with pytest.raises(ConfigError, match="timeout"):
                await pair.ask("echo", timeout=timeout)
            assert await pair.ask("echo", b"1") == b"1"
        assert await pair.ask("echo", b"for ever", timeout=float("inf")) == b"for ever"


@every_speech
async def test_message_tells_of_its_sender(speech: Speech) -> None:
    gate = Gate()
    gate.open()
    async with running_pair(speech) as pair:
        pair.server.subscribe("gate", gate)
        before = asyncio.get_running_loop().time()
        assert await pair.ask("gate", b"payload", timeout=7.0) == b"done"
        await pair.tell("gate", b"one way")
        await eventually(lambda: len(gate.messages) == 2)
        request, message = gate.messages
        assert (request.payload, request.subject) == (b"payload", "gate")
        assert request.sender == pair.client.address
        assert isinstance(request.sender, Address)
        assert message.deadline is None
        if speech == NEWEST:
            assert request.peer == "client"
            assert request.deadline is not None
            assert before + 6.5 < request.deadline < before + 8.0
        else:
            assert request.peer is None
            assert request.deadline is None


@every_speech
async def test_async_handlers_run_at_once_and_answer_in_any_order(speech: Speech) -> None:
    turn = {number: asyncio.Event() for number in range(5)}

    async def wait_for_turn(message: Message) -> bytes:
        await turn[int(message.payload)].wait()
        return message.payload

    async with running_pair(speech) as pair:
        pair.server.subscribe("turn", wait_for_turn)
        requests = [asyncio.create_task(pair.ask("turn", b"%d" % number)) for number in range(5)]
        await eventually(lambda: pair.server.statistics().handlers_running == 5)
        for number in (4, 0, 3, 1, 2):
            turn[number].set()
            assert await requests[number] == b"%d" % number
        assert pair.client.statistics().connections_opened == 1


@every_speech
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("result", "reply"),
    [(None, b""), (bytearray(b"array"), b"array"), (memoryview(b"view"), b"view"), (b"", b"")],
)
async def test_what_handlers_return(
    speech: Speech, is_async: bool, result: bytes | None, reply: bytes
) -> None:
    async def answer_later(_message: Message) -> bytes | None:
        return result

    async with running_pair(speech) as pair:
        pair.server.subscribe("value", answer_later if is_async else lambda _: result)
        assert await pair.ask("value") == reply


@every_speech
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("result", ["text", 7, {}])
async def test_handler_that_returns_a_wrong_type(
    speech: Speech, is_async: bool, result: object
) -> None:
    async def answer_later(_message: Message) -> object:
        return result

    async with running_pair(speech) as pair:
        handler = answer_later if is_async else lambda _: result
        pair.server.subscribe("value", handler)  # type: ignore[arg-type]
        with pytest.raises(RemoteHandlerFailure, match=f"returned {type(result).__name__}"):
            await pair.ask("value")


async def test_handler_that_returns_a_future() -> None:
    async with running_pair() as pair:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        pair.server.subscribe("future", lambda _: future)
        request = asyncio.create_task(pair.ask("future"))
        await eventually(lambda: pair.server.statistics().handlers_running == 1)
        future.set_result(b"at last")
        assert await request == b"at last"


async def test_payload_changed_after_the_call_does_not_change_the_message() -> None:
    async with running_pair() as pair:
        payload = bytearray(b"before")
        request = asyncio.create_task(pair.client.request(pair.server.address, "echo", payload))
        await asyncio.sleep(0)
        payload[:] = b"after!"
        assert await request == b"before"


# One-way.


@every_speech
@pytest.mark.parametrize("is_async", [False, True])
async def test_one_way_messages(speech: Speech, is_async: bool) -> None:
    seen: list[bytes] = []

    async def take_later(message: Message) -> None:
        seen.append(message.payload)

    def take(message: Message) -> None:
        seen.append(message.payload)

    async with running_pair(speech) as pair:
        pair.server.subscribe("log", take_later if is_async else take, one_way=True)
        for number in range(100):
            await pair.tell("log", b"%d" % number)
        await eventually(lambda: len(seen) == 100)
        assert seen == [b"%d" % number for number in range(100)]
        # Only the zeebe profile's heartbeat set-up has ever been answered.
        assert pair.server.statistics().replies_sent == 0
        assert pair.client.statistics().messages_sent == 100


async def test_send_to_a_handler_that_replies_is_not_answered() -> None:
    async with running_pair() as pair:
        await pair.tell("echo", b"1")
        await eventually(lambda: pair.server.statistics().requests_received == 1)
        assert await pair.ask("echo", b"2") == b"2"
        assert pair.server.statistics().replies_sent == 1
        assert pair.client.statistics().frames_ignored == 0


@older_speech
async def test_reply_to_a_message_of_an_older_version_is_ignored(speech: Speech) -> None:
    """There a message looks like a request, so a handler that replies is answered."""
    async with running_pair(speech) as pair:
        await pair.tell("echo", b"1")
        assert await pair.ask("echo", b"2") == b"2"
        assert pair.client.statistics().connections_opened == 1
        assert pair.client.statistics().protocol_errors == 0


async def test_request_to_a_consumer_is_told_so() -> None:
    seen: list[Message] = []
    async with running_pair() as pair:
        pair.server.subscribe("log", seen.append, one_way=True)
        with pytest.raises(NoRemoteHandler, match="one-way messages only; use send"):
            await pair.ask("log")
        assert not seen


@older_speech
async def test_request_to_a_consumer_of_an_older_version_times_out(speech: Speech) -> None:
    seen: list[Message] = []
    async with running_pair(speech) as pair:
        pair.server.subscribe("log", seen.append, one_way=True)
        with pytest.raises(RequestTimeout):
            await pair.ask("log", timeout=0.3)
        assert len(seen) == 1


@every_speech
@pytest.mark.parametrize("is_async", [False, True])
async def test_failing_consumer_harms_nobody(
    speech: Speech, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_message: Message) -> None:
        raise ValueError("no room in the log")

    async def fail_later(message: Message) -> None:
        await asyncio.sleep(0)
        fail(message)

    async with running_pair(speech) as pair:
        pair.server.subscribe("log", fail_later if is_async else fail, one_way=True)
        await pair.tell("log")
        await eventually(lambda: pair.server.statistics().handlers_failed == 1)
        assert await pair.ask("echo", b"still open") == b"still open"
        assert pair.client.statistics().connections_opened == 1
    assert "no room in the log" in caplog.text


@every_speech
async def test_message_nobody_handles(speech: Speech, caplog: pytest.LogCaptureFixture) -> None:
    async with running_pair(speech) as pair:
        for _ in range(100):
            await pair.tell("nobody")
        await eventually(lambda: pair.server.statistics().no_handler == 100)
        assert await pair.ask("echo", b"still open") == b"still open"
    if speech == NEWEST:
        told = [it for it in caplog.records if "no handler for 'nobody'" in it.getMessage()]
        assert len(told) == 1


# Subscribing.


async def test_a_second_subscription_is_refused() -> None:
    async with running_pair() as pair:
        with pytest.raises(ConfigError, match="'echo' has a handler"):
            pair.server.subscribe("echo", lambda _: b"other")
        assert await pair.ask("echo", b"first") == b"first"
        assert pair.server.unsubscribe("echo")
        assert not pair.server.unsubscribe("echo")
        pair.server.subscribe("echo", lambda _: b"other")
        assert await pair.ask("echo", b"first") == b"other"


@every_speech
async def test_unsubscribe_lets_running_handlers_finish(speech: Speech) -> None:
    gate = Gate()
    async with running_pair(speech) as pair:
        pair.server.subscribe("gate", gate)
        request = asyncio.create_task(pair.ask("gate"))
        await eventually(lambda: gate.waiting == 1)
        pair.server.unsubscribe("gate")
        with pytest.raises(NoRemoteHandler):
            await pair.ask("gate")
        gate.open()
        assert await request == b"done"


async def test_subscriptions_before_start_hold() -> None:
    server = make_service("server")
    server.subscribe("early", lambda _: b"bird")
    async with server, make_service("client") as client:
        assert await client.request(server.address, "early") == b"bird"


# Deadlines, cancellation and late replies.


@every_speech
@pytest.mark.parametrize("is_transient", [False, True])
async def test_timed_out_request_leaves_the_connection_open(
    speech: Speech, is_transient: bool
) -> None:
    gate = Gate()
    async with running_pair(speech) as pair:
        pair.server.subscribe("gate", gate)
        assert await pair.ask("echo", b"1") == b"1"
        for _ in range(3):
            with pytest.raises(RequestTimeout):
                await pair.ask("gate", timeout=0.2, keep_alive=not is_transient)
        gate.open()
        assert await pair.ask("echo", b"2") == b"2"
        assert pair.client.statistics().connections_opened == (4 if is_transient else 1)
        assert pair.client.statistics().dialed == 1


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

    async with RawServer(answer_late, version) as server, make_service("client") as client:
        assert await client.request(server.address, "meet") == b"met"
        with pytest.raises(RequestTimeout):
            await client.request(server.address, "slow", timeout=0.01)
        late.set()
        assert await client.request(server.address, "echo", b"1") == b"1"
        assert client.statistics().replies_late == 1
        assert client.statistics().frames_ignored == 0
        assert server.accepted == 1


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_giving_up_cancels_the_handler(how: str) -> None:
    gate = Gate()
    async with running_pair() as pair:
        pair.server.subscribe("gate", gate)
        request = asyncio.create_task(pair.ask("gate", timeout=0.5 if how == "timeout" else 30.0))
        await eventually(lambda: gate.waiting == 1)
        if how == "cancel":
            request.cancel()
        with pytest.raises((RequestTimeout, asyncio.CancelledError)):
            await request
        await eventually(lambda: gate.cancelled == 1)
        await eventually(lambda: pair.server.statistics().handlers_running == 0)
        if how == "cancel":
            assert pair.client.statistics().requests_cancelled == 1
        assert pair.client.statistics().requests_pending == 0
        assert await pair.ask("echo", b"1") == b"1"
        assert pair.client.statistics().connections_opened == 1


@older_speech
async def test_older_versions_cannot_cancel_but_forget(speech: Speech) -> None:
    gate = Gate()
    async with running_pair(speech) as pair:
        pair.server.subscribe("gate", gate)
        request = asyncio.create_task(pair.ask("gate"))
        await eventually(lambda: gate.waiting == 1)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        gate.open()
        await eventually(lambda: gate.finished == 1)
        assert await pair.ask("echo", b"1") == b"1"
        await eventually(lambda: pair.client.statistics().replies_late == 1)
        assert pair.client.statistics().requests_pending == 0


async def test_request_cancelled_before_its_handler_began() -> None:
    """The handler's coroutine is not left behind unawaited."""
    gate = Gate()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with running_pair() as pair:
            pair.server.subscribe("gate", gate)
            with await RawPeer.connect(pair.server.address) as peer:
                await peer.write(peer.request_bytes(1, "gate") + version3_frame(4, id=1))
                await peer.request(2, "echo", b"1")
                assert (await peer.read_reply()).payload == b"1"
            await eventually(lambda: pair.server.statistics().handlers_running == 0)
    assert [str(it.message) for it in caught] == []


async def test_handler_timeout_without_a_deadline() -> None:
    gate = Gate()
    async with running_pair(server_limits={"handler_timeout_s": 0.03}) as pair:
        pair.server.subscribe("gate", gate)
        with await RawPeer.connect(pair.server.address) as peer:
            await peer.request(1, "gate")
            reply = await peer.read_reply()
        assert (reply.id, reply.status) == (1, 2)
        assert b"too long" in reply.payload
        assert gate.cancelled == 1
        assert pair.server.statistics().handlers_timed_out == 1


@raw_versions
async def test_an_id_used_twice_is_answered_twice(version: int) -> None:
    gate = Gate()
    async with running_pair() as pair:
        pair.server.subscribe("gate", gate)
        with await RawPeer.connect(pair.server.address, version) as peer:
            await peer.request(7, "gate")
            await peer.request(7, "gate")
            await eventually(lambda: gate.waiting == 2)
            gate.open()
            replies = [await peer.read_reply(), await peer.read_reply()]
        assert [(it.id, it.status, it.payload) for it in replies] == [(7, 0, b"done")] * 2


@raw_versions
async def test_handlers_of_a_lost_connection_are_cancelled(version: int) -> None:
    gate = Gate()
    async with running_pair() as pair:
        pair.server.subscribe("gate", gate)
        with await RawPeer.connect(pair.server.address, version) as peer:
            await peer.request(1, "gate")
            await eventually(lambda: gate.waiting == 1)
        await eventually(lambda: gate.cancelled == 1)
        await eventually(lambda: pair.server.statistics().accepted == 0)


# Versions that differ.


@pytest.mark.parametrize(
    ("client", "server", "agreed"),
    [
        (3, 2, 2),
        (3, 1, 1),
        (2, 3, 2),
        (1, 3, 1),
        (2, 1, 1),
        (1, 2, 1),
        (3, 3, 3),
    ],
)
async def test_mixed_versions_agree_on_the_older(client: int, server: int, agreed: int) -> None:
    gate = Gate()
    gate.open()
    speeches = (Speech("documented", client), Speech("documented", server))
    async with running_pair(*speeches) as pair:
        pair.server.subscribe("gate", gate)
        assert await pair.ask("echo", b"1") == b"1"
        assert await pair.ask("gate") == b"done"
        with pytest.raises(NoRemoteHandler):
            await pair.ask("nobody")
        # Only version 3 tells a name.
        assert gate.messages[0].peer == ("client" if agreed == 3 else None)
        assert gate.messages[0].sender == pair.client.address


@pytest.mark.parametrize(("client", "server"), [(2, 1), (1, 2)])
async def test_mixed_zeebe_versions(client: int, server: int) -> None:
    async with running_pair(Speech("zeebe", client), Speech("zeebe", server)) as pair:
        assert await pair.ask("echo", b"1") == b"1"
        with pytest.raises(NoRemoteHandler):
            await pair.ask("nobody")


@pytest.mark.parametrize("other", [it for it in OLDER if it.profile == "zeebe"], ids=str)
async def test_profiles_do_not_mix(other: Speech) -> None:
    for client, server in ((other, NEWEST), (NEWEST, other)):
        async with running_pair(client, server) as pair:
            with pytest.raises(MessagingError):
                await pair.ask("echo", b"1", timeout=0.3)
