"""What a process has in memory of its flows, and what is in the store of them: the same."""

from __future__ import annotations

from postroad.core.errors import UsageError
from postroad.flows import Flows, tables
from postroad.flows.head import show_id
from postroad.flows.machine import Machine as FlowMachine
from postroad.flows.messages import Confirm
from postroad.testing import require
from tests.simulation.durable.process import Machine
from tests.simulation.flows.findings import database_of
from tests.simulation.flows.world import World


def check_memory(world: World) -> None:
    for name, flows in world.flows.items():
        machine = world.machines[name]
        if machine.is_ready and not machine.disk.connection.in_transaction:
            _check_machine(machine, flows)


def _check_machine(machine: Machine, flows: Flows) -> None:
    try:
        engine = flows.engine
    except UsageError:
        # Its program met a store that takes nothing, and ends.
        return
    for resident in engine.residents.values():
        if resident.is_sound and not resident.pending and resident.machine is not None:
            _check_flow(machine, resident.machine)


def _check_flow(machine: Machine, flow: FlowMachine) -> None:
    database, id = database_of(machine), flow.head.id
    who = f"{flow.head.name} {show_id(id)} of {machine.name}"
    stored = tables.read_head(database, id)
    require(stored == flow.head, f"{who} is {flow.head}, and in the store {stored}")
    steps = len(tables.read_steps(database, id))
    require(steps == flow.steps, f"{who} has {flow.steps} steps, and in the store {steps}")
    kept, signals = tables.read_mail(database, id)
    in_store = {it.id for _, it in kept if not isinstance(it.message, Confirm)}
    in_store |= {it.id for it in signals}
    known = _unread_of(flow)
    require(in_store == known, f"{who} has not read {known}, and in the store {in_store}")


def _unread_of(flow: FlowMachine) -> set[int]:
    """The numbers of what was said to a flow and its code has not asked for."""
    dialogues = flow.dialogues
    messages = {kept.id for end in dialogues.sessions.values() for kept in end.heard}
    return messages | {it.id for waiting in dialogues._signals.values() for it in waiting}
