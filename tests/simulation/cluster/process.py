"""One process of a node: a messaging service and a cluster agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from postroad.cluster import ClusterAgent, Member, MembershipEvent, StaticDiscovery
from postroad.cluster.membership import Membership, MembershipPhase
from postroad.core.errors import NameConflictError
from postroad.net import MessagingService
from postroad.testing import SimCluster, SimNode

CLUSTER = "simulated"
PORT = 7000


class Watch(Protocol):
    def on_change(self, process: Process, change: MembershipEvent) -> None:
        """A process has learnt of a change."""

    def on_joined(self, process: Process) -> None:
        """It takes part from now on."""

    def on_name_lost(self, process: Process, error: NameConflictError) -> None:
        """It has to go, because another has its name."""


class Process:
    """Runs the node of a name on a host; what it was is kept after its end."""

    def __init__(
        self,
        sim: SimCluster,
        name: str,
        node: SimNode,
        seeds: list[str],
        properties: Mapping[str, str],
        *,
        uses_datagrams: bool,
    ) -> None:
        self.name = name
        self.node = node
        self.started = sim.now
        # When it was seen to be over.
        self.ended: float | None = None
        # Whether it was asked to end.
        self.is_stopping = False
        self._sim = sim
        self._seeds = seeds
        self._uses_datagrams = uses_datagrams
        # Properties by their version.
        self.history: dict[int, dict[str, str]] = {0: dict(properties)}
        # Set once the program runs.
        self.agent: ClusterAgent | None = None

    def __str__(self) -> str:
        return self.name if self.name == self.node.name else f"{self.name} on {self.node.name}"

    # What it is.

    @property
    def machine(self) -> Membership | None:
        return None if self.agent is None else self.agent._machine

    @property
    def own(self) -> Member | None:
        return None if self.machine is None else self.machine.local_member

    @property
    def is_seed(self) -> bool:
        return f"{self.node.host}:{PORT}" in self._seeds

    @property
    def is_running(self) -> bool:
        return self.ended is None

    @property
    def is_member(self) -> bool:
        return (
            self.is_running
            and self.machine is not None
            and self.machine.phase is MembershipPhase.MEMBER
        )

    # What it does.

    async def run(self, watch: Watch) -> None:
        """The program: take part until there is a reason to end."""
        async with MessagingService(CLUSTER, self.name, f"{self.node.host}:{PORT}") as service:
            self.agent = ClusterAgent(
                service,
                StaticDiscovery(self._seeds),
                properties=self.history[0],
                datagrams=self._uses_datagrams,
            )
            self.agent.add_listener(lambda change: watch.on_change(self, change))
            try:
                async with self.agent:
                    watch.on_joined(self)
                    await self.agent.wait_closed()
            except NameConflictError as error:
                watch.on_name_lost(self, error)

    async def change_properties(self, changes: Mapping[str, str | None]) -> None:
        if self.agent is not None and self.is_member:
            self._sim.log.add(self.node.name, "properties", ", ".join(sorted(changes)))
            self.agent.set_properties(changes)

    def remember_properties(self, own: Member) -> None:
        self.history[own.version] = dict(own.properties)
