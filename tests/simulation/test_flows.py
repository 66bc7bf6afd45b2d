"""Scenario `flows`: it passes with many seeds, and finds bugs that are planted."""

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from postroad.core.errors import NotRunningError, Reject
from postroad.durable import Store, Transaction
from postroad.durable.consumers.dispatch_order import QueuedMessage
from postroad.durable.producer import EncodedMessage, append_sends, check_sends
from postroad.durable.store.backends.backend import DatabaseRow, StoreConnection
from postroad.durable.store.mutations import FunctionMutation, Mutation
from postroad.durable.store.savepoints import SavepointTransaction
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.flows import FlowContext, FlowStatus
from postroad.flows.engine import tables
from postroad.flows.engine.background import WakeupTimer
from postroad.flows.engine.engine import FlowEngine
from postroad.flows.engine.flow_mutation import FlowMutation, FlowMutationBuilder, OnFlowCommitted
from postroad.flows.engine.loaded_flow import LoadedFlow
from postroad.flows.engine.step_executor import StepExecutor
from postroad.flows.inbox.session_receiver import SessionReceiver
from postroad.flows.machine.events import FlowAdmitted, FlowTransition, SessionMessagesReceived
from postroad.flows.machine.history import CommandKind, HistoryEntry
from postroad.flows.machine.replay import ReplayCursor
from postroad.flows.machine.state import FlowFailure, FlowState
from postroad.flows.machine.state_machine import FlowStateMachine
from postroad.flows.schedules.schedule import Schedule
from postroad.flows.schedules.scheduler import FlowScheduler, _advance
from postroad.flows.sessions.flow_sessions import FlowSessions
from postroad.flows.sessions.messages import (
    QUEUE,
    SessionEnvelope,
    SessionReject,
    encode_session_envelope,
)
from postroad.testing import CRASH_EXIT_CODE
from tests.simulation.planting import CORRECTNESS, LIVENESS, SEEDS, Bug, Bugs, check_seeds

BUGS = Bugs()


@SEEDS
def test_seeds_pass(seeds: range) -> None:
    check_seeds("flows", seeds)


@BUGS.replace(FlowMutation, "apply", LIVENESS, 4)
def plant_forgotten_receipts(_: Any, self: FlowMutation, ledger: StoreTables) -> None:
    self._write(ledger)
    append_sends(ledger, self._sends, check_sends(ledger, self._sends))


@BUGS.replace(FlowStateMachine, "_notify_relatives", LIVENESS, 0)
def plant_parents_that_are_told_nothing(_: Any, self: FlowStateMachine) -> None:
    """Let the end of a flow be known to nobody."""


@BUGS.plant(CORRECTNESS, 1)
def plant_letters_before_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(posts: Sequence[EncodedMessage], ledger: StoreTables) -> None:
        append_sends(ledger, posts, check_sends(ledger, posts))

    def submit(store: Store, mutation: FlowMutation) -> None:
        try:
            store.submit(mutation)
        except NotRunningError as error:
            mutation.on_complete(error)

    def post_and_release(self: LoadedFlow, store: Store) -> None:
        if any(tx.is_started for tx in self.step_transactions):
            return
        for mutation in self.take_held_mutations():
            if mutation._sends:
                work = FunctionMutation(partial(post, mutation._sends))
                work.done.add_done_callback(lambda done: done.exception())
                store.submit(work)
                mutation._sends = ()
            asyncio.get_running_loop().call_later(0.01, submit, store, mutation)

    monkeypatch.setattr(LoadedFlow, "submit_held", post_and_release)


@BUGS.replace(ReplayCursor, "__init__", CORRECTNESS, 1)
def plant_records_that_are_skipped(
    init: Any, self: ReplayCursor, entries: Sequence[HistoryEntry]
) -> None:
    is_skipped = bool(entries) and entries[-1].kind is CommandKind.STEP
    init(self, entries[:-1] if is_skipped else entries)


@BUGS.replace(FlowEngine, "start_flow", CORRECTNESS, 10)
def plant_begun_before_commit(
    admit: Any, self: FlowEngine, state: FlowState, event: FlowAdmitted
) -> asyncio.Future[None]:
    admit(self, state, event).add_done_callback(lambda done: done.exception())
    committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    committed.set_result(None)
    return committed


@BUGS.plant(CORRECTNESS, 4)
def plant_result_before_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    make_unit = FlowMutationBuilder.build
    engines: dict[FlowMutationBuilder, FlowEngine] = {}
    init = FlowEngine.__init__

    def init_and_remember(self: FlowEngine, *args: Any) -> None:
        init(self, *args)
        engines[self.mutations] = self

    def make_and_tell(
        self: FlowMutationBuilder,
        loaded: LoadedFlow,
        machine: FlowStateMachine,
        transition: FlowTransition,
        tx: Transaction | None,
        on_committed: OnFlowCommitted,
    ) -> FlowMutation:
        if transition.is_ended:
            engines[self].result_waiters.resolve(machine.state)
        return make_unit(self, loaded, machine, transition, tx, on_committed)

    monkeypatch.setattr(FlowEngine, "__init__", init_and_remember)
    monkeypatch.setattr(FlowMutationBuilder, "build", make_and_tell)


class Nothing(Mutation):
    """Has the statements of a transaction kept, and nothing else done."""

    def apply(self, ledger: StoreTables) -> None:
        """Change nothing."""

    def on_complete(self, error: Exception | None) -> None:
        """Tell nobody."""


@BUGS.plant(CORRECTNESS, 2)
def plant_rows_apart_from_step(monkeypatch: pytest.MonkeyPatch) -> None:
    end, commit = SavepointTransaction.finish, FlowEngine.commit
    stores: list[Any] = []

    def commit_and_remember(self: FlowEngine, *args: Any) -> None:
        stores.append(self.store)
        try:
            commit(self, *args)
        finally:
            stores.pop()

    def end_apart(self: SavepointTransaction, unit: Mutation | None) -> None:
        if isinstance(unit, FlowMutation):
            end(self, Nothing())
            asyncio.get_running_loop().call_later(0.01, stores[-1].submit, unit)
        else:
            end(self, unit)

    monkeypatch.setattr(FlowEngine, "commit", commit_and_remember)
    monkeypatch.setattr(SavepointTransaction, "finish", end_apart)


@BUGS.replace(FlowMutation, "_write", LIVENESS, 1)
def plant_mail_that_stays(write: Any, self: FlowMutation, ledger: StoreTables) -> None:
    self.transition.clears_buffer = False
    write(self, ledger)


def _keep_only(monkeypatch: pytest.MonkeyPatch, is_kept: Callable[[DatabaseRow], bool]) -> None:
    insert = tables.insert_buffered

    def insert_some(database: StoreConnection, rows: Sequence[DatabaseRow]) -> None:
        insert(database, [row for row in rows if is_kept(row)])

    monkeypatch.setattr(tables, "insert_buffered", insert_some)


@BUGS.plant(CORRECTNESS, 25)
def plant_signals_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    _keep_only(monkeypatch, lambda row: row[2] is not None)


@BUGS.plant(CORRECTNESS, 1)
def plant_messages_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    _keep_only(monkeypatch, lambda row: row[2] is None)


@BUGS.replace(WakeupTimer, "set", LIVENESS, 1)
def plant_alarm_that_is_not_set(_: Any, self: WakeupTimer, due_ms: int) -> None:
    """Wake nobody."""


@BUGS.replace(FlowEngine, "_on_commit_failed", LIVENESS, 4)
def plant_commits_that_fail_unheard(_: Any, self: FlowEngine, *args: Any, **kwargs: Any) -> None:
    """Take it for done."""


@BUGS.replace(FlowContext, "random", CORRECTNESS, 0)
def plant_other_random_numbers(_: Any, self: FlowContext) -> random.Random:
    return random.Random(random.random())


@BUGS.replace(FlowSessions, "fail_all", LIVENESS, 1)
def plant_failures_that_nobody_is_told(
    _: Any, self: FlowSessions, failure: FlowFailure, was: FlowStatus, transition: FlowTransition
) -> None:
    """Say nothing."""


@BUGS.replace(FlowSessions, "on_message", LIVENESS, 14)
def plant_paused_flows_do_not_listen(
    hear: Any, self: FlowSessions, event: SessionMessagesReceived, transition: FlowTransition
) -> None:
    if self._state.status is FlowStatus.PAUSED:
        transition.ack_tokens.append(event.ack_token)
    else:
        hear(self, event, transition)


@BUGS.replace(StepExecutor, "start", LIVENESS, 1)
def plant_steps_that_are_not_resumed(
    start: Any, self: StepExecutor, id: int, asks: list[Any]
) -> None:
    start(self, id, asks[:1])


@BUGS.replace(LoadedFlow, "submit_held", CORRECTNESS, 59)
def plant_commits_overtaken_by_a_step(_: Any, self: LoadedFlow, store: Store) -> None:
    for mutation in self.take_held_mutations():
        store.submit(mutation)


@BUGS.replace(FlowScheduler, "_commit_start", CORRECTNESS, 102)
async def plant_schedules_apart_from_flows(
    begin: Any, self: FlowScheduler, schedule: Schedule, moved: Schedule, state: FlowState
) -> Any:
    await self._store.write(lambda ledger: _advance(ledger, schedule, moved))
    return await begin(self, moved, moved, state)


@BUGS.replace(SessionReceiver, "_reject", LIVENESS, 7)
def plant_rejections_apart_from_letters(
    _: Any,
    self: SessionReceiver,
    entry: QueuedMessage,
    envelope: SessionEnvelope,
    text: str,
) -> None:
    answer = SessionEnvelope(envelope.key, True, [SessionReject(text, "planted")])
    peer, engine = entry.location.sender, self.engine

    async def reject() -> None:
        await asyncio.sleep(0.5)
        await engine.queues.send(QUEUE, encode_session_envelope(answer), to=peer)

    self.dispatcher.ack(entry)
    engine.background.spawn(reject(), "rejection")


@BUGS.replace(SessionReceiver, "dispatch", CORRECTNESS, 0)
def plant_garbage_in_silence(take: Any, self: SessionReceiver, entry: QueuedMessage) -> None:
    try:
        take(self, entry)
    except Reject:
        self.dispatcher.ack(entry)


@BUGS.replace(FlowStateMachine, "_move_time", CORRECTNESS, 64)
def plant_time_that_goes_back(_: Any, self: FlowStateMachine, now_ms: int) -> None:
    self.now_ms = now_ms


@BUGS.replace(FlowEngine, "set_timer", CRASH_EXIT_CODE, 1)
def plant_exception(
    set_timer: Any, self: FlowEngine, loaded: LoadedFlow, machine: FlowStateMachine
) -> None:
    if machine.state.status is FlowStatus.RETRYING:
        raise IndexError("too many")
    set_timer(self, loaded, machine)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.check_found_by("flows", monkeypatch)
