"""Start of flows that waited for a concurrency slot or for their code."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from postroad.flows.definition import FlowDefinition
from postroad.flows.engine import tables
from postroad.flows.engine.background import LOADING_MAX, read_with_retry
from postroad.flows.engine.loaded_flow import LoadedFlow
from postroad.flows.machine.events import (
    FlowEvent,
    FlowKillRequested,
    FlowReleased,
    FlowRetryRequested,
)
from postroad.flows.machine.failure_policy import is_convicted
from postroad.flows.machine.state import FlowState
from postroad.flows.machine.state_machine import FlowStateMachine
from postroad.flows.machine.status import FlowStatus

if TYPE_CHECKING:
    from postroad.flows.engine.engine import FlowEngine

ACTIVE_STATUSES = frozenset({FlowStatus.RUNNING, FlowStatus.RETRYING})
"""Those that take up room."""

_UNLIMITED = 10_000


class ConcurrencySlots:
    """Counts the flows that run, and those that are about to."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()
        # Flows that are about to run, and of which kind they are.
        self._reserved: dict[int, str] = {}

    def add(self, name: str, number: int = 1) -> None:
        """So many more run, or fewer."""
        self._running[name] += number
        if not self._running[name]:
            del self._running[name]

    def reserve(self, name: str, id: int) -> None:
        """Count a flow already that is about to run."""
        if id not in self._reserved:
            self._reserved[id] = name
            self.add(name)

    def release(self, id: int) -> str | None:
        """A flow that was about to run is counted by itself now, or does not; which kind it is."""
        if (name := self._reserved.pop(id, None)) is not None:
            self.add(name, -1)
        return name

    def free(self, definition: FlowDefinition[Any, Any]) -> int:
        """How many more of a kind may run, at least."""
        limit = definition.concurrency
        return _UNLIMITED if limit is None else max(limit - self._running[definition.name], 0)

    def count(self, name: str) -> int:
        """How many of a kind run."""
        return self._running[name]

    @property
    def total(self) -> int:
        """How many run."""
        return self._running.total()


logger = logging.getLogger("postroad.flows")

_PAGE_SIZE = 1_000


class AdmissionController:
    """Counts the flows that run, and begins others as there is room.

    Attributes:
        slots: how many run.
        is_draining: whether nothing new is begun.
    """

    def __init__(self, engine: FlowEngine) -> None:
        self._engine = engine
        self.slots = ConcurrencySlots()
        self.is_draining = False
        # Those that could begin or go on if there were room, by name; others are in the store.
        self._waiting: dict[str, dict[int, FlowEvent]] = {}

    async def open(self) -> None:
        """Count those that run already, and report those that nobody can read."""
        for (name, status), number in (
            await self._engine.store.read(tables.count_by_name_and_status)
        ).items():
            if status is FlowStatus.UNREADABLE:
                logger.error(
                    "%d flows of %s have a status that this version of Postroad does not know: "
                    "they are left alone; see `postroad flow ls --status unreadable`",
                    number, name,
                )  # fmt: skip
            if status not in ACTIVE_STATUSES:
                continue
            if self._engine.registry.find(name) is not None:
                self.slots.add(name, number)
            else:
                await self._count_renamed(name, status)

    async def _count_renamed(self, name: str, status: FlowStatus) -> None:
        def count(state: FlowState) -> None:
            definition = self._engine.machines.definition_of(state)
            self.slots.add(name if definition is None else definition.name)

        await self._for_each(status, name, count)

    async def _for_each(
        self, status: FlowStatus, name: str | None, act: Callable[[FlowState], None]
    ) -> None:
        """Do something with all flows of a status, the oldest first, however many there are."""
        engine, after = self._engine, 0
        while True:
            states = await engine.store.read(tables.list_by_status, status, name, _PAGE_SIZE, after)
            for state in states:
                await engine.background.wait_for_capacity(LOADING_MAX)
                act(state)
            if len(states) < _PAGE_SIZE:
                return
            after = states[-1].id

    async def retry_parked(self) -> None:
        """Take up those that no timer and no message wakes: there may be code for them now."""

        def retry(state: FlowState) -> None:
            if not is_convicted(state):
                self._start(state, FlowRetryRequested())

        await self._for_each(FlowStatus.PARKED, None, retry)
        await self.start_held()

    async def start_held(self) -> None:
        """Begin what was held back, where there is code and room for it."""
        if self.is_draining:
            return

        def begin(state: FlowState) -> None:
            self._start(state, FlowReleased())

        await self._for_each(FlowStatus.HELD, None, begin)
        for definition in self._engine.registry:
            if definition.concurrency is not None:
                await self._start_waiting(definition)
            else:
                # They may have been queued by code that had a limit.
                await self._for_each(FlowStatus.QUEUED, definition.name, begin)
        for name, status in await self._engine.store.read(tables.count_by_name_and_status):
            if status is FlowStatus.QUEUED and self._engine.registry.find(name) is None:
                # Responders are known by whom they respond to: this one has another name now.
                await self._for_each(status, name, begin)

    def _start(self, state: FlowState, event: FlowReleased | FlowRetryRequested) -> None:
        """Begin a flow or go on with it, now or when there is room."""
        definition = self._engine.machines.definition_of(state)
        if definition is None or self._reject_incompatible(state, definition):
            return
        if not self.slots.free(definition):
            self._waiting.setdefault(definition.name, {})[state.id] = event
            return
        if definition.concurrency is not None:
            self.slots.reserve(definition.name, state.id)
        self._engine.dispatch(state.id, event)

    def _reject_incompatible(self, state: FlowState, definition: FlowDefinition[Any, Any]) -> bool:
        """Reject a session that was kept until there was code, if the code is not for it."""
        origin = state.initiated_by
        if origin is None or state.status not in (FlowStatus.HELD, FlowStatus.QUEUED):
            return False
        refusal = definition.rejection_reason(origin.flow, origin.version)
        if refusal is None:
            return False
        self._engine.dispatch(state.id, FlowKillRequested(refusal))
        return True

    def update_running(self, loaded: LoadedFlow, machine: FlowStateMachine) -> None:
        """Note whether a flow runs now."""
        name = machine.state.name
        self.slots.release(loaded.id)
        is_active = machine.state.status in ACTIVE_STATUSES
        if is_active != loaded.is_counted:
            loaded.is_counted = is_active
            self.slots.add(name, 1 if is_active else -1)
            if not is_active:
                self.start_waiting(name)

    def restore_running(self, loaded: LoadedFlow, machine: FlowStateMachine) -> None:
        """What was not committed has not happened: count a flow as it is in the store."""
        self.slots.release(loaded.id)
        was_counted = loaded.was_counted
        if was_counted != loaded.is_counted:
            loaded.is_counted = was_counted
            self.slots.add(machine.state.name, 1 if was_counted else -1)
            if not was_counted:
                self.start_waiting(machine.state.name)

    def start_if_possible(self, state: FlowState) -> None:
        """Begin a flow that need not wait: what should have begun it may have been lost."""
        if state.status is FlowStatus.QUEUED:
            self.start_waiting(state.name)
        elif state.status is FlowStatus.HELD and not self.is_draining:
            self._start(state, FlowReleased())

    def release_slot(self, id: int) -> None:
        """A flow does not begin after all, so another one may."""
        if (name := self.slots.release(id)) is not None:
            self.start_waiting(name)

    def start_waiting(self, name: str) -> None:
        """There may be room for another flow of that name."""
        definition = self._engine.registry.find(name)
        if definition is not None and definition.concurrency is not None:
            self._engine.background.spawn(
                self._start_waiting(definition), f"postroad flows of {name}"
            )

    async def _start_waiting(self, definition: FlowDefinition[Any, Any]) -> None:
        """Begin those that wait, as many as there is room for."""
        name = definition.name
        if self.is_draining:
            return
        waiting = self._waiting.get(name, {})
        while waiting and self.slots.free(definition):
            id = next(iter(waiting))
            self.slots.reserve(name, id)
            self._engine.dispatch(id, waiting.pop(id))
        free = self.slots.free(definition)
        if not free:
            return
        store = self._engine.store
        # Nobody else would look for them if this were given up.
        for state in await read_with_retry(
            store, tables.list_by_status, FlowStatus.QUEUED, name, free
        ):
            if not self._reject_incompatible(state, definition) and self.slots.free(definition):
                self.slots.reserve(name, state.id)
                self._engine.dispatch(state.id, FlowReleased())
