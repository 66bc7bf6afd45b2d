"""Nodes that are whole brokers, and what holds for them at every moment."""

from __future__ import annotations

from random import Random

from postroad.cells import CellDomain
from postroad.services import BrokerConfig
from postroad.testing import SimCluster, SimNode, require
from tests.simulation.brokers.books import Books
from tests.simulation.brokers.branch import Branch
from tests.simulation.services.plan import Plan
from tests.simulation.services.world import World

_CHECK_INTERVAL_S = 0.1
_SLACK_S = 0.05
# How likely it is that somebody does not come through the trouble.
_GONE = 0.5
# A process that was paused has much to do at once when it goes on.
_WAKING_S = 0.5


class BrokerWorld(World[Branch]):
    """A run in which calls are made, and events and streams are sent."""

    def __init__(self, sim: SimCluster, plan: Plan, config: BrokerConfig) -> None:
        super().__init__(sim, plan)
        self.books = Books()
        self._config = config
        # By processes, when they were last seen paused.
        self._paused_at: dict[str, float] = {}
        sim.every(_CHECK_INTERVAL_S, self._check_deadlines)
        sim.every(_CHECK_INTERVAL_S, self._check_packets)

    def make_station(self, node_id: str, domain: CellDomain, rng: Random) -> Branch:
        return Branch(self.sim, node_id, domain, self.books, self._config, rng)

    def heal(self) -> None:
        """Often somebody is gone for good when all else is well again."""
        super().heal()
        victims = [
            it.name for it in self.running() if it.stations and it.name != self.plan.hosts[0]
        ]
        if victims and self.sim.rng.random() < _GONE:
            end = self.sim.rng.choice((SimNode.kill, SimNode.lose_power))
            end(self.sim.nodes[self.sim.rng.choice(victims)])

    def _check_deadlines(self) -> None:
        for process in self.running():
            if process.node.is_paused:
                self._paused_at[process.label] = self.sim.now
                for branch in process.stations.values():
                    branch.clerk.postpone(_CHECK_INTERVAL_S)
            if self.sim.now - self._paused_at.get(process.label, -_WAKING_S) >= _WAKING_S:
                for branch in process.stations.values():
                    self._check_limits(branch)

    def _check_limits(self, branch: Branch) -> None:
        for what, deadline, _ in branch.clerk.limits.values():
            late_s = self.sim.now - deadline
            require(late_s <= _SLACK_S, f"{what} of {branch} is late by {late_s:.2f} s")

    def _check_packets(self) -> None:
        for branch in self.stations():
            branch.check_packets()
