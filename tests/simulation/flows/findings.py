"""What the disks say in the end, put together by orders."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from postroad.durable.store.sqlite import SqliteDatabase
from postroad.flows import tables, values
from postroad.flows.head import Head, show_id
from postroad.flows.life import Status
from postroad.testing import require
from tests.simulation.durable.process import Machine
from tests.simulation.flows.bank import INITIATORS, salary
from tests.simulation.flows.clerks import FAILED, KILLED
from tests.simulation.flows.model import Move, Response
from tests.simulation.flows.orders import Order, payment_of
from tests.simulation.flows.world import World

_ALL = 1_000_000


def database_of(machine: Machine) -> SqliteDatabase:
    return SqliteDatabase(machine.disk.connection, machine.name)


def heads_of(machine: Machine) -> list[Head]:
    return tables.list_heads(database_of(machine), None, None, None, _ALL)


def rows_of(machine: Machine, statement: str) -> list[tuple[Any, ...]]:
    return machine.disk.connection.execute(statement).fetchall()


_NUMBER = re.compile(r" #\d+")


def ending_of(head: Head) -> str:
    if head.status is Status.DONE:
        assert head.result is not None
        return str(values.decode(head.result))
    return {Status.FAILED: FAILED, Status.KILLED: KILLED}.get(head.status, str(head.status))


class Case:
    def __init__(self, order: Order, node: str, head: Head) -> None:
        self.order = order
        self.head = head
        self.heads = [(node, head)]
        self.moves: Counter[Move] = Counter()

    @property
    def ending(self) -> str:
        return _NUMBER.sub("", ending_of(self.head))

    @property
    def responses(self) -> Counter[Response]:
        return Counter(Response(node, it.name, ending_of(it)) for node, it in self.heads[1:])

    @property
    def is_disturbed(self) -> bool:
        return any(it.status is Status.KILLED for _, it in self.heads)

    def __str__(self) -> str:
        flows = [f"{node} {it.name} {show_id(it.id)} {ending_of(it)}" for node, it in self.heads]
        return f"{self.order}\nflows: {flows}\nmoves: {dict(self.moves)}"


class Findings:
    """All orders, with the flows and the money that belong to them."""

    def __init__(self, world: World) -> None:
        self.cases: dict[str, Case] = {}
        # By node and id of a flow.
        self._roots: dict[tuple[str, int], Case] = {}
        waiting: list[tuple[str, Head]] = []
        for machine in world.machines.values():
            for head in heads_of(machine):
                if head.origin is None:
                    self._add(machine.name, head)
                else:
                    waiting.append((machine.name, head))
        while waiting:
            left = [it for it in waiting if not self._join(*it)]
            require(len(left) < len(waiting), f"flows that nobody began: {left}")
            waiting = left
        for machine in world.machines.values():
            self._read_moves(machine)

    def _add(self, node: str, head: Head) -> None:
        definition = INITIATORS.get(head.name, salary)
        args, _ = definition.decode_arguments(head.arguments)
        order: Order = args[0]
        if definition is salary:
            order = payment_of(order, show_id(head.id))
        require(order.name not in self.cases, f"{order.name} was begun twice")
        self.cases[order.name] = self._roots[node, head.id] = Case(order, node, head)

    def _join(self, node: str, head: Head) -> bool:
        assert head.origin is not None
        case = self._roots.get((head.origin.peer, head.origin.key.flow))
        if case is None:
            return False
        case.heads.append((node, head))
        self._roots[node, head.id] = case
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
