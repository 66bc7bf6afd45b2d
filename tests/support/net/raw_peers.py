"""Raw peers over real sockets, which send what a test says, and waiting for conditions.

What they can say is in `raw_dialects`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import pytest

from postroad.core.errors import MessagingError, ReplyTimeoutError
from postroad.net import Address, MessagingService
from postroad.testing import SimLoop
from tests.support.deadlines import DEADLINE_S

CLUSTER = "zeebe-cluster"
LONG_S = 2 * DEADLINE_S
"""The time of a request that must end for another reason."""


# Waiting.


async def holds_for(condition: Callable[[], object], what: str, duration_s: float) -> None:
    """Return after that time if the condition held all along."""
    deadline = asyncio.get_running_loop().time() + duration_s
    while asyncio.get_running_loop().time() < deadline:
        assert condition(), f"no longer true: {what}"
        await asyncio.sleep(0.01)


async def failure_of(
    call: Awaitable[object], kind: type[MessagingError] = MessagingError
) -> MessagingError:
    """The typed error of a call that must fail, and not because its time is over if not said so."""
    with pytest.raises(kind) as caught:
        await asyncio.wait_for(call, DEADLINE_S)
    assert kind is ReplyTimeoutError or not isinstance(caught.value, ReplyTimeoutError)
    return caught.value


Test = Callable[..., Coroutine[Any, Any, None]]
_LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": lambda: import_module("uvloop").new_event_loop(),
    "memory": lambda: SimLoop(seed=1),
    "memory, other seed": lambda: SimLoop(seed=2),
}


def on_loops(*names: str) -> Callable[[Test], Callable[..., None]]:
    """Run an asynchronous test on these loops, whatever this run's loop is."""

    def decorate(test: Test) -> Callable[..., None]:
        @functools.wraps(test)
        def run_on(*, on_loop: str, **arguments: Any) -> None:
            with asyncio.Runner(loop_factory=_LOOPS[on_loop]) as runner:
                runner.run(test(**arguments))

        of_test = inspect.signature(test)
        extra = inspect.Parameter("on_loop", inspect.Parameter.KEYWORD_ONLY, annotation=str)
        parameters = [*of_test.parameters.values(), extra]
        run_on.__signature__ = of_test.replace(parameters=parameters)  # type: ignore[attr-defined]
        on_each: Callable[..., None] = pytest.mark.parametrize("on_loop", names)(run_on)
        return on_each

    return decorate


both_loops = on_loops("asyncio", "uvloop")
virtual_time = on_loops("memory")
"""Over connections in memory, where hours pass in no time and nobody is ever late."""


# Sockets.


class RawPeer:
    """One end of a connection that sends and expects exactly what a test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        # There is none below connections in memory.
        if sock := writer.get_extra_info("socket"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, *pieces: bytes) -> None:
        """Write the pieces as one."""
        self.writer.write(b"".join(pieces))

    async def send_apart(self, *pieces: bytes, pause_s: float = 0.004) -> None:
        """Write the pieces so far apart that the other end reads them one by one."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(pause_s)

    async def take(self, size: int, timeout_s: float = DEADLINE_S) -> bytes:
        """Exactly so many bytes."""
        async with asyncio.timeout(timeout_s):
            return await self.reader.readexactly(size)

    async def expect(self, expected: bytes) -> None:
        """The next bytes must be these."""
        received = await self.take(len(expected))
        assert received == expected, f"{received.hex(' ')} is not {expected.hex(' ')}"

    async def until_closed(self, timeout_s: float = DEADLINE_S) -> bytes:
        """Everything up to the end of the connection, which must come in time."""
        received = b""
        try:
            async with asyncio.timeout(timeout_s):
                while piece := await self.reader.read(65536):
                    received += piece
        except ConnectionError:
            pass
        return received

    def ends(self) -> asyncio.Task[bytes]:
        """`until_closed` in the background, to wait for the end while doing something else."""
        task = asyncio.get_running_loop().create_task(self.until_closed(60))
        # A test that failed before it awaited the task must not trouble those after it.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close and wait for it; a peer that is gone already does not matter."""
        self.writer.close()
        try:
            async with asyncio.timeout(1):
                await self.writer.wait_closed()
        except (OSError, TimeoutError):
            self.writer.transport.abort()


@asynccontextmanager
async def raw_client(
    address: Address, context: ssl.SSLContext | None = None
) -> AsyncIterator[RawPeer]:
    """A connection to a node, opened by hand."""
    reader, writer = await asyncio.open_connection(*address, ssl=context)
    peer = RawPeer(reader, writer)
    try:
        yield peer
    finally:
        await peer.close()


Script = Callable[[RawPeer], Awaitable[None]]


class RawServer:
    """Plays a script for each connection; what a script raises fails the test at the end."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server
        self.address: Address
        self.connections = 0
        self.failures: list[Exception] = []

    async def start(self, context: ssl.SSLContext | None) -> None:
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", 0, ssl=context, backlog=1024
        )
        self.address = Address(*self._server.sockets[0].getsockname())

    async def stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer = RawPeer(reader, writer)
        try:
            await self._script(peer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:
            self.failures.append(error)
        finally:
            writer.transport.abort()
            self._tasks.discard(task)


@asynccontextmanager
async def raw_server(
    script: Script, context: ssl.SSLContext | None = None
) -> AsyncIterator[RawServer]:
    """A listening peer that follows the script."""
    server = RawServer(script)
    await server.start(context)
    try:
        yield server
    finally:
        await server.stop()
    if server.failures:
        raise server.failures[0]


async def for_ever() -> None:
    """What a script awaits that has nothing more to say."""
    await asyncio.Event().wait()


def echo_on(service: MessagingService) -> MessagingService:
    """Subscribe the handler that every test asks."""
    service.serve("echo", lambda message: message.payload)
    return service
