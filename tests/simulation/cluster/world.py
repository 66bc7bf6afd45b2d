"""Hosts and their processes, and the faults injected into them."""

from __future__ import annotations

from collections.abc import Callable

from postroad.testing import SimCluster, SimNode
from tests.simulation.cluster.plan import PAUSE_S_MAX, Fault, Plan, PlannedFault
from tests.simulation.cluster.process import PORT, Process
from tests.simulation.cluster.views import Quiet, Views
from tests.simulation.plans import Agenda

# Delays that no timeout of the membership minds, and losses that gossip makes up for.
_DELAY_S_MAX = 0.2
_LOSS_MAX = 0.3
_SLOWEST_BYTES_PER_S = 500.0
_CHECK_INTERVAL_S = 0.5
# Who is still about to end is started again so much later.
_RESTART_S = 0.5

_TWIN = "twin-of-"


class World:
    def __init__(self, sim: SimCluster, plan: Plan) -> None:
        self.sim = sim
        self.plan = plan
        self.quiet = Quiet(sim)
        self.views = Views(sim, self.quiet)
        self._properties = {node.name: node.properties for node in plan.nodes}
        # The process on each host, also one that has ended.
        self._latest: dict[str, Process] = {}
        self._agenda = Agenda(sim)
        for name in plan.names:
            self._add_host(name)
        twins = {fault.victim for fault in plan.faults if fault.kind is Fault.TWIN}
        for name in sorted(twins):
            self._add_host(f"{_TWIN}{name}")
        self._seeds = [f"{sim.nodes[name].host}:{PORT}" for name in plan.seeds]
        self._write_agenda()
        sim.call_every(_CHECK_INTERVAL_S, self.views.check)

    def _add_host(self, host: str) -> None:
        async def program(node: SimNode) -> None:
            process = self._latest[host]
            try:
                await process.run(self.views)
            finally:
                process.ended = process.ended or self.sim.now

        self.sim.add(host, program)

    # Processes.

    def running(self) -> list[Process]:
        return [process for process in self._latest.values() if process.is_running]

    def start(self, host: str) -> None:
        node = self.sim.nodes[host]
        self._note_ends()
        if node.is_running:
            if self._latest[host].is_stopping:
                self._after(_RESTART_S, lambda: self.start(host))
            return
        name = host.removeprefix(_TWIN)
        if name not in self._properties:
            return
        process = self._latest[host] = Process(
            self.sim,
            name,
            node,
            self._seeds,
            self._properties[name],
            uses_datagrams=self.plan.uses_datagrams,
        )
        self.views.add(process)
        node.start()

    def _note_ends(self) -> None:
        for process in self._latest.values():
            if process.is_running and not process.node.is_running:
                process.ended = self.sim.now

    # Time.

    def run(self, until: float) -> None:
        self._agenda.run(until)

    def act(self, action: Callable[[], None]) -> None:
        """Do something to the cluster, and see what it changes."""
        action()
        self._note_ends()
        self.quiet.look()

    def _at(self, time: float, action: Callable[[], None]) -> None:
        self._agenda.at(time, lambda: self.act(action))

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._at(self.sim.now + seconds, action)

    def _write_agenda(self) -> None:
        for node in self.plan.nodes:
            self._at(node.start_s, lambda host=node.name: self.start(host))  # type: ignore[misc]
        for fault in self.plan.faults:
            self._at(fault.time, lambda fault=fault: self._begin(fault))  # type: ignore[misc]

    # Faults.

    def _begin(self, fault: PlannedFault) -> None:
        self.sim.log.add("plan", fault.kind.value, f"{fault.victim} for {fault.lasting_s:.1f} s")
        _BEGIN[fault.kind](self, fault)

    def _later(self, fault: PlannedFault, action: Callable[[], None]) -> None:
        self._at(fault.time + fault.lasting_s, action)

    def _divide(self, fault: PlannedFault) -> None:
        self._part(fault, one_way=False)

    def _close_link(self, fault: PlannedFault) -> None:
        self._part(fault, one_way=True)

    def _part(self, fault: PlannedFault, *, one_way: bool) -> None:
        """Twins stay with the others: so both halves may have a process of the name."""
        twins = [host for host in self.sim.nodes if host.startswith(_TWIN)]
        group, others = fault.group, [*fault.others, *twins]
        self.sim.network.partition(group, others, one_way=one_way)
        self._later(fault, lambda: self.sim.network.heal(group, others))

    def _kill(self, fault: PlannedFault) -> None:
        self._end(fault, SimNode.kill)

    def _cut_power(self, fault: PlannedFault) -> None:
        self._end(fault, SimNode.lose_power)

    def _leave(self, fault: PlannedFault) -> None:
        self._end(fault, SimNode.stop)

    def _end(self, fault: PlannedFault, end: Callable[[SimNode], None]) -> None:
        node = self.sim.nodes[fault.victim]
        if not node.is_running:
            return
        if end is SimNode.stop:
            self._latest[fault.victim].is_stopping = True
            node.resume()
        end(node)
        if fault.comes_back:
            self._later(fault, lambda: self.start(fault.victim))

    def _pause(self, fault: PlannedFault) -> None:
        node = self.sim.nodes[fault.victim]
        if node.is_running and not node.is_paused:
            node.pause()
            lane = node.process
            self._at(
                fault.time + min(fault.lasting_s, PAUSE_S_MAX),
                lambda: node.resume() if node.is_running and node.process is lane else None,
            )

    def _jump(self, fault: PlannedFault) -> None:
        self.sim.nodes[fault.victim].jump_clock(fault.clock_s)

    def _disturb(self, fault: PlannedFault) -> None:
        self.sim.network.set_conditions(
            loss=_LOSS_MAX * fault.strength, duplicate=fault.strength, reorder=fault.strength / 2
        )
        self._later(fault, self.sim.network.reset_conditions)

    def _delay(self, fault: PlannedFault) -> None:
        most = _DELAY_S_MAX * fault.strength
        self.sim.network.set_conditions(delay_s=(most / 4, most))
        self._later(fault, self.sim.network.reset_conditions)

    def _reset(self, fault: PlannedFault) -> None:
        for other in fault.others:
            self.sim.network.reset_connections(fault.victim, other)

    def _slow_down(self, fault: PlannedFault) -> None:
        host = fault.victim
        rate = _SLOWEST_BYTES_PER_S * 10 ** (2 * fault.strength)
        self.sim.network.slow_reader(host, rate)
        if not self.plan.uses_datagrams:
            self.quiet.slow.add(host)
        self._later(fault, lambda: self._speed_up(host))

    def _speed_up(self, host: str) -> None:
        self.sim.network.slow_reader(host, None)
        self.quiet.slow.discard(host)

    def _change_properties(self, fault: PlannedFault) -> None:
        process = self._latest.get(fault.victim)
        if process is not None and process.node.is_running:
            self.sim.spawn(process.change_properties(fault.changes), process.node)

    def _start_twin(self, fault: PlannedFault) -> None:
        self.start(f"{_TWIN}{fault.victim}")

    # The end.

    def heal(self) -> None:
        """End all faults, and start who shall be there in the end."""
        self._agenda.clear()
        self.sim.network.heal()
        self.sim.network.reset_conditions()
        for host, node in self.sim.nodes.items():
            self._speed_up(host)
            node.resume()
        for host in self.plan.restarted:
            self._start_at_last(host)

    def _start_at_last(self, host: str) -> None:
        """Start a node whatever it did; one that is still leaving is not waited for."""
        process, node = self._latest.get(host), self.sim.nodes[host]
        if process is not None and process.is_stopping and node.is_running:
            node.kill()
        self.start(host)


_BEGIN: dict[Fault, Callable[[World, PlannedFault], None]] = {
    Fault.PARTITION: World._divide,
    Fault.ONE_WAY: World._close_link,
    Fault.KILL: World._kill,
    Fault.POWER: World._cut_power,
    Fault.LEAVE: World._leave,
    Fault.PAUSE: World._pause,
    Fault.CLOCK: World._jump,
    Fault.DATAGRAMS: World._disturb,
    Fault.DELAY: World._delay,
    Fault.RESET: World._reset,
    Fault.SLOW_READER: World._slow_down,
    Fault.PROPERTIES: World._change_properties,
    Fault.TWIN: World._start_twin,
}
