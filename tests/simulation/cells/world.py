"""Hosts and their processes, and what happens to them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from postroad.cells import CellDomain, Role, RouteTable
from postroad.testing import LivenessFailure, SimCluster, SimNode, require
from tests.simulation.cells.books import Books, Disturbance
from tests.simulation.cells.plan import Event, Plan, PlannedDomain, PlannedEvent
from tests.simulation.cells.process import Process
from tests.simulation.plans import Trouble, TroubledHosts


class Row(NamedTuple):
    type: str
    destination: str
    target: str
    zone: str | None


class Model:
    """The domains that run, and which of them are kept apart for ever."""

    def __init__(self, processes: Iterable[Process], cuts: Iterable[tuple[str, str]]) -> None:
        self.processes = list(processes)
        self._cuts = {frozenset(pair) for pair in cuts}

    # Who is connected with whom.

    def is_core(self, process: Process) -> bool:
        return process.identity.role is Role.CORE

    def has_tunnel(self, one: Process, other: Process) -> bool:
        is_allowed = self.is_core(one) or self.is_core(other)
        is_cut = frozenset((one.name, other.name)) in self._cuts
        return one is not other and is_allowed and not is_cut

    def peers(self, process: Process) -> list[Process]:
        return [other for other in self.processes if self.has_tunnel(process, other)]

    def cores_of(self, process: Process) -> list[Process]:
        return [peer for peer in self.peers(process) if self.is_core(peer)]

    def is_whole(self) -> bool:
        """Whether everybody who runs has all the tunnels it should, and there is a core."""
        names = {process.name for process in self.processes}
        return any(map(self.is_core, self.processes)) and not any(
            cut <= names for cut in self._cuts
        )

    # Tables.

    def table(self, process: Process) -> set[Row]:
        rows = self._own_rows(process)
        for peer in self.peers(process):
            rows |= self._rows_to(process, peer)
        return rows

    def _own_rows(self, process: Process) -> set[Row]:
        zone = process.identity.zone
        rows: set[Row] = set()
        for name, cell in process.cells.items():
            target = f"{name}@{process.name}"
            rows |= {Row("queue", f"{queue}@*", target, zone) for queue in cell.queues}
            rows |= {Row("topic", f"{topic}@*", target, zone) for topic in cell.topics}
        return rows

    def _rows_to(self, process: Process, peer: Process) -> set[Row]:
        target, zone = f"*@{peer.name}", peer.identity.zone
        rows = {Row("domain", target, f"tunnel-{peer.name}@{process.name}", None)}
        rows |= {Row("queue", f"{queue}@*", target, zone) for queue in queues_of(peer)}
        if self.is_core(process):
            rows |= {Row("topic", f"{topic}@*", target, zone) for topic in topics_of(peer)}
        else:
            rows.add(Row("default", "*@*", target, zone))
        if self.is_core(process) and self.is_core(peer):
            rows |= {
                Row("domain", f"*@{detour.name}", target, None)
                for detour in self._detours(process, peer)
            }
        return rows

    def _detours(self, process: Process, peer: Process) -> list[Process]:
        """The domains that a core reaches through another one alone."""
        far = self.peers(peer)
        return [
            other for other in far if other is not process and not self.has_tunnel(process, other)
        ]

    # What follows from them for messages.

    def reaches(self, one: Process, other: Process) -> bool:
        """Whether a message with its domain written on it finds its way."""
        if one is other or self.has_tunnel(one, other):
            return True
        return any(self._passes_on(core, other) for core in [one, *self.cores_of(one)])

    def _passes_on(self, core: Process, target: Process) -> bool:
        if not self.is_core(core):
            return False
        return self.has_tunnel(core, target) or any(
            self.has_tunnel(other, target) for other in self.cores_of(core)
        )

    def has_consumer(self, sender: Process, queue: str) -> bool:
        askers = [sender] if self.is_core(sender) else self.cores_of(sender)
        domains = [sender, *askers, *(peer for core in askers for peer in self.peers(core))]
        return any(queue in queues_of(domain) for domain in domains)

    def subscribers(self, topic: str) -> set[str]:
        """Everybody who gets a copy, if all domains that run are connected."""
        return {
            f"{name}@{process.label}"
            for process in self.processes
            for name, cell in process.cells.items()
            if topic in cell.topics
        }


def queues_of(process: Process) -> set[str]:
    return {queue for cell in process.cells.values() for queue in cell.queues}


def topics_of(process: Process) -> set[str]:
    return {topic for cell in process.cells.values() for topic in cell.topics}


def rows_of(table: RouteTable) -> set[Row]:
    return {
        Row(route.type.value, route.destination, str(route.target), route.zone) for route in table
    }


AGREEMENT_S = 10.0
"""Silent peers are given up, cores are dialed again, tell what they offer, become defaults."""
_LOOK_INTERVAL_S = 0.1


def await_agreement(world: World) -> float:
    """Let time pass until all tables are right; returns how long that took."""
    began = world.sim.now
    while world.sim.now < began + AGREEMENT_S:
        if not differences(world):
            return world.sim.now - began
        world.sim.run_for(_LOOK_INTERVAL_S)
    disagreements = "\n".join(differences(world))
    raise LivenessFailure(f"tables are still wrong after {AGREEMENT_S:g} s:\n{disagreements}")


def differences(world: World) -> list[str]:
    model = world.model()
    return [
        difference for process in world.running() for difference in _differences_of(model, process)
    ]


def _differences_of(model: Model, process: Process) -> list[str]:
    if process.domain is None or process.is_stopping:
        return [f"{process} is not up"]
    actual, expected = rows_of(process.domain.table), model.table(process)
    return [
        *(f"{process} lacks {_describe(row)}" for row in sorted(expected - actual, key=str)),
        *(f"{process} still has {_describe(row)}" for row in sorted(actual - expected, key=str)),
    ]


def _describe(row: Row) -> str:
    zone = "" if row.zone is None else f" zone {row.zone}"
    return f"{row.type} {row.destination} -> {row.target}{zone}"


def check_cores(world: World) -> None:
    """Have a domain compare what the cores know, as an operator would."""
    if not world.model().is_whole():
        return
    process = world.sim.rng.choice(world.running())
    assert process.domain is not None
    answer = world.sim.run(process.domain.run_command("RoutingMgr", "check -json"), process.node)
    reported = json.loads(answer)
    require(reported["differences"] == [], f"{process} finds that cores differ: {answer}")
    running = sorted(process.name for process in world.running() if world.model().is_core(process))
    require(reported["cores"] == running, f"{process} asked {reported['cores']}, not {running}")


# Nothing is left over.


def check_leaks(world: World) -> None:
    """When nobody has sent anything for a while, nothing waits anywhere."""
    for process in world.running():
        assert process.domain is not None and process.talker is not None
        unfinished = process.talker.unfinished
        require(not unfinished, f"{process} has calls in flight: {', '.join(unfinished)}")
        for text in _leftovers(process.domain):
            require(False, f"{process} has {text}")


def _leftovers(domain: CellDomain) -> list[str]:
    calls, dispatcher = domain._calls, domain._dispatcher
    leftovers = [f"{len(calls)} calls that wait"] if len(calls) else []
    if calls._route_waiters:
        leftovers.append(f"{len(calls._route_waiters)} calls that hope for routes")
    leftovers += [
        f"{runner!r}" for runner in dispatcher.registry.runners.values() if not runner.is_idle
    ]
    leftovers += [f"{link!r}" for link in domain.links.by_domain.values() if not link.is_flushed]
    if dispatcher.depth:
        leftovers.append(f"{dispatcher.depth} handlers on the stack")
    if not domain.propagator.is_acknowledged:
        leftovers.append(f"peers that are behind: {domain.propagator.advertiser.unacknowledged()}")
    return leftovers


_HOUR_S = 3_600.0
_CHECK_INTERVAL_S = 0.5


class World(TroubledHosts[Process]):
    slowest_bytes_per_s = 300.0

    def __init__(self, sim: SimCluster, plan: Plan) -> None:
        super().__init__(sim)
        self.plan = plan
        self.disturbance = Disturbance(lambda: sim.now)
        self.pauses = Disturbance(lambda: sim.now)
        self.books = Books(sim, self.disturbance, self.pauses)
        self._planned = {domain.name: domain for domain in plan.domains}
        for domain in plan.domains:
            self._add_host(domain)
        self._cut()
        sim.call_every(_CHECK_INTERVAL_S, self._check_calls)

    def _add_host(self, domain: PlannedDomain) -> None:
        async def program(node: SimNode) -> None:
            await self._latest[domain.name].run()

        self.sim.add(domain.name, program)

    def _cut(self) -> None:
        for one, other in self.plan.cuts:
            self.sim.network.partition(one, other)

    def _check_calls(self) -> None:
        for process in self.running():
            if process.talker is not None and not process.node.is_paused:
                process.talker.check_open_calls()

    # Processes.

    def model(self) -> Model:
        return Model(self.running(), self.plan.cuts)

    def _make_process(self, name: str) -> Process:
        return Process(self.sim, self._planned[name], self.plan, self.books)

    def start_first(self) -> None:
        for domain in self.plan.domains:
            if not domain.is_late:
                start = functools.partial(self.start, domain.name)
                self.sim.call_later(self.sim.rng.random(), start)
        self.sim.run_for(1.0)

    # Trouble.

    def run_trouble(self) -> None:
        began = self.sim.now
        for domain in self.plan.domains:
            if domain.is_late:
                time = began + self.sim.rng.uniform(0, self.plan.trouble_s)
                self._agenda.at(time, lambda name=domain.name: self.start(name))  # type: ignore[misc]
        for event in self.plan.events:
            self._agenda.at(began + event.time, lambda event=event: self._begin(event))  # type: ignore[misc]
        self._agenda.run(until=began + self.plan.trouble_s)

    def _begin(self, event: PlannedEvent) -> None:
        self.sim.log.add("plan", event.kind.value, f"{event.victim} for {event.lasting_s:.1f} s")
        _BEGIN.get(event.kind, World._change)(self, event)

    def _change(self, event: PlannedEvent) -> None:
        process = self._latest.get(event.victim)
        if process is not None and process.is_up:
            self.sim.spawn(process.change(event), process.node)

    def _delaying(self, trouble: Trouble, undo: Callable[[], None]) -> None:
        self.disturbance.begin()

        def end() -> None:
            undo()
            self.disturbance.end()

        self._lasting(trouble, end)

    # Faults.

    def _divide(self, event: PlannedEvent) -> None:
        self._part(event, one_way=False)

    def _close_way(self, event: PlannedEvent) -> None:
        self._part(event, one_way=True)

    def _part(self, event: PlannedEvent, *, one_way: bool) -> None:
        group, others = event.group, event.others
        self.sim.network.partition(group, others, one_way=one_way)
        self._delaying(event, lambda: self._unite(group, others))

    def _unite(self, group: tuple[str, ...], others: tuple[str, ...]) -> None:
        self.sim.network.heal(group, others)
        self._cut()

    def _pause(self, event: PlannedEvent) -> None:
        node, process = self.sim.nodes[event.victim], self._latest.get(event.victim)
        if process is None or not process.is_up or node.is_paused:
            return
        node.pause()
        process.pauses.begin()
        self.pauses.begin()

        def resume() -> None:
            self.pauses.end()
            process.pauses.end()
            if self._latest[event.victim] is process:
                node.resume()

        self._lasting(event, resume)

    def _jump(self, event: PlannedEvent) -> None:
        self.sim.nodes[event.victim].jump_clock(_HOUR_S * (2 * event.strength - 1))

    def _stall(self, event: PlannedEvent) -> None:
        process = self._latest.get(event.victim)
        if process is not None:
            process.is_stalled = True
            self._lasting(event, lambda: setattr(process, "is_stalled", False))
            for other in self.running():
                if other.is_up and other.talker is not None:
                    self.sim.spawn(other.pester(process), other.node)

    # The end.

    def heal(self) -> None:
        self._heal(self.plan.restarted)


_BEGIN: dict[Event, Callable[[World, Any], None]] = {
    Event.PARTITION: World._divide,
    Event.ONE_WAY: World._close_way,
    Event.KILL: World._kill,
    Event.POWER: World._cut_power,
    Event.LEAVE: World._leave,
    Event.PAUSE: World._pause,
    Event.DELAY: World._delay,
    Event.RESET: World._reset,
    Event.SLOW_READER: World._slow_down,
    Event.CLOCK: World._jump,
    Event.STALL: World._stall,
}
