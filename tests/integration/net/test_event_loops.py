"""What matters most about a service on both event loops, and how the programs of `run` end."""

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from postroad import run
from postroad.core.errors import ConnectionClosedError, NoHandlerError, ReplyTimeoutError
from tests.support.deadlines import eventually
from tests.support.net import peers
from tests.support.net.raw_peers import both_loops
from tests.support.net.scripts import RawPeer, RawServer, greet_only, raw_versions


async def requests_and_messages(speech: peers.Speech) -> None:
    async with peers.running_pair(speech) as pair:
        replies = await asyncio.gather(*(pair.ask("echo", b"%d" % number) for number in range(200)))
        assert replies == [b"%d" % number for number in range(200)]
        assert await pair.ask("echo", bytes(1_000_000)) == bytes(1_000_000)
        assert await pair.ask("echo", b"1", keep_alive=False) == b"1"
        seen: list[bytes] = []
        pair.server.subscribe("log", lambda message: seen.append(message.payload))
        for number in range(100):
            await pair.tell("log", b"%d" % number)
        await eventually(lambda: len(seen) == 100)


@both_loops
@peers.every_speech
async def test_requests_are_answered_or_fail_and_stop_lets_them_finish(
    speech: peers.Speech,
) -> None:
    await requests_and_messages(speech)
    async with peers.nothing_left(), peers.running_pair(speech) as pair:
        with pytest.raises(NoHandlerError):
            await pair.ask("nobody")
        (request,) = await pair.begin()
        with pytest.raises(ReplyTimeoutError):
            await pair.ask("gate", timeout=0.02)
        stopping = asyncio.create_task(pair.server.stop(grace=20.0))
        await peers.turns(5)
        pair.gate.open()
        assert await request == b"done"
        await stopping


@both_loops
@raw_versions
async def test_tunnel_lost_and_writable_callbacks(version: int) -> None:
    async def take_and_reset(peer: RawPeer) -> None:
        await peer.greet()
        await peer.read_request()
        peer.reset()

    speech = peers.Speech("documented", version)
    limits = {"write_buffer_bytes_max": 100_000, "stop_grace_s": 0.1}
    async with (
        RawServer(take_and_reset, version) as server,
        peers.make_service("client", speech) as client,
    ):
        with pytest.raises(ConnectionClosedError):
            await client.request(server.address, "echo")
    async with (
        RawServer(greet_only, version, receive_buffer=32_768) as server,
        peers.make_service("client", speech, limits=limits) as client,
    ):
        sent = 0

        async def send_all() -> None:
            nonlocal sent
            for _ in range(200):
                await client.send(server.address, "log", bytes(100_000), timeout=30.0)
                sent += 1

        sender = asyncio.create_task(send_all())
        await eventually(lambda: sent > 0)
        await peers.turns(50)
        assert sent < 200
        sender.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sender


@both_loops
async def test_cancelled_start_leaves_nothing() -> None:
    async with peers.nothing_left():
        service = peers.make_service("alone")
        starting = asyncio.create_task(service.start())
        # Its address is known when it listens; that is the last moment to cancel it.
        while " at " not in repr(service):  # noqa: ASYNC110 - nobody is told of that moment
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():
            # On loops that begin to listen without a pause there is no such moment.
            await service.stop()


def test_run_uses_uvloop_where_it_is_installed() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> str:
        await requests_and_messages(peers.NEWEST)
        return type(asyncio.get_running_loop()).__module__

    assert run(main()) == uvloop.Loop.__module__


PROGRAM = """
import asyncio
from postroad import run
from postroad.net import MessagingService

async def main() -> None:
    async with MessagingService("demo", "alpha"):
        print("ready", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print("goodbye", flush=True)

run(main())
"""


@pytest.mark.parametrize(
    ("number", "exit_codes"), [(signal.SIGTERM, (143,)), (signal.SIGINT, (130, -signal.SIGINT))]
)
def test_a_signal_cancels_the_program(
    number: signal.Signals, exit_codes: tuple[int, ...], tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(number)
        output, errors = child.communicate(timeout=120)
    assert output == "goodbye\n"
    assert child.returncode in exit_codes
    if number == signal.SIGTERM:
        assert errors == ""


def test_a_program_in_another_thread_leaves_signals_alone() -> None:
    results: list[int] = []

    async def main() -> int:
        return 7

    thread = threading.Thread(target=lambda: results.append(run(main())))
    thread.start()
    thread.join(timeout=120)
    assert results == [7]
