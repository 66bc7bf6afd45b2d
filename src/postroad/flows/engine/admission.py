"""Decides when flows start: concurrency slots, flows without code, and trials after crashes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from postroad.durable.store.tables.store_tables import StoreTables
from postroad.flows.definition import FlowDefinition
from postroad.flows.engine import tables
from postroad.flows.engine.background import LOADING_MAX, now_ms, read_with_retry
from postroad.flows.engine.loaded_flow import LoadedFlow
from postroad.flows.errors import DrainingError
from postroad.flows.machine.events import (
    FlowEvent,
    FlowKillRequested,
    FlowReleased,
    FlowRetryRequested,
    FlowTrialPassed,
)
from postroad.flows.machine.failure_policy import (
    Trial,
    count_crash,
    defer_to_trial,
    is_convicted,
    needs_trial,
    park_convicted,
    plan_trials,
)
from postroad.flows.machine.state import FlowState, format_flow_id
from postroad.flows.machine.state_machine import FlowStateMachine
from postroad.flows.machine.status import FlowStatus

if TYPE_CHECKING:
    from postroad.flows.engine.engine import FlowEngine

logger = logging.getLogger("postroad.flows")

ACTIVE_STATUSES = frozenset({FlowStatus.RUNNING, FlowStatus.RETRYING})
"""Statuses in which a flow occupies a concurrency slot."""

_UNLIMITED = 10_000
_PAGE_SIZE = 1_000
_SEED_BYTES = 16


class ConcurrencySlots:
    """Counts the active flows by name, with those that are about to start."""

    def __init__(self) -> None:
        self._active: Counter[str] = Counter()
        # Flows that are about to start, and their names.
        self._reserved: dict[int, str] = {}

    def add(self, name: str, number: int = 1) -> None:
        """Count more flows of a name, or fewer if `number` is negative."""
        self._active[name] += number
        if not self._active[name]:
            del self._active[name]

    def reserve(self, name: str, id: int) -> None:
        """Count a flow that is about to start."""
        if id not in self._reserved:
            self._reserved[id] = name
            self.add(name)

    def release(self, id: int) -> str | None:
        """Drop the reservation of a flow and return its name; None if it had none."""
        if (name := self._reserved.pop(id, None)) is not None:
            self.add(name, -1)
        return name

    def free(self, definition: FlowDefinition[Any, Any]) -> int:
        """Return how many more flows of a definition may start."""
        limit = definition.concurrency
        return _UNLIMITED if limit is None else max(limit - self._active[definition.name], 0)

    def count(self, name: str) -> int:
        """Return the number of active flows of a name."""
        return self._active[name]

    @property
    def total(self) -> int:
        """The number of active flows."""
        return self._active.total()


class AdmissionController:
    """Starts queued and held flows as there are slots and code for them.

    Attributes:
        slots: counts the active flows.
        is_draining: whether no new flows start.
    """

    def __init__(self, engine: FlowEngine) -> None:
        self._engine = engine
        self.slots = ConcurrencySlots()
        self.is_draining = False
        # Events of flows that wait for a slot in memory, by name and id; other flows that wait are
        # QUEUED in the store.
        self._waiting: dict[str, dict[int, FlowEvent]] = {}
        # Client ids under which a flow is being started.
        self._starting: dict[str, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def starting(self, client_id: str) -> AsyncIterator[None]:
        """Hold the lock of a client id: one start under it at a time."""
        while (other := self._starting.get(client_id)) is not None:
            await asyncio.wait((other,))
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting[client_id] = over
        try:
            yield
        finally:
            del self._starting[client_id]
            over.set_result(None)

    def new_state(
        self,
        definition: FlowDefinition[Any, Any],
        arguments: bytes,
        client_id: str | None,
        *,
        can_hold: bool = False,
    ) -> FlowState:
        """Return the state of a flow that is about to start.

        While this node is draining, one that `can_hold` is held until it is over.

        Raises:
            DrainingError: no flows are started now.
            UsageError: this node cannot start it.
        """
        if self.is_draining and not can_hold:
            raise DrainingError(
                "this node is draining and starts no new flows; retry later or on another node"
            )
        self._engine.registry.check_startable(definition)
        status = FlowStatus.RUNNING if self.slots.free(definition) else FlowStatus.QUEUED
        if self.is_draining:
            status = FlowStatus.HELD
        now, timeout_s = now_ms(), definition.timeout_s
        return FlowState(
            id=self._engine.new_id(),
            name=definition.name,
            version=definition.version,
            status=status,
            seed=os.urandom(_SEED_BYTES),
            started_ms=now,
            arguments=arguments,
            client_id=client_id,
            deadline_ms=None if timeout_s is None else now + round(timeout_s * 1000),
        )

    async def open(self) -> None:
        """Count the active flows of the store, and report flows that cannot be read."""
        for (name, status), number in (
            await self._engine.store.read(tables.count_by_name_and_status)
        ).items():
            if status is FlowStatus.UNREADABLE:
                logger.error(
                    "%d flows of %s have a status that this version of Postroad does not know; "
                    "they are left unchanged: see `postroad flow ls --status unreadable`",
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
        """Call a function for all flows of a status, the oldest first, batch by batch."""
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
        """Retry parked flows at a start, except those that killed the process; start held ones.

        Neither a timer nor a message wakes them, and there may be new code for them.
        """

        def retry(state: FlowState) -> None:
            if not is_convicted(state):
                self._start(state, FlowRetryRequested())

        await self._for_each(FlowStatus.PARKED, None, retry)
        await self.start_held()

    async def start_held(self) -> None:
        """Start held and queued flows for which there is code and a slot."""
        if self.is_draining:
            return

        def start(state: FlowState) -> None:
            self._start(state, FlowReleased())

        await self._for_each(FlowStatus.HELD, None, start)
        for definition in self._engine.registry:
            if definition.concurrency is not None:
                await self._start_waiting(definition)
            else:
                # Earlier code of this flow may have had a limit.
                await self._for_each(FlowStatus.QUEUED, definition.name, start)
        for name, status in await self._engine.store.read(tables.count_by_name_and_status):
            if status is FlowStatus.QUEUED and self._engine.registry.find(name) is None:
                # A responder is found by its initiator, so its own name may have changed.
                await self._for_each(status, name, start)

    def _start(self, state: FlowState, event: FlowReleased | FlowRetryRequested) -> None:
        """Dispatch the event that starts or resumes a flow, now or when there is a slot."""
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
        """Reject a held session that the code found for it does not support."""
        origin = state.initiated_by
        if origin is None or state.status not in (FlowStatus.HELD, FlowStatus.QUEUED):
            return False
        reason = definition.rejection_reason(origin.flow, origin.version)
        if reason is None:
            return False
        self._engine.dispatch(state.id, FlowKillRequested(reason))
        return True

    def update_running(self, loaded: LoadedFlow, machine: FlowStateMachine) -> None:
        """Count a flow according to its status in memory."""
        is_active = machine.state.status in ACTIVE_STATUSES
        self._set_counted(loaded, machine.state.name, is_counted=is_active)

    def restore_running(self, loaded: LoadedFlow, machine: FlowStateMachine) -> None:
        """Count a flow as in the store again, after its commit failed."""
        self._set_counted(loaded, machine.state.name, is_counted=loaded.was_counted)

    def _set_counted(self, loaded: LoadedFlow, name: str, *, is_counted: bool) -> None:
        has_left = self.slots.release(loaded.id) is not None or loaded.is_counted
        if is_counted != loaded.is_counted:
            loaded.is_counted = is_counted
            self.slots.add(name, 1 if is_counted else -1)
        if has_left and not is_counted:
            self.start_waiting(name)

    def start_if_possible(self, state: FlowState) -> None:
        """Start a loaded flow that need not wait: the event that should have may have been lost."""
        if state.status is FlowStatus.QUEUED:
            self.start_waiting(state.name)
        elif state.status is FlowStatus.HELD and not self.is_draining:
            self._start(state, FlowReleased())

    def release_slot(self, id: int) -> None:
        """Release the reservation of a flow that does not start, for another one."""
        if (name := self.slots.release(id)) is not None:
            self.start_waiting(name)

    def start_waiting(self, name: str) -> None:
        """Start flows of a name in the background if there are slots for them."""
        definition = self._engine.registry.find(name)
        if definition is not None and definition.concurrency is not None:
            self._engine.background.spawn(
                self._start_waiting(definition), f"postroad flows of {name}"
            )

    async def _start_waiting(self, definition: FlowDefinition[Any, Any]) -> None:
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
        # Retried: if this read were dropped, the flows would wait until the next one ends.
        for state in await read_with_retry(
            self._engine.store, tables.list_by_status, FlowStatus.QUEUED, name, free
        ):
            if not self._reject_incompatible(state, definition) and self.slots.free(definition):
                self.slots.reserve(name, state.id)
                self._engine.dispatch(state.id, FlowReleased())


class CrashTrials:
    """Retries flows apart from others that may have killed the process: see `failure_policy`."""

    def __init__(self, engine: FlowEngine) -> None:
        self._engine = engine
        self._planned: list[Trial] = []
        self._convicted: list[FlowState] = []
        self._timers: list[asyncio.TimerHandle] = []

    def prepare(self, stored: StoreTables) -> None:
        """Count a crash, and plan trials, in the first commit of a start."""
        config, database = self._engine.config, stored.database
        was_killed = tables.mark_running(database)
        active, waiting = tables.read_suspicious(database)
        changed = {state.id: state for state in active} if was_killed else {}
        if was_killed:
            count_crash(active)
        self._convicted = [state for state in active if is_convicted(state)]
        for state in self._convicted:
            park_convicted(state, stored.now_ms)
        suspects = [
            state
            for state in [*active, *waiting]
            if needs_trial(state, config.crash_recoveries_max)
        ]
        trial_ms = max(round(config.trial_s * 1000), 1)
        self._planned = plan_trials(suspects, stored.now_ms, trial_ms)
        for trial in self._planned:
            for state in trial.states:
                defer_to_trial(state, trial.starts_ms, stored.now_ms)
        changed |= {state.id: state for state in suspects}
        for state in changed.values():
            tables.update_state(database, tables.state_row(state), with_arguments=False)

    def start(self) -> None:
        """Log what was decided, and clear each group of flows when its trial is over."""
        for state in self._convicted:
            assert state.failure is not None
            id = format_flow_id(state.id)
            logger.error(
                "flow %s of %s is parked: %s. `postroad flow retry %s` retries it once",
                id, state.name, state.failure.detail, id,
            )  # fmt: skip
        if self._planned:
            logger.warning(
                "%d flows were running whenever the process was killed, and made no progress: they "
                "are retried a few at a time, the last of them in %.1f s",
                sum(len(trial.states) for trial in self._planned),
                (self._planned[-1].starts_ms - now_ms()) / 1000,
            )  # fmt: skip
        loop = asyncio.get_running_loop()
        for trial in self._planned:
            delay_s = max(trial.ends_ms - now_ms(), 0) / 1000
            self._timers.append(loop.call_later(delay_s, self._on_trial_end, trial))

    def close(self) -> None:
        """Cancel the timers: flows on trial stay suspects."""
        for timer in self._timers:
            timer.cancel()

    def _on_trial_end(self, trial: Trial) -> None:
        self._engine.background.spawn(self._clear(trial), "postroad flow trials")

    async def _clear(self, trial: Trial) -> None:
        for state in trial.states:
            await self._engine.background.wait_for_capacity(LOADING_MAX)
            self._engine.dispatch(state.id, FlowTrialPassed())
