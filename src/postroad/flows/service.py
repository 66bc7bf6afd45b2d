"""The flows of a node: starting them, and everything an operator may want of them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from postroad.core import Lifecycle
from postroad.core import fault_points as faults
from postroad.core.errors import ConfigError, PostroadError, StoreError, UsageError
from postroad.core.timing import backoff
from postroad.durable import DurableQueues
from postroad.durable.store.savepoints import check_not_in_transaction, outside_transaction
from postroad.flows.admin import FlowAdmin
from postroad.flows.config import FlowsConfig
from postroad.flows.definition import FlowDefinition, FlowRegistry
from postroad.flows.engine import tables
from postroad.flows.engine.background import now_ms
from postroad.flows.engine.engine import FlowEngine
from postroad.flows.engine.session_receiver import SessionReceiver
from postroad.flows.errors import DrainingError, FlowKilledError, FlowNotFoundError
from postroad.flows.machine import values
from postroad.flows.machine.events import FlowAdmitted
from postroad.flows.machine.state import FlowState, format_flow_id
from postroad.flows.machine.status import FlowStatus
from postroad.flows.schedules.scheduler import FlowScheduler, ScheduleOperations
from postroad.flows.tracing import start_flow_span, store_trace

logger = logging.getLogger("postroad.flows")

CLAIMED = faults.declare_fault_point("flows.recovery.claimed")

P = ParamSpec("P")
R = TypeVar("R")

_SEED_BYTES = 16
_CLIENT_ID_CHARS_MAX = 512
# What nobody else may do at the same store; no queue can be called that.
_CLAIM = "flows.run\n"
_PURGE_INTERVAL_S = 600.0
_DRAIN_POLL_INTERVAL_S = 0.05


class FlowHandle(Generic[R]):
    """A flow that was started; its result can be waited for."""

    __slots__ = ("_flows", "_number", "_type", "client_id", "name")

    def __init__(
        self, flows: FlowService, number: int, name: str, client_id: str | None, type: Any = Any
    ) -> None:
        self._flows = flows
        self._number = number
        self._type = type
        self.name = name
        self.client_id = client_id

    @property
    def id(self) -> str:
        """What it is called."""
        return format_flow_id(self._number)

    async def result(self, timeout: float | None = None) -> R:
        """Wait for its result.

        Raises:
            FlowError: the one it raised, as far as that can be made again.
            FlowKilledError: an operator ended it.
            TimeoutError: it has not ended yet.
        """
        return cast(R, _result(await self.wait(timeout), self._type))

    async def wait(self, timeout: float | None = None) -> FlowState:
        """Wait until it has ended; raises TimeoutError if it has not by then."""
        engine = self._flows.engine
        engine.step_executor.prioritize(self._number)
        with outside_transaction(engine.store):
            async with asyncio.timeout(timeout):
                state = await engine.wait_result(self._number)
        if state is None:
            raise FlowNotFoundError(f"no flow {self.id} is known any more")
        return state

    def __repr__(self) -> str:
        return f"<FlowHandle {self.name} {self.id}>"


def _result(state: FlowState, type: Any) -> Any:
    if state.status is FlowStatus.COMPLETED:
        assert state.result is not None
        return values.decode_result(state.result, type)
    assert state.failure is not None
    if state.status is FlowStatus.KILLED:
        raise FlowKilledError(state.failure.error.text)
    raise values.restore_error(state.failure.error)


class FlowService(FlowAdmin, ScheduleOperations, Lifecycle):
    """Flows of one node: conversations with flows of other nodes that survive every crash.

        queues = DurableQueues(agent, SqliteStore("alpha.db"))
        async with queues, FlowService(queues, [ping, pong]) as flows:
            handle = await flows.start_flow(ping, "beta")
            print(await handle.result())

    Args:
        queues: durable queues of this node; start them before and stop them after.
        flows: those that can be begun here, or respond to others; or a module that has them.
        config: all sizes and times.
    """

    def __init__(
        self,
        queues: DurableQueues,
        flows: Iterable[FlowDefinition[Any, Any]] | ModuleType,
        config: FlowsConfig | None = None,
    ) -> None:
        self.queues = queues
        self.registry = FlowRegistry(flows)
        self.config = config or FlowsConfig()
        self._engine: FlowEngine | None = None
        self._receiver: SessionReceiver | None = None
        self._scheduler: FlowScheduler | None = None
        self._starting: dict[str, asyncio.Future[None]] = {}
        self._purge_task: asyncio.Task[None] | None = None
        # The task that stops everything, once somebody wants that.
        self._stop_task: asyncio.Task[None] | None = None
        self._is_draining = False
        self._are_steps_paused = False

    @property
    def engine(self) -> FlowEngine:
        """What runs them; only while running."""
        if self._engine is None:
            if self.queues.store.is_open:
                self.queues.store.writer.check()
            raise UsageError(f"{self!r} is not running: start() it first")
        return self._engine

    # Life.

    async def start(self) -> None:
        """Begin to run: go on with what was at work when the process ended."""
        if self._engine is not None:
            raise UsageError(f"{self!r} runs already")
        claims = self.queues.store.claims
        if _CLAIM in claims:
            raise UsageError(f"{claims[_CLAIM]} at this store already: a node has its flows once")
        self.queues.store.claim(_CLAIM, "flows run")
        engine = self._engine = FlowEngine(self.queues, self.registry, self.config)
        engine.admission.is_draining = self._is_draining
        if self._are_steps_paused:
            engine.step_executor.pause()
        try:
            CLAIMED.hit()
            await engine.open()
            # Those who were at work go on before anybody says anything new to them.
            self._receiver = SessionReceiver(engine)
            await self._receiver.start()
            await engine.admission.retry_parked()
            self._scheduler = FlowScheduler(self)
            await self._scheduler.start()
        except BaseException:
            await self.stop()
            raise
        self.queues.store.ended.add_done_callback(self._on_store_ended)
        loop = asyncio.get_running_loop()
        self._purge_task = loop.create_task(self._purge_periodically(), name="postroad old flows")

    def pause_steps(self) -> None:
        """Call no functions of steps, and begin no transactions, until `release`.

        Flows that somebody of this process waits for go on nevertheless. It may be said before
        `start`, by a node that has more to start before functions can use it.
        """
        self._are_steps_paused = True
        if self._engine is not None:
            self._engine.step_executor.pause()

    def resume_steps(self) -> None:
        """Call the functions that were held back."""
        self._are_steps_paused = False
        if self._engine is not None:
            self._engine.step_executor.resume()

    async def halt_steps(self) -> None:
        """Stop the functions that run, and call no more.

        Flows can still be begun. They, and those that were at it, go on with the next start.
        """
        if self._engine is not None:
            await self._engine.step_executor.halt()

    async def stop(self) -> None:
        """Put all flows away; they go on when this node is started again."""
        self._start_stopping()
        if self._stop_task is not None:
            await asyncio.shield(self._stop_task)

    def _on_store_ended(self, ended: asyncio.Future[StoreError]) -> None:
        """Put all flows away: what is in memory does not hold any more."""
        self._start_stopping()

    def _start_stopping(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            loop = asyncio.get_running_loop()
            self._stop_task = loop.create_task(self._stop(engine), name="postroad flows stop")

    async def _stop(self, engine: FlowEngine) -> None:
        """A task of its own, so that it ends even if its caller is cancelled."""
        if self._scheduler is not None:
            await self._scheduler.stop()
            self._scheduler = None
        if self._purge_task is not None:
            self._purge_task.cancel()
            await asyncio.gather(self._purge_task, return_exceptions=True)
        if self._receiver is not None:
            await self._receiver.stop()
        await engine.close()
        if self._receiver is not None:
            await self._receiver.close()
            self._receiver = None
        try:
            await engine.store.write(lambda ledger: tables.mark_stopped(ledger.database))
        except PostroadError as error:
            # Then the next start counts this one as a crash.
            logger.debug("the end of the flows could not be noted: %s", error)
        engine.store.release(_CLAIM)

    async def _purge_periodically(self) -> None:
        failures = 0
        while True:
            pause_s = _PURGE_INTERVAL_S
            try:
                await self.purge_expired()
                failures = 0
            except Exception as error:
                if self._engine is None:
                    return
                # A store that is away comes back, and nobody else would look again.
                failures += 1
                pause_s = backoff(
                    failures, initial_delay_s=1.0, max_delay_s=_PURGE_INTERVAL_S, jitter=0.5
                )
                level = logging.DEBUG if isinstance(error, StoreError) else logging.WARNING
                logger.log(level, "flows that ended long ago are kept for now: %r", error)
            await asyncio.sleep(pause_s)

    # Beginning.

    async def start_flow(
        self, definition: FlowDefinition[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> FlowHandle[R]:
        """Begin a flow; returns when it cannot be lost any more.

        Raises:
            DrainingError: no new flows are begun now.
            UsageError: the arguments do not fit.
            SerializationError: an argument cannot be written down.
        """
        return await self._start_flow(definition, None, args, kwargs)

    async def start_flow_with_id(
        self, client_id: str, definition: FlowDefinition[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> FlowHandle[R]:
        """Begin a flow unless one was begun under that id; that one then, whatever it is given.

        So whoever does not know whether a flow was begun can safely say it again. Its result is
        kept until `forget`.
        """
        if not 0 < len(client_id) <= _CLIENT_ID_CHARS_MAX or not client_id.isprintable():
            raise ConfigError(
                f"a client id has 1 to {_CLIENT_ID_CHARS_MAX} characters that can be printed"
            )
        check_not_in_transaction(self.engine.store)
        while (other := self._starting.get(client_id)) is not None:
            await asyncio.wait((other,))
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting[client_id] = over
        try:
            state = await self.engine.store.read(tables.find_by_client_id, client_id)
            if state is not None:
                return self._handle_of(state)
            return await self._start_flow(definition, client_id, args, kwargs)
        finally:
            del self._starting[client_id]
            over.set_result(None)

    async def run_flow(
        self, definition: FlowDefinition[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Begin a flow and wait for its result."""
        handle = await self._start_flow(definition, None, args, kwargs)
        return await handle.result()

    async def _start_flow(
        self,
        definition: FlowDefinition[Any, R],
        client_id: str | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> FlowHandle[R]:
        engine = self.engine
        arguments = definition.encode_arguments(args, kwargs)
        with (
            outside_transaction(engine.store),
            start_flow_span(self.queues.service.name, definition.name) as span,
        ):
            await engine.store.writer.wait_for_capacity()
            state = self.new_state(definition, arguments, client_id)
            store_trace(state, span)
            await engine.start_flow(state, FlowAdmitted())
        return FlowHandle(self, state.id, state.name, client_id, definition.result_type)

    def new_state(
        self, definition: FlowDefinition[Any, Any], arguments: bytes, client_id: str | None
    ) -> FlowState:
        """What is known of a flow that is about to begin."""
        engine = self.engine
        if self._is_draining:
            raise DrainingError("this node begins no new flows now; try again later, or elsewhere")
        self.check_startable(definition)
        now = now_ms()
        timeout_s = definition.timeout_s
        return FlowState(
            id=engine.new_id(),
            name=definition.name,
            version=definition.version,
            status=FlowStatus.RUNNING
            if engine.admission.slots.free(definition)
            else FlowStatus.QUEUED,
            seed=os.urandom(_SEED_BYTES),
            started_ms=now,
            arguments=arguments,
            client_id=client_id,
            deadline_ms=None if timeout_s is None else now + round(timeout_s * 1000),
        )

    def check_startable(self, definition: FlowDefinition[Any, Any]) -> None:
        """Raise UsageError if nobody here can begin a flow."""
        if self.registry.find(definition.name) is not definition:
            raise UsageError(f"{definition!r} is none of the flows this node was given")
        if definition.responds_to is not None:
            raise UsageError(f"{definition!r} is begun by {definition.responds_to}, by nobody else")

    async def get_by_client_id(self, client_id: str) -> FlowHandle[Any]:
        """The flow that was begun under an id; raises FlowNotFoundError if none was."""
        state = await self.engine.store.read(tables.find_by_client_id, client_id)
        if state is None:
            raise FlowNotFoundError(f"no flow was begun as {client_id!r}")
        return self._handle_of(state)

    async def get_handle(self, id: str) -> FlowHandle[Any]:
        """A flow by its own id; raises FlowNotFoundError if there is none."""
        return self._handle_of(await self.load_state(id))

    def _handle_of(self, state: FlowState) -> FlowHandle[Any]:
        definition = self.registry.find(state.name)
        type = Any if definition is None else definition.result_type
        return FlowHandle(self, state.id, state.name, state.client_id, type)

    # Draining.

    @property
    def is_draining(self) -> bool:
        """Whether no new flows are begun now."""
        return self._is_draining

    async def drain(self, timeout: float | None = None) -> int:
        """Begin no new flows, here or for others; how many still run when the time is over.

        What others want to begin is held until `undrain`, or the next start.
        """
        self._is_draining = self.engine.admission.is_draining = True
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        while running := self.engine.admission.slots.total:
            if until is not None and loop.time() >= until:
                break
            await asyncio.sleep(_DRAIN_POLL_INTERVAL_S)
        return running

    async def drain_steps(self, timeout: float) -> int:
        """Begin no new flows and no new steps; how many steps still run when the time is over.

        For a node that is about to stop: flows go on where they are when it is started again, and
        those that sleep or wait need not be waited for.
        """
        self._is_draining = self.engine.admission.is_draining = True
        stepping = self.engine.step_executor
        stepping.drain()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while stepping.running and loop.time() < until:  # noqa: ASYNC110  # As `drain` does.
            await asyncio.sleep(_DRAIN_POLL_INTERVAL_S)
        return stepping.running

    async def undrain(self) -> None:
        """Begin new flows again: those that were held, and what schedules have missed."""
        self._is_draining = self.engine.admission.is_draining = False
        await self.engine.admission.start_held()
        if self._scheduler is not None:
            self._scheduler.wake()

    def __repr__(self) -> str:
        state = "not running" if self._engine is None else "running"
        return f"<Flows of {self.queues.service.name} {state}>"
