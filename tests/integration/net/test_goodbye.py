"""Connections that end: what was on its way is delivered, or fails with the truth about it."""

import asyncio
import struct

import pytest

from postroad.core import errors
from postroad.net import Outcome, RawMessage
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net import peers
from tests.support.net.scripts import RawPeer, RawServer, raw_versions, unused_address

SMALL_SOCKET = 32 * 1024
MIB = 1024 * 1024
# Longer than any link that is merely closed waits for its peer to read.
BEYOND_LINGER_S = 1.2


# Connections of their own.


async def greet_and_close(peer: RawPeer) -> None:
    """A script: version 2, whose handshake is these two bytes, and the end."""
    await peer.read(6)
    await peer.write(struct.pack(">h", 2))
    peer.close()


async def test_transient_request_to_a_peer_that_closes_after_the_handshake() -> None:
    async with (
        peers.nothing_left(),
        RawServer(greet_and_close, 2) as server,
        peers.make_service("client") as client,
    ):
        for _ in range(30):
            with pytest.raises(errors.ConnectionClosedError):
                await client.request(server.address, "echo", timeout=DEADLINE_S, keep_alive=False)
        assert client.statistics().requests_pending == 0


async def test_transient_request_waits_for_a_server_that_starts_later() -> None:
    address = unused_address()
    async with peers.nothing_left(), peers.make_service("client") as client:
        request = asyncio.create_task(
            client.request(
                address, "echo", b"1", timeout=20.0, keep_alive=False, wait_for_connection=True
            )
        )
        await eventually(lambda: client.statistics().connections_failed >= 2)
        assert not request.done()
        async with peers.make_service("server", bind=address) as server:
            peers.subscribe_usual(server)
            assert await request == b"1"
            await eventually(lambda: client.statistics().client_connections == 0)


async def test_exclusive_request_timeout_names_last_failure() -> None:
    async with peers.make_service("client", limits={"initial_backoff_s": 0.01}) as client:
        with pytest.raises(
            errors.ReplyTimeoutError, match="the last attempt: cannot connect"
        ) as caught:
            await client.request(
                unused_address(), "echo", timeout=0.5, keep_alive=False, wait_for_connection=True
            )
        assert caught.value.outcome is Outcome.NOT_SENT
        assert client.statistics().connections_failed >= 2


# A server that stops.


async def test_goodbye_unread_requests_get_stopping_reply() -> None:
    """A few are at work, some are in the server's memory, most in the socket."""
    total, at_work = 500, 4
    async with peers.running_pair(
        client_limits={"write_buffer_bytes_max": 8 * MIB},
        server_limits={"handlers_running_max": at_work},
    ) as pair:
        requests = [
            asyncio.create_task(pair.ask("gate", bytes(4_000), timeout=DEADLINE_S))
            for _ in range(total)
        ]
        await eventually(lambda: pair.gate.waiting == at_work)
        await eventually(lambda: pair.client.statistics().requests_pending == total)
        await peers.turns()
        # The server has stopped reading long before the end.
        assert pair.server.statistics().bytes_received < total * 4_000
        stopping = asyncio.create_task(pair.server.stop(grace=20.0))
        await peers.stays(lambda: pair.gate.waiting == at_work and not stopping.done())
        pair.gate.open()
        results = await asyncio.gather(*requests, return_exceptions=True)
        await stopping
    assert results.count(b"done") == at_work == len(pair.gate.messages)
    refused = [result for result in results if isinstance(result, errors.MessagingError)]
    assert {(type(error), error.outcome, error.retryable) for error in refused} == {
        (errors.NoHandlerError, Outcome.REPLIED, True)
    }
    assert len(refused) == total - at_work


class Load:
    """Callers that ask again and again until the first failure, and what became of it all."""

    def __init__(self, pair: peers.Pair) -> None:
        self.pair = pair
        self.answered = 0
        self.failures: list[tuple[errors.MessagingError, bytes]] = []
        self._asked = 0

    async def run(self) -> None:
        """One caller."""
        while True:
            self._asked += 1
            payload = b"%d" % self._asked
            try:
                assert await self.pair.ask("note", payload) == payload
            except errors.MessagingError as error:
                self.failures.append((error, payload))
                return
            self.answered += 1


async def test_stop_under_load_fails_requests_unhandled_and_retryable() -> None:
    """Every failure is retryable, and of a request that was not handled."""
    handled, callers = set[bytes](), 300

    def note(message: RawMessage) -> bytes:
        handled.add(message.payload)
        return message.payload

    async with peers.running_pair() as pair:
        pair.server.serve("note", note)
        load = Load(pair)
        tasks = [asyncio.create_task(load.run()) for _ in range(callers)]
        await eventually(lambda: load.answered > 3_000)
        await pair.server.stop(grace=10.0)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*tasks)
    assert len(load.failures) == callers
    assert {(type(error), error.outcome) for error, _ in load.failures} <= {
        (errors.NoHandlerError, Outcome.REPLIED),
        (errors.ConnectError, Outcome.NOT_SENT),
        (errors.ConnectionClosedError, Outcome.NOT_SENT),
    }
    assert all(error.retryable for error, _ in load.failures)
    assert len(handled) == load.answered
    assert not handled & {payload for _, payload in load.failures}


# A stop that is itself interrupted.


@pytest.mark.parametrize("who", ["client", "server"])
async def test_stop_continues_when_caller_is_cancelled(who: str) -> None:
    async with peers.nothing_left(), peers.running_pair() as pair:
        (request,) = await pair.begin()
        service = pair.client if who == "client" else pair.server
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(service.stop(grace=0.2), 0.02)
        await asyncio.wait_for(service.stop(), DEADLINE_S)
        with pytest.raises((errors.NotRunningError, errors.ConnectionClosedError)):
            await request
        assert (
            service.statistics().client_connections == service.statistics().server_connections == 0
        )
        # And once more, when there is nothing left to do.
        await asyncio.wait_for(service.stop(), DEADLINE_S)


# A client that stops.


class LateReader:
    """A script: shake hands, and read only once told to; counts what arrived whole."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.data = b""
        self.is_over = False

    async def __call__(self, peer: RawPeer) -> None:
        await peer.greet()
        await self.go.wait()
        self.data = await peer.read_to_end()
        self.is_over = True


@raw_versions
async def test_messages_handed_over_before_the_stop_arrive(version: int) -> None:
    reader, sent = LateReader(), 0
    async with RawServer(reader, version, receive_buffer=SMALL_SOCKET) as server:
        async with peers.make_service("client") as client:
            with pytest.raises(errors.ReplyTimeoutError):
                while True:
                    payload = b"<%06d>" % sent + bytes(60_000)
                    await client.send(server.address, "log", payload, timeout=0.3)
                    sent += 1
            stopping = asyncio.create_task(client.stop(grace=20.0))
            await asyncio.wait({stopping}, timeout=BEYOND_LINGER_S)
            assert not stopping.done()
            reader.go.set()
            async with asyncio.timeout(DEADLINE_S):
                await stopping
        await eventually(lambda: reader.is_over)
    assert sent > 10
    missing = [
        number for number in range(sent) if b"<%06d>" % number + bytes(60_000) not in reader.data
    ]
    assert missing == []
