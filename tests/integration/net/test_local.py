"""Messages to the own address: no socket, but what a remote caller would see."""

import asyncio

import pytest

from postroad import Message, MessagingService, Outcome
from postroad.core.errors import (
    ConnectFailed,
    MalformedPayload,
    MessageTooLarge,
    NoRemoteHandler,
    NotRunning,
    RemoteHandlerFailure,
    RemoteProtocolFailure,
    RequestTimeout,
    UsageError,
    WrongPeer,
)
from tests.support.deadlines import eventually
from tests.support.net.peers import Gate, Stubborn, check_error, make_service, nothing_left, stays


async def ask(service: MessagingService, subject: str, **options: object) -> bytes:
    return await service.request(service.address, subject, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("keep_alive", [True, False])
@pytest.mark.parametrize("is_async", [False, True])
async def test_request_opens_no_connection(keep_alive: bool, is_async: bool) -> None:
    async def answer(message: Message) -> bytes:
        return message.payload

    async with make_service("alone") as service:
        service.subscribe("echo", answer if is_async else lambda message: message.payload)
        for address in (service.address, str(service.address)):
            reply = await service.request(address, "echo", b"1", keep_alive=keep_alive)
            assert reply == b"1"
        statistics = service.statistics()
        assert (statistics.local_requests, statistics.connections_opened) == (2, 0)
        assert statistics.bytes_sent == 0


async def test_message_tells_of_its_sender() -> None:
    gate = Gate()
    gate.open()
    async with make_service("alone") as service:
        service.subscribe("gate", gate)
        now = asyncio.get_running_loop().time()
        await ask(service, "gate", timeout=7.0)
        await service.send(service.address, "gate")
        await eventually(lambda: len(gate.messages) == 2)
        request, message = gate.messages
        assert (request.sender, request.peer) == (service.address, "alone")
        assert request.deadline == pytest.approx(now + 7.0, abs=0.5)
        assert message.deadline is None


async def test_payload_is_a_copy() -> None:
    gate = Gate()
    async with make_service("alone") as service:
        service.subscribe("gate", gate)
        payload = bytearray(b"before")
        request = asyncio.create_task(service.request(service.address, "gate", payload))
        await eventually(lambda: gate.waiting == 1)
        payload[:] = b"after!"
        assert gate.messages[0].payload == b"before"
        assert type(gate.messages[0].payload) is bytes
        gate.open()
        await request


async def test_reply_is_a_copy() -> None:
    kept = bytearray(b"before")
    async with make_service("alone") as service:
        service.subscribe("kept", lambda _: kept)
        reply = await ask(service, "kept")
        kept[:] = b"after!"
        assert reply == b"before"
        assert type(reply) is bytes


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("raised", "seen", "retryable"),
    [
        (ValueError("no"), RemoteHandlerFailure, False),
        (ConnectFailed("no"), RemoteHandlerFailure, True),
        (RequestTimeout("no"), RemoteHandlerFailure, False),
        (TimeoutError("no"), RemoteHandlerFailure, False),
        (asyncio.CancelledError("no"), RemoteHandlerFailure, False),
        (MalformedPayload("no"), RemoteProtocolFailure, False),
    ],
)
async def test_failures_are_those_of_a_remote_caller(
    is_async: bool, raised: BaseException, seen: type[Exception], retryable: bool
) -> None:
    def fail(_message: Message) -> bytes:
        raise raised

    async def fail_later(_message: Message) -> bytes:
        raise raised

    async with make_service("alone") as service:
        service.subscribe("fail", fail_later if is_async else fail)
        with pytest.raises(seen) as caught:
            await ask(service, "fail", timeout=4.0)
        error = caught.value
        assert isinstance(error, RemoteHandlerFailure | RemoteProtocolFailure)
        assert error.detail == "no"
        check_error(
            error,
            outcome=Outcome.KNOWN,
            retryable=retryable,
            subject="fail",
            peer=service.address,
            timeout=4.0,
        )
        assert service.statistics().handlers_failed == 1


async def test_code_of_a_postroad_error() -> None:
    def fail(_message: Message) -> bytes:
        raise ConnectFailed("away")

    async with make_service("alone") as service:
        service.subscribe("fail", fail)
        with pytest.raises(RemoteHandlerFailure) as caught:
            await ask(service, "fail")
        assert caught.value.remote_code == ConnectFailed.code


async def test_no_handler() -> None:
    async with make_service("alone") as service:
        with pytest.raises(NoRemoteHandler, match="no handler for 'nobody'") as caught:
            await ask(service, "nobody", timeout=4.0)
        check_error(
            caught.value,
            outcome=Outcome.KNOWN,
            retryable=True,
            subject="nobody",
            peer=service.address,
            timeout=4.0,
        )
        service.subscribe("log", lambda _: None, one_way=True)
        with pytest.raises(NoRemoteHandler, match="one-way"):
            await ask(service, "log")


async def test_deadline_holds_and_cancels_the_handler() -> None:
    gate = Gate()
    async with make_service("alone") as service:
        service.subscribe("gate", gate)
        with pytest.raises(RequestTimeout, match="no reply in time") as caught:
            await ask(service, "gate", timeout=0.03)
        check_error(
            caught.value,
            outcome=Outcome.UNKNOWN,
            retryable=False,
            subject="gate",
            peer=service.address,
            timeout=0.03,
        )
        await eventually(lambda: gate.cancelled == 1)
        assert service.statistics().requests_timed_out == 1


async def test_deadline_holds_against_a_handler_that_ignores_cancellation() -> None:
    async with make_service("alone") as service:
        with Stubborn() as stubborn:
            service.subscribe("stubborn", stubborn)
            request = asyncio.create_task(ask(service, "stubborn", timeout=0.03))
            _, late = await asyncio.wait([request], timeout=20.0)
        assert not late
        with pytest.raises(RequestTimeout):
            await request


async def test_cancelling_the_caller_cancels_the_handler() -> None:
    gate = Gate()
    async with make_service("alone") as service:
        service.subscribe("gate", gate)
        request = asyncio.create_task(ask(service, "gate"))
        await eventually(lambda: gate.waiting == 1)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await eventually(lambda: gate.cancelled == 1)


async def test_sizes_are_checked() -> None:
    async with make_service("alone", limits={"frame_bytes_max": 100}) as service:
        service.subscribe("big", lambda _: bytes(101))
        with pytest.raises(MessageTooLarge):
            await service.request(service.address, "big", bytes(100))
        with pytest.raises(MessageTooLarge):
            await service.send(service.address, "big", bytes(100))
        with pytest.raises(RemoteHandlerFailure, match="101 bytes exceeds"):
            await ask(service, "big")
        with pytest.raises(UsageError):
            await service.request(service.address, "big", "text")  # type: ignore[arg-type]


async def test_wrong_peer() -> None:
    async with make_service("alone") as service:
        service.subscribe("echo", lambda message: message.payload)
        assert await ask(service, "echo", peer="alone") == b""
        with pytest.raises(WrongPeer):
            await ask(service, "echo", peer="other")
        with pytest.raises(WrongPeer):
            await service.send(service.address, "echo", peer="other")


@pytest.mark.parametrize("is_async", [False, True])
async def test_one_way(is_async: bool) -> None:
    seen: list[bytes] = []

    async def take_later(message: Message) -> None:
        await asyncio.sleep(0)
        seen.append(message.payload)

    def take(message: Message) -> None:
        seen.append(message.payload)

    async with make_service("alone") as service:
        service.subscribe("log", take_later if is_async else take, one_way=True)
        for number in range(100):
            await service.send(service.address, "log", b"%d" % number)
        await eventually(lambda: len(seen) == 100)
        assert seen == [b"%d" % number for number in range(100)]


async def test_one_way_to_nobody_or_to_a_failing_consumer_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(_message: Message) -> None:
        raise ValueError("log is full")

    async with make_service("alone") as service:
        service.subscribe("log", fail, one_way=True)
        await service.send(service.address, "nobody")
        await service.send(service.address, "log")
        await eventually(lambda: service.statistics().handlers_failed == 1)
        assert service.statistics().no_handler == 1
    assert "no handler for 'nobody'" in caplog.text
    assert "log is full" in caplog.text


async def test_one_way_messages_are_bounded() -> None:
    gate = Gate()
    async with make_service("alone", limits={"handlers_running_max": 3}) as service:
        service.subscribe("gate", gate, one_way=True)
        for _ in range(3):
            await service.send(service.address, "gate")
        waiting = asyncio.create_task(service.send(service.address, "gate"))
        await eventually(lambda: gate.waiting == 3)
        await stays(lambda: not waiting.done() and gate.waiting == 3)
        with pytest.raises(RequestTimeout) as caught:
            await service.send(service.address, "gate", timeout=0.02)
        assert caught.value.outcome is Outcome.NOT_SENT
        gate.open()
        await waiting
        await eventually(lambda: gate.finished == 4)


async def test_stop_waits_for_requests_in_flight() -> None:
    gate = Gate()
    async with nothing_left(), make_service("alone") as service:
        service.subscribe("gate", gate)
        request = asyncio.create_task(ask(service, "gate"))
        await eventually(lambda: gate.waiting == 1)
        stopping = asyncio.create_task(service.stop(grace=5.0))
        await stays(lambda: not stopping.done())
        gate.open()
        await stopping
        assert await request == b"done"


async def test_stop_fails_requests_that_outlast_the_grace() -> None:
    async with nothing_left(), make_service("alone") as service:
        gate = Gate()
        service.subscribe("gate", gate)
        request = asyncio.create_task(ask(service, "gate", timeout=30.0))
        await eventually(lambda: gate.waiting == 1)
        await service.stop(grace=0.02)
        _, late = await asyncio.wait([request], timeout=20.0)
        request.cancel()
        assert not late
        with pytest.raises(NotRunning, match="in flight"):
            await request


async def test_stop_ends_consumers() -> None:
    gate = Gate()
    async with nothing_left(), make_service("alone") as service:
        service.subscribe("gate", gate, one_way=True)
        await service.send(service.address, "gate")
        await eventually(lambda: gate.waiting == 1)
        await service.stop(grace=0.02)
        await eventually(lambda: gate.cancelled == 1)
