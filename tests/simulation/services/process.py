"""One process: a domain, and the nodes of services that are in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Generic, Protocol, TypeVar

from postroad.cells import CellDomain, Role, StaticCoreDiscovery
from postroad.net import MessagingService
from postroad.testing import SimCluster, SimNode, require
from tests.simulation.services.plan import Plan

CLUSTER = "simulated"
PORT = 7000


class Tenant(Protocol):
    node_id: str

    @property
    def is_up(self) -> bool: ...

    def start(self, actions: tuple[str, ...]) -> None: ...

    async def listen(self, actions: tuple[str, ...]) -> None: ...

    async def leave(self) -> None: ...


TenantT = TypeVar("TenantT", bound=Tenant)


class Process(Generic[TenantT]):
    """Runs a domain on a host."""

    def __init__(
        self,
        sim: SimCluster,
        name: str,
        plan: Plan,
        make: Callable[[str, CellDomain, Random], TenantT],
    ) -> None:
        self.name = name
        self.node: SimNode = sim.nodes[name]
        self.label = f"{name}#{self.node.starts + 1}"
        self.is_stopping = False
        self.domain: CellDomain | None = None
        self.stations: dict[str, TenantT] = {}
        self.leaving: dict[str, asyncio.Event] = {}
        """Nodes that are not gone yet, and what will tell that they are."""
        self._sim = sim
        self._plan = plan
        self._make = make

    def __str__(self) -> str:
        return self.label

    @property
    def is_core(self) -> bool:
        return self.name in self._plan.cores

    @property
    def is_up(self) -> bool:
        return self.node.is_running and not self.is_stopping and self.domain is not None

    # Its life.

    async def run(self, service_actions: dict[str, tuple[str, ...]]) -> None:
        """The program: be a domain with these nodes until there is a reason to end."""
        try:
            async with self._make_service() as service, self._make_domain(service) as domain:
                self.domain = domain
                for node_id, actions in service_actions.items():
                    self.join(node_id, actions)
                try:
                    await asyncio.Event().wait()
                finally:
                    await self._part_all()
        except asyncio.CancelledError:
            self._check_end()
            raise

    async def _part_all(self) -> None:
        self.is_stopping = True
        gone = [process.wait() for process in self.leaving.values()]
        await asyncio.gather(*gone, *(self.part(station) for station in list(self.stations)))

    def stop(self) -> None:
        """Ask it to end; called from outside. Asking twice would be to insist."""
        if not self.is_stopping:
            self.is_stopping = True
            self.node.resume()
            self.node.stop()

    def _make_service(self) -> MessagingService:
        bind = f"{self.node.host}:{PORT}"
        return MessagingService(CLUSTER, self.name, bind, limits=self._plan.limits)

    def _make_domain(self, service: MessagingService) -> CellDomain:
        return CellDomain(
            service,
            role=Role.CORE if self.is_core else Role.SATELLITE,
            core_discovery=StaticCoreDiscovery(
                {core: [f"{core}:{PORT}"] for core in self._plan.cores}
            ),
            config=self._plan.config,
        )

    def _check_end(self) -> None:
        tasks = [task for task in self.node.process.tasks if not task.done()]
        names = [str(task) for task in tasks if task is not asyncio.current_task()]
        require(not names, f"{self} stopped, but not these tasks: {', '.join(names)}")
        timers = [str(timer) for timer in self._timers() if not timer.cancelled()]
        require(not timers, f"{self} stopped, but not these timers: {', '.join(timers)}")

    def _timers(self) -> Iterator[asyncio.TimerHandle]:
        """Those of this process, but for what in reality would be in its kernel."""
        for _, _, timer, lane in self._sim.loop._timers:
            module = getattr(timer._callback, "__module__", None) or ""  # type: ignore[attr-defined]
            if lane is self.node.process and not module.startswith("postroad.testing."):
                yield timer

    # Its nodes.

    def join(self, node_id: str, actions: tuple[str, ...]) -> None:
        assert self.domain is not None
        if node_id in self.stations:
            return
        rng = self._sim.simulation.rng_for(f"{self.label} {node_id} {self._sim.now}")
        station = self._make(node_id, self.domain, rng)
        self.stations[node_id] = station
        station.start(actions)

    async def part(self, node_id: str) -> None:
        station = self.stations.pop(node_id, None)
        if station is not None:
            gone = self.leaving[node_id] = asyncio.Event()
            await station.leave()
            del self.leaving[node_id]
            gone.set()
