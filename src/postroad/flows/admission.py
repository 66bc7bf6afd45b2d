"""Begins flows that had to wait: for room among others of their kind, or for their code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import tables
from .background import LOADING_MAX, read_patiently
from .definition import Definition
from .events import Began, Event, Killed, Retried
from .head import Head
from .life import Status
from .machine import Machine
from .quarantine import is_guilty
from .resident import Resident
from .slots import ACTIVE, Slots

if TYPE_CHECKING:
    from .engine import Engine


logger = logging.getLogger("postroad.flows")

_AT_ONCE = 1_000


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
        # Those that could begin or go on if there were room, by name; others are in the store.
        self._waiting: dict[str, dict[int, Event]] = {}

    async def open(self) -> None:
        """Count those that run already, and report those that nobody can read."""
        for (name, status), number in (await self._engine.store.read(tables.count)).items():
            if status is Status.UNREADABLE:
                logger.error(
                    "%d flows of %s have a status that this version of Postroad does not know: "
                    "they are left alone; see `postroad flow ls --status unreadable`",
                    number, name,
                )  # fmt: skip
            if status not in ACTIVE:
                continue
            if self._engine.registry.find(name) is not None:
                self.slots.add(name, number)
            else:
                await self._count_renamed(name, status)

    async def _count_renamed(self, name: str, status: Status) -> None:
        def count(head: Head) -> None:
            definition = self._engine.assembly.definition_of(head)
            self.slots.add(name if definition is None else definition.name)

        await self._for_each(status, name, count)

    async def _for_each(
        self, status: Status, name: str | None, act: Callable[[Head], None]
    ) -> None:
        """Do something with all flows of a status, the oldest first, however many there are."""
        engine, after = self._engine, 0
        while True:
            heads = await engine.store.read(tables.list_idle, status, name, _AT_ONCE, after)
            for head in heads:
                await engine.background.wait_for_room(LOADING_MAX)
                act(head)
            if len(heads) < _AT_ONCE:
                return
            after = heads[-1].id

    async def wake_idle(self) -> None:
        """Take up those that no timer and no message wakes: there may be code for them now."""

        def retry(head: Head) -> None:
            if not is_guilty(head):
                self._begin(head, Retried())

        await self._for_each(Status.PARKED, None, retry)
        await self.begin_held()

    async def begin_held(self) -> None:
        """Begin what was held back, where there is code and room for it."""
        if self.is_draining:
            return

        def begin(head: Head) -> None:
            self._begin(head, Began())

        await self._for_each(Status.HELD, None, begin)
        for definition in self._engine.registry:
            if definition.concurrency is not None:
                await self._fill(definition)
            else:
                # They may have been queued by code that had a limit.
                await self._for_each(Status.QUEUED, definition.name, begin)
        for name, status in await self._engine.store.read(tables.count):
            if status is Status.QUEUED and self._engine.registry.find(name) is None:
                # Responders are known by whom they respond to: this one has another name now.
                await self._for_each(status, name, begin)

    def _begin(self, head: Head, event: Began | Retried) -> None:
        """Begin a flow or go on with it, now or when there is room."""
        definition = self._engine.assembly.definition_of(head)
        if definition is None or self._refuse(head, definition):
            return
        if not self.slots.free(definition):
            self._waiting.setdefault(definition.name, {})[head.id] = event
            return
        if definition.concurrency is not None:
            self.slots.reserve(definition.name, head.id)
        self._engine.tell(head.id, event)

    def _refuse(self, head: Head, definition: Definition[Any, Any]) -> bool:
        """Reject a session that was kept until there was code, if the code is not for it."""
        origin = head.origin
        if origin is None or head.status not in (Status.HELD, Status.QUEUED):
            return False
        refusal = definition.refusal_of(origin.flow, origin.version)
        if refusal is None:
            return False
        self._engine.tell(head.id, Killed(refusal))
        return True

    def count(self, resident: Resident, machine: Machine) -> None:
        """Note whether a flow runs now."""
        name = machine.head.name
        self.slots.release(resident.id)
        is_active = machine.head.status in ACTIVE
        if is_active != resident.is_counted:
            resident.is_counted = is_active
            self.slots.add(name, 1 if is_active else -1)
            if not is_active:
                self.fill(name)

    def recount(self, resident: Resident, machine: Machine) -> None:
        """What was not committed has not happened: count a flow as it is in the store."""
        self.slots.release(resident.id)
        was_counted = resident.was_counted
        if was_counted != resident.is_counted:
            resident.is_counted = was_counted
            self.slots.add(machine.head.name, 1 if was_counted else -1)
            if not was_counted:
                self.fill(machine.head.name)

    def reconsider(self, head: Head) -> None:
        """Begin a flow that need not wait: what should have begun it may have been lost."""
        if head.status is Status.QUEUED:
            self.fill(head.name)
        elif head.status is Status.HELD and not self.is_draining:
            self._begin(head, Began())

    def release(self, id: int) -> None:
        """A flow does not begin after all, so another one may."""
        if (name := self.slots.release(id)) is not None:
            self.fill(name)

    def fill(self, name: str) -> None:
        """There may be room for another flow of that name."""
        definition = self._engine.registry.find(name)
        if definition is not None and definition.concurrency is not None:
            self._engine.background.spawn(self._fill(definition), f"postroad flows of {name}")

    async def _fill(self, definition: Definition[Any, Any]) -> None:
        """Begin those that wait, as many as there is room for."""
        name = definition.name
        if self.is_draining:
            return
        waiting = self._waiting.get(name, {})
        while waiting and self.slots.free(definition):
            id = next(iter(waiting))
            self.slots.reserve(name, id)
            self._engine.tell(id, waiting.pop(id))
        free = self.slots.free(definition)
        if not free:
            return
        store = self._engine.store
        # Nobody else would look for them if this were given up.
        for head in await read_patiently(store, tables.list_idle, Status.QUEUED, name, free):
            if not self._refuse(head, definition) and self.slots.free(definition):
                self.slots.reserve(name, head.id)
                self._engine.tell(head.id, Began())
