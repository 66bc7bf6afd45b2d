"""Reads flows that are not in memory, and gives them what has happened meanwhile."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from postroad.core import fault_points as faults
from postroad.core.errors import UsageError
from postroad.flows.engine import tables
from postroad.flows.engine.background import now_ms, read_with_retry
from postroad.flows.engine.loaded_flow import LoadedFlow, QueuedEvent, fail_future, resolve_future
from postroad.flows.errors import NondeterminismError
from postroad.flows.machine.events import (
    FlowKillRequested,
    FlowLoaded,
    FlowPauseRequested,
    SessionMessagesReceived,
    SignalReceived,
)
from postroad.flows.machine.state import format_flow_id
from postroad.flows.machine.state_machine import FlowStateMachine
from postroad.flows.machine.status import FlowStatus

if TYPE_CHECKING:
    from postroad.flows.engine.engine import FlowEngine

logger = logging.getLogger("postroad.flows")

LOADED = faults.declare_fault_point("flows.loaded")

# What needs no code: it comes before the code runs, which may never leave room for it again.
_BEFORE_CODE = (FlowKillRequested, FlowPauseRequested, SignalReceived)


class FlowLoader:
    """Makes the machines of flows from what is in the store."""

    def __init__(self, engine: FlowEngine) -> None:
        self._engine = engine
        # Flows that nobody here can read, so that it is said once.
        self._unreadable: set[int] = set()

    async def load(self, loaded: LoadedFlow) -> None:
        """Read a flow, and give it what has happened meanwhile."""
        engine = self._engine
        try:
            stored = await read_with_retry(engine.store, tables.read_flow, loaded.id)
            LOADED.hit(flow=loaded.id)
            self._resume(loaded, stored)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # Whoever waits for it must not wait for ever, and it is read anew the next time.
            logger.exception("flow %s could not be taken up", format_flow_id(loaded.id))
            engine.reject(engine.unload(loaded), error)

    def _resume(self, loaded: LoadedFlow, stored: tables.StoredFlow | None) -> None:
        engine = self._engine
        if stored is None or stored.state.is_ended:
            self._reject_missing(loaded, stored)
            return
        state = stored.state
        if state.status is FlowStatus.UNREADABLE:
            self._reject_unreadable(
                loaded, NondeterminismError(state.failure.detail if state.failure else "")
            )
            return
        machine = loaded.machine = engine.create_machine(
            loaded, state, entries=stored.entries, buffered=stored.buffered, signals=stored.signals
        )
        loaded.on_loaded()
        if stored.problem is not None:
            self._resume_unreadable(loaded, machine, stored.problem)
            return
        queued = loaded.take_queued_events()
        is_first = [isinstance(event, _BEFORE_CODE) for event, _ in queued]
        self._dispatch(
            loaded, [future for future, first in zip(queued, is_first, strict=True) if first]
        )
        if loaded.is_healthy:
            if state.status is FlowStatus.RUNNING:
                engine.handle(loaded, FlowLoaded())
            else:
                engine.set_timer(loaded, machine)
        self._dispatch(
            loaded, [future for future, first in zip(queued, is_first, strict=True) if not first]
        )
        engine.admission.start_if_possible(state)
        engine.after_commit(loaded)

    def _dispatch(self, loaded: LoadedFlow, queued: list[QueuedEvent]) -> None:
        for event, done in queued:
            if isinstance(event, FlowLoaded):
                resolve_future(done)
            else:
                self._engine.dispatch(loaded.id, event, done)

    def _resume_unreadable(
        self, loaded: LoadedFlow, machine: FlowStateMachine, problem: NondeterminismError
    ) -> None:
        """Its steps cannot be read, so its code must not run: it can only be parked or ended."""
        engine = self._engine
        queued = loaded.take_queued_events()
        killed = next(
            (future for future in queued if isinstance(future[0], FlowKillRequested)), None
        )
        if killed is not None:
            queued.remove(killed)
        loaded.queued_events.extend(queued)
        # What waits is told again, or refused, when these are durable.
        if killed is not None:
            engine.handle(loaded, *killed)
        elif machine.state.status is FlowStatus.RUNNING:
            engine.commit(loaded, machine, machine.park(problem, now_ms()), None)
        else:
            self._reject_unreadable(loaded, problem)

    def _reject_unreadable(self, loaded: LoadedFlow, problem: NondeterminismError) -> None:
        """Leave a flow as it is in the store: this version of Postroad does not understand it."""
        engine, id = self._engine, loaded.id
        engine.admission.release_slot(id)
        if id not in self._unreadable:
            self._unreadable.add(id)
            logger.error("flow %s is left alone: %s", format_flow_id(id), problem)
        for event, done in engine.unload(loaded):
            if isinstance(event, SessionMessagesReceived):
                # It comes again, and is a dead letter at last: somebody may understand it later.
                engine.mutations.fail(event.ack_token, problem)
            fail_future(done, UsageError(f"flow {format_flow_id(id)}: {problem}"))

    def _reject_missing(self, loaded: LoadedFlow, stored: tables.StoredFlow | None) -> None:
        """There is no such flow, or it has ended: nothing can happen to it any more."""
        engine = self._engine
        engine.admission.release_slot(loaded.id)
        state = "is not known here" if stored is None else f"has ended: it is {stored.state.status}"
        for event, done in engine.unload(loaded):
            if isinstance(event, SessionMessagesReceived):
                engine.mutations.discard(event.ack_token)
            fail_future(done, UsageError(f"flow {format_flow_id(loaded.id)} {state}"))
