"""Nodes and domains that find each other through ZooKeeper, seen alike: who was told of whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient

from postroad.cells import Role
from postroad.cells.addresses import DomainInfo
from postroad.cells.core_discovery import CoreLocation, ZooKeeperCoreDiscovery
from postroad.cluster.discovery import ZooKeeperDiscovery
from postroad.core import Address
from tests.support.cells.child_processes import Child, registered_core, registered_node
from tests.support.deadlines import eventually
from tests.support.servers.zookeeper import (
    SESSION_TIMEOUT_S,
    ZooKeeperServer,
    disturbed_zookeeper,
    fresh_root,
)
from tests.support.tiers import sample

CLUSTER = "clearing"
ADDRESSES = {f"C{number}": Address("127.0.0.1", 7000 + number) for number in (1, 2, 3, 9)}
NAMES = {address: name for name, address in ADDRESSES.items()}


class Place(NamedTuple):
    """A server, and a path there of a test's own."""

    server: ZooKeeperServer
    root: str

    @property
    def hosts(self) -> str:
        return self.server.hosts


@contextmanager
def own_place() -> Iterator[Place]:
    with disturbed_zookeeper() as server:
        yield Place(server, fresh_root())


class Registrant:
    """Somebody who is entered there, and remembers whom it was told of and when."""

    has_watchers = False

    def __init__(self, place: Place, name: str, **options: Any) -> None:
        times = {"connect_timeout_s": 1.0, "request_timeout_s": 1.0}
        self._options = {"session_timeout_s": SESSION_TIMEOUT_S, **times, **options}
        self._place = place
        self.name = name
        self.entries: ZooKeeperDiscovery | ZooKeeperCoreDiscovery
        self.calls: list[frozenset[str]] = []
        self._times: list[float] = []

    @staticmethod
    def path(root: str, name: str = "") -> str:
        """Where the entry of a name is."""
        raise NotImplementedError

    @staticmethod
    def data(address: Address) -> bytes:
        """What the entry of somebody at an address holds."""
        raise NotImplementedError

    @staticmethod
    def process(place: Place, name: str) -> Child:
        """One in a process of its own."""
        raise NotImplementedError

    async def start(self) -> None:
        raise NotImplementedError

    def told(self, names: frozenset[str]) -> None:
        now = asyncio.get_running_loop().time()  # Raises in any other thread.
        self.calls.append(names)
        self._times.append(now)

    async def stop(self) -> None:
        await self.entries.stop()

    @property
    def statistics(self) -> Any:
        return self.entries.statistics()

    @property
    def session_id(self) -> int | None:
        session = self.entries._entries.session
        return None if session is None else session.id

    async def until_told(self, *names: str) -> None:
        """Return when exactly these are those told last."""
        await eventually(lambda: self.calls and self.calls[-1] == set(names), f"told of {names}")

    async def until_registered(self, times: int) -> None:
        await eventually(lambda: self.statistics.registrations >= times, f"entered {times} times")
        assert self.statistics.registrations == times

    async def expire(self) -> None:
        """End its session from outside: a second client takes it over and closes it."""
        session = self.entries._entries.session
        assert session is not None
        await asyncio.to_thread(self._take_over, session._client.client_id)

    def _take_over(self, client_id: Any) -> None:
        thief = KazooClient(self._place.hosts, client_id=client_id)
        thief.start()
        thief.stop()
        thief.close()

    def longest_absence_s(self, name: str) -> float:
        """How long one that was there at first was ever told to be gone."""
        absences_s = [0.0]
        gone_at = None
        for names, time in zip(self.calls, self._times, strict=True):
            if name not in names:
                gone_at = time if gone_at is None else gone_at
            elif gone_at is not None:
                absences_s.append(time - gone_at)
                gone_at = None
        assert gone_at is None, f"{name} is still gone"
        return max(absences_s)

    def forget_calls(self) -> None:
        self.calls.clear()
        self._times.clear()


class NodeRegistrant(Registrant):
    """By the discovery of a cluster."""

    @staticmethod
    def path(root: str, name: str = "") -> str:
        return f"{root}/{CLUSTER}/members/{name}".rstrip("/")

    @staticmethod
    def data(address: Address) -> bytes:
        return json.dumps({"address": str(address)}).encode()

    @staticmethod
    def process(place: Place, name: str) -> Child:
        return registered_node(place.hosts, CLUSTER, place.root, name, ADDRESSES[name])

    async def start(self) -> None:
        self.entries = ZooKeeperDiscovery(
            self._place.hosts, CLUSTER, self._place.root, **self._options
        )
        await self.entries.start(
            self.name,
            ADDRESSES[self.name],
            lambda addresses: self.told(frozenset(NAMES[address] for address in addresses)),
        )


class DomainRegistrant(Registrant):
    """By the locations of cores; those called S1, S2, ... are satellites, which only look."""

    has_watchers = True

    @staticmethod
    def path(root: str, name: str = "") -> str:
        return f"{root}/{CLUSTER}/cores/{name}".rstrip("/")

    @staticmethod
    def data(address: Address) -> bytes:
        return json.dumps({"endpoints": [str(address)]}).encode()

    @staticmethod
    def process(place: Place, name: str) -> Child:
        return registered_core(place.hosts, CLUSTER, place.root, name, ADDRESSES[name])

    async def start(self) -> None:
        self.entries = ZooKeeperCoreDiscovery(
            self._place.hosts, CLUSTER, self._place.root, **self._options
        )
        role = Role.SATELLITE if self.name.startswith("S") else Role.CORE
        endpoints = () if role is Role.SATELLITE else (ADDRESSES[self.name],)
        await self.entries.start(DomainInfo(self.name, role), endpoints, self._told_cores)

    def _told_cores(self, cores: Any) -> None:
        for name, core in cores.items():
            assert core == CoreLocation(name, (ADDRESSES[name],)), f"{name} is elsewhere: {core}"
        self.told(frozenset(cores))


class Trio:
    """C1 and C2, and a satellite if there are any, that know each other."""

    def __init__(self, kind: type[Registrant], place: Place, **options: Any) -> None:
        self._place = place
        self.kind = kind
        names = ["C1", "C2", "S1"] if kind.has_watchers else ["C1", "C2"]
        self.all = [kind(place, name, **options) for name in names]
        self.one, self.two = self.all[:2]

    async def start(self) -> None:
        for registrant in self.all:
            await registrant.start()
        await self.one.until_told("C2")
        for registrant in self.all:
            registrant.forget_calls()

    async def stop(self) -> None:
        for registrant in self.all:
            await registrant.stop()

    @property
    def calls(self) -> list[Any]:
        """All that was told to anybody."""
        return [call for registrant in self.all for call in registrant.calls]

    async def connected(self, is_connected: bool) -> None:
        await eventually(
            lambda: all(
                registrant.statistics.is_connected is is_connected for registrant in self.all
            ),
            f"connected: {is_connected}",
        )

    async def entered(self, client: Any) -> None:
        """The server knows both by the sessions they have now."""

        def is_entered(registrant: Registrant) -> bool:
            entry = client.exists(self.kind.path(self._place.root, registrant.name))
            return entry is not None and entry.ephemeralOwner == registrant.session_id

        await eventually(lambda: is_entered(self.one) and is_entered(self.two), "entered again")

    async def see_newcomer(self) -> None:
        """All are told of one that comes now."""
        newcomer = self.kind(self._place, "C3")
        await newcomer.start()
        for registrant in self.all:
            await registrant.until_told(*{"C1", "C2", "C3"} - {registrant.name})
        await newcomer.stop()


Kind = type[Registrant]
KINDS: list[Kind] = [NodeRegistrant, DomainRegistrant]
of_both_kinds = pytest.mark.parametrize("kind", KINDS)
# What happens to either is the same code, so that one of them is enough on most days.
of_nodes = pytest.mark.parametrize("kind", sample(KINDS, 1))
of_domains = pytest.mark.parametrize("kind", sample(KINDS[::-1], 1))


@asynccontextmanager
async def running_trio(kind: type[Registrant], place: Place, **options: Any) -> AsyncIterator[Trio]:
    trio = Trio(kind, place, **options)
    await trio.start()
    yield trio
    await trio.stop()
