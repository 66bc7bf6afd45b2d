"""Cores and satellites on simulated hosts, as small tests need them."""

from __future__ import annotations

import asyncio

from postroad.cells import CellAddress, CellDomain, CellsConfig, Role, StaticCoreDiscovery
from postroad.core import Limits
from postroad.net import MessagingService
from postroad.testing import SimCluster, SimNode
from tests.support.cells.nodes import Inbox

CLUSTER = "simulated"
PORT = 7000
_CONNECTED_S = 30.0


class Mesh:
    """Domains by their names, and the inboxes of their cells by address."""

    def __init__(
        self,
        sim: SimCluster,
        cores: tuple[str, ...],
        satellites: tuple[str, ...],
        *,
        config: CellsConfig | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.sim = sim
        self.domains: dict[str, CellDomain] = {}
        self.inboxes: dict[str, Inbox] = {}
        self._cores = cores
        self._config = config
        self._limits = limits
        for name in (*cores, *satellites):
            sim.add(name, self._run).start()
        sim.run_until(
            self._is_connected, timeout=_CONNECTED_S, description="all domains are connected"
        )

    async def _run(self, node: SimNode) -> None:
        role = Role.CORE if node.name in self._cores else Role.SATELLITE
        where = StaticCoreDiscovery({core: [f"{core}:{PORT}"] for core in self._cores})
        bind = f"{node.host}:{PORT}"
        async with (
            MessagingService(CLUSTER, node.name, bind, limits=self._limits) as service,
            CellDomain(service, role=role, core_discovery=where, config=self._config) as domain,
        ):
            self.domains[node.name] = domain
            await asyncio.get_running_loop().create_future()

    def _is_connected(self) -> bool:
        if self.domains.keys() != self.sim.nodes.keys():
            return False
        return all(map(self._has_tunnels, self.domains.values()))

    def _has_tunnels(self, domain: CellDomain) -> bool:
        is_core = domain.identity.role is Role.CORE
        expected = set(self.domains) if is_core else set(self._cores)
        defaults = 0 if is_core else len(self._cores)
        return (
            set(domain.links.by_domain) == expected - {domain.name}
            and len(domain.table.defaults()) == defaults
        )

    def add(
        self, address: str, *, queues: tuple[str, ...] = (), topics: tuple[str, ...] = ()
    ) -> Inbox:
        """Start the cell `cell@domain`, and wait until everybody knows what it offers."""
        cell, domain = CellAddress.parse(address), self.domains[CellAddress.parse(address).domain]
        inbox = self.inboxes[address] = Inbox()

        async def add() -> None:
            domain.add_function(cell.cell, inbox, consume=queues, subscribe=topics)
            assert await domain.wait_routes_acknowledged()

        self.sim.run(add(), self.sim.nodes[cell.domain])
        return inbox
