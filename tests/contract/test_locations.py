"""All who tell where the cores are behave alike; members and ZooKeeper are real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from typing import Any

import msgspec
import pytest

from postroad.cells.core_discovery import (
    CoreLocation,
    MembershipCoreDiscovery,
    StaticCoreDiscovery,
    ZooKeeperCoreDiscovery,
)
from postroad.cells.core_discovery.core_discovery import ROLE, ZONE
from postroad.core import Address
from tests.support.cells.core_discovery_behavior import (
    ChangingLocationsBehaviour,
    LocationsBehaviour,
    Site,
)
from tests.support.cluster.nodes import Node, running_node
from tests.support.servers.zookeeper import (
    SESSION_TIMEOUT_S,
    ZooKeeperServer,
    fresh_root,
    shared_zookeeper,
    zookeeper_client,
)

CLUSTER = "contract"

Refused = Callable[[], object]


class Ports:
    """Gives out addresses where nobody is."""

    def __init__(self) -> None:
        self._numbers = count(7001)

    def next(self) -> Address:
        return Address("127.0.0.1", next(self._numbers))


class StaticSource:
    """A list."""

    def __init__(self) -> None:
        self._ports = Ports()
        self._cores: dict[str, list[str]] = {}
        self._zones: dict[str, str] = {}

    async def site(self, name: str) -> Site:
        return Site(name, StaticCoreDiscovery(self._cores, self._zones), (self._ports.next(),))

    async def put(self, name: str, zone: str | None = None) -> CoreLocation:
        address = self._ports.next()
        self._cores[name] = [str(address)]
        if zone is not None:
            self._zones[name] = zone
        return CoreLocation(name, (address,), zone)


class TestStatic(LocationsBehaviour):
    @pytest.fixture
    def source(self) -> StaticSource:
        return StaticSource()

    @pytest.fixture(
        params=[
            {"cores": ["C1"]},
            {"cores": {"C1": []}},
            {"cores": {"C1": "127.0.0.1:7001"}},
            {"cores": {"C1": ["nowhere"]}},
            {"cores": {"C1": ["host:0"]}},
            {"cores": {"local": ["host:1"]}},
            {"cores": {"C 1": ["host:1"]}},
            {"cores": {"C1": ["host:1"]}, "zones": {"C1": "a b"}},
            {"cores": {"C1": ["host:1"]}, "zones": {"C2": "A"}},
        ],
        ids=str,
    )
    def bad_settings(self, request: pytest.FixtureRequest) -> Refused:
        return partial(StaticCoreDiscovery, **request.param)

    async def test_a_core_shares_the_list_of_the_others(self, source: StaticSource) -> None:
        other = await source.put("C2")
        own = await source.put("C1")
        site = await source.site("C1")
        told = await site._replace(endpoints=own.endpoints).start_core()
        assert told.calls == [{"C2": other}]
        assert site.locations.statistics().is_registered
        await site.locations.stop()

    async def test_a_core_that_nobody_listed_is_warned_of(
        self, source: StaticSource, caplog: pytest.LogCaptureFixture
    ) -> None:
        await source.put("C2")
        site = await source.site("C1")
        await site.start_core()
        assert "core 'C1' is not in its own list of cores" in caplog.text
        assert not site.locations.statistics().is_registered
        await site.locations.stop()

    async def test_a_core_alone_is_not_warned_of(
        self, source: StaticSource, caplog: pytest.LogCaptureFixture
    ) -> None:
        site = await source.site("C1")
        told = await site.start_core()
        assert told.calls == [{}]
        assert caplog.text == ""
        await site.locations.stop()


class MembershipSource:
    """Nodes on loopback that have joined each other."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[Node, AsyncExitStack]] = {}

    async def site(self, name: str) -> Site:
        node = await self._join(name)
        # So that a start finds what was put before it.
        for other, _ in list(self._nodes.values()):
            said = dict(other.agent.local_member.properties)
            await node.eventually(partial(_hears, name=other.name, properties=said))
        return Site(name, MembershipCoreDiscovery(node.agent), (node.address,))

    async def put(self, name: str, zone: str | None = None) -> CoreLocation:
        node = self._nodes[name][0] if name in self._nodes else await self._join(name)
        node.agent.set_properties({ROLE: "core", ZONE: zone})
        return CoreLocation(name, (node.address,), zone)

    async def move(self, name: str) -> CoreLocation:
        await self.remove(name)
        return await self.put(name)

    async def spoil(self, name: str) -> None:
        self._nodes[name][0].agent.set_properties({ZONE: "no such zone"})

    async def remove(self, name: str) -> None:
        await self._nodes.pop(name)[1].aclose()

    async def _join(self, name: str) -> Node:
        seeds = [node for node, _ in self._nodes.values()]
        stack = AsyncExitStack()
        node = await stack.enter_async_context(running_node(name, *seeds))
        self._nodes[name] = (node, stack)
        return node

    async def close(self) -> None:
        while self._nodes:
            await self.remove(next(reversed(self._nodes)))


def _hears(node: Node, *, name: str, properties: dict[str, str]) -> bool:
    member = node.agent.member(name)
    return member is not None and member.properties == properties


class TestMembership(ChangingLocationsBehaviour):
    @pytest.fixture
    async def source(self) -> AsyncIterator[MembershipSource]:
        source = MembershipSource()
        yield source
        await source.close()

    @pytest.fixture(params=["a b", "", "@"])
    def bad_settings(self, request: pytest.FixtureRequest) -> Refused:
        # There are no settings but what a domain says of itself.
        return partial(CoreLocation, "C1", (Address("127.0.0.1", 1),), request.param)


class ZooKeeperSource:
    """A real server and a client that enters cores there."""

    def __init__(self, server: ZooKeeperServer, root: str, client: Any) -> None:
        self._server = server
        self._root = root
        self._client = client
        self._ports = Ports()
        self._places: dict[str, Address] = {}

    async def site(self, name: str) -> Site:
        locations = ZooKeeperCoreDiscovery(
            self._server.hosts, CLUSTER, self._root, session_timeout_s=SESSION_TIMEOUT_S
        )
        return Site(name, locations, (self._ports.next(), self._ports.next()))

    async def put(self, name: str, zone: str | None = None) -> CoreLocation:
        place = self._places.setdefault(name, self._ports.next())
        data = msgspec.json.encode({"endpoints": [str(place)], "zone": zone, "added": "later"})
        await asyncio.to_thread(self._put, name, data)
        return CoreLocation(name, (place,), zone)

    def _put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        if self._client.exists(path):
            self._client.set(path, data)
        else:
            self._client.create(path, data, makepath=True)

    async def move(self, name: str) -> CoreLocation:
        del self._places[name]
        return await self.put(name)

    async def spoil(self, name: str) -> None:
        await asyncio.to_thread(self._client.set, self._path(name), b"")

    async def remove(self, name: str) -> None:
        await asyncio.to_thread(self._client.delete, self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{CLUSTER}/cores/{name}"


class TestZooKeeper(ChangingLocationsBehaviour):
    @pytest.fixture
    def source(self) -> Iterator[ZooKeeperSource]:
        server = shared_zookeeper()
        with zookeeper_client(server) as client:
            yield ZooKeeperSource(server, fresh_root(), client)

    @pytest.fixture(
        params=[
            {"hosts": ""},
            {"hosts": "one:2181,"},
            {"root": "relative"},
            {"cluster": "x" * 256},
            {"session_timeout_s": 0},
            {"connect_timeout_s": -1},
            {"request_timeout_s": float("nan")},
        ],
        ids=str,
    )
    def bad_settings(self, request: pytest.FixtureRequest) -> Refused:
        settings = {"hosts": "127.0.0.1:2181", "cluster": CLUSTER} | request.param
        return partial(ZooKeeperCoreDiscovery, **settings)
