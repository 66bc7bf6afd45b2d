"""Runs the code of flows again from what was recorded: it must come to where it was."""

from __future__ import annotations

import msgspec

from postroad.flows import Flow, Session, tables
from postroad.flows.code import Code
from postroad.flows.definition import Registry
from postroad.flows.events import Loaded
from postroad.flows.head import Head, show_id
from postroad.flows.life import Status
from postroad.flows.machine import Machine as FlowMachine
from postroad.testing import require
from tests.simulation.durable.process import Machine
from tests.simulation.flows.bank import ALL
from tests.simulation.flows.findings import database_of, heads_of

_REGISTRY = Registry(ALL)
_UNFINISHED = (Status.RUNNING, Status.RETRYING, Status.PAUSED)


def _make_code(machine: FlowMachine) -> Code:
    head = machine.head
    if head.origin is not None:
        definition = _REGISTRY.responder(head.origin.flow)
        assert definition is not None
        flow = Flow(machine, definition)
        coroutine = definition.function(flow, Session(flow, machine.dialogues.sessions[0]))
    else:
        definition = _REGISTRY.find(head.name)
        assert definition is not None
        flow = Flow(machine, definition)
        args, kwargs = definition.decode_arguments(head.arguments)
        coroutine = definition.function(flow, *args, **kwargs)
    return Code(coroutine, definition, machine.answer, machine.withdraw)


def _run_again(machine: Machine, head: Head, now_ms: int) -> tuple[Head, int]:
    """What becomes of a flow that is made of its record, and how many steps that adds."""
    database = database_of(machine)
    kept, signals = tables.read_mail(database, head.id)
    copy = msgspec.structs.replace(head, status=Status.RUNNING, result=None, trouble=None)
    again = FlowMachine(
        copy,
        _make_code,
        records=tables.read_steps(database, head.id),
        kept=kept,
        signals=signals,
    )
    transition = again.handle(Loaded(), now_ms)
    again.drop_code()
    return again.head, len(transition.records)


def check_unfinished(machine: Machine) -> int:
    """Those that go on must fit their records; how many there are."""
    if machine.disk.connection.in_transaction:
        return 0
    unfinished = [it for it in heads_of(machine) if it.status in _UNFINISHED]
    for head in unfinished:
        again, _ = _run_again(machine, head, head.started_ms)
        detail = again.trouble.detail if again.trouble is not None else ""
        require(
            again.status is not Status.PARKED,
            f"{head.name} {show_id(head.id)} of {machine.name} cannot go on: {detail}",
        )
    return len(unfinished)


def check_ended(machine: Machine) -> None:
    for head in heads_of(machine):
        if head.status not in (Status.DONE, Status.FAILED):
            continue
        again, added = _run_again(machine, head, head.ended_ms or 0)
        who = f"{head.name} {show_id(head.id)} of {machine.name}"
        require(again.status is head.status, f"{who} was {head.status}, now {again}")
        require(again.result == head.result, f"{who} gave {head.result!r}, now {again.result!r}")
        require(added == 0, f"{who} has {added} steps more when it is run again")
        was, now = head.trouble, again.trouble
        require(
            (was and was.failure) == (now and now.failure), f"{who} failed with {was}, now {now}"
        )
