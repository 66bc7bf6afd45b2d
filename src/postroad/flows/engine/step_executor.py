"""Runs the steps of flows, as tasks of this process: again where they fail and may be repeated.

A step that ends is recorded by the next commit of its flow. If the process dies before, replay
finds no entry for it, and it runs again with the same `StepId`: at least once. What it did with a
`Transaction` is in the same commit as its record, so that is undone: exactly once.

Which functions put the result of a step, its rows and its sends into one commit: see
flow_mutation.py.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from postroad.core import fault_points as faults
from postroad.core import tracing
from postroad.core.tracing import SpanKind, SpanLike
from postroad.flows.engine import tables
from postroad.flows.engine.loaded_flow import LoadedFlow
from postroad.flows.engine.step_functions import (
    StepFunctions,
    StepTransaction,
    await_step_result,
    is_thread_only,
)
from postroad.flows.engine.step_limits import StepLimiters
from postroad.flows.machine.commands import FlowCommand, RunStep
from postroad.flows.machine.events import StepCompleted, StepFailed
from postroad.flows.machine.failure_policy import step_retry_delay_s
from postroad.flows.machine.history import Position
from postroad.flows.machine.state import FlowState, format_flow_id
from postroad.flows.steps import Source, step_signature
from postroad.flows.tracing import is_traced, start_child_span

if TYPE_CHECKING:
    from postroad.flows.engine.engine import FlowEngine

logger = logging.getLogger("postroad.flows")

STEP_STARTED = faults.declare_fault_point("flows.step.started")
STEP_COMPLETED = faults.declare_fault_point("flows.step.completed")


STOP_S = 10.0
"""Seconds for cancelled functions to end; those that do not are abandoned."""
_STOP_ATTEMPTS = 5


class StepExecutor:
    """The steps that run now."""

    def __init__(self, engine: FlowEngine) -> None:
        self._engine = engine
        self._functions = StepFunctions(engine.store, engine.config.step_threads)
        self._loop = asyncio.get_running_loop()
        self._limiters = StepLimiters()
        self._tasks: dict[int, dict[Position, asyncio.Future[Any]]] = {}
        # Steps that wait for `resume`, and flows whose steps do not wait.
        self._paused_starts: dict[int, dict[Position, Callable[[], None]]] = {}
        self._urgent: set[int] = set()
        self._is_paused = False
        self._is_draining = False
        # The context of user code: that in which the flows were started, not that of one start.
        self.context = tracing.detached_context()

    def start(self, id: int, commands: list[FlowCommand]) -> None:
        """Start steps after all transitions before them are durable."""
        for command in commands:
            assert isinstance(command, RunStep)
            self._start_or_hold(id, command, partial(self._start, id, command))

    def _start_or_hold(self, id: int, command: FlowCommand, start: Callable[[], None]) -> None:
        """Start a step now, or on `resume`."""
        if self._is_paused and id not in self._urgent:
            self._paused_starts.setdefault(id, {})[command.position] = start
        else:
            start()

    def _start(self, id: int, step: RunStep) -> None:
        # It may run already, although its flow was unloaded and loaded again.
        if step.position in self._tasks.get(id, ()):
            return
        state = self._state(id)
        if is_thread_only(step) and not is_traced(state) and not STEP_STARTED.is_armed:
            self._run_in_thread(id, step)
        else:
            self._spawn_step(id, step, self._run(id, step, state))

    def _run_in_thread(self, id: int, step: RunStep) -> None:
        """Run a function that only needs a thread: a task would cost more than all else."""
        call = self._functions.call_in_thread(step, self.context.copy())
        self._tasks.setdefault(id, {})[step.position] = call
        # Not in the context of the function, which may still run: a context is entered once.
        call.add_done_callback(partial(self._on_thread_done, id, step), context=self.context.copy())

    def _on_thread_done(self, id: int, step: RunStep, call: asyncio.Future[Any]) -> None:
        if call.cancelled():
            return
        is_completed = call.exception() is None and not inspect.isawaitable(call.result())
        if is_completed and not STEP_COMPLETED.is_armed:
            self._engine.dispatch(id, StepCompleted(step.position, call.result()))
        else:
            self._spawn_step(id, step, self._run(id, step, self._state(id), call))

    def _spawn_step(self, id: int, step: RunStep, work: Coroutine[Any, Any, None]) -> None:
        self._spawn(id, step, work, f"postroad step {step.name}")

    def _spawn(
        self, id: int, command: FlowCommand, work: Coroutine[Any, Any, None], name: str
    ) -> None:
        task = self._loop.create_task(work, name=name, context=self.context.copy())
        self._tasks.setdefault(id, {})[command.position] = task

    def is_running(self, id: int) -> bool:
        """Whether steps of a flow run."""
        return id in self._tasks

    def cancel(self, id: int, position: Position) -> None:
        """Cancel a step."""
        self._paused_starts.get(id, {}).pop(position, None)
        task = self._tasks.get(id, {}).get(position)
        if task is not None:
            self.discard(id, position)
            task.cancel()
        if (loaded := self._engine.loaded_flows.get(id)) is not None:
            # A function may take time to end; the next commit does not wait for it.
            for tx in loaded.step_transactions:
                if tx.position == position:
                    tx.rollback()

    def cancel_all(self, id: int) -> None:
        """Cancel all steps of a flow."""
        self._paused_starts.pop(id, None)
        for task in self._tasks.pop(id, {}).values():
            task.cancel()

    def discard(self, id: int, position: Position) -> None:
        """Discard a step whose result its flow has."""
        tasks = self._tasks.get(id)
        if tasks is not None:
            tasks.pop(position, None)
            if not tasks:
                del self._tasks[id]

    @property
    def running(self) -> int:
        """The number of functions that run now."""
        return sum(map(len, self._tasks.values()))

    def pause(self) -> None:
        """Start no steps until `resume`, except those of prioritized flows."""
        self._is_paused = True

    def drain(self) -> None:
        """Start no more steps until the next start; those that run complete."""
        self._is_paused = self._is_draining = True
        self._urgent.clear()

    def resume(self) -> None:
        """Start the paused steps."""
        if self._is_draining:
            return
        self._is_paused = False
        self._urgent.clear()
        paused_starts, self._paused_starts = self._paused_starts, {}
        for of_one in paused_starts.values():
            for start in of_one.values():
                start()

    def prioritize(self, id: int) -> None:
        """Start the steps of a flow even while others are paused: a client waits for it."""
        if self._is_paused and not self._is_draining:
            self._urgent.add(id)
            for start in self._paused_starts.pop(id, {}).values():
                start()

    async def close(self) -> None:
        """Cancel steps; they run again when their flows resume."""
        await self.halt()
        self._functions.close()

    async def halt(self) -> None:
        """Start no more steps until the next start, and cancel those that run."""
        self.drain()
        unfinished = {future for of_one in self._tasks.values() for future in of_one.values()}
        for _ in range(_STOP_ATTEMPTS):
            for task in unfinished:
                task.cancel()
            if unfinished:
                ended, unfinished = await asyncio.wait(unfinished, timeout=STOP_S / _STOP_ATTEMPTS)
                # Errors during cancellation are ignored.
                await asyncio.gather(*ended, return_exceptions=True)
        if unfinished:
            logger.warning(
                "%d cancelled steps do not end and are abandoned: %s",
                len(unfinished), ", ".join(sorted(_name_of(future) for future in unfinished)),
            )  # fmt: skip

    def _state(self, id: int) -> FlowState | None:
        loaded = self._engine.loaded_flows.get(id)
        machine = None if loaded is None else loaded.machine
        return None if machine is None else machine.state

    async def _run(
        self,
        id: int,
        step: RunStep,
        state: FlowState | None,
        early_result: asyncio.Future[Any] | None = None,
    ) -> None:
        """Run a function until it returns or is not retried; its first attempt may have started."""
        rejection = self._engine.rejections.of(id).get(step.position)
        failures = 0 if rejection is None else rejection.failures - 1
        while True:
            try:
                if rejection is not None:
                    raise rejection.error
                async with self._limiters.slot(step.limit):
                    await self._attempt(id, step, state, early_result)
                return
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                error: BaseException = RuntimeError("what the step waited for was cancelled")
            except BaseException as raised:
                error = raised
            failures += 1
            early_result = rejection = None
            pause = step_retry_delay_s(step, error, failures, random.random())
            if pause is None:
                self._engine.rejections.of(id).pop(step.position, None)
                self._engine.dispatch(id, StepFailed(step.position, error))
                if not isinstance(error, Exception):
                    raise error
                return
            logger.debug("step %s failed and is retried: %r", step.name, error)
            await asyncio.sleep(pause)

    async def _attempt(
        self,
        id: int,
        step: RunStep,
        state: FlowState | None,
        early_result: asyncio.Future[Any] | None,
    ) -> None:
        with self._span(state, f"step {step.name}"):
            await self._attempt_once(id, step, early_result)

    def _span(self, state: FlowState | None, name: str) -> SpanLike:
        return start_child_span(self._engine.store.owner, state, name, SpanKind.INTERNAL)

    async def _attempt_once(
        self, id: int, step: RunStep, early_result: asyncio.Future[Any] | None
    ) -> None:
        signature = step_signature(step.function)
        if signature.is_transaction:
            await self._attempt_transaction(id, step)
            return
        if early_result is None:
            needs_id = Source.STEP_ID in signature.sources
            step_id = await self._step_id(id, step) if needs_id else ""
            STEP_STARTED.hit(flow=id, step=step.name)
            value = await self._functions.run(step, step_id)
        else:
            value = await await_step_result(early_result)
        STEP_COMPLETED.hit(flow=id, step=step.name)
        self._engine.dispatch(id, StepCompleted(step.position, value))

    async def _attempt_transaction(self, id: int, step: RunStep) -> None:
        """Run a function in the commit that records its result."""
        engine = self._engine
        # Reading the result while its transaction is open could be a deadlock.
        loaded = await engine.pin(id)
        tx = StepTransaction(engine.store, engine.queues.encoder, position=step.position)
        loaded.step_transactions.append(tx)
        try:
            try:
                step_id = await self._step_id(id, step)
                STEP_STARTED.hit(flow=id, step=step.name)
                value = await self._functions.run_in_transaction(step, step_id, tx)
                STEP_COMPLETED.hit(flow=id, step=step.name)
            except BaseException:
                tx.rollback()
                raise
            self._complete(loaded, step, value, tx)
        finally:
            loaded.step_transactions.remove(tx)
            if tx.is_started:
                tx.rollback()
            loaded.submit_held(engine.store)
            engine.unpin(loaded)

    def _complete(self, loaded: LoadedFlow, step: RunStep, value: Any, tx: StepTransaction) -> None:
        """Apply the result of a step in the commit of its transaction."""
        if not loaded.is_healthy:
            # The flow requests the step again when it is reloaded.
            tx.rollback()
        else:
            self._engine.handle(loaded, StepCompleted(step.position, value), None, tx)

    async def _step_id(self, id: int, step: RunStep) -> str:
        """Return the globally unique id of a step, the same in each attempt."""
        run = await self._run_number(id)
        place = ".".join(map(str, step.position))
        return f"{self._engine.store.owner}/{format_flow_id(id)}/{run}/{place}"

    async def _run_number(self, id: int) -> int:
        """Return the run number of a flow."""
        loaded = self._engine.loaded_flows.get(id)
        if loaded is not None and loaded.machine is not None:
            return loaded.machine.state.run_number
        state = await self._engine.store.read(tables.read_state, id)
        return 1 if state is None else state.run_number


def _name_of(work: asyncio.Future[Any]) -> str:
    return work.get_name() if isinstance(work, asyncio.Task) else "a function in a thread"
