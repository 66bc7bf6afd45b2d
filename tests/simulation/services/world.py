"""Hosts, their processes and nodes, and what happens to them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Generic

from postroad.cells import CellDomain
from postroad.testing import SimCluster, SimNode
from tests.simulation.plans import Trouble, TroubledHosts
from tests.simulation.services.plan import Event, Plan, PlannedEvent
from tests.simulation.services.process import Process, TenantT

# Partitions of a lower strength let everything through the other way.
_ONE_WAY_BELOW = 0.3
AFTERMATH_S = 12.0
"""How long a fault may be the reason for what happens: silent peers are given up, cores are dialed
again and become defaults, and what was lost by the old ones is missed."""


class World(TroubledHosts[Process[TenantT]], Generic[TenantT]):
    slowest_bytes_per_s = 3_000.0

    def __init__(self, sim: SimCluster, plan: Plan) -> None:
        super().__init__(sim)
        self.plan = plan
        # Where each node is to be, and what it listens to.
        self.places = {node.node_id: node.host for node in plan.nodes}
        self.actions = {node.node_id: node.actions for node in plan.nodes}
        # Faults that last, and when the last one of all was over.
        self._faults = 0
        self._calm_since = 0.0
        for name in plan.hosts:
            self._add_host(name)

    @abstractmethod
    def make_station(self, node_id: str, domain: CellDomain, rng: Random) -> TenantT:
        """A node of services that comes to a domain."""

    def _add_host(self, name: str) -> None:
        async def program(node: SimNode) -> None:
            await self._latest[name].run(self._wanted(name))

        self.sim.add(name, program)

    def _wanted(self, host: str) -> dict[str, tuple[str, ...]]:
        """Those that are still on their way out elsewhere come when they are gone there."""
        leaving = self._leaving()
        return {
            node_id: self.actions[node_id]
            for node_id, place in self.places.items()
            if place == host and node_id not in leaving
        }

    def _leaving(self) -> set[str]:
        return {node_id for process in self.running() for node_id in process.leaving}

    # What there is.

    def stations(self) -> Iterator[TenantT]:
        for process in self.running():
            yield from process.stations.values()

    @property
    def is_calm(self) -> bool:
        """Whether nothing has happened for so long that nothing can come of it any more."""
        return not self._faults and self.sim.now - self._calm_since > AFTERMATH_S

    def _make_process(self, name: str) -> Process[TenantT]:
        return Process(self.sim, name, self.plan, self.make_station)

    def start_first(self) -> None:
        for name in self.plan.hosts:
            self.sim.call_later(self.sim.rng.random(), lambda name=name: self.start(name))  # type: ignore[misc]
        self.sim.run_for(1.0)

    # Trouble.

    def run_trouble(self) -> None:
        began = self.sim.now
        for event in self.plan.events:
            self._agenda.at(began + event.time, lambda event=event: self._begin(event))  # type: ignore[misc]
        self._agenda.run(until=began + self.plan.trouble_s)

    def _begin(self, event: PlannedEvent) -> None:
        about = event.node_id if event.kind in _OF_NODES else event.victim
        self.sim.log.add("plan", event.kind.value, f"{about} for {event.lasting_s:.1f} s")
        self._calm_since = self.sim.now
        _BEGIN[event.kind](self, event)

    def _lasting(self, trouble: Trouble, undo: Callable[[], None]) -> None:
        self._faults += 1

        def end() -> None:
            self._faults -= 1
            self._calm_since = self.sim.now
            undo()

        super()._lasting(trouble, end)

    def _divide(self, event: PlannedEvent) -> None:
        group, others = event.group, event.others
        one_way = event.strength < _ONE_WAY_BELOW
        self.sim.network.partition(group, others, one_way=one_way)
        self._lasting(event, lambda: self.sim.network.heal(group, others))

    def _pause(self, event: PlannedEvent) -> None:
        node, process = self.sim.nodes[event.victim], self._latest[event.victim]
        if process.is_up and not node.is_paused:
            node.pause()
            self._lasting(event, lambda: self._resume(process))

    def _resume(self, process: Process[TenantT]) -> None:
        if self._latest[process.name] is process:
            process.node.resume()

    # What nodes do.

    def _part(self, event: PlannedEvent) -> None:
        self._move_to(event, self.places[event.node_id])

    def _move(self, event: PlannedEvent) -> None:
        self._move_to(event, event.victim)

    def _move_to(self, event: PlannedEvent, host: str) -> None:
        """Have a node leave where it is, and come to another process, if both run."""
        node_id = event.node_id
        before = self._latest[self.places[node_id]]
        if before.node.is_paused or (before.node.is_running and node_id not in before.stations):
            return
        self.places[node_id] = host
        if node_id in self._leaving():
            return
        if before.is_up:
            leaving = self.sim.spawn(before.part(node_id), before.node)
            leaving.add_done_callback(
                lambda _: self._arrive(node_id), context=self.sim.loop.own.context.copy()
            )
        else:
            self._arrive(node_id)

    def _arrive(self, node_id: str) -> None:
        self._calm_since = self.sim.now
        process = self._latest[self.places[node_id]]
        if process.is_up and node_id not in process.stations:
            context = process.node.process.context.copy()
            self.sim.loop.call_soon(process.join, node_id, self.actions[node_id], context=context)

    def missing(self) -> list[str]:
        """Nodes that are not yet where they should be, and could be.

        Whoever was just leaving a process when that was killed is sent where it wanted to go.
        """
        leaving = self._leaving()
        late = [place for place in self.places if not self._is_in_place(place)]
        for node_id in late:
            if node_id not in leaving:
                self._arrive(node_id)
        return late

    def _is_in_place(self, node_id: str) -> bool:
        process = self._latest[self.places[node_id]]
        return not process.node.is_running or node_id in process.stations

    def _listen(self, event: PlannedEvent) -> None:
        self.actions[event.node_id] = event.actions
        process = self._latest[self.places[event.node_id]]
        station = process.stations.get(event.node_id)
        if station is not None and process.is_up:
            self.sim.spawn(station.listen(event.actions), process.node)

    # The end.

    def heal(self) -> None:
        self._heal(self.plan.restarted)
        self._calm_since = self.sim.now


_BEGIN: dict[Event, Callable[[World[Any], Any], None]] = {
    Event.PARTITION: World._divide,
    Event.KILL: World._kill,
    Event.POWER: World._cut_power,
    Event.LEAVE: World._leave,
    Event.PAUSE: World._pause,
    Event.DELAY: World._delay,
    Event.RESET: World._reset,
    Event.SLOW_READER: World._slow_down,
    Event.PART: World._part,
    Event.MOVE: World._move,
    Event.LISTEN: World._listen,
}
_OF_NODES = frozenset({Event.PART, Event.MOVE, Event.LISTEN})
