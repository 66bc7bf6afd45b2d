"""Real processes killed, paused and restarted while requests are under way."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postroad import Address, MessagingService, Outcome
from postroad.core.errors import (
    ConnectFailed,
    ConnectionClosed,
    MessagingError,
    NoRemoteHandler,
    RequestTimeout,
)
from tests.chaos.echo_node import CLUSTER, LIMITS
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import echo_on
from tests.support.servers.process import free_port
from tests.support.source_tree import ROOT

# What a busy machine may add to a time-out.
SLACK_S = 15.0


class Process:
    """A node in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, role: str, argument: str) -> Process:
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.echo_node", role, argument),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def line(self) -> str:
        """The next line it prints."""
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        return line.decode().strip()

    async def statistics(self) -> dict[str, Any]:
        """What a server says of itself."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        answer: dict[str, Any] = json.loads(await self.line())
        return answer

    async def statistics_when(
        self, condition: Callable[[dict[str, Any]], bool], timeout_s: float
    ) -> dict[str, Any]:
        """Its statistics as soon as they fulfil the condition."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not condition(now := await self.statistics()):
            assert asyncio.get_running_loop().time() < deadline, now
            await asyncio.sleep(0.02)
        return now

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        """End it the hard way, in whatever state it is."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        # The pipes' transports are closed by the loop only after this turn.
        self._process._transport.close()  # type: ignore[attr-defined]


class Server(Process):
    """A server process."""

    address: Address

    @classmethod
    async def listen(cls, port: int = 0) -> Server:
        server = await cls.start("server", str(port or free_port()))
        assert isinstance(server, Server)
        server.address = Address.parse(await server.line())
        return server


@asynccontextmanager
async def processes(*started: Process) -> AsyncIterator[list[Process]]:
    """Kill at the end whatever is in the list by then."""
    alive = list(started)
    try:
        yield alive
    finally:
        for process in alive:
            await process.kill()


@asynccontextmanager
async def asking_node(name: str = "client") -> AsyncIterator[MessagingService]:
    async with MessagingService(CLUSTER, name, limits=LIMITS) as service:
        yield service


class Load:
    """Many callers at once; checks that every request ends in time and gets its own reply."""

    def __init__(self, client: MessagingService, address: Address, *, timeout: float = 2.0) -> None:
        self._client = client
        self._address = address
        self._timeout = timeout
        self._chance = random.Random(7)
        self._number = 0
        self._should_stop = False
        self._callers: list[asyncio.Task[None]] = []
        self.ends: Counter[str] = Counter()
        self.answered_at = 0.0

    def start(self, callers: int) -> None:
        self._callers = [asyncio.create_task(self._call()) for _ in range(callers)]

    async def stop(self) -> None:
        """Let every caller finish; raises what one of them found wrong."""
        self._should_stop = True
        await asyncio.wait_for(asyncio.gather(*self._callers), self._timeout + 10)

    async def answers(self, count: int) -> None:
        """Return when so many more requests have been answered."""
        wanted = self.ends["answered"] + count
        await eventually(lambda: self.ends["answered"] >= wanted, f"{count} answers")

    async def goes_on(self) -> None:
        """Return when a request is answered from now on."""
        now = asyncio.get_running_loop().time()
        await eventually(lambda: self.answered_at > now, "the load goes on")

    async def _call(self) -> None:
        while not self._should_stop:
            self._number += 1
            subject, payload = (
                "echo",
                b"%d %s" % (self._number, self._chance.randbytes(20).hex().encode()),
            )
            if self._number % 3 == 0:
                subject, payload = "slow", b"0.%d %d" % (self._number % 4, self._number)
            self.ends[await self._ask(subject, payload)] += 1
            await asyncio.sleep(0)

    async def _ask(self, subject: str, payload: bytes) -> str:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            reply = await self._client.request(
                self._address, subject, payload, timeout=self._timeout
            )
        except MessagingError as error:
            await asyncio.sleep(0.01)
            check_typed(error)
            return type(error).__name__
        finally:
            elapsed = loop.time() - started
            assert elapsed < self._timeout + SLACK_S, f"ended only after {elapsed:.3f} s"
        assert reply == payload, "the reply of another request"
        self.answered_at = loop.time()
        return "answered"


def check_typed(error: MessagingError) -> None:
    """Only these may happen to a request when its peer is hurt."""
    if isinstance(error, ConnectFailed):
        assert error.outcome is Outcome.NOT_SENT
    elif isinstance(error, NoRemoteHandler):
        assert error.outcome is Outcome.KNOWN
    else:
        assert isinstance(error, ConnectionClosed | RequestTimeout), repr(error)
        assert error.outcome in (Outcome.UNKNOWN, Outcome.NOT_SENT)


async def test_server_killed_in_mid_flight() -> None:
    server = await Server.listen()
    async with processes(server) as alive, asking_node() as client:
        await client.request(server.address, "echo")
        asked = [
            asyncio.create_task(client.request(server.address, "slow", b"90", timeout=60))
            for _ in range(100)
        ]
        await eventually(lambda: client.statistics().requests_pending == 100, "all are sent")
        await server.statistics()
        started = asyncio.get_running_loop().time()
        server.signal(signal.SIGKILL)
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert asyncio.get_running_loop().time() - started < 1.0 + SLACK_S
        for end in ends:
            assert isinstance(end, ConnectionClosed)
            assert end.outcome is Outcome.UNKNOWN
        await server.kill()
        with pytest.raises(ConnectFailed) as refused:
            await client.request(server.address, "echo", timeout=2)
        assert refused.value.outcome is Outcome.NOT_SENT
        waiting = asyncio.create_task(
            client.request(server.address, "echo", b"back", timeout=60, wait=True)
        )
        alive.append(await Server.listen(server.address.port))
        assert await waiting == b"back"
        assert await client.request(server.address, "echo", b"again") == b"again"


async def test_server_killed_and_restarted_under_load(chaos_seconds: float) -> None:
    server = await Server.listen()
    async with processes(server) as alive, asking_node() as client:
        load = Load(client, server.address)
        load.start(callers=50)
        deadline = asyncio.get_running_loop().time() + chaos_seconds
        rounds = 0
        while rounds < 2 or asyncio.get_running_loop().time() < deadline:
            await load.answers(200)
            await server.kill()
            server = await Server.listen(server.address.port)
            alive.append(server)
            await load.goes_on()
            rounds += 1
        await load.stop()
        assert load.ends["ConnectionClosed"] > 0
        assert client.statistics().requests_pending == 0
        assert client.statistics().protocol_errors == 0


async def test_server_paused_for_longer_than_the_heartbeat_timeout() -> None:
    server = await Server.listen()
    async with processes(server), asking_node() as client:
        await client.request(server.address, "echo")
        pause = asyncio.get_running_loop().time()
        server.signal(signal.SIGSTOP)
        with pytest.raises(ConnectionClosed) as lost:
            await client.request(server.address, "echo", timeout=60)
        assert lost.value.outcome is Outcome.UNKNOWN
        elapsed = asyncio.get_running_loop().time() - pause
        assert elapsed < 2 * LIMITS.heartbeat_timeout_s + SLACK_S
        assert client.statistics().protocol_errors_by_kind == {"PeerSilent": 1}
        # The kernel still accepts connections for it, so only the handshake tells.
        with pytest.raises(MessagingError) as unanswered:
            await client.request(server.address, "echo", timeout=0.5)
        assert unanswered.value.outcome is Outcome.NOT_SENT
        server.signal(signal.SIGCONT)
        back = client.request(server.address, "echo", b"back", timeout=60, wait=True)
        assert await back == b"back"


async def test_server_paused_under_load(chaos_seconds: float) -> None:
    server = await Server.listen()
    async with processes(server), asking_node() as client:
        load = Load(client, server.address)
        load.start(callers=50)
        deadline = asyncio.get_running_loop().time() + chaos_seconds
        while True:
            await load.answers(200)
            server.signal(signal.SIGSTOP)
            await eventually(
                lambda: client.statistics().dialed == 0, "it is given up", 3.0 + SLACK_S
            )
            server.signal(signal.SIGCONT)
            await load.goes_on()
            if asyncio.get_running_loop().time() > deadline:
                break
        await load.stop()
        statistics = await server.statistics()
        assert statistics["handlers_running"] == 0


async def test_client_killed_while_its_requests_are_handled() -> None:
    server = await Server.listen()
    async with processes(server) as alive, asking_node() as healthy:
        await healthy.request(server.address, "echo")
        before = await server.statistics()
        doomed = await Process.start("client", str(server.address))
        alive.append(doomed)
        assert await doomed.line() == "asking"
        await server.statistics_when(lambda it: it["handlers_running"] == 200, 60)
        doomed.signal(signal.SIGKILL)
        await server.statistics_when(
            lambda it: it["handlers_running"] == 0 and it["accepted"] == before["accepted"], 60
        )
        assert await healthy.request(server.address, "echo", b"x") == b"x"
        assert healthy.statistics().connections_opened == 1


async def test_paused_client_is_given_up_and_its_handlers_cancelled() -> None:
    server = await Server.listen()
    async with processes(server) as alive:
        doomed = await Process.start("client", str(server.address))
        alive.append(doomed)
        assert await doomed.line() == "asking"
        await server.statistics_when(lambda it: it["handlers_running"] == 200, 60)
        doomed.signal(signal.SIGSTOP)
        limit_s = 2 * LIMITS.heartbeat_timeout_s + 1.0 + SLACK_S
        now = await server.statistics_when(
            lambda it: it["handlers_running"] == 0 and it["accepted"] == 0, limit_s
        )
        assert now["protocol_errors_by_kind"] == {"PeerSilent": 1}


async def test_listener_restarted_under_load(chaos_seconds: float) -> None:
    """Graceful stops: what was begun is finished, the rest is refused or never sent."""
    address = Address("127.0.0.1", free_port())
    server = echo_on(MessagingService(CLUSTER, "server", bind=address, limits=LIMITS))
    await server.start()
    async with asking_node() as client:
        load = Load(client, address)
        load.start(callers=30)
        deadline = asyncio.get_running_loop().time() + chaos_seconds
        while asyncio.get_running_loop().time() < deadline:
            await load.answers(100)
            await server.stop()
            assert server.statistics().accepted == 0
            server = echo_on(MessagingService(CLUSTER, "server", bind=address, limits=LIMITS))
            await server.start()
        await load.stop()
        await server.stop()
        assert client.statistics().requests_pending == 0
        assert client.statistics().protocol_errors == 0
        assert load.ends["RequestTimeout"] == 0
