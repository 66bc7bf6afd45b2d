"""Messages to the own address, where they differ from those to others: see also `LOCAL`."""

import asyncio

import pytest

from postroad.core import errors
from postroad.net import Outcome
from tests.support.deadlines import eventually
from tests.support.net import peers


async def test_address_may_be_text() -> None:
    async with peers.running_pair(peers.LOCAL) as pair:
        assert await pair.client.request(str(pair.client.address), "echo", b"1") == b"1"
        assert pair.client.statistics().local_requests == 1


async def test_deadline_holds_against_a_handler_that_ignores_cancellation() -> None:
    async with peers.running_pair(peers.LOCAL) as pair:
        with peers.Stubborn() as stubborn:
            pair.handle("stubborn", stubborn)
            with pytest.raises(errors.ReplyTimeoutError):
                await pair.ask("stubborn", timeout=0.03)
            assert stubborn.begun == 1


async def test_sizes_are_checked() -> None:
    async with peers.running_pair(peers.LOCAL, server_limits={"frame_bytes_max": 100}) as pair:
        pair.handle("big", lambda _: bytes(101))
        with pytest.raises(errors.MessageTooLargeError):
            await pair.ask("big", bytes(100))
        with pytest.raises(errors.MessageTooLargeError):
            await pair.tell("big", bytes(100))
        with pytest.raises(errors.RemoteHandlerError, match="101 bytes exceeds"):
            await pair.ask("big")


async def test_one_way_messages_are_bounded() -> None:
    gate = peers.Gate()
    async with peers.make_service("alone", limits={"handlers_running_max": 3}) as service:
        service.subscribe("gate", gate)
        for _ in range(3):
            await service.send(service.address, "gate")
        waiting = asyncio.create_task(service.send(service.address, "gate"))
        await eventually(lambda: gate.waiting == 3)
        await peers.stays(lambda: not waiting.done() and gate.waiting == 3)
        with pytest.raises(errors.ReplyTimeoutError) as caught:
            await service.send(service.address, "gate", timeout=0.02)
        assert caught.value.outcome is Outcome.NOT_SENT
        gate.open()
        await waiting
        await eventually(lambda: gate.finished == 4)


async def test_stop_waits_for_requests_in_flight() -> None:
    async with peers.nothing_left(), peers.running_pair(peers.LOCAL) as pair:
        (request,) = await pair.begin()
        stopping = asyncio.create_task(pair.client.stop(grace=20.0))
        await peers.stays(lambda: not stopping.done())
        pair.gate.open()
        await stopping
        assert await request == b"done"


async def test_stop_fails_requests_and_ends_consumers_that_outlast_the_grace() -> None:
    consumer = peers.Gate()
    async with peers.nothing_left(), peers.running_pair(peers.LOCAL) as pair:
        pair.server.subscribe("log", consumer)
        (request,) = await pair.begin()
        await pair.tell("log")
        await eventually(lambda: consumer.waiting == 1)
        await pair.client.stop(grace=0.02)
        with pytest.raises(errors.NotRunningError, match="in flight"):
            await request
        await eventually(lambda: consumer.cancelled == 1)
