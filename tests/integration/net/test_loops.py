"""The core of the service on both event loops, whichever the rest of the run uses."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from postroad import Message
from postroad.core.errors import (
    ConnectFailed,
    ConnectionClosed,
    NoRemoteHandler,
    NotRunning,
    RemoteHandlerFailure,
    RequestTimeout,
)
from postroad.net.loop import run
from tests.support.deadlines import eventually
from tests.support.event_loop import loop_factory
from tests.support.net.peers import (
    NEWEST,
    SPEECHES,
    Gate,
    Speech,
    make_service,
    nothing_left,
    running_pair,
    turns,
)
from tests.support.net.scripts import RawPeer, RawServer, greet_only, unused_address

LOOPS = ["asyncio", "uvloop"]
Scenario = Callable[[Speech], Awaitable[None]]


async def requests_and_messages(speech: Speech) -> None:
    async with running_pair(speech) as pair:
        replies = await asyncio.gather(*(pair.ask("echo", b"%d" % it) for it in range(200)))
        assert replies == [b"%d" % it for it in range(200)]
        assert await pair.ask("echo", bytes(1_000_000)) == bytes(1_000_000)
        assert await pair.ask("echo", b"1", keep_alive=False) == b"1"
        seen: list[bytes] = []
        pair.server.subscribe("log", lambda it: seen.append(it.payload), one_way=True)
        for number in range(100):
            await pair.tell("log", b"%d" % number)
        await eventually(lambda: len(seen) == 100)


async def failures(speech: Speech) -> None:
    def fail(_message: Message) -> bytes:
        raise ValueError("no")

    async with running_pair(speech) as pair:
        pair.server.subscribe("fail", fail)
        with pytest.raises(RemoteHandlerFailure, match="no"):
            await pair.ask("fail")
        with pytest.raises(NoRemoteHandler):
            await pair.ask("nobody")
        with pytest.raises(RequestTimeout):
            await pair.ask("hang", timeout=0.02)
        with pytest.raises(ConnectFailed):
            await pair.client.request(unused_address(), "echo")
        await pair.client.stop()
        with pytest.raises(NotRunning):
            await pair.ask("echo")


async def lost_connections(speech: Speech) -> None:
    async def take_and_reset(peer: RawPeer) -> None:
        await peer.greet()
        await peer.read_request()
        peer.reset()

    async with (
        RawServer(take_and_reset, speech.version) as server,
        make_service("client", speech) as client,
    ):
        with pytest.raises(ConnectionClosed):
            await client.request(server.address, "echo")


async def full_buffers(speech: Speech) -> None:
    limits = {"write_buffer_bytes_max": 100_000}
    async with (
        RawServer(greet_only, speech.version, receive_buffer=32_768) as server,
        make_service("client", speech, limits=limits) as client,
    ):
        sent = 0

        async def send_all() -> None:
            nonlocal sent
            for _ in range(200):
                await client.send(server.address, "log", bytes(100_000), timeout=30.0)
                sent += 1

        sender = asyncio.create_task(send_all())
        await eventually(lambda: sent > 0)
        await turns(50)
        assert sent < 200
        sender.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sender


async def stopping(speech: Speech) -> None:
    gate = Gate()
    async with nothing_left(), running_pair(speech) as pair:
        pair.server.subscribe("gate", gate)
        request = asyncio.create_task(pair.ask("gate"))
        await eventually(lambda: gate.waiting == 1)
        stopping = asyncio.create_task(pair.server.stop(grace=5.0))
        await turns(5)
        gate.open()
        assert await request == b"done"
        await stopping


async def cancelled_starts(speech: Speech) -> None:
    async with nothing_left():
        service = make_service("alone", speech)
        starting = asyncio.create_task(service.start())
        # Its address is known when it listens; that is the last moment to cancel it.
        while " at " not in repr(service):  # noqa: ASYNC110 - nobody is told of that moment
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():
            # On loops that begin to listen without a pause there is no such moment.
            await service.stop()


CASES = [
    *(
        (scenario, speech)
        for scenario in (requests_and_messages, failures, stopping)
        for speech in SPEECHES
    ),
    # Scripted peers speak these two only.
    *(
        (scenario, Speech("documented", version))
        for scenario in (lost_connections, full_buffers)
        for version in (2, 3)
    ),
    (cancelled_starts, NEWEST),
]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("scenario", "speech"),
    CASES,
    ids=[f"{scenario.__name__}-{speech}" for scenario, speech in CASES],
)
def test_scenario(loop: str, scenario: Scenario, speech: Speech) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        runner.run(within(scenario, speech))


async def within(scenario: Scenario, speech: Speech) -> None:
    async with asyncio.timeout(20):
        await scenario(speech)


def test_run_uses_uvloop_where_it_is_installed() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> str:
        await requests_and_messages(NEWEST)
        return type(asyncio.get_running_loop()).__module__

    assert run(main()) == uvloop.Loop.__module__
