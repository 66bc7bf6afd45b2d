"""Thousands of connections that say nothing, while one goes on working."""

from __future__ import annotations

import contextlib
import logging
import resource
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.net import Limits, MessagingService
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.peers import resident_bytes
from tests.support.net.raw_peers import CLUSTER, echo_on, raw_client, virtual_time
from tests.support.tiers import by_tier

CROWD = by_tier(test=2_000, nightly=5_000)
# What an idle connection may cost, and both of its ends are in this process.
BYTES_EACH_MAX = 20 * 1024
FILES_NEEDED = 2 * CROWD + 500


@pytest.fixture
def many_files() -> Iterator[None]:
    """Allow this process so many sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_NEEDED:
        pytest.skip(f"the system allows {hard} open files, {FILES_NEEDED} are needed")
    if soft != resource.RLIM_INFINITY and soft < FILES_NEEDED:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_NEEDED, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def connect_crowd(stack: contextlib.ExitStack, server: MessagingService) -> None:
    """Connections in batches that fit into the listener's queue."""
    crowd: list[socket.socket] = []
    while len(crowd) < CROWD:
        for _ in range(250):
            sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            sock.setblocking(False)
            sock.connect_ex(server.address)
            crowd.append(sock)
        await eventually(lambda: server.statistics().server_connections > len(crowd), "all are in")


def count_closed(crowd: list[socket.socket]) -> int:
    """How many the other end has closed."""
    with selectors.DefaultSelector() as selector:
        for sock in crowd:
            selector.register(sock, selectors.EVENT_READ)
        ready = [key.fileobj for key, _ in selector.select(0)]
    return sum(
        isinstance(ready_socket, socket.socket) and ready_socket.recv(1) == b""
        for ready_socket in ready
    )


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.usefixtures("many_files")
async def test_silent_connections_of_a_crowd_cost_little_and_disturb_nobody() -> None:
    limits = Limits(handshake_timeout_s=DEADLINE_S, stop_grace_s=1.0)
    async with (
        echo_on(MessagingService(CLUSTER, "server", limits=limits)) as server,
        MessagingService(CLUSTER, "client") as client,
    ):
        await client.request(server.address, "echo")
        before = resident_bytes()
        with contextlib.ExitStack() as stack:
            await connect_crowd(stack, server)
            assert resident_bytes() - before < CROWD * BYTES_EACH_MAX
            for _ in range(100):
                assert await client.request(server.address, "echo", b"x", timeout=60) == b"x"
        await eventually(lambda: server.statistics().server_connections == 1, "the crowd is gone")
        assert await client.request(server.address, "echo", b"x", timeout=60) == b"x"
        assert client.statistics().connections_opened == 1


@virtual_time
async def test_silent_connections_are_given_up_after_the_handshake_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    count = 500
    limits = Limits(handshake_timeout_s=10.0, stop_grace_s=1.0)
    async with (
        echo_on(MessagingService(CLUSTER, "server", limits=limits)) as server,
        MessagingService(CLUSTER, "client") as client,
        contextlib.AsyncExitStack() as stack,
    ):
        await client.request(server.address, "echo")
        crowd = [await stack.enter_async_context(raw_client(server.address)) for _ in range(count)]
        assert await client.request(server.address, "echo", b"x") == b"x"
        assert server.statistics().server_connections == count + 1
        assert [await peer.until_closed() for peer in crowd] == [b""] * count
        assert await client.request(server.address, "echo", b"x") == b"x"
        assert server.statistics().server_connections == 1
        assert server.statistics().protocol_errors_by_kind == {"PeerTimeoutError": count}
        assert client.statistics().connections_opened == 1
        assert client.statistics().connections_lost == 0
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert 1 <= len(warnings) <= 5
    assert "no complete handshake within 10 s" in caplog.text


async def test_connections_above_the_limit_are_turned_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = Limits(accepted_connections_max=10, handshake_timeout_s=30)
    async with (
        echo_on(MessagingService(CLUSTER, "server", limits=limits)) as server,
        MessagingService(CLUSTER, "client") as client,
    ):
        await client.request(server.address, "echo")
        with contextlib.ExitStack() as stack:
            crowd = []
            for _ in range(30):
                sock = stack.enter_context(socket.create_connection(server.address))
                sock.setblocking(False)
                crowd.append(sock)
            await eventually(lambda: count_closed(crowd) == 21, "the rest is closed")
            statistics = server.statistics()
            assert (statistics.server_connections, statistics.connections_rejected) == (10, 21)
            assert await client.request(server.address, "echo", b"x") == b"x"
        await eventually(lambda: server.statistics().server_connections == 1, "the crowd is gone")
        async with MessagingService(CLUSTER, "other") as other:
            assert await other.request(server.address, "echo", b"x") == b"x"
    assert "the limit accepted_connections_max" in caplog.text
