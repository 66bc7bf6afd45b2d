"""Cores in a ZooKeeper that is killed, restarted or hangs.

Nobody is told of anything while it is away, nor after, of cores that come back within four session
time-outs: everybody lost the connection, so everybody waits for the others to return.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cells.registered_core import registered_core
from tests.integration.cells.zookeeper_domains import (
    C1,
    C2,
    CLUSTER,
    CORES,
    RETURN_S,
    Trio,
    ZooKeeperDomain,
)
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import holds_for
from tests.support.servers.zookeeper import (
    SESSION_TIMEOUT_S,
    ZooKeeperServer,
    zookeeper_client,
    zookeeper_server,
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with zookeeper_server(tmp_path) as server:
        yield server


async def test_a_killed_server_removes_nobody(server: ZooKeeperServer) -> None:
    trio = Trio(server)
    await trio.start()
    server.kill()
    await trio.connected(False)
    await asyncio.to_thread(server.start)
    await trio.connected(True)
    with zookeeper_client(server) as client:
        await trio.entered(client)

    assert trio.calls == []
    await trio.see_newcomer()
    await trio.stop()


async def test_a_server_that_was_away_for_longer_than_a_session_removes_nobody(
    server: ZooKeeperServer,
) -> None:
    trio = Trio(server)
    await trio.start()
    server.kill()
    await trio.connected(False)
    await holds_for(lambda: trio.calls == [], "nothing is told", 1.5 * SESSION_TIMEOUT_S)
    await asyncio.to_thread(server.start)
    await trio.connected(True)
    with zookeeper_client(server) as client:
        await trio.entered(client)

    assert trio.calls == []
    await trio.see_newcomer()
    await trio.stop()


async def test_a_server_that_lost_its_data_removes_nobody(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    trio = Trio(server)
    await trio.start()
    server.kill()
    (tmp_path / "data").rename(tmp_path / "lost")
    await asyncio.to_thread(server.start)
    await trio.one.until_registered(2)
    await trio.two.until_registered(2)

    assert trio.calls == []
    await trio.see_newcomer()
    await trio.stop()


async def test_a_pause_beyond_the_session_removes_nobody(server: ZooKeeperServer) -> None:
    trio = Trio(server)
    await trio.start()
    server.pause()
    await trio.connected(False)
    await holds_for(lambda: trio.calls == [], "nothing is told", 2 * SESSION_TIMEOUT_S)
    server.resume()
    await trio.connected(True)
    with zookeeper_client(server) as client:
        await trio.entered(client)

    assert trio.calls == []
    await trio.see_newcomer()
    await trio.stop()


async def test_who_does_not_return_from_an_outage_is_gone_in_the_end(
    server: ZooKeeperServer,
) -> None:
    trio = Trio(server)
    await trio.start()
    server.kill()
    await trio.connected(False)
    await trio.two.stop()
    await asyncio.to_thread(server.start)

    await trio.satellite.told.until(C1, timeout_s=RETURN_S)
    await trio.one.told.until(timeout_s=RETURN_S)
    await trio.stop()


async def test_a_server_that_is_down_at_the_start(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path)
    domains = [ZooKeeperDomain(server, "C1", C1), ZooKeeperDomain(server, "S1")]
    loop = asyncio.get_running_loop()
    before = loop.time()
    await asyncio.gather(*(domain.start() for domain in domains))
    assert loop.time() - before < RETURN_S / 2, "no longer than its time-outs, and a busy moment"
    assert [domain.told.calls for domain in domains] == [[{}], [{}]]
    for domain in domains:
        statistics = domain.locations.statistics()
        assert not statistics.is_connected and not statistics.is_registered
        assert "refused" in statistics.last_error

    try:
        await asyncio.to_thread(server.start)
        await domains[1].told.until(C1, timeout_s=RETURN_S)
        core = domains[0].locations
        await eventually(lambda: core.statistics().is_registered, "C1 is entered", RETURN_S)
    finally:
        for domain in domains:
            await domain.stop()
        server.kill()


async def test_a_core_that_stood_still_is_back(server: ZooKeeperServer) -> None:
    satellite = ZooKeeperDomain(server, "S1")
    await satellite.start()
    async with registered_core(server.hosts, CLUSTER, C2) as process:
        await satellite.told.until(C2, timeout_s=RETURN_S)
        process.send_signal(signal.SIGSTOP)
        await satellite.told.until(timeout_s=RETURN_S)
        process.send_signal(signal.SIGCONT)
        await satellite.told.until(C2, timeout_s=RETURN_S)
    await satellite.stop()


async def test_stop_does_not_wait_for_a_server_that_hangs(server: ZooKeeperServer) -> None:
    trio = Trio(server)
    await trio.start()
    server.pause()
    loop = asyncio.get_running_loop()
    before = loop.time()
    await asyncio.gather(*(domain.stop() for domain in trio.all))
    assert loop.time() - before < RETURN_S / 2
    server.resume()
    with zookeeper_client(server) as client:
        await eventually(lambda: client.get_children(CORES) == [], "withdrawn", RETURN_S)
