"""Drives the machines of flows: gets them from the store, commits what they say, and does it.

Code runs ahead of the disk: what an event brings about is handed to the store, and the next event
is taken up at once. Nothing leaves before it is durable: messages are part of the commit, and
functions of steps and results wait for it. When a commit fails, what was in memory of the flow is
dropped, and read again.
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
from postroad.durable import Mail, Transaction
from postroad.durable.store.ledger import Ledger

from . import tables
from .admission import Admission
from .alarm import Alarm, now_ms
from .assembly import Assembly
from .background import LOADING_MAX, Background
from .commit import FlowCommit, Refusals
from .config import FlowsConfig
from .definition import Registry
from .events import (
    Admitted,
    Event,
    Heard,
    Loaded,
    StepDone,
    StepRaised,
    Transition,
    Woke,
)
from .head import Head, show_id
from .life import Status
from .loading import Loading
from .machine import Machine
from .requests import Statement
from .resident import Resident, Wish, fail, heed, resolve
from .results import Results, report_parked
from .seclusion import run_code
from .slots import ACTIVE
from .stepping import Stepping
from .steps import StepTransaction
from .trials import Trials
from .writing import Writing

logger = logging.getLogger("postroad.flows")

HANDLED = faults.declare_fault_point("flows.event.handled")
COMMITTED = faults.declare_fault_point("flows.commit.durable")
LOST = faults.declare_fault_point("flows.commit.lost")
COUNTED = faults.declare_fault_point("flows.recovery.counted")

# A wall clock may jump; looking from time to time makes up for it.
_WAKE_AGAIN_S = 600.0
_BROKEN_FIRST_S = 0.05
_BROKEN_MAX_S = 5.0
_PIN_AGAIN_S = 0.001
_RELEASE_AGAIN_S = 1.0
_EVICTED_AT_ONCE = 16


class Engine:
    """The flows of one node, as far as they are in memory."""

    def __init__(self, mail: Mail, registry: Registry, config: FlowsConfig) -> None:
        self.mail = mail
        self.store = mail.store
        self.registry = registry
        self.config = config
        self.residents: OrderedDict[int, Resident] = OrderedDict()
        # Sessions that flows in memory respond to.
        self.responders: dict[tuple[str, int, int], int] = {}
        self.admission = Admission(self)
        self.writing = Writing(mail)
        self.assembly = Assembly(registry, config, self.writing.payload_max)
        self.results = Results()
        self.stepping = Stepping(self)
        self._loading = Loading(self)
        self._trials = Trials(self)
        self._alarm = Alarm(self.store, self._wake)
        self.background = Background()
        self._next_id = itertools.count(1).__next__
        self.refusals = Refusals()
        self._breaks = 0
        self._is_closed = False
        self._loop = asyncio.get_running_loop()

    # Life.

    async def open(self) -> None:
        """Make ready, and take up what was at work when the process ended."""
        store = self.store

        def prepare(ledger: Ledger) -> int:
            tables.create_tables(store.types, ledger.database)
            self._trials.prepare(ledger)
            return tables.reserve_ids(ledger.database, ledger.now_ms)

        self._next_id = itertools.count(await store.write(prepare)).__next__
        COUNTED.hit()
        self._trials.start()
        self.writing.number_from(await store.read(tables.last_mail_id) + 1)
        await self.admission.open()
        await self._alarm.look()

    async def close(self) -> None:
        """Put everything away; all that was done is committed by the store."""
        self._is_closed = True
        await self._alarm.close()
        self._trials.close()
        await self.stepping.close()
        await self.background.close()
        for resident in list(self.residents.values()):
            self.refuse(
                self.forget(resident), NotRunningError("the flows of this node are stopped")
            )
        self.results.close()

    # Making.

    def new_id(self) -> int:
        """An id no flow of this store has or had."""
        return self._next_id()

    def admit(self, head: Head, event: Admitted) -> asyncio.Future[None]:
        """Take up a new flow; resolved when it is durable."""
        resident = self._make_resident(head.id)
        resident.machine = self.make_machine(resident, head)
        resident.is_counted = resident.was_counted = False
        done: asyncio.Future[None] = self._loop.create_future()
        self.handle(resident, event, done)
        return done

    def _make_resident(self, id: int) -> Resident:
        resident = self.residents[id] = Resident(id)
        if len(self.residents) > self.config.resident_max:
            self._evict_some()
        return resident

    def make_machine(self, resident: Resident, head: Head, **known: Any) -> Machine:
        if head.origin is not None:
            self.responders[_origin_key(head)] = head.id
            # What responds to it may be called otherwise now.
            if (definition := self.assembly.definition_of(head)) is not None:
                head.name = definition.name
        resident.is_counted = resident.was_counted = head.status in ACTIVE
        machine = self.assembly.make_machine(resident, head, **known)
        machine.refusals = self.refusals.of(head.id)
        return machine

    # Events.

    def tell(self, id: int, event: Event, done: asyncio.Future[None] | None = None) -> None:
        """Take up an event, now or when the flow was read; `done` hears when it is durable."""
        resident = self.residents.get(id)
        if resident is None:
            resident = self._make_resident(id)
            resident.wishes.append((event, done))
            self.background.spawn(self._loading.load(resident), f"postroad flow {id:x}")
        elif resident.can_handle:
            self.handle(resident, event, done)
        else:
            resident.wishes.append((event, done))

    async def _wake(self, id: int) -> None:
        """Take up a flow whose time has come; those in memory have timers of their own."""
        await self.background.wait_for_room(LOADING_MAX)
        if id not in self.residents:
            self.tell(id, Woke())

    def handle(
        self,
        resident: Resident,
        event: Event,
        done: asyncio.Future[None] | None = None,
        tx: Transaction | None = None,
    ) -> None:
        """Take up an event, with the transaction of the step that it is the end of."""
        machine = resident.machine
        assert machine is not None
        try:
            transition = run_code(machine, event, self.stepping.context)
        except UsageError as error:
            # What an operator wants cannot happen to it now.
            self.admission.release(resident.id)
            self.refuse([(event, done)], error)
            return
        except Exception as error:
            logger.exception("flow %s could not take up %r", show_id(resident.id), event)
            self.refuse([(event, done)], error)
            self.lose(resident, error)
            return
        if isinstance(event, StepDone | StepRaised):
            self.stepping.forget(resident.id, event.position)
        HANDLED.hit(flow=resident.id, event=event)
        if tx is not None and not transition.is_step_kept:
            tx.undo()
            tx = None
        if transition.concludes is not None:
            tx, resident.tx = resident.tx, None
            if tx is not None and not transition.concludes:
                tx.undo()
                tx = None
        self.commit(resident, machine, transition, done, tx)
        if transition.concludes is not None:
            self._catch_up(resident)
        if transition.statement is not None:
            assert isinstance(transition.statement, Statement)
            self._run_statement(resident, transition.statement)

    def _run_statement(self, resident: Resident, statement: Statement) -> None:
        """Run the next statement of a flow, but a new block only after those who wait for a gap."""
        if resident.tx is None and resident.announce_gap():
            self._loop.call_soon(self.stepping.run_statement, resident, statement)
        else:
            self.stepping.run_statement(resident, statement)

    def _catch_up(self, resident: Resident) -> None:
        """Handle the events that arrived while a transaction was open, before the next one opens.

        A flow that goes from one block to the next must not keep its operators waiting.
        """
        for event, done in resident.take_wishes():
            self.tell(resident.id, event, done)

    def lose(self, resident: Resident, error: Exception) -> None:
        """Give up what is in memory of a flow, because it cannot be committed any more."""
        resident.lane.is_broken = True
        if not resident.pending:
            self._on_lost(resident, error)

    def refuse(self, wishes: Sequence[Wish], error: Exception) -> None:
        """Events are not taken up after all."""
        for event, done in wishes:
            if isinstance(event, Heard):
                self.writing.put_back(event.receipt, error)
            fail(done, error)

    # Commits.

    def commit(
        self,
        resident: Resident,
        machine: Machine,
        transition: Transition,
        done: asyncio.Future[None] | None,
        tx: Transaction | None = None,
    ) -> None:
        for position in transition.cancels:
            self.stepping.cancel(resident.id, position)
        self.set_timer(resident, machine)
        if transition.is_empty and tx is None:
            # What is to be run waits for what is under way.
            if resident.newest is not None:
                resident.newest.runs += transition.runs
            else:
                self.stepping.start(resident.id, transition.runs)
            resolve(done)
            return

        place = tx.position if isinstance(tx, StepTransaction) else transition.block

        def on_settled(unit: FlowCommit, error: Exception | None) -> None:
            if place is not None:
                self.refusals.note(unit, place)
            self._on_settled(resident, unit, error, done)

        unit = self.writing.make_unit(resident, machine, transition, tx, on_settled)
        resident.pending += 1
        resident.newest = unit
        self.admission.count(resident, machine)
        unit.is_counted = resident.is_counted
        turn = None if tx is None else tx.close()
        if turn is None:
            resident.held.append(unit)
            resident.release(self.store)
            if resident.held and len(resident.held) == 1:
                self._release_later(resident)
        elif turn.is_lost:
            resident.release(self.store)
            unit.settle(TransactionAbortedError("the transaction took too long and was undone"))
        else:
            unit.earlier = resident.take_held()
            turn.end(unit)

    def _release_later(self, resident: Resident) -> None:
        """Submit what is held when the transaction before it was lost, and its step runs on."""
        resident.release(self.store)
        if resident.held:
            after_s = min(self.store.config.transaction_s, _RELEASE_AGAIN_S)
            self._loop.call_later(after_s, self._release_later, resident)

    def _on_settled(
        self,
        resident: Resident,
        unit: FlowCommit,
        error: Exception | None,
        done: asyncio.Future[None] | None,
    ) -> None:
        resident.pending -= 1
        is_newest = resident.newest is unit
        if is_newest:
            resident.newest = None
        if error is not None or unit.is_duplicate:
            LOST.hit(flow=resident.id)
            error = error or PostroadError("it exists already")
            fail(done, error)
            self._on_lost(resident, error, is_duplicate=unit.is_duplicate)
            return
        self._breaks = 0
        resident.was_counted = unit.is_counted
        COMMITTED.hit(flow=resident.id)
        resolve(done)
        if unit.transition.is_parked:
            report_parked(unit.head, unit.transition)
        for refusal in unit.transition.refusals:
            logger.warning("flow %s goes on without it: %s", show_id(resident.id), refusal)
        if unit.transition.is_over:
            self.refusals.forget(resident.id)
            self._pass_on(resident)
            self.results.tell(unit.head)
        else:
            # Some may have come to their end meanwhile: a flow that was read again asks for all.
            self.stepping.start(resident.id, resident.still_asked(unit.runs))
            if unit.transition.is_cut and is_newest and resident.can_handle and not self._is_closed:
                # Whoever wanted something of it meanwhile was first.
                self.handle(resident, Woke())
            if unit.transition.is_new and unit.head.status is Status.QUEUED:
                self.admission.fill(unit.head.name)
            self.look_after(resident)

    def look_after(self, resident: Resident) -> None:
        """See what is to be done with a flow once all of it is durable."""
        machine = resident.machine
        if resident.pending or machine is None or self._is_closed:
            return
        if machine.code is None:
            self._pass_on(resident)
            if machine.head.status is Status.RUNNING and resident.id not in self.residents:
                # It begins anew, and nothing of before may be left.
                self.tell(resident.id, Loaded())
        elif self.config.reload and resident.is_idle:
            self.forget(resident)

    def _pass_on(self, resident: Resident) -> None:
        """Let a flow leave the memory, and give what waits for it to what is read of it next."""
        for event, done in self.forget(resident):
            self.tell(resident.id, event, done)

    def _on_lost(self, resident: Resident, error: Exception, *, is_duplicate: bool = False) -> None:
        """Something was not committed: what follows from it has not happened."""
        resident.lane.is_broken = True
        resident.undo()
        if resident.machine is not None:
            resident.machine.drop_code()
        self.stepping.cancel_all(resident.id)
        if resident.pending or self.residents.get(resident.id) is not resident:
            return
        if resident.machine is not None:
            self.admission.recount(resident, resident.machine)
        self._pass_over(resident, error)
        if is_duplicate:
            logger.warning("a session was opened twice; the second one is ignored")
        elif not self._is_closed and not isinstance(error, NotRunningError):
            is_known = isinstance(error, OutboxFullError | StoreError)
            level = logging.DEBUG if is_known else logging.WARNING
            logger.log(level, "flow %s is read again: %s", show_id(resident.id), error)
            self._breaks += 1
            pause_s = backoff(
                self._breaks,
                initial_delay_s=_BROKEN_FIRST_S,
                max_delay_s=_BROKEN_MAX_S,
                jitter=random.random(),
            )
            self._loop.call_later(pause_s, self.take_up, resident.id)

    def _pass_over(self, resident: Resident, error: Exception) -> None:
        """Let a flow leave the memory whose commit failed; operators are heard when it is back."""
        is_away = self._is_closed or isinstance(error, StoreError | NotRunningError)
        for event, done in self.forget(resident):
            if done is None or is_away or isinstance(event, Loaded):
                self.refuse([(event, done)], error)
            else:
                self.tell(resident.id, event, done)

    def take_up(self, id: int) -> None:
        """Go on with a flow that is in the store and perhaps not in memory."""
        if not self._is_closed and id not in self.residents:
            self.tell(id, Loaded())

    # Memory.

    def forget(self, resident: Resident) -> list[Wish]:
        """Let a flow leave the memory; what waits for it."""
        resident.cancel_timer()
        resident.undo()
        if self.residents.get(resident.id) is resident:
            del self.residents[resident.id]
        machine = resident.machine
        if machine is not None:
            machine.drop_code()
            if machine.head.origin is not None:
                self.responders.pop(_origin_key(machine.head), None)
            if machine.due_ms is not None:
                self._alarm.set(machine.due_ms)
        resident.on_read()
        return resident.take_wishes()

    def _evict_some(self) -> None:
        """Make room: those that nothing has happened to for longest leave."""
        for resident in list(itertools.islice(self.residents.values(), _EVICTED_AT_ONCE)):
            if resident.is_idle and not self.stepping.has_any(resident.id):
                self.forget(resident)
            else:
                self.residents.move_to_end(resident.id)

    async def pin(self, id: int) -> Resident:
        """A flow in memory, which it does not leave until it is unpinned.

        Raises:
            UsageError: it is not known, has ended, or does not run.
        """
        while True:
            is_known: asyncio.Future[None] | None = None
            if id not in self.residents:
                is_known = self._loop.create_future()
                is_known.add_done_callback(heed)
                self.tell(id, Loaded(), is_known)
            resident = self.residents[id]
            await resident.pin()
            if self.residents.get(id) is resident and resident.can_handle:
                return resident
            resident.pins -= 1
            if resident.is_at_rest:
                # It leaves the memory at once, however often it is read.
                status = resident.machine and resident.machine.head.status
                raise UsageError(f"flow {show_id(id)} is {status}: it does not run")
            if is_known is not None:
                await is_known
            # Until what it is in the midst of is over.
            await asyncio.sleep(_PIN_AGAIN_S)

    def unpin(self, resident: Resident) -> None:
        """Let a flow leave the memory again."""
        resident.pins -= 1
        self.look_after(resident)

    async def wait(self, id: int) -> Head | None:
        """Wait until a flow has ended; None if there is none."""
        if (head := self.results.get(id)) is not None:
            return head
        waiter = self.results.expect(id)
        try:
            resident = self.residents.get(id)
            if resident is None or resident.machine is None:
                # One that is just being read may have ended long ago.
                head = await self.store.read(tables.read_head, id)
                if head is None or head.is_over or head.status is Status.UNREADABLE:
                    return head
            return await waiter
        finally:
            self.results.give_up(id, waiter)

    # Time.

    def set_timer(self, resident: Resident, machine: Machine) -> None:
        resident.cancel_timer()
        due_ms = machine.due_ms
        if due_ms is not None and not self._is_closed:
            pause_s = min(max(due_ms - now_ms(), 0) / 1000, _WAKE_AGAIN_S)
            resident.timer = self._loop.call_later(pause_s, self._on_timer, resident)

    def _on_timer(self, resident: Resident) -> None:
        resident.timer = None
        if self.residents.get(resident.id) is resident:
            self.tell(resident.id, Woke())


def _origin_key(head: Head) -> tuple[str, int, int]:
    assert head.origin is not None
    return head.origin.peer, head.origin.key.flow, head.origin.key.number
