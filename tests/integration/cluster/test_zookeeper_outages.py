"""Discovery while its ZooKeeper is killed, restarted or hangs."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroad.cluster.discovery import ZooKeeperDiscovery
from postroad.core import Address
from tests.integration.cluster.registered_node import registered_node
from tests.support.cluster.discovery_behaviour import OTHER, OWN, THIRD, Told
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import holds_for
from tests.support.servers.zookeeper import (
    SESSION_TIMEOUT_S,
    ZooKeeperServer,
    zookeeper_client,
    zookeeper_server,
)

CLUSTER = "clearing"
RETURN_S = 60.0
"""How long a node may take to be entered again after an outage."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with zookeeper_server(tmp_path) as server:
        yield server


class Pair:
    """Two nodes that know each other through a server."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self.one = self.make()
        self.two = self.make()
        self.told = Told()
        self.told_two = Told()

    def make(self) -> ZooKeeperDiscovery:
        return ZooKeeperDiscovery(
            self._server.hosts,
            CLUSTER,
            session_timeout_s=SESSION_TIMEOUT_S,
            connect_timeout_s=1.0,
            request_timeout_s=1.0,
        )

    async def start(self) -> None:
        await self.one.start("one", OWN, self.told)
        await self.two.start("two", OTHER, self.told_two)
        await self.told.until(OTHER)

    async def stop(self) -> None:
        await self.one.stop()
        await self.two.stop()

    async def connected(self, is_connected: bool) -> None:
        await eventually(
            lambda: (
                [one.statistics().is_connected for one in (self.one, self.two)]
                == [is_connected, is_connected]
            ),
            f"connected: {is_connected}",
            RETURN_S,
        )

    def owns_entries(self, client: Any) -> bool:
        """Whether the server knows both by the sessions they have now."""
        sessions = (self.one._entries.session, self.two._entries.session)
        entries = [client.exists(f"/postroad/{CLUSTER}/members/{name}") for name in ("one", "two")]
        return [entry and entry.ephemeralOwner for entry in entries] == [
            session and session.id for session in sessions
        ]

    async def sees_newcomer(self) -> None:
        """Both are told of a node that comes now."""
        newcomer = self.make()
        await newcomer.start("newcomer", THIRD, Told())
        await self.told.until(OTHER, THIRD, timeout_s=RETURN_S)
        await self.told_two.until(OWN, THIRD, timeout_s=RETURN_S)
        await newcomer.stop()


async def test_a_killed_server_removes_nobody_and_is_used_again(server: ZooKeeperServer) -> None:
    pair = Pair(server)
    await pair.start()
    server.kill()
    await pair.connected(False)
    await eventually(
        lambda: "refused" in pair.one.statistics().last_error, "the reason is told", RETURN_S
    )
    await asyncio.to_thread(server.start)
    await pair.connected(True)

    assert pair.told.calls[-1] == {OTHER}
    assert pair.told_two.calls[-1] == {OWN}
    await pair.sees_newcomer()
    await pair.stop()


async def test_a_server_that_lost_its_data_gets_it_again(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    pair = Pair(server)
    await pair.start()
    server.kill()
    (tmp_path / "data").rename(tmp_path / "lost")
    await asyncio.to_thread(server.start)
    await eventually(lambda: pair.one.statistics().registrations == 2, "registered", RETURN_S)
    await eventually(lambda: pair.two.statistics().registrations == 2, "registered", RETURN_S)

    assert pair.told.calls == [frozenset(), {OTHER}]
    assert pair.told_two.calls == [{OWN}]
    await pair.sees_newcomer()
    await pair.stop()


async def test_a_pause_beyond_the_session_removes_nobody(server: ZooKeeperServer) -> None:
    pair = Pair(server)
    await pair.start()
    server.pause()
    await pair.connected(False)
    await holds_for(
        lambda: [pair.told.calls[-1], pair.told_two.calls[-1]] == [{OTHER}, {OWN}],
        "contacts stay",
        2 * SESSION_TIMEOUT_S,
    )
    server.resume()
    await pair.connected(True)
    # Whether a session still ends depends on who is quicker, the server or its client.
    with zookeeper_client(server) as client:
        await eventually(lambda: pair.owns_entries(client), "entered again", RETURN_S)

    assert pair.told.calls == [frozenset(), {OTHER}]
    assert pair.told_two.calls == [{OWN}]
    await pair.sees_newcomer()
    await pair.stop()


async def test_a_paused_node_is_entered_again(server: ZooKeeperServer) -> None:
    witness = Pair(server).make()
    told = Told()
    await witness.start("own", OWN, told)
    async with registered_node(server.hosts, CLUSTER, "/postroad") as process:
        await told.until(OTHER)
        process.send_signal(signal.SIGSTOP)
        await told.until(timeout_s=RETURN_S)
        process.send_signal(signal.SIGCONT)
        await told.until(OTHER, timeout_s=RETURN_S)
    await witness.stop()


async def test_who_does_not_return_from_an_outage_is_dropped_in_the_end(
    server: ZooKeeperServer,
) -> None:
    pair = Pair(server)
    await pair.start()
    server.kill()
    await pair.connected(False)
    await pair.two.stop()
    await asyncio.to_thread(server.start)

    await pair.told.until(timeout_s=RETURN_S)
    assert pair.one.statistics().is_connected
    await pair.stop()


async def test_stop_does_not_wait_for_a_server_that_hangs(server: ZooKeeperServer) -> None:
    pair = Pair(server)
    await pair.start()
    server.pause()
    loop = asyncio.get_running_loop()
    before = loop.time()
    await asyncio.gather(pair.one.stop(), pair.two.stop())
    assert loop.time() - before < RETURN_S / 2
    server.resume()
    with zookeeper_client(server) as client:
        members = f"/postroad/{CLUSTER}/members"
        await eventually(lambda: client.get_children(members) == [], "withdrawn", RETURN_S)


async def test_a_server_that_accepts_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        silent = ZooKeeperDiscovery(
            f"{host}:{port}", CLUSTER, connect_timeout_s=0.5, request_timeout_s=0.5
        )
        told = Told()
        await asyncio.wait_for(silent.start("own", OWN, told), RETURN_S)
        assert told.calls == [frozenset()]
        await asyncio.wait_for(silent.stop(), RETURN_S)


async def test_a_server_that_speaks_nonsense() -> None:
    async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\0\4what" * 10)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as listener:
        host, port = listener.sockets[0].getsockname()
        odd = ZooKeeperDiscovery(
            str(Address(host, port)), CLUSTER, connect_timeout_s=0.5, request_timeout_s=0.5
        )
        await odd.start("own", OWN, Told())
        await eventually(lambda: odd.statistics().failures > 1, "it is tried again")
        await odd.stop()


async def test_hosts_that_do_not_resolve() -> None:
    lost = ZooKeeperDiscovery("no-such-host.invalid:2181", CLUSTER, connect_timeout_s=0.2)
    await lost.start("own", OWN, Told())
    await eventually(lambda: lost.statistics().failures > 2, "it is tried again")
    assert "no-such-host.invalid" in lost.statistics().last_error
    await lost.stop()
