"""Cores in a real ZooKeeper: what is entered there, and what others left there."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, NamedTuple

import pytest

from postroad.cells import Role
from postroad.cells.addresses import DomainInfo
from postroad.cells.core_discovery import CoreLocation, ZooKeeperCoreDiscovery
from postroad.core import Address
from tests.support.cells.core_discovery_behavior import Recorder
from tests.support.cells.zookeeper_registrants import CLUSTER, Place
from tests.support.deadlines import eventually
from tests.support.servers.zookeeper import SESSION_TIMEOUT_S, zookeeper_client

C1 = CoreLocation("C1", (Address("127.0.0.1", 7001), Address("localhost", 7001)), "A")
C2 = CoreLocation("C2", (Address("127.0.0.1", 7002),))


class Running(NamedTuple):
    """A domain that has started, and what it was told."""

    locations: ZooKeeperCoreDiscovery
    recorder: Recorder


async def start(
    place: Place, name: str, core: CoreLocation | None = None, **options: Any
) -> Running:
    """A satellite, or a core if it has a location."""
    settings = {"session_timeout_s": SESSION_TIMEOUT_S} | options
    domain = Running(
        ZooKeeperCoreDiscovery(place.hosts, CLUSTER, place.root, **settings), Recorder()
    )
    role = Role.SATELLITE if core is None else Role.CORE
    endpoints, zone = (core.endpoints, core.zone) if core else ((), None)
    await domain.locations.start(DomainInfo(name, role, zone), endpoints, domain.recorder)
    return domain


@pytest.fixture
def cores(place: Place) -> str:
    return f"{place.root}/{CLUSTER}/cores"


def entry(core: CoreLocation) -> bytes:
    return json.dumps({"endpoints": [*map(str, core.endpoints)], "zone": core.zone}).encode()


async def test_entry_is_as_documented(place: Place, cores: str, client: Any) -> None:
    others = CoreLocation("Kern-ä.1", C2.endpoints)
    one, two = await start(place, "C1", C1), await start(place, others.name, others)
    data, stat = client.get(f"{cores}/C1")
    assert json.loads(data) == {"endpoints": ["127.0.0.1:7001", "localhost:7001"], "zone": "A"}
    session = one.locations._entries.session
    assert session is not None and stat.ephemeralOwner == session.id
    assert json.loads(client.get(f"{cores}/Kern-%C3%A4.1")[0]) == {"endpoints": ["127.0.0.1:7002"]}
    satellite = await start(place, "S1")
    assert satellite.recorder.calls == [{"C1": C1, others.name: others}]
    await one.locations.stop()
    assert client.get_children(cores) == ["Kern-%C3%A4.1"], "withdrawn at once"
    await two.locations.stop()
    await satellite.locations.stop()


async def test_satellite_writes_nothing(place: Place, cores: str, client: Any) -> None:
    # With a time-out that keeps it from looking by itself within this test.
    satellite = await start(place, "S1", session_timeout_s=30.0)
    assert client.get_children(place.root) == []

    client.create(f"{cores}/C1", entry(C1), makepath=True)
    await satellite.recorder.until(C1)
    client.delete(f"{place.root}/{CLUSTER}", recursive=True)
    await satellite.recorder.until()
    client.create(f"{cores}/C2", entry(C2), makepath=True)
    await satellite.recorder.until(C2)
    assert client.get_children(cores) == ["C2"]
    await satellite.locations.stop()


GARBAGE = [
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
]
NO_DOMAINS = ["local", "C%31", "%2A", "a b", "%FF"]


async def test_garbage_is_skipped_and_changes_nothing(
    place: Place, cores: str, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for number, garbage in enumerate(GARBAGE):
        client.create(f"{cores}/G{number}", garbage, makepath=True)
    for name in NO_DOMAINS:
        client.create(f"{cores}/{name}", entry(C2))
    client.create(f"{cores}/C1", entry(C1))
    satellite = await start(place, "S1")
    skipped = len(GARBAGE) + len(NO_DOMAINS)
    assert satellite.recorder.calls == [{"C1": C1}]
    assert satellite.locations.statistics().skipped == skipped
    assert f"{cores}/" in caplog.text and " holds no address" in caplog.text

    def has_skipped(count: int) -> bool:
        return satellite.locations.statistics().skipped >= count

    for number, garbage in enumerate(GARBAGE, 1):
        client.set(f"{cores}/C1", garbage)
        await eventually(partial(has_skipped, skipped + number))
    client.create(f"{cores}/C2", entry(C2))
    await satellite.recorder.until(C1, C2)
    assert satellite.recorder.calls == [{"C1": C1}, {"C1": C1, "C2": C2}]
    await satellite.locations.stop()


async def test_entry_with_reordered_endpoints_is_replaced(place: Place, cores: str) -> None:
    with zookeeper_client(place.server) as earlier:
        data = json.dumps({"endpoints": [*map(str, reversed(C1.endpoints))], "zone": "A"})
        earlier.create(f"{cores}/C1", data.encode(), ephemeral=True, makepath=True)
        core, satellite = await start(place, "C1", C1), await start(place, "S1")
        await satellite.recorder.until(C1)
        assert core.locations.statistics().conflicts == 0
    await core.locations.stop()
    await satellite.locations.stop()
