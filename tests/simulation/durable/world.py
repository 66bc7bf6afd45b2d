"""Machines and the faults that befall them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

from postroad.durable import DurableQueues
from postroad.testing import SimCluster
from tests.simulation.durable.clerks import JOURNAL, Books, Clerk, Wishes, operate
from tests.simulation.durable.handlers import HANDLED, Handlers
from tests.simulation.durable.plan import Fault, Plan, PlannedFault
from tests.simulation.durable.process import Machine
from tests.simulation.durable.slips import OPEN_QUEUES
from tests.simulation.durable.traps import Trap, Traps
from tests.simulation.plans import Agenda

_DELAY_S_MAX = 1.0
_SYNC_S_MAX = 0.5
_RESTART_S = 0.5


class World:
    def __init__(self, sim: SimCluster, plan: Plan) -> None:
        self.sim = sim
        self.plan = plan
        self.books = Books(plan.clerks)
        self.traps = Traps(sim)
        self._wishes = {name: Wishes() for name in plan.nodes}
        self.machines = {name: self._add_machine(name) for name in plan.nodes}
        self._introduce()
        self.agenda = Agenda(sim)
        for fault in plan.faults:
            self.agenda.at(fault.time, partial(self._begin, fault))

    def _add_machine(self, name: str) -> Machine:
        # Its own for the whole run, so that a process does not do again what the last one did.
        rng = Random(f"{self.sim.seed}/handlers of {name}")
        return Machine(
            self.sim, name, self.plan.config, OPEN_QUEUES, partial(self._serve, name, rng)
        )

    def _introduce(self) -> None:
        addresses = {name: machine.address for name, machine in self.machines.items()}
        for machine in self.machines.values():
            if self.plan.uses_agents:
                machine.directory = None
                machine.seeds = list(addresses.values())
            elif machine.directory is not None:
                for name, address in addresses.items():
                    machine.directory.set(name, address)

    async def _serve(self, name: str, rng: Random, mail: DurableQueues) -> None:
        await _make_tables(mail)
        handlers = Handlers(mail, self.plan.habits, self.books, rng)
        await handlers.start()
        clerks = [Clerk(mail, jobs, self.books).work() for jobs in self.plan.clerks[name]]
        await asyncio.gather(handlers.pull(), operate(mail, self._wishes[name]), *clerks)

    # Time.

    def run(self) -> None:
        self.start_all()
        self.agenda.run(until=self.plan.healed_s)

    # Faults.

    def _begin(self, fault: PlannedFault) -> None:
        self.sim.log.add("plan", fault.kind.value, f"{fault.victim} for {fault.lasting_s:.1f} s")
        _BEGIN[fault.kind](self, fault, self.machines[fault.victim])

    def _later(self, fault: PlannedFault, action: Callable[[], None]) -> None:
        self.agenda.after(fault.lasting_s, action)

    def _kill(self, fault: PlannedFault, machine: Machine) -> None:
        self._end(fault, machine, machine.kill)

    def _cut_power(self, fault: PlannedFault, machine: Machine) -> None:
        self._end(fault, machine, machine.lose_power)

    def _stop(self, fault: PlannedFault, machine: Machine) -> None:
        self._end(fault, machine, machine.stop)

    def _end(self, fault: PlannedFault, machine: Machine, end: Callable[[], None]) -> None:
        if machine.node.is_running:
            end()
            self._later(fault, machine.start)

    def _crash(self, fault: PlannedFault, machine: Machine) -> None:
        trap = self.traps.kill(machine, fault.point, fault.visits)
        self._later(fault, partial(self._start_after, machine, trap))

    def _start_after(self, machine: Machine, trap: Trap) -> None:
        if trap.has_fired:
            machine.start()
        else:
            self.agenda.after(_RESTART_S, partial(self._start_after, machine, trap))

    def _fail_commit(self, fault: PlannedFault, machine: Machine) -> None:
        place = "before" if fault.strength < 0.5 else "after"
        self.traps.fail(machine, f"durable.commit.{place}", fault.visits)

    def _pause(self, fault: PlannedFault, machine: Machine) -> None:
        if machine.node.is_running:
            machine.node.pause(fault.lasting_s)

    def _divide(self, fault: PlannedFault, machine: Machine) -> None:
        self._part(fault, one_way=False)

    def _close_way(self, fault: PlannedFault, machine: Machine) -> None:
        self._part(fault, one_way=True)

    def _part(self, fault: PlannedFault, *, one_way: bool) -> None:
        self.sim.network.partition(fault.group, fault.others, one_way=one_way)
        self._later(fault, partial(self.sim.network.heal, fault.group, fault.others))

    def _delay(self, fault: PlannedFault, machine: Machine) -> None:
        most = _DELAY_S_MAX * fault.strength**2
        self.sim.network.set_conditions(delay_s=(most / 4, most))
        self._later(fault, self.sim.network.reset_conditions)

    def _reset(self, fault: PlannedFault, machine: Machine) -> None:
        for other in self.machines:
            if other != machine.name:
                self.sim.network.reset_connections(machine.name, other)

    def _slow_disk(self, fault: PlannedFault, machine: Machine) -> None:
        machine.disk.sync_s = _SYNC_S_MAX * fault.strength**2
        self._later(fault, partial(_mend, machine))

    def _fill_disk(self, fault: PlannedFault, machine: Machine) -> None:
        machine.disk.is_full = True
        self._later(fault, partial(_mend, machine))

    def _protect_disk(self, fault: PlannedFault, machine: Machine) -> None:
        machine.disk.is_read_only = True
        self._later(fault, partial(_mend, machine))

    def _jump(self, fault: PlannedFault, machine: Machine) -> None:
        machine.node.jump_clock(fault.clock_s)

    def _rest(self, fault: PlannedFault, machine: Machine) -> None:
        resting = self._wishes[machine.name].resting
        resting.add(fault.queue)
        self._later(fault, partial(resting.discard, fault.queue))

    def _hope(self, fault: PlannedFault, machine: Machine) -> None:
        self._wishes[machine.name].has_hope = True

    def _read_again(self, fault: PlannedFault, machine: Machine) -> None:
        self._wishes[machine.name].has_doubts = True

    # The end.

    def heal(self) -> None:
        self.agenda.clear()
        self.traps.clear()
        self.sim.network.heal()
        self.sim.network.reset_conditions()
        for machine in self.machines.values():
            _mend(machine)
            self._wishes[machine.name].clear()
            machine.node.resume()

    def start_all(self) -> None:
        """Start those that do not run; one that is about to end is started when it has."""
        for machine in self.machines.values():
            machine.start()


async def _make_tables(mail: DurableQueues) -> None:
    async with mail.transaction() as tx:
        await tx.execute(JOURNAL)
        await tx.execute(HANDLED)


def _mend(machine: Machine) -> None:
    machine.disk.sync_s = 0.0
    machine.disk.is_full = machine.disk.is_read_only = False


_BEGIN: dict[Fault, Callable[[World, PlannedFault, Machine], None]] = {
    Fault.KILL: World._kill,
    Fault.POWER: World._cut_power,
    Fault.STOP: World._stop,
    Fault.PAUSE: World._pause,
    Fault.CRASH: World._crash,
    Fault.FAILED_COMMIT: World._fail_commit,
    Fault.PARTITION: World._divide,
    Fault.ONE_WAY: World._close_way,
    Fault.DELAY: World._delay,
    Fault.RESET: World._reset,
    Fault.SLOW_DISK: World._slow_disk,
    Fault.FULL_DISK: World._fill_disk,
    Fault.READ_ONLY: World._protect_disk,
    Fault.CLOCK: World._jump,
    Fault.REST: World._rest,
    Fault.HOPE: World._hope,
    Fault.READ_AGAIN: World._read_again,
}
