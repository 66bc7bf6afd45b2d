"""Banks, and what befalls them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

from postroad.durable import Mail
from postroad.flows import Flows
from postroad.flows.messages import QUEUE
from postroad.testing import SimCluster
from tests.simulation.durable.process import Machine
from tests.simulation.durable.traps import ProcessEnded
from tests.simulation.durable.wishes import operate
from tests.simulation.durable.world import World as MailWorld
from tests.simulation.flows.bank import ALL, INITIATORS
from tests.simulation.flows.books import Books
from tests.simulation.flows.clerks import Clerk
from tests.simulation.flows.operators import Operator, Wishes
from tests.simulation.flows.plan import Act, Plan, PlannedAct
from tests.simulation.flows.steps import MOVES
from tests.simulation.flows.traps import FlowTraps

_RESTART_S = 0.5


class World(MailWorld):
    """Everything in one run."""

    def __init__(self, sim: SimCluster, plan: Plan) -> None:
        self.flow_plan = plan
        self.orders = Books([it for jobs in plan.jobs.values() for it in jobs])
        self.desks = {name: Wishes() for name in plan.mail.nodes}
        # Nodes whose next process does not know all flows.
        self._outdated: set[str] = set()
        self.flows: dict[str, Flows] = {}
        super().__init__(sim, plan.mail)
        self.traps = FlowTraps(sim)
        for act in plan.acts:
            self._at(act.time, partial(self._act, act))

    def _add_machine(self, name: str) -> Machine:
        rng = Random(f"{self.sim.seed}/operator of {name}")
        serve = partial(self._serve, name, rng)
        return Machine(self.sim, name, self.plan.config, (QUEUE,), serve)

    async def _serve(self, name: str, rng: Random, mail: Mail) -> None:
        """The application of a node."""
        async with mail.transaction() as tx:
            await tx.execute(MOVES)
        known = INITIATORS.values() if name in self._outdated else ALL
        async with Flows(mail, known, self.flow_plan.config) as flows:
            self.flows[name] = flows
            on_told = partial(self._strike, name)
            jobs = self.flow_plan.jobs[name]
            clerks = [Clerk(flows, job, self.orders, on_told).work() for job in jobs]
            await asyncio.gather(
                Operator(flows, self.desks[name], rng).work(),
                operate(mail, self._wishes[name]),
                *clerks,
            )

    # Operators.

    def _act(self, act: PlannedAct) -> None:
        self.sim.log.add("plan", act.kind.value, f"{act.node} for {act.lasting_s:.1f} s")
        _ACTS[act.kind](self, act, self.desks[act.node])

    def _after(self, act: PlannedAct, action: Callable[[], None]) -> None:
        self._at(self.sim.now + act.lasting_s, action)

    def _rest_flow(self, act: PlannedAct, desk: Wishes) -> None:
        desk.rests.append(act.lasting_s)

    def _end_flow(self, act: PlannedAct, desk: Wishes) -> None:
        desk.kills += 1

    def _plan_strike(self, act: PlannedAct, desk: Wishes) -> None:
        desk.strikes += 1

    def _strike(self, name: str) -> None:
        """Kill the process that calls this, if that is planned."""
        desk = self.desks[name]
        if desk.strikes:
            desk.strikes -= 1
            self.machines[name].kill()
            self._at(self.sim.now + _RESTART_S, self.machines[name].start)
            raise ProcessEnded("struck")

    def _look(self, act: PlannedAct, desk: Wishes) -> None:
        desk.looks += 1

    def _drain(self, act: PlannedAct, desk: Wishes) -> None:
        desk.is_draining = True
        self._after(act, partial(setattr, desk, "is_draining", False))

    def _run_old_code(self, act: PlannedAct, desk: Wishes) -> None:
        self._outdated.add(act.node)
        self._replace_process(act.node)
        self._after(act, partial(self._run_new_code, act.node))

    def _run_new_code(self, name: str) -> None:
        self._outdated.discard(name)
        self._replace_process(name)

    def _replace_process(self, name: str) -> None:
        machine = self.machines[name]
        if machine.node.is_running:
            machine.kill()
        machine.start()

    # The end.

    def heal(self) -> None:
        """End all faults."""
        super().heal()
        for name in sorted(self._outdated):
            self._run_new_code(name)
        for desk in self.desks.values():
            desk.clear()


_ACTS: dict[Act, Callable[[World, PlannedAct, Wishes], None]] = {
    Act.REST: World._rest_flow,
    Act.END: World._end_flow,
    Act.STRIKE: World._plan_strike,
    Act.LOOK: World._look,
    Act.DRAIN: World._drain,
    Act.OLD_CODE: World._run_old_code,
}
