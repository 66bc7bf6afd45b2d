"""Runs the steps of flows, as tasks of this process: again where they fail and may be repeated."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from postroad.core import fault_points as faults
from postroad.core import tracing
from postroad.core.errors import StoreError, TransactionAbortedError
from postroad.core.tracing import SpanKind, SpanLike
from postroad.durable import Transaction

from . import tables
from .asks import Ask
from .events import StatementDone, StepDone, StepRaised
from .head import Head, show_id
from .records import Position
from .requests import Statement, Step
from .resident import Resident
from .steps import Functions, StepTransaction, form_of, is_plain, pause_s, unwrap
from .traces import is_traced, part_of

if TYPE_CHECKING:
    from .engine import Engine

logger = logging.getLogger("postroad.flows")

STEP_BEGINS = faults.declare_fault_point("flows.step.begins")
STEP_DONE = faults.declare_fault_point("flows.step.done")


STOP_S = 10.0
"""Seconds for functions to end that were cancelled; those that do not are left behind."""
_STOP_ATTEMPTS = 5


class Stepping:
    """The steps that run now."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._functions = Functions(engine.store, engine.config.threads)
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[int, dict[Position, asyncio.Future[Any]]] = {}
        # Functions that wait until they may be called, and flows that need not wait for that.
        self._held: dict[int, dict[Position, Callable[[], None]]] = {}
        self._urgent: set[int] = set()
        self._is_holding = False
        self._is_ending = False
        # What code of users runs in: what was so when flows were started, not when one was begun.
        self.context = tracing.detached_context()

    def start(self, id: int, asks: list[Ask]) -> None:
        """Run functions whose turn it is: nothing before them can be undone any more."""
        for ask in asks:
            assert isinstance(ask, Step)
            self._when_allowed(id, ask, partial(self._start, id, ask))

    def _when_allowed(self, id: int, ask: Ask, start: Callable[[], None]) -> None:
        """Begin something now, or when functions may be called again."""
        if self._is_holding and id not in self._urgent:
            self._held.setdefault(id, {})[ask.position] = start
        else:
            start()

    def _start(self, id: int, step: Step) -> None:
        # It may run already, although its flow has left the memory and come back since.
        if step.position in self._tasks.get(id, ()):
            return
        head = self._head(id)
        if is_plain(step) and not is_traced(head) and not STEP_BEGINS.is_armed:
            self._call(id, step)
        else:
            self._spawn_step(id, step, self._run(id, step, head))

    def _call(self, id: int, step: Step) -> None:
        """Run a function that needs nothing but a thread: a task would cost more than all else."""
        call = self._functions.call(step, self.context.copy())
        self._tasks.setdefault(id, {})[step.position] = call
        # Not in the context of the function, which may still run: nobody can be in one twice.
        call.add_done_callback(partial(self._on_called, id, step), context=self.context.copy())

    def _on_called(self, id: int, step: Step, call: asyncio.Future[Any]) -> None:
        if call.cancelled():
            return
        is_over = call.exception() is None and not inspect.isawaitable(call.result())
        if is_over and not STEP_DONE.is_armed:
            self._engine.tell(id, StepDone(step.position, call.result()))
        else:
            self._spawn_step(id, step, self._run(id, step, self._head(id), call))

    def _spawn_step(self, id: int, step: Step, work: Coroutine[Any, Any, None]) -> None:
        self._spawn(id, step, work, f"postroad step {step.name}")

    def _spawn(self, id: int, ask: Ask, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name, context=self.context.copy())
        self._tasks.setdefault(id, {})[ask.position] = task

    def has_any(self, id: int) -> bool:
        """Whether steps of a flow run."""
        return id in self._tasks

    def cancel(self, id: int, position: Position) -> None:
        """Nobody waits for a step any more."""
        self._held.get(id, {}).pop(position, None)
        task = self._tasks.get(id, {}).get(position)
        if task is not None:
            self.forget(id, position)
            task.cancel()
        if (resident := self._engine.residents.get(id)) is not None:
            # A function may take its time to end, and what is committed next does not wait for it.
            for tx in resident.step_txs:
                if tx.position == position:
                    tx.undo()

    def cancel_all(self, id: int) -> None:
        """Nobody waits for any step of a flow."""
        self._held.pop(id, None)
        for task in self._tasks.pop(id, {}).values():
            task.cancel()

    def forget(self, id: int, position: Position) -> None:
        """What came of a step is known to its flow."""
        tasks = self._tasks.get(id)
        if tasks is not None:
            tasks.pop(position, None)
            if not tasks:
                del self._tasks[id]

    @property
    def running(self) -> int:
        """Functions that run now."""
        return sum(map(len, self._tasks.values()))

    def hold(self) -> None:
        """Call no functions until `release`, except for flows that are in a hurry."""
        self._is_holding = True

    def wind_down(self) -> None:
        """Call no more functions in this life; those that run come to their end."""
        self._is_holding = self._is_ending = True
        self._urgent.clear()

    def release(self) -> None:
        """Call the functions that were held back."""
        if self._is_ending:
            return
        self._is_holding = False
        self._urgent.clear()
        held, self._held = self._held, {}
        for of_one in held.values():
            for start in of_one.values():
                start()

    def hurry(self, id: int) -> None:
        """Somebody waits for a flow: its functions are called even while others are held back."""
        if self._is_holding and not self._is_ending:
            self._urgent.add(id)
            for start in self._held.pop(id, {}).values():
                start()

    async def close(self) -> None:
        """Stop what runs; it is run again when its flow goes on."""
        await self.halt()
        self._functions.close()

    async def halt(self) -> None:
        """Call no more functions in this life, and stop those that run."""
        self.wind_down()
        left = {it for of_one in self._tasks.values() for it in of_one.values()}
        for _ in range(_STOP_ATTEMPTS):
            for task in left:
                task.cancel()
            if left:
                ended, left = await asyncio.wait(left, timeout=STOP_S / _STOP_ATTEMPTS)
                # What they raise on their way out is of no interest any more.
                await asyncio.gather(*ended, return_exceptions=True)
        if left:
            logger.warning(
                "%d steps do not end although they were cancelled, and are left behind: %s",
                len(left), ", ".join(sorted(_name_of(it) for it in left)),
            )  # fmt: skip

    def _head(self, id: int) -> Head | None:
        resident = self._engine.residents.get(id)
        machine = None if resident is None else resident.machine
        return None if machine is None else machine.head

    async def _run(
        self, id: int, step: Step, head: Head | None, begun: asyncio.Future[Any] | None = None
    ) -> None:
        """Run a function until it returns or has failed too often; it may have begun already."""
        refusal = self._engine.refusals.of(id).get(step.position)
        failures = 0 if refusal is None else refusal.failures - 1
        while True:
            try:
                if refusal is not None:
                    raise refusal.error
                await self._try(id, step, head, begun)
                return
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                error: BaseException = RuntimeError("what the step waited for was cancelled")
            except BaseException as raised:
                error = raised
            failures += 1
            begun = refusal = None
            pause = pause_s(step, error, failures)
            if pause is None:
                self._engine.refusals.of(id).pop(step.position, None)
                self._engine.tell(id, StepRaised(step.position, error))
                if not isinstance(error, Exception):
                    raise error
                return
            logger.debug("step %s failed and is tried again: %r", step.name, error)
            await asyncio.sleep(pause)

    async def _try(
        self, id: int, step: Step, head: Head | None, begun: asyncio.Future[Any] | None
    ) -> None:
        with self._span(head, f"step {step.name}"):
            await self._try_once(id, step, begun)

    def _span(self, head: Head | None, name: str) -> SpanLike:
        return part_of(self._engine.store.owner, head, name, SpanKind.INTERNAL)

    async def _try_once(self, id: int, step: Step, begun: asyncio.Future[Any] | None) -> None:
        form = form_of(step.function)
        if form.is_transaction:
            await self._try_transaction(id, step)
            return
        if begun is None:
            step_id = await self._step_id(id, step) if "step_id" in form.wants else ""
            STEP_BEGINS.hit(flow=id, step=step.name)
            value = await self._functions.run(step, step_id)
        else:
            value = await unwrap(begun)
        STEP_DONE.hit(flow=id, step=step.name)
        self._engine.tell(id, StepDone(step.position, value))

    async def _try_transaction(self, id: int, step: Step) -> None:
        """Run a function in the commit that has its result."""
        engine = self._engine
        # To read it while its transaction is open could mean to wait for oneself.
        resident = await engine.pin(id)
        tx = StepTransaction(engine.store, engine.mail.clerk, position=step.position)
        resident.step_txs.append(tx)
        try:
            try:
                step_id = await self._step_id(id, step)
                STEP_BEGINS.hit(flow=id, step=step.name)
                value = await self._functions.run_in(step, step_id, tx)
                STEP_DONE.hit(flow=id, step=step.name)
            except BaseException:
                tx.undo()
                raise
            self._conclude(resident, step, value, tx)
        finally:
            resident.step_txs.remove(tx)
            if tx.is_begun:
                tx.undo()
            resident.release(engine.store)
            engine.unpin(resident)

    def _conclude(self, resident: Resident, step: Step, value: Any, tx: Transaction) -> None:
        """Give a flow what a step returned, in the commit of what it did."""
        if not resident.is_sound:
            # What is read of the flow next asks for the step again.
            tx.undo()
        elif resident.tx is None:
            self._engine.handle(resident, StepDone(step.position, value), None, tx)
        else:
            tx.undo()
            raise TransactionAbortedError("another transaction of the flow has begun")

    def run_statement(self, resident: Resident, statement: Statement) -> None:
        """Run a statement of the transaction a flow is in; it begins with the first."""
        if resident.tx is not None:
            self._start_statement(resident, resident.tx, statement)
        else:
            begin = partial(self._begin_block, resident, statement)
            self._when_allowed(resident.id, statement, begin)

    def _begin_block(self, resident: Resident, statement: Statement) -> None:
        # An operator may have paused or killed the flow meanwhile.
        if resident.is_sound and resident.still_asked([statement]):
            resident.tx = Transaction(self._engine.store, self._engine.mail.clerk)
            self._start_statement(resident, resident.tx, statement)

    def _start_statement(self, resident: Resident, tx: Transaction, statement: Statement) -> None:
        work = self._run_statement(resident, tx, statement)
        self._spawn(resident.id, statement, work, f"postroad {statement.label}")

    async def _run_statement(
        self, resident: Resident, tx: Transaction, statement: Statement
    ) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            with self._span(self._head(resident.id), statement.label):
                value = await getattr(tx, statement.method)(*statement.args, **statement.kwargs)
        except (StoreError, TransactionAbortedError) as lost:
            self.forget(resident.id, statement.position)
            self._engine.lose(resident, lost)
            return
        except Exception as raised:
            error = raised
        self.forget(resident.id, statement.position)
        if resident.tx is tx:
            STEP_DONE.hit(flow=resident.id, step=statement.name)
            self._engine.handle(resident, StatementDone(statement.position, value, error))

    async def _step_id(self, id: int, step: Step) -> str:
        """What a step is called everywhere, however often it is run."""
        run = await self._run_of(id)
        place = ".".join(map(str, step.position))
        return f"{self._engine.store.owner}/{show_id(id)}/{run}/{place}"

    async def _run_of(self, id: int) -> int:
        """How often a flow began anew."""
        resident = self._engine.residents.get(id)
        if resident is not None and resident.machine is not None:
            return resident.machine.head.run
        head = await self._engine.store.read(tables.read_head, id)
        return 1 if head is None else head.run


def _name_of(work: asyncio.Future[Any]) -> str:
    return work.get_name() if isinstance(work, asyncio.Task) else "a function in a thread"
