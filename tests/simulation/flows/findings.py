"""What the disks say in the end, put together by orders."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from postroad.durable.store.backends.sqlite import SqliteStoreConnection
from postroad.flows.engine import tables
from postroad.flows.machine import values
from postroad.flows.machine.state import FlowState, format_flow_id, parse_flow_id
from postroad.flows.machine.status import FlowStatus
from postroad.testing import require
from tests.simulation.durable.process import Machine
from tests.simulation.flows.bank import INITIATORS, salary
from tests.simulation.flows.clerks import FAILED, KILLED
from tests.simulation.flows.model import Move, Response
from tests.simulation.flows.orders import Order, payment_of
from tests.simulation.flows.world import World

_ALL = 1_000_000


def database_of(machine: Machine) -> SqliteStoreConnection:
    return SqliteStoreConnection(machine.disk.connection, machine.name)


def heads_of(machine: Machine) -> list[FlowState]:
    return tables.list_states(database_of(machine), None, None, None, _ALL)


def rows_of(machine: Machine, statement: str) -> list[tuple[Any, ...]]:
    return machine.disk.execute(statement).fetchall()


_NUMBER = re.compile(r" #\d+")


def ending_of(state: FlowState) -> str:
    if state.status is FlowStatus.COMPLETED:
        assert state.result is not None
        return str(values.decode_value(state.result))
    return {FlowStatus.FAILED: FAILED, FlowStatus.KILLED: KILLED}.get(
        state.status, str(state.status)
    )


def was_cancelled(state: FlowState) -> bool:
    return state.failure is not None and state.failure.error.kind.endswith(":FlowCancelledError")


class Case:
    def __init__(self, order: Order, node: str, state: FlowState) -> None:
        self.order = order
        self.head = state
        self.heads = [(node, state)]
        self.moves: Counter[Move] = Counter()

    @property
    def ending(self) -> str:
        return _NUMBER.sub("", ending_of(self.head))

    @property
    def responses(self) -> Counter[Response]:
        return Counter(
            Response(node, state.name, ending_of(state))
            for node, state in self.heads[1:]
            if not state.parent
        )

    @property
    def is_disturbed(self) -> bool:
        return any(
            state.status is FlowStatus.KILLED or was_cancelled(state) for _, state in self.heads
        )

    def __str__(self) -> str:
        flows = [
            f"{node} {state.name} {format_flow_id(state.id)} {ending_of(state)}"
            for node, state in self.heads
        ]
        return f"{self.order}\nflows: {flows}\nmoves: {dict(self.moves)}"


class Findings:
    """All orders, with the flows and the money that belong to them."""

    def __init__(self, world: World) -> None:
        self.cases: dict[str, Case] = {}
        # By node and id of a flow.
        self._roots: dict[tuple[str, int], Case] = {}
        waiting: list[tuple[str, FlowState]] = []
        for machine in world.machines.values():
            for state in heads_of(machine):
                if state.initiated_by is None and not state.parent:
                    self._add(machine.name, state)
                else:
                    waiting.append((machine.name, state))
        while waiting:
            remaining = [state for state in waiting if not self._join(*state)]
            require(len(remaining) < len(waiting), f"flows that nobody began: {remaining}")
            waiting = remaining
        for machine in world.machines.values():
            self._read_moves(machine)

    def _add(self, node: str, state: FlowState) -> None:
        definition = INITIATORS.get(state.name, salary)
        args, _ = definition.decode_arguments(state.arguments)
        order: Order = args[0]
        if definition is salary:
            order = payment_of(order, format_flow_id(state.id))
        require(order.name not in self.cases, f"{order.name} was begun twice")
        self.cases[order.name] = self._roots[node, state.id] = Case(order, node, state)

    def _join(self, node: str, state: FlowState) -> bool:
        if state.initiated_by is not None:
            case = self._roots.get((state.initiated_by.peer, state.initiated_by.key.flow))
        else:
            case = self._roots.get((node, parse_flow_id(state.parent or "")))
        if case is None:
            return False
        if state.parent:
            ids = [other.client_id for _, other in case.heads]
            require(state.client_id not in ids, f"{state.client_id} was started twice: {case}")
        case.heads.append((node, state))
        self._roots[node, state.id] = case
        return True

    def _read_moves(self, machine: Machine) -> None:
        seen: set[str] = set()
        rows = rows_of(machine, "SELECT step_id, part, what, amount FROM moves ORDER BY number")
        for step_id, part, what, amount in rows:
            require(step_id not in seen, f"{machine.name} did step {step_id} twice: {what} {part}")
            seen.add(step_id)
            case = self.cases.get(part) or self.cases.get(part.partition("/")[0])
            require(case is not None, f"{machine.name} has moved {part}, and nobody ordered that")
            assert case is not None
            case.moves[Move(machine.name, part, what, amount)] += 1
