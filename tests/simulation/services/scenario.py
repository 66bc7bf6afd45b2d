"""Puts a run together: nodes, a quiet time, trouble, healing, and another quiet time."""

from __future__ import annotations

from random import Random
from typing import Any

from postroad.cells import CellDomain
from postroad.services.kinds import Kind
from postroad.services.transporters.cells_peers import GONE_S, SILENCE_S
from postroad.testing import LivenessFailure, SimCluster, Simulation, require
from tests.simulation.plans import shortened
from tests.simulation.services.plan import ACTIONS, Plan, draw_plan
from tests.simulation.services.process import Process
from tests.simulation.services.station import Ledger, Sent, Station
from tests.simulation.services.world import World

_CHECK_INTERVAL_S = 0.5


class PacketWorld(World[Station]):
    def __init__(self, sim: SimCluster, plan: Plan) -> None:
        super().__init__(sim, plan)
        self.ledger = Ledger()
        sim.call_every(_CHECK_INTERVAL_S, self._check_connections)

    def make_station(self, node_id: str, domain: CellDomain, rng: Random) -> Station:
        everybody = [node.node_id for node in self.plan.nodes]
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
        return not self.is_calm or all(station.node_id != node_id for station in self.stations())


STEADY_S = 15.0
"""Silent peers are given up, cores are dialed again, tell what they offer, become defaults."""
_LOOK_INTERVAL_S = 0.1
_ARRIVAL_S = 2.0
_STREAM = 6
# What was sent in times of trouble has come to its end, and pings have timed out.
_CALMING_S = 8.0


def await_steadiness(world: World[Any]) -> None:
    """Let time pass until everybody is connected to whom it should be."""
    began = world.sim.now
    while reasons := unsteady(world):
        if world.sim.now > began + STEADY_S:
            raise LivenessFailure(f"not right within {STEADY_S:g} s: {'; '.join(reasons)}")
        world.sim.run_for(_LOOK_INTERVAL_S)
    world.sim.log.add("test", "steady", f"after {world.sim.now - began:.1f} s")


def unsteady(world: World[Any]) -> list[str]:
    running = world.running()
    cores = {process.name for process in running if process.is_core}
    return [
        text
        for process in running
        for text in _unsteady(process, cores, {process.name for process in running})
    ]


def _unsteady(process: Process[Any], cores: set[str], running: set[str]) -> list[str]:
    domain = process.domain
    if domain is None or not process.is_up:
        return [f"{process} is not up"]
    peers = (running if process.is_core else cores) - {process.name}
    reasons = []
    if set(domain.links.by_domain) != peers:
        reasons.append(f"{process} has tunnels to {sorted(domain.links.by_domain)}")
    if not process.is_core and len(domain.table.defaults()) != len(cores):
        reasons.append(f"{process} has {len(domain.table.defaults())} defaults")
    if not domain.propagator.is_acknowledged:
        reasons.append(f"{process} is not settled")
    # A satellite is cut off when no core runs.
    is_up = bool(cores) or process.is_core
    reasons += [
        f"{station} is up: {station.is_up}"
        for station in process.stations.values()
        if station.is_up != is_up
    ]
    return reasons


def check_quiet(world: PacketWorld) -> None:
    """Have everybody send everything, and see what becomes of it."""
    for station in world.stations():
        station.is_talkative = False
    world.sim.run_for(_CALMING_S)
    stations = [station for station in world.stations() if station.is_up]
    _check_broadcasts(world, stations)
    _check_streams(world, stations)
    _check_balanced(world, stations)
    _check_losses(world, stations)
    _check_leftovers(stations)
    for station in stations:
        station.is_talkative = True


def _send(station: Station, kind: Kind, to: str | None = None) -> Sent:
    return station.inside(lambda: station.send(kind, to))


def _send_balanced(station: Station, action: str) -> Sent:
    return station.inside(lambda: station.send_balanced(action))


def _check_broadcasts(world: PacketWorld, stations: list[Station]) -> None:
    sent = [_send(station, Kind.HEARTBEAT) for station in stations]
    world.sim.run_for(_ARRIVAL_S)
    for packet in sent:
        expected = sorted(
            station.node_id for station in stations if station.node_id != packet.sender
        )
        came = sorted(world.ledger.came[packet.number])
        require(came == expected, f"{packet} came to {came}, not to {expected}")


def _check_streams(world: PacketWorld, stations: list[Station]) -> None:
    streams: list[list[Sent]] = []
    for one in stations:
        for other in stations:
            kinds = [Kind.RESPONSE] * (_STREAM - 1) + [Kind.REQUEST]
            stream = [_send(one, kind, other.node_id) for kind in kinds]
            world.ledger.expect_order(stream)
            streams.append(stream)
    world.sim.run_for(_ARRIVAL_S)
    for packet in (packet for stream in streams for packet in stream):
        came = world.ledger.came[packet.number]
        require(came == [packet.to], f"{packet} came to {came}")


def _check_balanced(world: PacketWorld, stations: list[Station]) -> None:
    sent = [_send_balanced(station, action) for station in stations for action in ACTIONS]
    world.sim.run_for(_ARRIVAL_S)
    for packet in sent:
        listeners = {station.node_id for station in stations if packet.action in station.actions}
        came = world.ledger.came[packet.number]
        require(len(came) == bool(listeners), f"{packet} came to {came} of {sorted(listeners)}")
        require(listeners.issuperset(came), f"{packet} came to {came}, who do not listen")


def _check_losses(world: PacketWorld, stations: list[Station]) -> None:
    """Who asks a node it knows, and that is gone, is told so; nobody else is missed."""
    present = {station.node_id for station in stations}
    queries: list[tuple[Station, str, int]] = []
    for station in stations:
        assert station.transporter._session is not None
        peers = [
            peer.node_id for peer in station.transporter._session._peers if peer.address is not None
        ]
        for node_id in (peer for peer in peers if peer not in present):
            _send(station, Kind.REQUEST, node_id)
            queries.append((station, node_id, station.lost.count(node_id)))
    world.sim.run_for(3 * SILENCE_S + GONE_S + _ARRIVAL_S)
    for station, node_id, times in queries:
        losses = station.lost.count(node_id) - times
        require(losses == 1, f"{station} was told {losses} times that {node_id!r} is gone")


def _check_leftovers(stations: list[Station]) -> None:
    for station in stations:
        leftovers = station.leftovers()
        require(not leftovers, f"{station} has {', '.join(leftovers)}")


_STOP_S = 15.0


def run_services(simulation: Simulation) -> None:
    """Trouble in between, and all is right before and after it."""
    plan = shortened(simulation, draw_plan(simulation.rng), "trouble_s", "events")
    with SimCluster(simulation) as sim:
        sim.log.add("plan", "seed", f"{sim.seed}: {plan.name}")
        world = PacketWorld(sim, plan)
        world.start_first()
        await_steadiness(world)
        check_quiet(world)
        world.run_trouble()
        world.heal()
        await_steadiness(world)
        check_quiet(world)
        stop_all(world)


def stop_all(world: World[Any]) -> None:
    for process in world.running():
        world.sim.call_later(world.sim.rng.random(), process.stop)
    world.sim.run_until(
        lambda: not world.running(), timeout=_STOP_S, description="all processes have stopped"
    )
