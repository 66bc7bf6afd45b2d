"""Real processes killed, paused and restarted while requests are under way."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest

from postroad.core.errors import (
    ConnectError,
    ConnectionClosedError,
    MessagingError,
    NoHandlerError,
    ReplyTimeoutError,
)
from postroad.net import Address, MessagingService, Outcome
from tests.chaos.echo_node import CLUSTER, LIMITS
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.processes import end, start_module
from tests.support.net.raw_peers import LONG_S, echo_on
from tests.support.servers.process import free_port


class Process:
    """A node in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, role: str, argument: str) -> Self:
        return cls(await start_module("tests.chaos.echo_node", role, argument))

    async def line(self) -> str:
        """The next line it prints."""
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), DEADLINE_S)
        return line.decode().strip()

    async def statistics(self) -> dict[str, Any]:
        """What a server says of itself."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        answer: dict[str, Any] = json.loads(await self.line())
        return answer

    async def statistics_when(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Its statistics as soon as they fulfil the condition."""
        now: dict[str, Any] = {}

        async def holds() -> bool:
            now.update(await self.statistics())
            return condition(now)

        await eventually(holds, "the statistics of a process")
        return now

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        await end(self._process)


class Server(Process):
    """A server process."""

    address: Address

    @classmethod
    async def listen(cls, port: int = 0) -> Server:
        server = await cls.start("server", str(port or free_port()))
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
    """Many callers at once; checks that every request ends and gets its own reply."""

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
        await asyncio.wait_for(asyncio.gather(*self._callers), self._timeout + DEADLINE_S)

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
        try:
            reply = await self._client.request(
                self._address, subject, payload, timeout=self._timeout
            )
        except MessagingError as error:
            await asyncio.sleep(0.01)
            check_typed(error)
            return type(error).__name__
        assert reply == payload, "the reply of another request"
        self.answered_at = asyncio.get_running_loop().time()
        return "answered"


def check_typed(error: MessagingError) -> None:
    """Only these may happen to a request when its peer is hurt."""
    if isinstance(error, ConnectError):
        assert error.outcome is Outcome.NOT_SENT
    elif isinstance(error, NoHandlerError):
        assert error.outcome is Outcome.REPLIED
    else:
        assert isinstance(error, ConnectionClosedError | ReplyTimeoutError), repr(error)
        assert error.outcome in (Outcome.UNKNOWN, Outcome.NOT_SENT)


async def test_server_killed_in_mid_flight_fails_what_it_had_and_may_come_back() -> None:
    server = await Server.listen()
    async with processes(server) as alive, asking_node() as client:
        await client.request(server.address, "echo")
        calls = [
            asyncio.create_task(client.request(server.address, "slow", b"90", timeout=LONG_S))
            for _ in range(100)
        ]
        await eventually(lambda: client.statistics().requests_pending == 100, "all are sent")
        await server.statistics()
        server.signal(signal.SIGKILL)
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, ConnectionClosedError)
            assert error.outcome is Outcome.UNKNOWN
        await server.kill()
        with pytest.raises(ConnectError) as refused:
            await client.request(server.address, "echo", timeout=LONG_S)
        assert refused.value.outcome is Outcome.NOT_SENT
        waiting = asyncio.create_task(
            client.request(
                server.address, "echo", b"back", timeout=LONG_S, wait_for_connection=True
            )
        )
        alive.append(await Server.listen(server.address.port))
        assert await waiting == b"back"
        assert await client.request(server.address, "echo", b"again") == b"again"


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_server_killed_or_paused_under_load_is_used_again(
    how: str, chaos_seconds: float
) -> None:
    server = await Server.listen()
    async with processes(server) as alive, asking_node() as client:
        load = Load(client, server.address)
        load.start(callers=50)
        deadline = asyncio.get_running_loop().time() + chaos_seconds
        rounds = 0
        while rounds < 2 or asyncio.get_running_loop().time() < deadline:
            await load.answers(200)
            if how == "killed":
                await server.kill()
                server = await Server.listen(server.address.port)
                alive.append(server)
            else:
                server.signal(signal.SIGSTOP)
                await eventually(
                    lambda: client.statistics().client_connections == 0, "it is given up"
                )
                if not rounds:
                    # The kernel still accepts connections for it, so only the handshake tells.
                    with pytest.raises(MessagingError) as unanswered:
                        await client.request(server.address, "echo", timeout=0.5)
                    assert unanswered.value.outcome is Outcome.NOT_SENT
                server.signal(signal.SIGCONT)
            await load.goes_on()
            rounds += 1
        await load.stop()
        assert load.ends["ConnectionClosedError"] > 0
        assert client.statistics().requests_pending == 0
        await server.statistics_when(lambda it: it["handlers_running"] == 0)
        errors = client.statistics().protocol_errors_by_kind
        assert set(errors) == ({"PeerTimeoutError"} if how == "paused" else set())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_client_killed_or_paused_has_its_handlers_cancelled(number: signal.Signals) -> None:
    server = await Server.listen()
    async with processes(server) as alive, asking_node() as healthy:
        await healthy.request(server.address, "echo")
        before = await server.statistics()
        doomed = await Process.start("client", str(server.address))
        alive.append(doomed)
        assert await doomed.line() == "asking"
        await server.statistics_when(lambda it: it["handlers_running"] == 200)
        doomed.signal(number)
        now = await server.statistics_when(
            lambda it: (
                it["handlers_running"] == 0
                and it["server_connections"] == before["server_connections"]
            )
        )
        silent = {"PeerTimeoutError": 1} if number is signal.SIGSTOP else {}
        assert now["protocol_errors_by_kind"] == silent
        assert await healthy.request(server.address, "echo", b"x") == b"x"
        assert healthy.statistics().connections_opened == 1


async def test_listener_restarted_under_load_finishes_what_was_begun(chaos_seconds: float) -> None:
    """Graceful stops: the rest is refused or never sent."""
    address = Address("127.0.0.1", free_port())
    server = echo_on(MessagingService(CLUSTER, "server", bind=address, limits=LIMITS))
    await server.start()
    async with asking_node() as client:
        load = Load(client, address)
        load.start(callers=30)
        deadline = asyncio.get_running_loop().time() + chaos_seconds
        rounds = 0
        while rounds < 2 or asyncio.get_running_loop().time() < deadline:
            rounds += 1
            await load.answers(100)
            await server.stop()
            assert server.statistics().server_connections == 0
            server = echo_on(MessagingService(CLUSTER, "server", bind=address, limits=LIMITS))
            await server.start()
        await load.stop()
        await server.stop()
        assert client.statistics().requests_pending == 0
        assert client.statistics().protocol_errors == 0
        assert load.ends["ReplyTimeoutError"] == 0
