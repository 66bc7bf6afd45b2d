"""Cores in a real ZooKeeper: what is entered there, and what others left there."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from postroad.cells.locations import CoreLocation
from postroad.core import Address
from tests.integration.cells.registered_core import registered_core
from tests.integration.cells.zookeeper_domains import (
    C1,
    C2,
    C3,
    CLUSTER,
    CORES,
    RETURN_S,
    Trio,
    ZooKeeperDomain,
)
from tests.support.cells.locations_behaviour import by_name
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import holds_for
from tests.support.servers.zookeeper import (
    SESSION_TIMEOUT_S,
    ZooKeeperServer,
    zookeeper_client,
    zookeeper_server,
)


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def server(shared_server: ZooKeeperServer) -> Iterator[ZooKeeperServer]:
    yield shared_server
    with zookeeper_client(shared_server) as client:
        client.delete("/postroad", recursive=True)


@pytest.fixture
def client(server: ZooKeeperServer) -> Iterator[Any]:
    with zookeeper_client(server) as client:
        client.ensure_path("/postroad")
        yield client


def entry(core: CoreLocation) -> bytes:
    return json.dumps({"endpoints": [*map(str, core.endpoints)], "zone": core.zone}).encode()


async def test_the_entry_is_as_documented(server: ZooKeeperServer, client: Any) -> None:
    one, two = ZooKeeperDomain(server, "C1", C1), ZooKeeperDomain(server, "C2", C2)
    await one.start()
    await two.start()
    data, stat = client.get(f"{CORES}/C1")
    assert json.loads(data) == {"endpoints": ["127.0.0.1:7001", "localhost:7001"], "zone": "A"}
    assert stat.ephemeralOwner == one.session_id
    assert json.loads(client.get(f"{CORES}/C2")[0]) == {"endpoints": ["127.0.0.1:7002"]}
    await one.stop()
    assert client.get_children(CORES) == ["C2"], "withdrawn at once"
    await two.stop()


async def test_a_satellite_writes_nothing(server: ZooKeeperServer, client: Any) -> None:
    # With a time-out that keeps it from looking by itself within this test.
    satellite = ZooKeeperDomain(server, "S1", session_timeout_s=30.0)
    await satellite.start()
    assert client.get_children("/postroad") == []

    client.create(f"{CORES}/C1", entry(C1), makepath=True)
    await satellite.told.until(C1)
    client.delete(f"/postroad/{CLUSTER}", recursive=True)
    await satellite.told.until()
    client.create(f"{CORES}/C2", entry(C2), makepath=True)
    await satellite.told.until(C2)
    assert client.get_children(CORES) == ["C2"]
    await satellite.stop()


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xff\xfe",
        b"127.0.0.1:7002",
        b"[]",
        b"{}",
        b'{"endpoints":"127.0.0.1:7002"}',
        b'{"endpoints":[]}',
        b'{"endpoints":["x"]}',
        b'{"endpoints":["127.0.0.1:0"]}',
        b'{"endpoints":["127.0.0.1:7002"],"zone":"a b"}',
        b'{"endpoints":["127.0.0.1:7002"],"zone":7}',
        json.dumps({"endpoints": ["127.0.0.1:7002"] * 17}).encode(),
    ],
)
async def test_garbage_changes_nothing(
    server: ZooKeeperServer, client: Any, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client.create(f"{CORES}/C2", garbage, makepath=True)
    client.create(f"{CORES}/C1", entry(C1))
    satellite = ZooKeeperDomain(server, "S1")
    await satellite.start()
    assert satellite.told.calls == [{"C1": C1}]
    assert satellite.locations.statistics().skipped == 1
    assert f"{CORES}/C2 holds no address" in caplog.text

    client.set(f"{CORES}/C1", garbage)
    client.set(f"{CORES}/C2", entry(C2))
    await satellite.told.until(C1, C2)
    assert satellite.locations.statistics().skipped == 2
    await satellite.stop()


@pytest.mark.parametrize("node", ["local", "C%31", "%2A", "a b", "%FF"])
async def test_a_node_that_names_no_domain_is_skipped(
    server: ZooKeeperServer, client: Any, node: str
) -> None:
    client.create(f"{CORES}/{node}", entry(C1), makepath=True)
    client.create(f"{CORES}/C2", entry(C2))
    satellite = ZooKeeperDomain(server, "S1")
    await satellite.start()
    assert satellite.told.calls == [{"C2": C2}]
    assert satellite.locations.statistics().skipped == 1
    await satellite.stop()


async def test_names_of_any_alphabet(server: ZooKeeperServer, client: Any) -> None:
    core = CoreLocation("Kern-ä.1", C1.endpoints)
    one, satellite = ZooKeeperDomain(server, core.name, core), ZooKeeperDomain(server, "S1")
    await one.start()
    await satellite.start()
    assert satellite.told.calls == [{core.name: core}]
    assert client.get_children(CORES) == ["Kern-%C3%A4.1"]
    await one.stop()
    await satellite.stop()


async def test_an_entry_that_somebody_spoiled_is_mended_and_nobody_notices(
    server: ZooKeeperServer, client: Any
) -> None:
    trio = Trio(server)
    await trio.start()
    client.set(f"{CORES}/C1", b"")
    await trio.one.until_registered(2)
    assert json.loads(client.get(f"{CORES}/C1")[0])["zone"] == "A"
    client.set(f"{CORES}/C2", b"garbage")
    await trio.two.until_registered(2)
    await trio.see_newcomer()

    assert trio.satellite.told.calls[0] == by_name(C1, C2, C3)
    assert trio.one.told.calls[0] == by_name(C2, C3)
    assert trio.two.told.calls[0] == by_name(C1, C3)
    await trio.stop()


async def test_an_entry_that_somebody_removed_is_made_again(
    server: ZooKeeperServer, client: Any
) -> None:
    trio = Trio(server)
    await trio.start()
    client.delete(f"{CORES}/C1")
    await trio.one.until_registered(2)
    await trio.entered(client)
    await trio.see_newcomer()
    assert trio.one.told.longest_absence_s("C2") == 0
    await trio.stop()


async def test_the_entry_of_an_earlier_life_is_replaced_and_nobody_notices(
    server: ZooKeeperServer,
) -> None:
    """The window is nil: the new entry takes the place of the old one in one step."""
    satellite = ZooKeeperDomain(server, "S1")
    await satellite.start()
    with zookeeper_client(server) as earlier:
        # Of another order and zone, but at the same places.
        data = json.dumps({"endpoints": [*map(str, reversed(C1.endpoints))], "zone": "A"})
        earlier.create(f"{CORES}/C1", data.encode(), ephemeral=True, makepath=True)
        await eventually(lambda: len(satellite.told.calls) == 2, "the earlier life is told")
        core = ZooKeeperDomain(server, "C1", C1)
        await core.start()
        await satellite.told.until(C1)
        assert earlier.exists(f"{CORES}/C1").ephemeralOwner == core.session_id
        assert core.locations.statistics().conflicts == 0
    # The session of the earlier life is over now.
    await core.stop()
    await satellite.told.until()
    assert [set(call) for call in satellite.told.calls] == [set(), {"C1"}, {"C1"}, set()]
    await satellite.stop()


async def test_a_quick_restart_after_a_crash_is_not_noticed(server: ZooKeeperServer) -> None:
    """Not even when the session of the process that crashed is over."""
    core = CoreLocation("C2", C2.endpoints)
    satellite = ZooKeeperDomain(server, "S1")
    await satellite.start()
    async with registered_core(server.hosts, CLUSTER, core) as process:
        await satellite.told.until(core, timeout_s=RETURN_S)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        restarted = ZooKeeperDomain(server, "C2", core)
        await restarted.start()
        assert restarted.locations.statistics().is_registered

        await holds_for(
            lambda: satellite.told.calls == [{}, {"C2": core}],
            "nothing else is told",
            2.5 * SESSION_TIMEOUT_S,
        )
    assert restarted.locations.statistics().registrations == 1
    await restarted.stop()
    await satellite.stop()


async def test_a_core_of_the_same_name_elsewhere_is_loud_and_awaited(
    server: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = CoreLocation("C1", (Address("127.0.0.1", 7009),))
    core, satellite = ZooKeeperDomain(server, "C1", C1), ZooKeeperDomain(server, "S1")
    with zookeeper_client(server) as foreign:
        foreign.create(f"{CORES}/C1", entry(elsewhere), ephemeral=True, makepath=True)
        await satellite.start()
        await core.start()
        assert core.told.calls == [{}], "its own name is not told, whoever has it"
        await eventually(lambda: core.locations.statistics().conflicts > 1, "tried again")
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1
        assert "'C1' is taken by a node at 127.0.0.1:7009" in errors[0].getMessage()
        assert not core.locations.statistics().is_registered
        assert satellite.told.calls == [{"C1": elsewhere}]
    await satellite.told.until(C1)
    assert core.locations.statistics().is_registered
    await core.stop()
    await satellite.stop()


async def test_a_session_that_is_ended_by_others(server: ZooKeeperServer, client: Any) -> None:
    """Its entry is gone then, which those who are connected see.

    The core is back within a session time-out, the longest a client takes to notice that its
    session is not served any more; so whoever dials must not hang up within that time.
    """
    trio = Trio(server)
    await trio.start()
    before = trio.one.session_id
    await trio.one.expire()
    await trio.one.until_registered(2)
    await trio.entered(client)
    assert trio.one.session_id != before
    assert trio.one.told.calls == [], "the core itself is told of nothing"
    await trio.see_newcomer()

    assert trio.satellite.told.longest_absence_s("C1") < SESSION_TIMEOUT_S
    assert trio.two.told.longest_absence_s("C1") < SESSION_TIMEOUT_S
    assert trio.satellite.told.longest_absence_s("C2") == 0
    await trio.stop()


async def test_a_satellite_whose_session_is_ended_is_told_of_nothing(
    server: ZooKeeperServer,
) -> None:
    trio = Trio(server)
    await trio.start()
    before = trio.satellite.session_id
    await trio.satellite.expire()
    await eventually(
        lambda: (
            trio.satellite.session_id not in (None, 0, before)
            and trio.satellite.locations.statistics().is_connected
        ),
        "a new session",
        RETURN_S,
    )
    await trio.see_newcomer()
    assert trio.satellite.told.longest_absence_s("C1") == 0
    assert trio.satellite.told.longest_absence_s("C2") == 0
    await trio.stop()
