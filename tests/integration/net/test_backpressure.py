"""Nobody's memory grows because somebody else is slow."""

import asyncio
from itertools import product

import pytest

from postroad.core.errors import ConnectionClosedError, ReplyTimeoutError
from postroad.net import MessagingService, Outcome, RawMessage
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net import peers
from tests.support.net.peers import make_service, running_pair, stays, turns
from tests.support.net.scripts import RawPeer, RawServer
from tests.support.tiers import sample

BUFFER = 256 * 1024
MIB = 1024 * 1024
# What the kernel holds on both sides of a loopback connection, generously.
KERNEL = 12 * MIB
SMALL_SOCKET = 32 * 1024


SIZES = [(3, 300), (2, 300), (2, 10_000), (3, 10_000), (2, 100_000), (3, 100_000)]


class Reader:
    """A script: shake hands, then read only when told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.subjects: list[str] = []
        self.payload_bytes = 0
        self.ids: list[bytes] = []

    async def __call__(self, peer: RawPeer) -> None:
        await peer.greet()
        await self.go.wait()
        while True:
            request = await peer.read_request()
            self.subjects.append(request.subject)
            self.payload_bytes += len(request.payload)
            self.ids.append(request.payload[:8])
            if not request.one_way and peer.version >= 3:
                await peer.reply(request.id)


class Progress:
    """Sends one message after another and counts those that went out."""

    def __init__(self) -> None:
        self.sent = 0

    async def settle(self) -> int:
        """The count once it no longer grows."""
        last = -1
        while last != self.sent:
            last = self.sent
            await peers.turns(30)
        return last


@pytest.mark.parametrize(("version", "size"), sample(SIZES, 3))
async def test_sender_waits_for_a_peer_that_does_not_read(version: int, size: int) -> None:
    """One sender in a plain loop: it stops, memory stays flat, it goes on, nothing is lost."""
    reader, progress = Reader(), Progress()
    total = 24 * MIB // size if size > 300 else 20_000
    limits = {"write_buffer_bytes_max": BUFFER, "heartbeat_timeout_s": 0, "heartbeat_interval_s": 0}

    async with (
        RawServer(reader, version, receive_buffer=SMALL_SOCKET) as server,
        peers.make_service("client", limits=limits) as client,
    ):

        async def send_all() -> None:
            for number in range(total):
                payload = b"%08d" % number + bytes(size - 8)
                await client.send(server.address, "log", payload, timeout=50.0)
                progress.sent += 1

        before = peers.resident_bytes()
        sender = asyncio.create_task(send_all())
        stuck_at = await progress.settle()
        assert stuck_at < total
        assert stuck_at * size < KERNEL
        assert peers.resident_bytes() - before < 24 * MIB
        reader.go.set()
        await sender
        await eventually(lambda: len(reader.ids) == total)
        assert reader.ids == [b"%08d" % number for number in range(total)]


async def test_many_waiting_senders_are_woken_a_few_at_a_time() -> None:
    """Room for one buffer is not room for everybody who waits."""
    reader, progress = Reader(), Progress()
    size, total = 50_000, 1_500
    limits = {"write_buffer_bytes_max": BUFFER}
    async with (
        RawServer(reader, receive_buffer=SMALL_SOCKET) as server,
        peers.make_service("client", limits=limits) as client,
    ):
        payload = bytes(size)

        async def send() -> None:
            await client.send(server.address, "log", payload, timeout=50.0)
            progress.sent += 1

        senders = [asyncio.create_task(send()) for _ in range(total)]
        assert await progress.settle() * size < KERNEL
        reader.go.set()
        while progress.sent < total:
            # What was handed over and has not been read is in buffers, which are small.
            assert progress.sent * size - reader.payload_bytes < KERNEL + MIB
            await asyncio.sleep(0)
        await asyncio.gather(*senders)
        await eventually(lambda: reader.payload_bytes == size * total)


async def test_requests_wait_as_well_and_time_out_unsent() -> None:
    reader = Reader()
    limits = {"write_buffer_bytes_max": BUFFER}
    async with (
        RawServer(reader, receive_buffer=SMALL_SOCKET) as server,
        peers.make_service("client", limits=limits) as client,
    ):
        requests = [
            asyncio.create_task(client.request(server.address, "log", bytes(100_000), timeout=0.6))
            for _ in range(300)
        ]
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert {type(result) for result in results} == {ReplyTimeoutError}
        outcomes = [result.outcome for result in results if isinstance(result, ReplyTimeoutError)]
        # The first were written, the others are known to be harmless to repeat.
        assert outcomes.count(Outcome.NOT_SENT) > 150
        assert outcomes.count(Outcome.UNKNOWN) >= 1
        assert client.statistics().requests_sent == outcomes.count(Outcome.UNKNOWN)


async def test_waiting_senders_fail_when_the_connection_ends() -> None:
    limits = {"write_buffer_bytes_max": BUFFER, "connect_timeout_s": 1.0}
    async with peers.make_service("client", limits=limits) as client:
        async with RawServer(Reader(), receive_buffer=SMALL_SOCKET) as server:
            senders = [
                asyncio.create_task(client.request(server.address, "log", bytes(100_000)))
                for _ in range(200)
            ]
            await eventually(lambda: client.statistics().requests_sent > 0)
            await peers.turns()
        results = await asyncio.gather(*senders, return_exceptions=True)
        assert all(isinstance(result, ConnectionError) for result in results)
        lost = [result for result in results if isinstance(result, ConnectionClosedError)]
        assert len([error for error in lost if error.outcome is Outcome.UNKNOWN]) == (
            client.statistics().requests_sent
        )


@pytest.mark.parametrize(
    ("version", "is_async", "size"), sample([*product([2, 3], [False, True], [60_000, 200_000])], 4)
)
async def test_server_against_a_client_that_does_not_read(
    version: int, is_async: bool, size: int
) -> None:
    """Small requests with big replies: the server stops handling, then goes on; none is lost."""
    handled = 0

    def answer(_message: RawMessage) -> bytes:
        nonlocal handled
        handled += 1
        return bytes(size)

    total = 48 * MIB // size
    limits = {"write_buffer_bytes_max": BUFFER, "handlers_running_max": 8}
    async with peers.running_pair(server_limits=limits) as pair:
        pair.server.serve("big", peers.later(answer) if is_async else answer)
        with await RawPeer.connect(
            pair.server.address, version, receive_buffer=SMALL_SOCKET
        ) as peer:
            before = peers.resident_bytes()
            await peer.write(
                b"".join(peer.request_bytes(number, "big") for number in range(1, total + 1))
            )
            await eventually(lambda: handled > 0)
            await peers.turns(50)
            assert handled * size < KERNEL
            assert peers.resident_bytes() - before < 24 * MIB
            # Others are served meanwhile.
            assert await pair.ask("echo", b"1") == b"1"
            ids = [(await peer.read_reply()).id for _ in range(total)]
            assert sorted(ids) == list(range(1, total + 1))
            assert handled == total


@peers.every_speech
async def test_slow_consumer_pauses_reading_at_the_limit(speech: peers.Speech) -> None:
    gate = peers.Gate()
    limits = {"handlers_running_max": 5}
    async with peers.running_pair(speech, server_limits=limits) as pair:
        pair.server.subscribe("log", gate)
        payloads = [b"%08d" % number + bytes(20_000) for number in range(400)]

        async def send_all() -> None:
            for payload in payloads:
                await pair.tell("log", payload)

        sender = asyncio.create_task(send_all())
        await eventually(lambda: gate.waiting == 5)
        await peers.turns(50)
        assert gate.waiting == 5
        received = pair.server.statistics().bytes_received
        assert received < 2 * MIB
        await peers.stays(lambda: pair.server.statistics().bytes_received == received)
        gate.open()
        await sender
        await eventually(lambda: gate.finished == len(payloads))
        assert [message.payload for message in gate.messages] == payloads


async def test_slow_requests_beyond_the_limit_are_all_answered() -> None:
    running = peak = 0

    async def work(message: RawMessage) -> bytes:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.001)
        running -= 1
        return message.payload

    async with peers.running_pair(server_limits={"handlers_running_max": 7}) as pair:
        pair.server.serve("work", work)
        replies = await asyncio.gather(*(pair.ask("work", b"%d" % number) for number in range(200)))
        assert replies == [b"%d" % number for number in range(200)]
        assert peak == 7


async def test_cancelled_handlers_count_until_they_finish() -> None:
    """A client that cancels and asks again cannot start more handlers than allowed."""
    limits = {"handlers_running_max": 3, "stop_grace_s": 0.1}
    with peers.Stubborn() as stubborn:
        async with peers.running_pair(server_limits=limits) as pair:
            pair.server.serve("stubborn", stubborn)
            requests = [asyncio.create_task(pair.ask("stubborn")) for _ in range(3)]
            await eventually(lambda: stubborn.begun == 3)
            for request in requests:
                request.cancel()
            await asyncio.gather(*requests, return_exceptions=True)
            for _ in range(2):
                with pytest.raises(ReplyTimeoutError):
                    await pair.ask("stubborn", timeout=0.02)
            assert stubborn.begun == 3


async def test_silence_while_reading_is_paused_is_not_the_peers_fault() -> None:
    beats = {"heartbeat_interval_s": 0.02, "heartbeat_timeout_s": 0.06}
    async with peers.running_pair(server_limits={"handlers_running_max": 1, **beats}) as pair:
        requests = [asyncio.create_task(pair.ask("gate", timeout=20.0)) for _ in range(3)]
        await eventually(lambda: pair.gate.waiting == 1)
        await peers.turns(100)
        pair.gate.open()
        assert await asyncio.gather(*requests) == [b"done"] * 3
        assert pair.client.statistics().connections_opened == 1


async def test_pending_requests_are_limited_by_the_peers_window() -> None:
    async with peers.running_pair(server_limits={"requests_pending_max": 4}) as pair:
        requests = [asyncio.create_task(pair.ask("gate")) for _ in range(10)]
        await eventually(lambda: pair.gate.waiting == 4)
        await peers.stays(lambda: pair.client.statistics().requests_pending == 4)
        pair.gate.open()
        assert await asyncio.gather(*requests) == [b"done"] * 10


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
