"""Reads flows that are not in memory, and gives them what has happened meanwhile."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from postroad.core import fault_points as faults
from postroad.core.errors import UsageError

from . import tables
from .alarm import now_ms
from .background import read_patiently
from .errors import FlowMismatch
from .events import Heard, Killed, Loaded, Paused, Signalled
from .head import show_id
from .life import Status
from .machine import Machine
from .resident import Resident, Wish, fail, resolve

if TYPE_CHECKING:
    from .engine import Engine

logger = logging.getLogger("postroad.flows")

LOADED = faults.declare_fault_point("flows.loaded")

# What needs no code: it comes before the code runs, which may never leave room for it again.
_FIRST = (Killed, Paused, Signalled)


class Loading:
    """Makes the machines of flows from what is in the store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Flows that nobody here can read, so that it is said once.
        self._unreadable: set[int] = set()

    async def load(self, resident: Resident) -> None:
        """Read a flow, and give it what has happened meanwhile."""
        engine = self._engine
        try:
            stored = await read_patiently(engine.store, tables.read_flow, resident.id)
            LOADED.hit(flow=resident.id)
            self._go_on(resident, stored)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # Whoever waits for it must not wait for ever, and it is read anew the next time.
            logger.exception("flow %s could not be taken up", show_id(resident.id))
            engine.refuse(engine.forget(resident), error)

    def _go_on(self, resident: Resident, stored: tables.StoredFlow | None) -> None:
        engine = self._engine
        if stored is None or stored.head.is_over:
            self._drop(resident, stored)
            return
        head = stored.head
        if head.status is Status.UNREADABLE:
            self._leave(resident, FlowMismatch(head.trouble.detail if head.trouble else ""))
            return
        machine = resident.machine = engine.make_machine(
            resident, head, records=stored.records, kept=stored.kept, signals=stored.signals
        )
        resident.on_read()
        if stored.problem is not None:
            self._go_on_unread(resident, machine, stored.problem)
            return
        wishes = resident.take_wishes()
        is_first = [isinstance(event, _FIRST) for event, _ in wishes]
        self._tell(resident, [it for it, first in zip(wishes, is_first, strict=True) if first])
        if resident.can_handle:
            if head.status is Status.RUNNING:
                engine.handle(resident, Loaded())
            else:
                engine.set_timer(resident, machine)
        self._tell(resident, [it for it, first in zip(wishes, is_first, strict=True) if not first])
        engine.admission.reconsider(head)
        engine.look_after(resident)

    def _tell(self, resident: Resident, wishes: list[Wish]) -> None:
        for event, done in wishes:
            if isinstance(event, Loaded):
                resolve(done)
            else:
                self._engine.tell(resident.id, event, done)

    def _go_on_unread(self, resident: Resident, machine: Machine, problem: FlowMismatch) -> None:
        """Its steps cannot be read, so its code must not run: it can only be parked or ended."""
        engine = self._engine
        wishes = resident.take_wishes()
        killed = next((it for it in wishes if isinstance(it[0], Killed)), None)
        if killed is not None:
            wishes.remove(killed)
        resident.wishes.extend(wishes)
        # What waits is told again, or refused, when these are durable.
        if killed is not None:
            engine.handle(resident, *killed)
        elif machine.head.status is Status.RUNNING:
            engine.commit(resident, machine, machine.observe(problem, now_ms()), None)
        else:
            self._leave(resident, problem)

    def _leave(self, resident: Resident, problem: FlowMismatch) -> None:
        """Leave a flow as it is in the store: this version of Postroad does not understand it."""
        engine, id = self._engine, resident.id
        engine.admission.release(id)
        if id not in self._unreadable:
            self._unreadable.add(id)
            logger.error("flow %s is left alone: %s", show_id(id), problem)
        for event, done in engine.forget(resident):
            if isinstance(event, Heard):
                # It comes again, and is a dead letter at last: somebody may understand it later.
                engine.writing.fail(event.receipt, problem)
            fail(done, UsageError(f"flow {show_id(id)}: {problem}"))

    def _drop(self, resident: Resident, stored: tables.StoredFlow | None) -> None:
        """There is no such flow, or it has ended: nothing can happen to it any more."""
        engine = self._engine
        engine.admission.release(resident.id)
        state = "is not known here" if stored is None else f"has ended: it is {stored.head.status}"
        for event, done in engine.forget(resident):
            if isinstance(event, Heard):
                engine.writing.drop(event.receipt)
            fail(done, UsageError(f"flow {show_id(resident.id)} {state}"))
