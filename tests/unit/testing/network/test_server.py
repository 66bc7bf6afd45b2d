"""Servers of the memory network, as asyncio's behave since Python 3.12 and 3.13."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from postroad.testing import SimLoop
from postroad.testing.simulation.network.server import MemoryServer

T = TypeVar("T")


class Quiet(asyncio.Protocol):
    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        return runner.run(coroutine)


async def open_server() -> MemoryServer:
    server: object = await asyncio.get_running_loop().create_server(Quiet, None, 7000)
    assert isinstance(server, MemoryServer)
    return server


async def connect() -> tuple[asyncio.Transport, Quiet]:
    return await asyncio.get_running_loop().create_connection(Quiet, "localhost", 7000)


def test_wait_closed_waits_for_the_connections() -> None:
    async def case() -> None:
        server = await open_server()
        assert server.get_loop() is asyncio.get_running_loop()
        transport, _ = await connect()
        waiting = asyncio.create_task(server.wait_closed())
        server.close()
        await asyncio.sleep(5.0)
        assert not waiting.done()
        assert server.sockets == ()
        transport.close()
        await waiting

    run(case())


@pytest.mark.parametrize("way", ["close_clients", "abort_clients"])
def test_server_closes_its_connections(way: str) -> None:
    async def case() -> None:
        server = await open_server()
        clients = [await connect() for _ in range(3)]
        server.close()
        getattr(server, way)()
        for _, client in clients:
            await client.closed.wait()
        await server.wait_closed()

    run(case())


def test_serve_forever_ends_when_closed() -> None:
    async def case() -> None:
        server = await open_server()
        task = asyncio.create_task(server.serve_forever())
        await asyncio.sleep(1.0)
        assert server.is_serving()
        server.close()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not server.is_serving()

    run(case())


def test_server_is_a_context_manager() -> None:
    async def case() -> None:
        async with await open_server() as server:
            assert server.is_serving()
        assert not server.is_serving()

    run(case())


def test_one_port_at_several_addresses() -> None:
    async def case() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Quiet, ["127.0.0.1", "test"], 0)
        names = [sock.getsockname() for sock in server.sockets]
        assert [host for host, _ in names] == ["127.0.0.1", "10.255.255.254"]
        assert len({port for _, port in names}) == 1
        with pytest.raises(OSError, match="in use"):
            await loop.create_server(Quiet, ["127.0.0.2", "127.0.0.1"], names[0][1])
        free = await loop.create_server(Quiet, "127.0.0.2", names[0][1])
        free.close()

    run(case())


def test_name_of_an_address() -> None:
    async def case() -> list[tuple[str, str]]:
        loop = asyncio.get_running_loop()
        addresses = [("127.0.0.1", 80), ("10.255.255.254", 81), ("10.9.9.9", 82)]
        return [await loop.getnameinfo(address) for address in addresses]

    assert run(case()) == [("localhost", "80"), ("test", "81"), ("10.9.9.9", "82")]
