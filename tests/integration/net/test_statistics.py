"""Counters and representations say what really happened."""

import asyncio

import pytest

from postroad.core.errors import NoHandlerError, ReplyTimeoutError
from tests.support.deadlines import eventually
from tests.support.net import peers
from tests.support.net.scripts import RawPeer


async def test_before_the_start_and_after_the_end() -> None:
    service = peers.make_service("alone")
    assert repr(service) == "<MessagingService alone not started>"
    service.serve("echo", lambda message: message.payload)
    assert service.statistics().subscriptions == 1
    assert service.statistics().requests_sent == 0
    await service.start()
    assert repr(service) == f"<MessagingService alone at {service.address} running>"
    await service.stop()
    assert repr(service) == f"<MessagingService alone at {service.address} stopped>"
    assert service.statistics().subscriptions == 1
    assert (service.statistics().client_connections, service.statistics().server_connections) == (
        0,
        0,
    )


@peers.every_speech
async def test_traffic_is_counted_on_both_sides(speech: peers.Speech) -> None:
    async with peers.running_pair(speech) as pair:
        pair.server.subscribe("log", lambda _: None)
        for _ in range(10):
            await pair.ask("echo", bytes(1_000))
        for _ in range(5):
            await pair.tell("log", bytes(1_000))
        with pytest.raises(NoHandlerError):
            await pair.ask("nobody")
        await eventually(lambda: pair.server.statistics().requests_received == 16)
        client, server = pair.client.statistics(), pair.server.statistics()
        assert (client.requests_sent, client.messages_sent, client.replies_received) == (11, 5, 11)
        assert (server.requests_received, server.replies_sent, server.no_handler) == (16, 11, 1)
        assert (
            client.connections_opened,
            client.client_connections,
            client.server_connections,
        ) == (1, 1, 0)
        assert (
            server.connections_accepted,
            server.server_connections,
            server.client_connections,
        ) == (1, 1, 0)
        assert client.bytes_sent == server.bytes_received > 15_000
        assert server.bytes_sent == client.bytes_received > 10_000
        assert client.requests_pending == server.handlers_running == 0
        assert client.protocol_errors == server.protocol_errors == 0
        assert client.local_requests == 0


@peers.every_way
async def test_requests_and_handlers_at_work_are_counted(speech: peers.Speech) -> None:
    async with peers.running_pair(speech) as pair:
        requests = await pair.begin(3)
        if speech != peers.LOCAL:
            assert pair.client.statistics().requests_pending == 3
        assert pair.server.statistics().handlers_running == 3
        pair.gate.open()
        await asyncio.gather(*requests)
        assert pair.client.statistics().requests_pending == 0
        assert pair.server.statistics().handlers_running == 0


async def test_a_snapshot_does_not_change() -> None:
    async with peers.running_pair() as pair:
        before = pair.client.statistics()
        await pair.ask("echo")
        assert before.requests_sent == 0
        before.protocol_errors_by_kind["Invented"] = 1
        assert pair.client.statistics().protocol_errors_by_kind == {}


async def test_a_connection_that_succeeded_is_not_counted_as_failed() -> None:
    async with peers.running_pair() as pair:
        with pytest.raises(ReplyTimeoutError):
            await pair.ask("hang", timeout=0.3, keep_alive=False)
        assert await pair.ask("echo", b"1") == b"1"
        statistics = pair.client.statistics()
        assert (statistics.connections_opened, statistics.connections_failed) == (2, 0)


async def test_connection_that_is_reset_or_closed_without_a_goodbye_is_counted_as_lost() -> None:
    async with peers.running_pair() as pair:
        peer = await RawPeer.connect(pair.server.address)
        await peer.request(1, "hang")
        await eventually(lambda: pair.server.statistics().handlers_running == 1)
        peer.reset()
        await eventually(lambda: pair.server.statistics().server_connections == 0)
        assert pair.server.statistics().connections_lost == 1
        with await RawPeer.connect(pair.server.address):
            await eventually(lambda: pair.server.statistics().server_connections == 1)
        await eventually(lambda: pair.server.statistics().server_connections == 0)
        assert pair.server.statistics().connections_lost == 2
