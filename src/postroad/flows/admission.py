"""Begins flows that had to wait: for room among others of their kind, or for their code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import tables
from .commit import FlowCommit
from .definition import Definition
from .events import Began, Retried
from .life import Status
from .machine import Machine
from .resident import Resident
from .slots import ACTIVE, Slots

if TYPE_CHECKING:
    from .engine import Engine


class Admission:
    """Counts the flows that run, and begins others as there is room.

    Attributes:
        slots: how many run.
        is_draining: whether nothing new is begun.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.slots = Slots()
        self.is_draining = False

    async def open(self) -> None:
        """Count those that run already."""
        for (name, status), number in (await self._engine.store.read(tables.count)).items():
            if status in ACTIVE:
                self.slots.add(name, number)

    async def wake_idle(self) -> None:
        """Take up those that no timer and no message wakes: there may be code for them now."""
        engine = self._engine
        for head in await engine.store.read(tables.list_idle, Status.PARKED):
            if head.recoveries <= engine.config.recoveries_max:
                engine.tell(head.id, Retried())
        await self.begin_held()
        for definition in engine.registry:
            await self._fill(definition)

    async def begin_held(self) -> None:
        """Begin what was held back, where there is code for it."""
        engine = self._engine
        if not self.is_draining:
            for head in await engine.store.read(tables.list_idle, Status.HELD):
                if engine.assembly.definition_of(head) is not None:
                    engine.tell(head.id, Began())

    def count(self, resident: Resident, machine: Machine) -> None:
        """Note whether a flow runs now."""
        name = machine.head.name
        self.slots.release(name, resident.id)
        is_active = machine.head.status in ACTIVE
        if is_active != resident.is_counted:
            resident.is_counted = is_active
            self.slots.add(name, 1 if is_active else -1)
            if not is_active:
                self.fill(name)

    def uncount(self, resident: Resident, unit: FlowCommit) -> None:
        """A flow is not in the store after all."""
        if unit.transition.is_new and resident.is_counted:
            resident.is_counted = False
            self.slots.add(unit.head.name, -1)

    def fill(self, name: str) -> None:
        """There may be room for another flow of that name."""
        definition = self._engine.registry.find(name)
        if definition is not None and definition.concurrency is not None:
            self._engine.background.spawn(self._fill(definition), f"postroad flows of {name}")

    async def _fill(self, definition: Definition[Any, Any]) -> None:
        """Begin those that wait, as many as there is room for."""
        name = definition.name
        free = self.slots.free(definition)
        if not free:
            return
        store = self._engine.store
        for head in await store.read(tables.list_idle, Status.QUEUED, name, free):
            if self.slots.free(definition):
                self.slots.reserve(name, head.id)
                self._engine.tell(head.id, Began())
