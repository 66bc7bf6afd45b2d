"""Flows in memory, and how they are loaded from the store."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from postroad.core import fault_points as faults
from postroad.core.errors import Reject, UsageError
from postroad.flows.engine import tables
from postroad.flows.engine.background import now_ms, read_with_retry
from postroad.flows.engine.flow_mutation import FlowCommitSequence
from postroad.flows.errors import NondeterminismError
from postroad.flows.machine.commands import FlowCommand
from postroad.flows.machine.events import (
    FlowEvent,
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
    from postroad.durable.store import Store
    from postroad.flows.context import FlowContext
    from postroad.flows.engine.engine import FlowEngine
    from postroad.flows.engine.flow_mutation import FlowMutation
    from postroad.flows.engine.step_functions import StepTransaction

logger = logging.getLogger("postroad.flows")

LOADED = faults.declare_fault_point("flows.loaded")

_POLL_INTERVAL_S = 0.001
# Events that need no code. They are handled before the code runs, which may leave no room for them
# afterwards.
_BEFORE_CODE = (FlowKillRequested, FlowPauseRequested, SignalReceived)

QueuedEvent = tuple[FlowEvent, asyncio.Future[None] | None]
"""An event, and the future that is resolved when what follows from it is durable."""


class LoadedFlow:
    """A flow in memory.

    Attributes:
        machine: its state machine; None until it has been read.
        ctx: the context of its code; None until the code has started.
        sequence: its commits; broken after one of them has failed.
        pending: number of commits in progress.
        last_mutation: the last of them.
        queued_events: events that wait until the flow has been read.
        pins: number of users that need it to stay in memory.
        timer: for its next deadline.
        step_transactions: open transactions of its steps.
        held_mutations: mutations that wait until such a transaction has been committed.
        is_counted: whether it occupies a concurrency slot.
        was_counted: whether it does so as it is in the store.
    """

    __slots__ = (
        "ctx",
        "held_mutations",
        "id",
        "is_counted",
        "last_mutation",
        "machine",
        "pending",
        "pins",
        "queued_events",
        "read_done",
        "sequence",
        "step_transactions",
        "timer",
        "was_counted",
    )

    def __init__(self, id: int) -> None:
        self.id = id
        self.machine: FlowStateMachine | None = None
        # Resolved when it has been read, or could not be.
        self.read_done: asyncio.Future[None] | None = None
        self.ctx: FlowContext | None = None
        self.sequence = FlowCommitSequence()
        self.pending = 0
        self.last_mutation: FlowMutation | None = None
        self.queued_events: deque[QueuedEvent] = deque()
        self.pins = 0
        self.timer: asyncio.TimerHandle | None = None
        self.step_transactions: list[StepTransaction] = []
        self.held_mutations: list[FlowMutation] = []
        self.is_counted = False
        self.was_counted = False

    @property
    def is_idle(self) -> bool:
        """Whether it can be unloaded."""
        is_busy = self.pending or self.queued_events or self.pins
        return not is_busy and self.machine is not None and not self.machine.has_deferred

    @property
    def is_healthy(self) -> bool:
        """Whether it has been read, and can handle events."""
        machine = self.machine
        return machine is not None and not machine.is_unloaded and not self.sequence.is_aborted

    @property
    def is_stopped(self) -> bool:
        """Whether it durably has a status in which it does not run."""
        machine = self.machine
        is_durable = not self.pending and not self.sequence.is_aborted
        return is_durable and machine is not None and machine.state.status is not FlowStatus.RUNNING

    def take_queued_events(self) -> list[QueuedEvent]:
        """Remove and return the queued events, in order."""
        queued = list(self.queued_events)
        self.queued_events.clear()
        return queued

    def take_held_mutations(self) -> list[FlowMutation]:
        """Remove and return the held mutations, in order."""
        mutations, self.held_mutations = self.held_mutations, []
        return mutations

    def submit_held(self, store: Store) -> None:
        """Submit the held mutations, unless the transaction of a step comes before them."""
        if any(tx.is_started and not tx.is_lost for tx in self.step_transactions):
            return
        for mutation in self.take_held_mutations():
            store.submit(mutation)

    def still_awaited(self, commands: list[FlowCommand]) -> list[FlowCommand]:
        """Return those of the commands that the code waits for now."""
        machine = self.machine
        return [command for command in commands if machine is not None and machine.awaits(command)]

    async def pin(self) -> None:
        """Stay in memory; returns when it has been read, or could not be."""
        self.pins += 1
        try:
            if self.machine is None:
                if self.read_done is None:
                    self.read_done = asyncio.get_running_loop().create_future()
                await asyncio.shield(self.read_done)
        except asyncio.CancelledError:
            self.pins -= 1
            raise

    async def is_durable(self) -> bool:
        """Wait for the commits in progress; return False if one of them has failed."""
        last_mutation = self.last_mutation
        while last_mutation is not None and not last_mutation.is_finished:  # noqa: ASYNC110  # A moment.
            await asyncio.sleep(_POLL_INTERVAL_S)
        return not self.sequence.is_aborted

    def on_loaded(self) -> None:
        """Wake those who wait in `pin`."""
        resolve_future(self.read_done)

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def __repr__(self) -> str:
        status = "loading" if self.machine is None else self.machine.state.status
        return f"<LoadedFlow {self.id:x} {status}, {self.pending} commits pending>"


def consume_exception(done: asyncio.Future[None]) -> None:
    """Mark the exception of a future as retrieved: its caller may not wait for it any more."""
    if not done.cancelled():
        done.exception()


def resolve_future(done: asyncio.Future[None] | None) -> None:
    """Resolve a future, unless there is none or it is done."""
    if done is not None and not done.done():
        done.set_result(None)


def fail_future(done: asyncio.Future[None] | None, error: Exception) -> None:
    """Fail a future, unless there is none or it is done."""
    if done is not None and not done.done():
        done.set_exception(error)


class FlowLoader:
    """Loads flows from the store: a state machine for each, and the events that waited for it."""

    def __init__(self, engine: FlowEngine) -> None:
        self._engine = engine
        # Ids of flows that were reported as unreadable, which is logged once.
        self._unreadable: set[int] = set()

    async def load(self, loaded: LoadedFlow) -> None:
        """Read a flow, replay its code, and handle the events that waited for it."""
        engine = self._engine
        try:
            stored = await read_with_retry(engine.store, tables.read_flow, loaded.id)
            LOADED.hit(flow=loaded.id)
            self._resume(loaded, stored)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # Callers must not wait for ever; the next event loads the flow again.
            logger.exception("flow %s cannot be loaded", format_flow_id(loaded.id))
            engine.reject(engine.unload(loaded), error)

    def _resume(self, loaded: LoadedFlow, stored: tables.StoredFlow | None) -> None:
        engine = self._engine
        if stored is None or stored.state.is_ended:
            self._reject_missing(loaded, stored)
            return
        state = stored.state
        if state.status is FlowStatus.UNREADABLE:
            detail = state.failure.detail if state.failure else ""
            self._reject_unreadable(loaded, NondeterminismError(detail))
            return
        machine = loaded.machine = engine.create_machine(
            loaded, state, entries=stored.entries, buffered=stored.buffered, signals=stored.signals
        )
        loaded.on_loaded()
        if stored.problem is not None:
            self._resume_unreadable(loaded, machine, stored.problem)
            return
        queued = loaded.take_queued_events()
        self._dispatch(loaded, [each for each in queued if isinstance(each[0], _BEFORE_CODE)])
        if loaded.is_healthy:
            if state.status is FlowStatus.RUNNING:
                engine.handle(loaded, FlowLoaded())
            else:
                engine.set_timer(loaded, machine)
        self._dispatch(loaded, [each for each in queued if not isinstance(each[0], _BEFORE_CODE)])
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
        """Kill or park a flow whose history cannot be read, so that its code cannot run."""
        engine = self._engine
        queued = loaded.queued_events
        kill = next((each for each in queued if isinstance(each[0], FlowKillRequested)), None)
        # The other events are dispatched again, or rejected, when this is durable.
        if kill is not None:
            queued.remove(kill)
            engine.handle(loaded, *kill)
        elif machine.state.status is FlowStatus.RUNNING:
            engine.commit(loaded, machine, machine.park(problem, now_ms()), None)
        else:
            self._reject_unreadable(loaded, problem)

    def _reject_unreadable(self, loaded: LoadedFlow, problem: NondeterminismError) -> None:
        """Leave a flow unchanged that this version of Postroad cannot read; reject its events."""
        engine, id = self._engine, loaded.id
        engine.admission.release_slot(id)
        if id not in self._unreadable:
            self._unreadable.add(id)
            logger.error(
                "flow %s cannot be read and is left unchanged: %s", format_flow_id(id), problem
            )
        for event, done in engine.unload(loaded):
            if isinstance(event, SessionMessagesReceived | SignalReceived):
                # Redelivered, and finally a dead letter: a newer version may be able to use it.
                engine.mutations.fail(event.ack_token, problem)
            fail_future(done, UsageError(f"flow {format_flow_id(id)}: {problem}"))

    def _reject_missing(self, loaded: LoadedFlow, stored: tables.StoredFlow | None) -> None:
        """Reject the events of a flow that does not exist, or has ended."""
        engine = self._engine
        engine.admission.release_slot(loaded.id)
        problem = "is not in this store"
        if stored is not None:
            problem = f"has ended: it is {stored.state.status}"
        for event, done in engine.unload(loaded):
            if isinstance(event, SessionMessagesReceived):
                engine.mutations.discard(event.ack_token)
            error = UsageError(f"flow {format_flow_id(loaded.id)} {problem}")
            if isinstance(event, SignalReceived):
                engine.mutations.fail(event.ack_token, Reject(str(error)))
            fail_future(done, error)
