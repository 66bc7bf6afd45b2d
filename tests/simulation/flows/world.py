"""Banks, and what befalls them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from typing import Any

from postroad.core import fault_points as faults
from postroad.durable import DurableQueues
from postroad.flows import FlowDefinition, FlowService
from postroad.flows.sessions.messages import (
    QUEUE,
    SessionConfirm,
    SessionData,
    SessionEnvelope,
    SessionInit,
    SessionKey,
    SessionMessage,
    encode_session_envelope,
)
from postroad.testing import SimCluster
from postroad.testing.simulation.environment import EPOCH_S
from tests.simulation.durable.clerks import operate
from tests.simulation.durable.process import Machine
from tests.simulation.durable.traps import ProcessEnded, Traps
from tests.simulation.durable.world import World as MailWorld
from tests.simulation.flows.bank import ALL, INITIATORS, MOVES, salary
from tests.simulation.flows.clerks import Books, Clerk, Garbage
from tests.simulation.flows.operators import Operator, Wishes
from tests.simulation.flows.plan import POINTS, Act, Plan, PlannedAct


class FlowTraps(Traps):
    @contextmanager
    def armed(self) -> Iterator[None]:
        """Watch all fault points of flows and of the durable layer."""
        with super().armed(), ExitStack() as stack:
            for name in POINTS:
                stack.enter_context(faults.arm_fault_point(name, partial(self._reach, name)))
            yield

    def _reach(self, point: str, **details: object) -> None:
        # The callback in which a process was killed may go on for a while.
        if not self._sim.loop.current_process.is_dead:
            super()._reach(point, **details)


_KEY = SessionKey(1, 1)


def garbage_of(number: int) -> list[bytes]:
    """All kinds of it, none of it like that of another number."""
    word = f"garbage {number}"
    data = SessionData(word.encode())
    opening = SessionInit("pay", 1, "")
    return [
        word.encode(),
        _letter(SessionKey(0, number), data),
        _letter(SessionKey(1 << 63, number), data),
        _letter(SessionKey(1, 1 << 31), data),
        _letter(SessionKey(1, number)),
        _letter(_KEY, data, opening),
        _letter(_KEY, opening, data, is_for_initiator=True),
        _letter(_KEY, SessionInit("", number + 1, "")),
        _letter(_KEY, SessionConfirm("\n", number + 1, "")),
        encode_session_envelope(SessionEnvelope(_KEY, False, [data]))[:-1],
    ]


def _letter(key: SessionKey, *messages: SessionMessage, is_for_initiator: bool = False) -> bytes:
    return encode_session_envelope(SessionEnvelope(key, is_for_initiator, list(messages)))


_RESTART_S = 0.5
_MINUTE_S = 60.0


class World(MailWorld):
    def __init__(self, sim: SimCluster, plan: Plan) -> None:
        self.flow_plan = plan
        self.orders = Books([job for jobs in plan.jobs.values() for job in jobs])
        self.desks = {name: Wishes() for name in plan.mail.nodes}
        # Nodes whose next process does not know all flows.
        self._outdated: set[str] = set()
        self.flows: dict[str, FlowService] = {}
        # By node, what its next process knows in place of what it should.
        self.code: dict[str, tuple[FlowDefinition[Any, Any], ...]] = {}
        super().__init__(sim, plan.mail)
        self.traps = FlowTraps(sim)
        for machine in self.machines.values():
            machine.node.jump_clock(_MINUTE_S - plan.minute_s)
        for act in plan.acts:
            self.agenda.at(act.time, partial(self._act, act))

    def _add_machine(self, name: str) -> Machine:
        rng = Random(f"{self.sim.seed}/operator of {name}")
        serve = partial(self._serve, name, rng)
        return Machine(self.sim, name, self.plan.config, (QUEUE,), serve)

    async def _serve(self, name: str, rng: Random, mail: DurableQueues) -> None:
        self.flows.pop(name, None)
        async with mail.transaction() as tx:
            await tx.execute(MOVES)
        registered = (
            tuple(INITIATORS.values()) if name in self._outdated else self.code.get(name, ALL)
        )
        async with FlowService(mail, registered, self.flow_plan.config) as flows:
            self.flows[name] = flows
            if name not in self._outdated:
                await self._schedule(name, flows)
            on_told = partial(self._strike, name)
            jobs = self.flow_plan.jobs[name]
            clerks = [Clerk(flows, job, self.orders, on_told).work() for job in jobs]
            await asyncio.gather(
                Operator(flows, self.desks[name], self.orders, rng).work(),
                operate(mail, self._wishes[name]),
                *clerks,
            )

    async def _schedule(self, name: str, flows: FlowService) -> None:
        """Say what is to be done without being asked, as programs do at each start."""
        for schedule in self.flow_plan.schedules[name]:
            is_new = await flows.schedules.create(
                schedule.name, schedule.cron, salary, schedule.order, catch_up=schedule.catch_up
            )
            assert is_new.next_at is not None
            self.orders.expect(schedule.name, round(is_new.next_at * 1000))

    def clock_ms(self, name: str) -> int:
        offset_s = self.machines[name].node.clock_offset_s
        return round((EPOCH_S + self.sim.now + offset_s) * 1000)

    # Operators.

    def _act(self, act: PlannedAct) -> None:
        self.sim.log.add("plan", act.kind.value, f"{act.node} for {act.lasting_s:.1f} s")
        _ACTS[act.kind](self, act, self.desks[act.node])

    def _after(self, act: PlannedAct, action: Callable[[], None]) -> None:
        self.agenda.after(act.lasting_s, action)

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
            self.agenda.after(_RESTART_S, self.machines[name].start)
            raise ProcessEnded("struck")

    def _look(self, act: PlannedAct, desk: Wishes) -> None:
        desk.looks += 1

    def _litter(self, act: PlannedAct, desk: Wishes) -> None:
        bodies = garbage_of(act.number)
        body = bodies[act.number % len(bodies)]
        desk.garbage.append(Garbage(act.node, act.other, body))

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
    Act.LITTER: World._litter,
    Act.DRAIN: World._drain,
    Act.OLD_CODE: World._run_old_code,
}
