"""Domains that find each other through a ZooKeeper server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from kazoo.client import KazooClient

from postroad.cells import Domain, Role
from postroad.cells.locations import CoreLocation, ZooKeeperLocations
from postroad.core import Address
from tests.support.cells.locations_behaviour import Told
from tests.support.deadlines import eventually
from tests.support.servers.zookeeper import SESSION_TIMEOUT_S, ZooKeeperServer

CLUSTER = "clearing"
CORES = f"/postroad/{CLUSTER}/cores"
RETURN_S = 60.0
"""How long a core may take to be entered again after an outage."""

C1 = CoreLocation("C1", (Address("127.0.0.1", 7001), Address("localhost", 7001)), "A")
C2 = CoreLocation("C2", (Address("127.0.0.1", 7002),))
C3 = CoreLocation("C3", (Address("127.0.0.1", 7003),))


class TimedTold(Told):
    """Remembers also when it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def __call__(self, cores: Mapping[str, CoreLocation]) -> None:
        super().__call__(cores)
        self.times.append(asyncio.get_running_loop().time())

    def longest_absence_s(self, name: str) -> float:
        """How long a core that was there at first was ever told to be gone."""
        absences_s = [0.0]
        gone_at = None
        for cores, time in zip(self.calls, self.times, strict=True):
            if name not in cores:
                gone_at = time if gone_at is None else gone_at
            elif gone_at is not None:
                absences_s.append(time - gone_at)
                gone_at = None
        assert gone_at is None, f"{name} is still gone"
        return max(absences_s)


class ZooKeeperDomain:
    """A domain: a core if it has a location."""

    def __init__(
        self, server: ZooKeeperServer, name: str, core: CoreLocation | None = None, **options: Any
    ) -> None:
        settings = {
            "session_timeout_s": SESSION_TIMEOUT_S,
            "connect_timeout_s": 1.0,
            "request_timeout_s": 1.0,
        }
        self._server = server
        self.name = name
        self.core = core
        self.locations = ZooKeeperLocations(server.hosts, CLUSTER, **settings | options)
        self.told = TimedTold()

    async def start(self) -> None:
        role = Role.SATELLITE if self.core is None else Role.CORE
        endpoints, zone = (self.core.endpoints, self.core.zone) if self.core else ((), None)
        await self.locations.start(Domain(self.name, role, zone), endpoints, self.told)

    async def stop(self) -> None:
        await self.locations.stop()

    @property
    def session_id(self) -> int | None:
        session = self.locations._entries.session
        return None if session is None else session.id

    async def expire(self) -> None:
        """End its session from outside: a second client takes it over and closes it."""
        session = self.locations._entries.session
        assert session is not None
        await asyncio.to_thread(self._take_over, session._client.client_id)

    def _take_over(self, client_id: Any) -> None:
        thief = KazooClient(self._server.hosts, client_id=client_id)
        thief.start()
        thief.stop()
        thief.close()

    async def until_registered(self, times: int) -> None:
        await eventually(
            lambda: self.locations.statistics().registrations == times,
            f"{self.name} was entered {times} times",
            RETURN_S,
        )


class Trio:
    """Two cores and a satellite that know each other."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self.one = ZooKeeperDomain(server, "C1", C1)
        self.two = ZooKeeperDomain(server, "C2", C2)
        self.satellite = ZooKeeperDomain(server, "S1")
        self.all = (self.one, self.two, self.satellite)

    async def start(self) -> None:
        for domain in self.all:
            await domain.start()
        await self.one.told.until(C2)
        self.forget_calls()

    async def stop(self) -> None:
        for domain in self.all:
            await domain.stop()

    def forget_calls(self) -> None:
        """From now on only changes count."""
        for domain in self.all:
            domain.told.calls.clear()
            domain.told.times.clear()

    @property
    def calls(self) -> list[Any]:
        """All that was told to anybody."""
        return [call for domain in self.all for call in domain.told.calls]

    async def connected(self, is_connected: bool) -> None:
        await eventually(
            lambda: all(
                domain.locations.statistics().is_connected is is_connected for domain in self.all
            ),
            f"connected: {is_connected}",
            RETURN_S,
        )

    async def entered(self, client: Any) -> None:
        """The server knows both cores by the sessions they have now."""

        def is_entered(core: ZooKeeperDomain) -> bool:
            entry = client.exists(f"{CORES}/{core.name}")
            return entry is not None and entry.ephemeralOwner == core.session_id

        await eventually(
            lambda: is_entered(self.one) and is_entered(self.two), "entered again", RETURN_S
        )

    async def see_newcomer(self) -> None:
        """All are told of a core that comes now, and of nothing else."""
        newcomer = ZooKeeperDomain(self._server, "C3", C3)
        await newcomer.start()
        await self.one.told.until(C2, C3, timeout_s=RETURN_S)
        await self.two.told.until(C1, C3, timeout_s=RETURN_S)
        await self.satellite.told.until(C1, C2, C3, timeout_s=RETURN_S)
        await newcomer.stop()
