"""Hosts and their processes, and what happens to them."""

from __future__ import annotations

from collections.abc import Callable

from postroad.testing import SimCluster, SimNode
from tests.simulation.cells.books import Books
from tests.simulation.cells.disturbance import Disturbance
from tests.simulation.cells.model import Model
from tests.simulation.cells.plan import Event, Plan, PlannedDomain, PlannedEvent
from tests.simulation.cells.process import Process
from tests.simulation.plans import Agenda

_DELAY_S_MAX = 0.1
_SLOWEST_BYTES_PER_S = 300.0
_HOUR_S = 3_600.0
_CHECK_INTERVAL_S = 0.5
# Who is still about to end is started again so much later.
_RESTART_S = 0.5


class World:
    def __init__(self, sim: SimCluster, plan: Plan) -> None:
        self.sim = sim
        self.plan = plan
        self.disturbance = Disturbance(lambda: sim.now)
        self.pauses = Disturbance(lambda: sim.now)
        self.books = Books(sim, self.disturbance, self.pauses)
        self._planned = {it.name: it for it in plan.domains}
        # The process on each host, also one that has ended.
        self._latest: dict[str, Process] = {}
        self._agenda = Agenda(sim)
        # What ends each fault; a second call does nothing.
        self._remedies: list[Callable[[], None]] = []
        for domain in plan.domains:
            self._add_host(domain)
        self._cut()
        sim.every(_CHECK_INTERVAL_S, self._check_calls)

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

    def running(self) -> list[Process]:
        return [it for it in self._latest.values() if it.node.is_running]

    def model(self) -> Model:
        return Model(self.running(), self.plan.cuts)

    def start(self, name: str) -> None:
        node = self.sim.nodes[name]
        if node.is_running:
            if self._latest[name].is_stopping:
                self._agenda.after(_RESTART_S, lambda: self.start(name))
            return
        self._latest[name] = Process(self.sim, self._planned[name], self.plan, self.books)
        node.start()

    def start_first(self) -> None:
        for domain in self.plan.domains:
            if not domain.is_late:
                self.sim.after(self.sim.rng.random(), lambda name=domain.name: self.start(name))  # type: ignore[misc]
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

    def _until_over(self, event: PlannedEvent, undo: Callable[[], None]) -> None:
        """Undo something when its time is over, or when all is healed if that comes first."""
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                undo()

        self._agenda.after(event.lasting_s, end)
        self._remedies.append(end)

    def _delaying(self, event: PlannedEvent, undo: Callable[[], None]) -> None:
        self.disturbance.begin()

        def end() -> None:
            undo()
            self.disturbance.end()

        self._until_over(event, end)

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

    def _kill(self, event: PlannedEvent) -> None:
        self._end(event, SimNode.kill)

    def _cut_power(self, event: PlannedEvent) -> None:
        self._end(event, SimNode.lose_power)

    def _leave(self, event: PlannedEvent) -> None:
        self._end(event, lambda node: self._latest[event.victim].stop())

    def _end(self, event: PlannedEvent, end: Callable[[SimNode], None]) -> None:
        node = self.sim.nodes[event.victim]
        if not node.is_running:
            return
        end(node)
        if event.comes_back:
            self._agenda.after(event.lasting_s, lambda: self.start(event.victim))

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

        self._until_over(event, resume)

    def _jump(self, event: PlannedEvent) -> None:
        self.sim.nodes[event.victim].jump_clock(_HOUR_S * (2 * event.strength - 1))

    def _delay(self, event: PlannedEvent) -> None:
        most = _DELAY_S_MAX * event.strength
        self.sim.network.disturb(delay_s=(most / 4, most))
        self._until_over(event, self.sim.network.calm)

    def _reset(self, event: PlannedEvent) -> None:
        for other in event.others:
            self.sim.network.reset(event.victim, other)

    def _slow_down(self, event: PlannedEvent) -> None:
        host = event.victim
        self.sim.network.slow_reader(host, _SLOWEST_BYTES_PER_S * 10 ** (2 * event.strength))
        self._delaying(event, lambda: self.sim.network.slow_reader(host, None))

    def _stall(self, event: PlannedEvent) -> None:
        process = self._latest.get(event.victim)
        if process is not None:
            process.is_stalled = True
            self._until_over(event, lambda: setattr(process, "is_stalled", False))
            for other in self.running():
                if other.is_up and other.talker is not None:
                    self.sim.spawn(other.pester(process), other.node)

    # The end.

    def heal(self) -> None:
        """End all faults, and start who shall be there in the end."""
        self._agenda.clear()
        for end in self._remedies:
            end()
        for name in self.plan.restarted:
            self._start_at_last(name)

    def _start_at_last(self, name: str) -> None:
        """Start a domain whatever it did; one that is still leaving is not waited for."""
        process, node = self._latest.get(name), self.sim.nodes[name]
        if process is not None and process.is_stopping and node.is_running:
            node.kill()
        self.start(name)


_BEGIN: dict[Event, Callable[[World, PlannedEvent], None]] = {
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
