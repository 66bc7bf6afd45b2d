"""More than a node can do: it does what still helps, and one peer's trouble stays its own."""

import asyncio
import logging

import pytest

from postroad.core.errors import RemoteHandlerError
from postroad.net import RawMessage
from tests.support.deadlines import eventually
from tests.support.net import peers
from tests.support.net.scripts import RawPeer

SMALL_SOCKET = 32 * 1024
ONE_AT_A_TIME = {"handlers_running_max": 1}


# Requests that wait too long.


async def test_expired_requests_are_never_handled() -> None:
    loop = asyncio.get_running_loop()
    async with peers.running_pair(server_limits=ONE_AT_A_TIME) as pair:
        with await RawPeer.connect(pair.server.address) as peer:
            with peers.Stubborn() as stubborn:
                pair.server.serve("stubborn", stubborn)
                # In one piece, so that all are read before the first is seen to fill the limit.
                requests = [
                    peer.request_bytes(number, "stubborn", timeout_ms=300) for number in range(6)
                ]
                await peer.write(b"".join(requests))
                await eventually(lambda: stubborn.begun == 1)
                arrived = loop.time()
                await eventually(lambda: loop.time() > arrived + 0.6)
            # The one at work ends, and the others could begin; what comes behind them is served.
            await peer.request(6, "echo", b"1")
            assert (await peer.read_reply()).id == 6
            assert stubborn.begun == 1
            assert pair.server.statistics().requests_expired == 5


async def test_a_request_that_waited_has_the_deadline_of_its_caller() -> None:
    """Its time began when it arrived, not when its handler did."""
    loop = asyncio.get_running_loop()
    async with peers.running_pair(server_limits=ONE_AT_A_TIME) as pair:
        gate = pair.gate
        with await RawPeer.connect(pair.server.address) as peer:
            requests = [
                peer.request_bytes(number, "gate", timeout_ms=30_000) for number in range(2)
            ]
            await peer.write(b"".join(requests))
            await eventually(lambda: gate.waiting == 1)
            await peers.turns()
            assert len(gate.messages) == 1
            opened = loop.time()
            gate.open()
            assert [(await peer.read_reply()).id for _ in range(2)] == [0, 1]
        first, second = [message.deadline for message in gate.messages]
        assert first is not None and second is not None
        assert first == second < opened + 30.0


async def test_one_way_messages_that_waited_are_handled_however_late() -> None:
    gate = peers.Gate()
    async with peers.running_pair(server_limits=ONE_AT_A_TIME) as pair:
        pair.server.subscribe("log", gate)
        await pair.ask("echo")
        for _ in range(5):
            await pair.tell("log", timeout=0.05)
        await eventually(lambda: gate.waiting == 1)
        await peers.turns(60)
        gate.open()
        await eventually(lambda: gate.finished == 5)
        assert pair.server.statistics().requests_expired == 0


# Failures that are long to tell.


async def test_error_text_is_cut_to_limit_of_client() -> None:
    def fail(message: RawMessage) -> bytes:
        raise ValueError(message.payload.decode() * 4_000)

    async with peers.running_pair(client_limits={"frame_bytes_max": 2_000}) as pair:
        (unrelated,) = await pair.begin()
        for handler in (fail, peers.later(fail)):
            pair.handle("fail", handler)
            for letter in ("x", "\N{EURO SIGN}"):
                with pytest.raises(RemoteHandlerError, match=letter * 100):
                    await pair.ask("fail", letter.encode())
        pair.gate.open()
        assert await unrelated == b"done"
        await pair.is_still_open()


# Senders that are gone.


@pytest.mark.parametrize("speech", peers.OLDER, ids=str)
async def test_a_consumer_at_work_outlives_the_connection_of_its_sender(
    speech: peers.Speech,
) -> None:
    """Versions 1 and 2 do not tell that a message is one-way, but its handler does."""
    gate = peers.Gate()
    async with peers.make_service("server", speech) as server:
        server.subscribe("gate", gate)
        async with peers.make_service("client", speech) as client:
            for _ in range(3):
                await client.send(server.address, "gate", bytes(100))
            await eventually(lambda: gate.waiting == 3)
        await peers.stays(lambda: gate.cancelled == 0)
        gate.open()
        await eventually(lambda: gate.finished == 3)
        assert gate.cancelled == 0
        await eventually(lambda: server.statistics().server_connections == 0)


# Clients that read slowly, or not at all.


class LargeReplies:
    """A handler: the first reply at once, the others when let go, so that they add to it."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = asyncio.Event()

    async def __call__(self, _message: RawMessage) -> bytes:
        self.begun += 1
        if self.begun > 1:
            await self.go.wait()
        return bytes(1024 * 1024)


async def test_a_client_that_reads_slowly_but_steadily_is_served() -> None:
    """Replies are added faster than it reads, so what waits for it does not become less."""
    replies, total = LargeReplies(), 16
    limits = {"frame_timeout_s": 1.0, "write_buffer_bytes_max": 64 * 1024}
    async with peers.make_service("server", limits=limits) as server:
        server.serve("large", replies)
        with await RawPeer.connect(server.address, receive_buffer=256 * 1024) as peer:
            await peer.write(
                b"".join(peer.request_bytes(number, "large") for number in range(total))
            )
            await eventually(lambda: server.statistics().replies_sent == 1)
            # The first reply fills the buffer in a turn of its own.
            await peers.turns()
            replies.go.set()
            await eventually(lambda: server.statistics().replies_sent == total)
            loop, unread = asyncio.get_running_loop(), total * 1024 * 1024
            while unread > 0:
                piece = await loop.sock_recv(peer.sock, 64 * 1024)
                assert piece, "cut off"
                unread -= len(piece)
                await asyncio.sleep(0.005)
        assert server.statistics().protocol_errors_by_kind == {}


async def test_server_closes_client_that_reads_nothing() -> None:
    replies, total = LargeReplies(), 6
    replies.go.set()
    async with peers.make_service("server", limits={"frame_timeout_s": 0.2}) as server:
        server.serve("large", replies)
        with await RawPeer.connect(server.address, receive_buffer=SMALL_SOCKET) as peer:
            await peer.write(
                b"".join(peer.request_bytes(number, "large") for number in range(total))
            )
            await eventually(lambda: replies.begun == total)
            await eventually(lambda: server.statistics().server_connections == 0)
            assert server.statistics().protocol_errors_by_kind == {"PeerTimeoutError": 1}


# Connections, log lines, settings of the kernel.


@pytest.mark.parametrize("concurrently", [False, True])
@pytest.mark.parametrize("maximum", [1, 3])
async def test_classes_beyond_the_limit_share_one_connection(
    maximum: int, concurrently: bool
) -> None:
    async with peers.running_pair(client_limits={"connections_per_peer_max": maximum}) as pair:
        subjects = [f"class{number}.echo" for number in range(8)]
        for subject in subjects:
            pair.server.serve(subject, lambda message: message.payload)
        calls = [pair.ask(subject, b"1") for subject in (*subjects, "echo")]
        if concurrently:
            assert await asyncio.gather(*calls) == [b"1"] * 9
        else:
            assert [await each for each in calls] == [b"1"] * 9
        assert pair.client.statistics().client_connections == maximum
        assert pair.client.statistics().connections_opened == maximum


async def test_unknown_subjects_and_failing_consumers_do_not_flood_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_message: RawMessage) -> None:
        raise ValueError("no")

    caplog.set_level(logging.WARNING, "postroad.net")
    async with peers.running_pair() as pair:
        for number in range(300):
            pair.server.subscribe(f"fail{number}", fail)
            await pair.tell(f"fail{number}")
            await pair.tell(f"unknown{number}")
        await eventually(lambda: pair.server.statistics().handlers_failed == 300)
        await eventually(lambda: pair.server.statistics().no_handler == 300)
    for text in ("no handler for", "failed: no"):
        assert 1 <= sum(text in line for line in caplog.messages) <= 3


@pytest.mark.parametrize(("interval", "timeout"), [(1, 200), (40_000, 50_000)])
async def test_heartbeat_limits_beyond_those_of_the_kernel(interval: float, timeout: float) -> None:
    """More than 127 probes, or a longer pause than the kernel takes, are cut to what it takes."""
    limits = {"heartbeat_interval_s": interval, "heartbeat_timeout_s": timeout}
    async with peers.running_pair(client_limits=limits, server_limits=limits) as pair:
        assert await pair.ask("echo", b"1") == b"1"
        assert pair.client.statistics().connections_opened == 1
