"""The flow engine: loads flows, runs their state machines, and commits transitions.

Code runs ahead of the disk: what an event brings about is handed to the store, and the next event
is resumed at once. Nothing leaves before it is durable: messages are part of the commit, and
functions of steps and results wait for it. When a commit fails, what was in memory of the flow is
dropped, and read again. What one commit holds: see flow_mutation.py.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from postroad.core import fault_points as faults
from postroad.core.errors import (
    NotRunningError,
    OutboxFullError,
    PostroadError,
    StoreError,
    TransactionAbortedError,
    UsageError,
)
from postroad.core.timing import backoff
from postroad.durable import DurableQueues
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.flows.config import FlowsConfig
from postroad.flows.definition import FlowRegistry
from postroad.flows.engine import tables
from postroad.flows.engine.admission import ACTIVE_STATUSES, AdmissionController, CrashTrials
from postroad.flows.engine.background import LOADING_MAX, BackgroundTasks, WakeupTimer, now_ms
from postroad.flows.engine.flow_mutation import CommitRejections, FlowMutation, FlowMutationBuilder
from postroad.flows.engine.loaded_flow import (
    FlowLoader,
    LoadedFlow,
    QueuedEvent,
    consume_exception,
    fail_future,
    resolve_future,
)
from postroad.flows.engine.machine_factory import MachineFactory, run_sandboxed
from postroad.flows.engine.result_waiters import ResultWaiters, log_failed, log_parked
from postroad.flows.engine.step_executor import StepExecutor
from postroad.flows.engine.step_functions import StepTransaction
from postroad.flows.machine.events import (
    FlowAdmitted,
    FlowEvent,
    FlowLoaded,
    FlowTransition,
    StepCompleted,
    StepFailed,
    TimerFired,
)
from postroad.flows.machine.state import FlowState, format_flow_id
from postroad.flows.machine.state_machine import FlowStateMachine
from postroad.flows.machine.status import FlowStatus

logger = logging.getLogger("postroad.flows")

HANDLED = faults.declare_fault_point("flows.event.handled")
COMMITTED = faults.declare_fault_point("flows.commit.durable")
COMMIT_FAILED = faults.declare_fault_point("flows.commit.lost")
COUNTED = faults.declare_fault_point("flows.recovery.counted")

# A wall clock may jump; periodic scans make up for it.
_TIMER_MAX_S = 600.0
_RELOAD_INITIAL_DELAY_S = 0.05
_RELOAD_MAX_DELAY_S = 5.0
_PIN_RETRY_S = 0.001
_SUBMIT_HELD_INTERVAL_S = 1.0
_EVICTION_BATCH = 16


class FlowEngine:
    """The flows of one node that are in memory."""

    def __init__(self, queues: DurableQueues, registry: FlowRegistry, config: FlowsConfig) -> None:
        self.queues = queues
        self.store = queues.store
        self.registry = registry
        self.config = config
        self.loaded_flows: OrderedDict[int, LoadedFlow] = OrderedDict()
        # Sessions of the responders in memory.
        self.responders: dict[tuple[str, int, int], int] = {}
        self.admission = AdmissionController(self)
        self.mutations = FlowMutationBuilder(queues)
        self.machines = MachineFactory(registry, config, self.mutations.payload_max)
        self.result_waiters = ResultWaiters()
        self.step_executor = StepExecutor(self)
        self._loader = FlowLoader(self)
        self._trials = CrashTrials(self)
        self._wakeup_timer = WakeupTimer(self.store, self._wake)
        self.background = BackgroundTasks()
        self._next_id = itertools.count(1).__next__
        self.rejections = CommitRejections()
        self._failed_commits = 0
        self._is_closed = False
        self._loop = asyncio.get_running_loop()

    # Start and stop.

    async def open(self) -> None:
        """Prepare the store, and resume the flows that were running when the process ended."""
        store = self.store

        def prepare(stored: StoreTables) -> int:
            tables.create_tables(store.column_types, stored.database)
            self._trials.prepare(stored)
            return tables.reserve_ids(stored.database, stored.now_ms)

        self._next_id = itertools.count(await store.write(prepare)).__next__
        COUNTED.hit()
        self._trials.start()
        self.mutations.set_next_id(await store.read(tables.last_buffered_id) + 1)
        await self.admission.open()
        await self._wakeup_timer.scan()

    async def close(self) -> None:
        """Unload all flows; their transitions are committed by the store."""
        self._is_closed = True
        await self._wakeup_timer.close()
        self._trials.close()
        await self.step_executor.close()
        await self.background.close()
        for loaded in list(self.loaded_flows.values()):
            self.reject(self.unload(loaded), NotRunningError("the flows of this node are stopped"))
        self.result_waiters.close()

    # Starting flows.

    def new_id(self) -> int:
        """Return an id that no flow of this store ever had."""
        return self._next_id()

    def start_flow(self, state: FlowState, event: FlowAdmitted) -> asyncio.Future[None]:
        """Start a new flow; resolved when it is durable."""
        loaded = self._add_loaded_flow(state.id)
        loaded.machine = self.create_machine(loaded, state)
        loaded.is_counted = loaded.was_counted = False
        done: asyncio.Future[None] = self._loop.create_future()
        self.handle(loaded, event, done)
        return done

    def _add_loaded_flow(self, id: int) -> LoadedFlow:
        loaded = self.loaded_flows[id] = LoadedFlow(id)
        if len(self.loaded_flows) > self.config.loaded_flows_max:
            self._evict_idle()
        return loaded

    def create_machine(
        self, loaded: LoadedFlow, state: FlowState, **history: Any
    ) -> FlowStateMachine:
        if state.initiated_by is not None:
            self.responders[_initiator_key(state)] = state.id
            # Its definition may have another name now.
            if (definition := self.machines.definition_of(state)) is not None:
                state.name = definition.name
        loaded.is_counted = loaded.was_counted = state.status in ACTIVE_STATUSES
        return self.machines.create_machine(loaded, state, **history)

    # Events.

    def dispatch(self, id: int, event: FlowEvent, done: asyncio.Future[None] | None = None) -> None:
        """Apply an event, now or when the flow is loaded; `done` is resolved when it is durable."""
        loaded = self.loaded_flows.get(id)
        if loaded is None:
            loaded = self._add_loaded_flow(id)
            loaded.queued_events.append((event, done))
            self.background.spawn(self._loader.load(loaded), f"postroad flow {id:x}")
        elif loaded.is_healthy:
            self.handle(loaded, event, done)
        else:
            loaded.queued_events.append((event, done))

    async def _wake(self, id: int) -> None:
        """Resume a flow that is due; flows in memory have timers of their own."""
        await self.background.wait_for_capacity(LOADING_MAX)
        if id not in self.loaded_flows:
            self.dispatch(id, TimerFired())

    def handle(
        self,
        loaded: LoadedFlow,
        event: FlowEvent,
        done: asyncio.Future[None] | None = None,
        tx: StepTransaction | None = None,
    ) -> None:
        """Apply an event, with the transaction of the step that it completes."""
        machine = loaded.machine
        assert machine is not None
        try:
            transition = run_sandboxed(machine, event, self.step_executor.context)
        except UsageError as error:
            # The flow's status does not allow what the operator requested.
            self.admission.release_slot(loaded.id)
            self.reject([(event, done)], error)
            return
        except Exception as error:
            logger.exception("flow %s: cannot apply %r", format_flow_id(loaded.id), event)
            self.reject([(event, done)], error)
            self.abort(loaded, error)
            return
        if isinstance(event, StepCompleted | StepFailed):
            self.step_executor.discard(loaded.id, event.position)
        HANDLED.hit(flow=loaded.id, event=event)
        if tx is not None and not transition.is_step_recorded:
            tx.rollback()
            tx = None
        self.commit(loaded, machine, transition, done, tx)

    def abort(self, loaded: LoadedFlow, error: Exception) -> None:
        """Abort a flow in memory, because it cannot be committed any more."""
        loaded.sequence.is_aborted = True
        if not loaded.pending:
            self._on_commit_failed(loaded, error)

    def reject(self, queued: Sequence[QueuedEvent], error: Exception) -> None:
        """Requeue the messages of events that are not applied after all."""
        for event, done in queued:
            if (ack_token := getattr(event, "ack_token", None)) is not None:
                self.mutations.requeue(ack_token, error)
            fail_future(done, error)

    # Commits.

    def commit(
        self,
        loaded: LoadedFlow,
        machine: FlowStateMachine,
        transition: FlowTransition,
        done: asyncio.Future[None] | None,
        tx: StepTransaction | None = None,
    ) -> None:
        for position in transition.steps_to_cancel:
            self.step_executor.cancel(loaded.id, position)
        self.set_timer(loaded, machine)
        if transition.is_empty and tx is None:
            # Steps start when the pending commits are durable.
            if loaded.last_mutation is not None:
                loaded.last_mutation.steps_to_run += transition.steps_to_run
            else:
                self.step_executor.start(loaded.id, transition.steps_to_run)
            resolve_future(done)
            return

        place = None if tx is None else tx.position

        def on_complete(mutation: FlowMutation, error: Exception | None) -> None:
            if place is not None:
                self.rejections.record(mutation, place)
            self._on_committed(loaded, mutation, error, done)

        mutation = self.mutations.build(loaded, machine, transition, tx, on_complete)
        loaded.pending += 1
        loaded.last_mutation = mutation
        self.admission.update_running(loaded, machine)
        mutation.is_counted = loaded.is_counted
        statements = None if tx is None else tx.close()
        if statements is None:
            loaded.held_mutations.append(mutation)
            loaded.submit_held(self.store)
            if loaded.held_mutations and len(loaded.held_mutations) == 1:
                self._submit_held_later(loaded)
        elif statements.is_timed_out:
            loaded.submit_held(self.store)
            mutation.on_complete(
                TransactionAbortedError("the transaction took too long and was undone")
            )
        else:
            mutation.preceding = loaded.take_held_mutations()
            # Committed with the statements of the step: SavepointTransaction.apply_and_release.
            statements.finish(mutation)

    def _submit_held_later(self, loaded: LoadedFlow) -> None:
        """Submit mutations held for a transaction that was lost while its step still runs."""
        loaded.submit_held(self.store)
        if loaded.held_mutations:
            after_s = min(self.store.config.transaction_timeout_s, _SUBMIT_HELD_INTERVAL_S)
            self._loop.call_later(after_s, self._submit_held_later, loaded)

    def _on_committed(
        self,
        loaded: LoadedFlow,
        mutation: FlowMutation,
        error: Exception | None,
        done: asyncio.Future[None] | None,
    ) -> None:
        loaded.pending -= 1
        is_newest = loaded.last_mutation is mutation
        if is_newest:
            loaded.last_mutation = None
        if error is not None or mutation.is_duplicate:
            COMMIT_FAILED.hit(flow=loaded.id)
            error = error or PostroadError("it exists already")
            fail_future(done, error)
            self._on_commit_failed(loaded, error, is_duplicate=mutation.is_duplicate)
            return
        self._failed_commits = 0
        loaded.was_counted = mutation.is_counted
        COMMITTED.hit(flow=loaded.id)
        resolve_future(done)
        if mutation.transition.is_parked:
            log_parked(mutation.state, mutation.transition)
        for rejection in mutation.transition.rejected_signals:
            logger.warning("flow %s: signal discarded: %s", format_flow_id(loaded.id), rejection)
        if mutation.transition.is_ended:
            log_failed(mutation.state)
            self.rejections.discard(loaded.id)
            self._unload_and_redispatch(loaded)
            self.result_waiters.resolve(mutation.state)
        else:
            # Some steps may have ended meanwhile: a reloaded flow requests all of them.
            self.step_executor.start(loaded.id, loaded.still_awaited(mutation.steps_to_run))
            if (
                mutation.transition.is_cut
                and is_newest
                and loaded.is_healthy
                and not self._is_closed
            ):
                # Events that were queued meanwhile come first.
                self.handle(loaded, TimerFired())
            if mutation.transition.is_new and mutation.state.status is FlowStatus.QUEUED:
                self.admission.start_waiting(mutation.state.name)
            self.after_commit(loaded)

    def after_commit(self, loaded: LoadedFlow) -> None:
        """Handle a flow after all its transitions are durable."""
        machine = loaded.machine
        if loaded.pending or machine is None or self._is_closed:
            return
        if machine.code is None:
            self._unload_and_redispatch(loaded)
            if machine.state.status is FlowStatus.RUNNING and loaded.id not in self.loaded_flows:
                # It continues as new, so its earlier state must not stay.
                self.dispatch(loaded.id, FlowLoaded())
        elif self.config.replay_every_time and loaded.is_idle:
            self.unload(loaded)

    def _unload_and_redispatch(self, loaded: LoadedFlow) -> None:
        """Unload a flow, and dispatch its queued events to what is loaded next."""
        for event, done in self.unload(loaded):
            self.dispatch(loaded.id, event, done)

    def _on_commit_failed(
        self, loaded: LoadedFlow, error: Exception, *, is_duplicate: bool = False
    ) -> None:
        """Abort a flow after a failed commit: what depends on it has not happened."""
        loaded.sequence.is_aborted = True
        if loaded.machine is not None:
            loaded.machine.stop_code()
        self.step_executor.cancel_all(loaded.id)
        if loaded.pending or self.loaded_flows.get(loaded.id) is not loaded:
            return
        if loaded.machine is not None:
            self.admission.restore_running(loaded, loaded.machine)
        self._unload_failed(loaded, error)
        if is_duplicate:
            logger.warning("duplicate session ignored")
        elif not self._is_closed and not isinstance(error, NotRunningError):
            is_known = isinstance(error, OutboxFullError | StoreError)
            level = logging.DEBUG if is_known else logging.WARNING
            logger.log(level, "flow %s is reloaded: %s", format_flow_id(loaded.id), error)
            self._failed_commits += 1
            pause_s = backoff(
                self._failed_commits,
                initial_delay_s=_RELOAD_INITIAL_DELAY_S,
                max_delay_s=_RELOAD_MAX_DELAY_S,
                jitter=random.random(),
            )
            self._loop.call_later(pause_s, self.resume, loaded.id)

    def _unload_failed(self, loaded: LoadedFlow, error: Exception) -> None:
        """Unload a flow whose commit failed; operations of operators are applied after a reload."""
        is_unavailable = self._is_closed or isinstance(error, StoreError | NotRunningError)
        for event, done in self.unload(loaded):
            if done is None or is_unavailable or isinstance(event, FlowLoaded):
                self.reject([(event, done)], error)
            else:
                self.dispatch(loaded.id, event, done)

    def resume(self, id: int) -> None:
        """Resume a flow that is stored and may not be in memory."""
        if not self._is_closed and id not in self.loaded_flows:
            self.dispatch(id, FlowLoaded())

    # Memory.

    def unload(self, loaded: LoadedFlow) -> list[QueuedEvent]:
        """Unload a flow; return its queued events."""
        loaded.cancel_timer()
        if self.loaded_flows.get(loaded.id) is loaded:
            del self.loaded_flows[loaded.id]
        machine = loaded.machine
        if machine is not None:
            machine.stop_code()
            if machine.state.initiated_by is not None:
                self.responders.pop(_initiator_key(machine.state), None)
            if machine.due_ms is not None:
                self._wakeup_timer.set(machine.due_ms)
        loaded.on_loaded()
        return loaded.take_queued_events()

    def _evict_idle(self) -> None:
        """Unload the flows that were idle for longest."""
        for loaded in list(itertools.islice(self.loaded_flows.values(), _EVICTION_BATCH)):
            if loaded.is_idle and not self.step_executor.is_running(loaded.id):
                self.unload(loaded)
            else:
                self.loaded_flows.move_to_end(loaded.id)

    async def pin(self, id: int) -> LoadedFlow:
        """Return a loaded flow, which stays loaded until it is unpinned.

        Raises:
            UsageError: it is not known, has ended, or does not run.
        """
        while True:
            is_known: asyncio.Future[None] | None = None
            if id not in self.loaded_flows:
                is_known = self._loop.create_future()
                is_known.add_done_callback(consume_exception)
                self.dispatch(id, FlowLoaded(), is_known)
            loaded = self.loaded_flows[id]
            await loaded.pin()
            if self.loaded_flows.get(id) is loaded and loaded.is_healthy:
                return loaded
            loaded.pins -= 1
            if loaded.is_stopped:
                # It is unloaded at once, however often it is loaded.
                status = loaded.machine and loaded.machine.state.status
                raise UsageError(f"flow {format_flow_id(id)} is {status}: it does not run")
            if is_known is not None:
                await is_known
            # Until its current event is handled.
            await asyncio.sleep(_PIN_RETRY_S)

    def unpin(self, loaded: LoadedFlow) -> None:
        """Allow a flow to be unloaded again."""
        loaded.pins -= 1
        self.after_commit(loaded)

    async def wait_result(self, id: int) -> FlowState | None:
        """Wait until a flow has ended; None if it does not exist."""
        if (state := self.result_waiters.get(id)) is not None:
            return state
        waiter = self.result_waiters.add_waiter(id)
        try:
            loaded = self.loaded_flows.get(id)
            if loaded is None or loaded.machine is None:
                # A flow that is being loaded may have ended long ago.
                state = await self.store.read(tables.read_state, id)
                if state is None or state.is_ended or state.status is FlowStatus.UNREADABLE:
                    return state
            return await waiter
        finally:
            self.result_waiters.remove_waiter(id, waiter)

    # Timers.

    def set_timer(self, loaded: LoadedFlow, machine: FlowStateMachine) -> None:
        loaded.cancel_timer()
        due_ms = machine.due_ms
        if due_ms is not None and not self._is_closed:
            pause_s = min(max(due_ms - now_ms(), 0) / 1000, _TIMER_MAX_S)
            loaded.timer = self._loop.call_later(pause_s, self._on_timer, loaded)

    def _on_timer(self, loaded: LoadedFlow) -> None:
        loaded.timer = None
        if self.loaded_flows.get(loaded.id) is loaded:
            self.dispatch(loaded.id, TimerFired())


def _initiator_key(state: FlowState) -> tuple[str, int, int]:
    assert state.initiated_by is not None
    return state.initiated_by.peer, state.initiated_by.key.flow, state.initiated_by.key.number
