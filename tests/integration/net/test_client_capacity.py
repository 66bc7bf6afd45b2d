"""Callers that wait for a connection with room: in order, and nobody is forgotten."""

import asyncio

import pytest

from postroad.net import MessagingService
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.peers import make_service, running_pair, stays, turns
from tests.support.net.scripts import RawPeer, RawServer

SMALL_SOCKET = 32 * 1024
ONE_SLOT = {"requests_pending_max": 1}


def collect_loop_errors() -> list[str]:
    """What goes wrong in callbacks of the loop, where no caller sees it."""
    errors: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(repr(context)))
    return errors


class SlowReader:
    """A script: read messages, letting everybody else go first, and remember their numbers."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    async def __call__(self, peer: RawPeer) -> None:
        await peer.greet()
        while True:
            request = await peer.read_request()
            self.numbers.append(int(request.payload[:8]))
            await asyncio.sleep(0)


async def test_client_capacity_all_waiters_cancelled_connection_works() -> None:
    """Those in flight free slots for those in line, who are being cancelled as well."""
    errors = collect_loop_errors()
    async with running_pair(client_limits={"requests_pending_max": 4}) as pair:
        gate = pair.gate
        requests = [asyncio.create_task(pair.ask("gate", timeout=30.0)) for _ in range(12)]
        await eventually(lambda: gate.waiting == 4)
        await stays(lambda: pair.client.statistics().requests_pending == 4)
        for request in requests:
            request.cancel()
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 12
        assert await pair.ask("echo", b"1") == b"1"
        # Every slot is free again.
        assert pair.client.statistics().requests_pending == 0
        gate.open()
        again = [pair.ask("gate") for _ in range(12)]
        assert await asyncio.gather(*again) == [b"done"] * 12
        assert pair.client.statistics().connections_opened == 1
    assert errors == []


async def test_a_cancelled_caller_does_not_take_the_turn_of_the_next() -> None:
    """Whoever is cancelled in the turn in which the slot becomes free passes it on."""
    errors = collect_loop_errors()
    async with running_pair(client_limits=ONE_SLOT) as pair:
        gate = pair.gate
        requests = [asyncio.create_task(pair.ask("gate", timeout=30.0)) for _ in range(4)]
        await eventually(lambda: gate.waiting == 1)
        gate.open()
        for request in requests[:2]:
            request.cancel()
        async with asyncio.timeout(20.0):
            results = await asyncio.gather(*requests, return_exceptions=True)
        kinds = [type(result) for result in results]
        assert kinds.count(asyncio.CancelledError) == 2
        assert results.count(b"done") == 2
    assert errors == []


async def test_senders_keep_their_order_to_a_slow_reader() -> None:
    """The socket fills and empties many times while all of them wait; newcomers join the end."""
    reader, wave, waves = SlowReader(), 200, 5
    limits = {"write_buffer_bytes_max": 64 * 1024}
    async with (
        RawServer(reader, receive_buffer=SMALL_SOCKET) as server,
        make_service("client", limits=limits) as client,
    ):

        async def send(number: int) -> None:
            payload = b"%08d" % number + bytes(20_000)
            await client.send(server.address, "log", payload, timeout=DEADLINE_S)

        # The connection is there before the first of them comes.
        await client.send(server.address, "log", b"%08d" % 0)
        senders: list[asyncio.Task[None]] = []
        for start in range(1, wave * waves, wave):
            senders += [asyncio.create_task(send(number)) for number in range(start, start + wave)]
            await turns(3)
        await asyncio.gather(*senders)
        await eventually(lambda: len(reader.numbers) == wave * waves + 1)
    assert reader.numbers == list(range(wave * waves + 1))


@pytest.mark.parametrize("senders", [1, 5])
async def test_a_sender_that_needs_no_slot_passes_its_turn_on(senders: int) -> None:
    """The one reply that frees the slot serves the messages and the request behind them."""
    seen: list[bytes] = []
    async with running_pair(client_limits=ONE_SLOT) as pair:
        pair.server.subscribe("log", lambda message: seen.append(message.payload))
        (first,) = await pair.begin()
        sending = [
            asyncio.create_task(pair.tell("log", b"%d" % number)) for number in range(senders)
        ]
        second = asyncio.create_task(pair.ask("gate", timeout=30.0))
        await stays(lambda: not second.done() and not any(task.done() for task in sending))
        pair.gate.open()
        # Sooner than the next heartbeat, which makes the link look at its line as well.
        async with asyncio.timeout(4.0):
            assert await first == b"done"
            assert await second == b"done"
            await asyncio.gather(*sending)
        # They were in line before the request.
        assert seen == [b"%d" % number for number in range(senders)]


async def test_pool_new_callers_do_not_overtake_waiters_of_dial() -> None:
    """Tasks that start while the first connection opens are sent in the order they started."""
    got: list[int] = []
    async with MessagingService("order", "server") as server:
        server.subscribe("log", lambda message: got.append(int(message.payload)))
        async with MessagingService("order", "client") as client:
            sends = []
            for number in range(400):
                send = client.send(server.address, "log", b"%d" % number)
                sends.append(asyncio.create_task(send))
                await asyncio.sleep(0)
            await asyncio.gather(*sends)
        await eventually(lambda: len(got) == 400)
    assert got == list(range(400))
