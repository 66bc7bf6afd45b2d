"""Nodes that are transporters alone, and what holds for them at every moment."""

from __future__ import annotations

from random import Random

from postroad.cells import CellDomain
from postroad.testing import SimCluster, require
from tests.simulation.services.ledger import Ledger
from tests.simulation.services.plan import Plan
from tests.simulation.services.station import Station
from tests.simulation.services.world import World

_CHECK_INTERVAL_S = 0.5


class PacketWorld(World[Station]):
    def __init__(self, sim: SimCluster, plan: Plan) -> None:
        super().__init__(sim, plan)
        self.ledger = Ledger()
        sim.every(_CHECK_INTERVAL_S, self._check_connections)

    def make_station(self, node_id: str, domain: CellDomain, rng: Random) -> Station:
        everybody = [it.node_id for it in self.plan.nodes]
        return Station(self.sim, node_id, domain, self.ledger, everybody, self._may_lose, rng)

    def _check_connections(self) -> None:
        """Nobody takes itself for connected that has no way to others."""
        for process in self.running():
            domain = process.domain
            if domain is None or not process.is_up or process.is_core or domain.table.defaults():
                continue
            for station in process.stations.values():
                require(not station.is_up, f"{station} is connected, and reaches no core")

    def _may_lose(self, station: Station, node_id: str) -> bool:
        """Nobody is missed without a reason, however long ago that was."""
        return not self.is_calm or all(it.node_id != node_id for it in self.stations())
