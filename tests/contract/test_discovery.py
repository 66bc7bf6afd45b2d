"""Every kind of discovery keeps to the same behaviour; ZooKeeper is a real one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from postroad.cluster.discovery import (
    Discovery,
    DnsDiscovery,
    StaticDiscovery,
    ZooKeeperDiscovery,
)
from postroad.core import Address
from tests.support.cluster.discovery_behaviour import ChangingDiscoveryBehaviour, DiscoveryBehaviour
from tests.support.servers.zookeeper import (
    SESSION_TIMEOUT_S,
    ZooKeeperServer,
    disturbed_zookeeper,
    fresh_root,
    shared_zookeeper,
    zookeeper_client,
)

CLUSTER = "contract"
HOST = "nodes.example"

Refused = Callable[[], object]


class StaticSource:
    """A list."""

    def __init__(self) -> None:
        self._addresses: list[Address] = []

    def discovery(self) -> Discovery:
        return StaticDiscovery(map(str, self._addresses))

    async def put(self, address: Address) -> None:
        self._addresses.append(address)


class TestStatic(DiscoveryBehaviour):
    @pytest.fixture
    def source(self) -> StaticSource:
        return StaticSource()

    @pytest.fixture(params=["nowhere", "::1:80", "host:0"])
    def bad_settings(self, request: pytest.FixtureRequest) -> Refused:
        return partial(StaticDiscovery, [request.param])


class DnsSource:
    """Answers in place of the loop's resolver. Ports cannot differ within one name in DNS, so
    every contact has a name of its own port."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_away: bool = False) -> None:
        self._known: set[Address] = set()
        self._is_away = is_away
        self._resolve = asyncio.get_running_loop().getaddrinfo
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self._getaddrinfo)

    def discovery(self) -> Discovery:
        names = [f"{HOST}:{port}" for port in (7001, 7002, 7003)]
        return DnsDiscovery(names, interval_s=0.05)

    async def put(self, address: Address) -> None:
        self._known.add(address)

    async def remove(self, address: Address) -> None:
        self._known.discard(address)

    async def come_back(self) -> None:
        self._is_away = False

    async def _getaddrinfo(self, host: str, port: int, **options: Any) -> Any:
        if host != HOST:
            return await self._resolve(host, port, **options)
        if self._is_away:
            raise socket.gaierror(socket.EAI_AGAIN, "planted")
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*kind, tuple(address)) for address in self._known if address.port == port]


class TestDns(ChangingDiscoveryBehaviour):
    @pytest.fixture
    async def source(self, monkeypatch: pytest.MonkeyPatch) -> DnsSource:
        return DnsSource(monkeypatch)

    @pytest.fixture
    async def changing(self, source: DnsSource) -> DnsSource:
        return source

    @pytest.fixture
    async def absent(self, monkeypatch: pytest.MonkeyPatch) -> DnsSource:
        return DnsSource(monkeypatch, is_away=True)

    @pytest.fixture(
        params=[
            {"names": []},
            {"names": [""]},
            {"names": ["two words"]},
            {"names": ["host:0"]},
            {"names": ["host:http"]},
            {"names": ["a..b"]},
            {"names": ["host"], "default_port": 0},
            {"names": ["host"], "interval_s": 0},
            {"names": ["host"], "interval_s": float("nan")},
            {"names": ["host"], "timeout_s": float("inf")},
        ],
        ids=str,
    )
    def bad_settings(self, request: pytest.FixtureRequest) -> Refused:
        return partial(DnsDiscovery, **request.param)


class ZooKeeperSource:
    """A real server and a client that enters addresses there."""

    def __init__(self, server: ZooKeeperServer, root: str) -> None:
        self._server = server
        self._root = root
        self._members = f"{root}/{CLUSTER}/members"

    def discovery(self) -> Discovery:
        return ZooKeeperDiscovery(
            self._server.hosts,
            CLUSTER,
            self._root,
            session_timeout_s=SESSION_TIMEOUT_S,
            connect_timeout_s=1.0,
        )

    async def put(self, address: Address) -> None:
        await asyncio.to_thread(self._put, f"member-{address.port}", address)

    def _put(self, name: str, address: Address) -> None:
        data = msgspec.json.encode({"address": str(address), "added": "later"})
        with zookeeper_client(self._server) as client:
            client.create(f"{self._members}/{name}", data, makepath=True)

    async def remove(self, address: Address) -> None:
        await asyncio.to_thread(self._remove, f"member-{address.port}")

    def _remove(self, name: str) -> None:
        with zookeeper_client(self._server) as client:
            client.delete(f"{self._members}/{name}")

    async def come_back(self) -> None:
        await asyncio.to_thread(self._server.start)


class TestZooKeeper(ChangingDiscoveryBehaviour):
    @pytest.fixture
    def source(self) -> ZooKeeperSource:
        return ZooKeeperSource(shared_zookeeper(), fresh_root())

    @pytest.fixture
    def changing(self, source: ZooKeeperSource) -> ZooKeeperSource:
        return source

    @pytest.fixture
    def absent(self) -> Iterator[ZooKeeperSource]:
        with disturbed_zookeeper() as server:
            server.kill()
            yield ZooKeeperSource(server, fresh_root())

    @pytest.fixture(
        params=[
            {"hosts": ""},
            {"hosts": "host:port"},
            {"hosts": "one:2181,"},
            {"root": ""},
            {"root": "relative"},
            {"root": "/a//b"},
            {"root": "/a/../b"},
            {"cluster": "x" * 256},
            {"session_timeout_s": 0},
            {"connect_timeout_s": -1},
            {"request_timeout_s": float("nan")},
        ],
        ids=str,
    )
    def bad_settings(self, request: pytest.FixtureRequest) -> Refused:
        settings = {"hosts": "127.0.0.1:2181", "cluster": CLUSTER} | request.param
        return partial(ZooKeeperDiscovery, **settings)
