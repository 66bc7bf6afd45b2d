"""The flow service of a node: starts flows, resumes them after a restart, finds their results."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from postroad.core import Lifecycle
from postroad.core import fault_points as faults
from postroad.core.errors import PostroadError, StoreError, UsageError
from postroad.core.timing import backoff
from postroad.durable import DurableQueues
from postroad.durable.store.savepoints import check_not_in_transaction, outside_transaction
from postroad.flows.admin import FlowAdmin, load_flow_state, no_flow
from postroad.flows.config import FlowsConfig
from postroad.flows.definition import FlowDefinition, FlowRegistry
from postroad.flows.engine import tables
from postroad.flows.engine.engine import FlowEngine
from postroad.flows.engine.execution import FlowExecution
from postroad.flows.engine.retention import purge_expired
from postroad.flows.errors import FlowKilledError, FlowNotFoundError
from postroad.flows.inbox.queue_receiver import QueueReceiver
from postroad.flows.inbox.request_receiver import RequestReceiver
from postroad.flows.inbox.requests import FlowRequests, check_client_id
from postroad.flows.inbox.session_receiver import SessionReceiver
from postroad.flows.machine import values
from postroad.flows.machine.events import FlowAdmitted
from postroad.flows.machine.state import FlowState, format_flow_id
from postroad.flows.machine.status import FlowStatus
from postroad.flows.schedules.scheduler import FlowScheduler, FlowSchedules
from postroad.flows.tracing import start_flow_span, store_trace

logger = logging.getLogger("postroad.flows")

CLAIMED = faults.declare_fault_point("flows.recovery.claimed")

P = ParamSpec("P")
R = TypeVar("R")

# Claims the store for one FlowService; not a valid queue name.
_CLAIM = "flows.run\n"
_PURGE_INTERVAL_S = 600.0


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
        """The id of the flow."""
        return format_flow_id(self._number)

    async def result(self, timeout: float | None = None) -> R:
        """Wait for the result of the flow.

        Raises:
            FlowError: the error that it raised, as far as it can be restored.
            FlowKilledError: an operator killed it.
            TimeoutError: it has not ended within `timeout` seconds.
        """
        return cast(R, _result(await self.wait(timeout), self._type))

    async def wait(self, timeout: float | None = None) -> FlowState:
        """Wait for the end of the flow and return its state; raises TimeoutError."""
        engine = self._flows.engine
        engine.step_executor.prioritize(self._number)
        with outside_transaction(engine.store):
            async with asyncio.timeout(timeout):
                state = await engine.wait_result(self._number)
        if state is None:
            raise FlowNotFoundError(no_flow(self.id))
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


class FlowService(Lifecycle):
    """Runs the flows of one node, which survive crashes and talk to flows of other nodes.

        queues = DurableQueues(agent, SqliteStore("alpha.db"))
        async with queues, FlowService(queues, [ping, pong]) as flows:
            handle = await flows.start_flow(ping, "beta")
            print(await handle.result())

    Args:
        queues: durable queues of this node; start them before and stop them after.
        flows: flows that can be started here and responders; or a module that contains them.
        config: sizes and times.

    Attributes:
        admin: what operators do with flows: list, pause, retry, kill, fork.
        schedules: start flows at the times of cron expressions.
        execution: drain the node, pause its steps.
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
        self._receivers: list[QueueReceiver] = []
        self.admin = FlowAdmin(lambda: self.engine)
        self.schedules = FlowSchedules(self, self._start)
        self.execution = FlowExecution(lambda: self.engine, self.schedules.wake)
        self._purge_task: asyncio.Task[None] | None = None
        # Stops everything, once `stop` was called or the store has ended.
        self._stop_task: asyncio.Task[None] | None = None

    @property
    def engine(self) -> FlowEngine:
        """The engine that runs the flows; raises UsageError unless running."""
        if self._engine is None:
            if self.queues.store.is_open:
                self.queues.store.writer.check()
            raise UsageError(f"{self!r} is not running: start() it first")
        return self._engine

    async def start(self) -> None:
        """Start, and resume the flows that were running when the process ended."""
        if self._engine is not None:
            raise UsageError(f"{self!r} runs already")
        claims = self.queues.store.claims
        if _CLAIM in claims:
            raise UsageError(
                f"{claims[_CLAIM]} with this store already: a node has one FlowService"
            )
        self.queues.store.claim(_CLAIM, "flows run")
        self.queues.encoder.flow_requests = FlowRequests()
        engine = self._engine = FlowEngine(self.queues, self.registry, self.config)
        self.execution.attach(engine)
        try:
            CLAIMED.hit()
            await engine.open()
            # Flows that were running resume before they receive anything new.
            self._receivers = [SessionReceiver(engine), RequestReceiver(engine)]
            for receiver in self._receivers:
                await receiver.start()
            await engine.admission.retry_parked()
            self.schedules.scheduler = FlowScheduler(self.schedules, engine)
            await self.schedules.scheduler.start()
        except BaseException:
            await self.stop()
            raise
        self.queues.store.ended.add_done_callback(self._on_store_ended)
        loop = asyncio.get_running_loop()
        self._purge_task = loop.create_task(self._purge_periodically(), name="postroad old flows")

    async def stop(self) -> None:
        """Stop all flows; they resume when this node is started again."""
        self._start_stopping()
        if self._stop_task is not None:
            await asyncio.shield(self._stop_task)

    def _on_store_ended(self, ended: asyncio.Future[StoreError]) -> None:
        """Stop all flows: memory and store may differ from now on."""
        self._start_stopping()

    def _start_stopping(self) -> None:
        engine, self._engine = self._engine, None
        self.execution.attach(None)
        if engine is not None:
            loop = asyncio.get_running_loop()
            self._stop_task = loop.create_task(self._stop(engine), name="postroad flows stop")

    async def _stop(self, engine: FlowEngine) -> None:
        """Runs in a task of its own, so that it completes even if its caller is cancelled."""
        if self.schedules.scheduler is not None:
            await self.schedules.scheduler.stop()
            self.schedules.scheduler = None
        if self._purge_task is not None:
            self._purge_task.cancel()
            await asyncio.gather(self._purge_task, return_exceptions=True)
        self.queues.encoder.flow_requests = None
        for receiver in self._receivers:
            await receiver.stop()
        await engine.close()
        for receiver in self._receivers:
            await receiver.close()
        self._receivers = []
        try:
            await engine.store.write(lambda stored: tables.mark_stopped(stored.database))
        except PostroadError as error:
            # The next start will count this stop as a crash.
            logger.debug("cannot record the clean stop of the flows: %s", error)
        engine.store.release(_CLAIM)

    async def _purge_periodically(self) -> None:
        failures = 0
        while True:
            pause_s = _PURGE_INTERVAL_S
            try:
                await purge_expired(self.engine.store, self.config)
                failures = 0
            except Exception as error:
                if self._engine is None:
                    return
                # An unavailable store comes back, so keep trying.
                failures += 1
                pause_s = backoff(
                    failures, initial_delay_s=1.0, max_delay_s=_PURGE_INTERVAL_S, jitter=0.5
                )
                level = logging.DEBUG if isinstance(error, StoreError) else logging.WARNING
                logger.log(level, "cannot purge ended flows, retrying: %r", error)
            await asyncio.sleep(pause_s)

    # Starting.

    async def start_flow(
        self, definition: FlowDefinition[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> FlowHandle[R]:
        """Start a flow; returns when it is stored durably.

        Raises:
            DrainingError: the node starts no new flows now.
            UsageError: the arguments do not fit.
            SerializationError: an argument cannot be serialized.
        """
        return await self._start(definition, definition.encode_arguments(args, kwargs))

    async def start_flow_with_id(
        self, client_id: str, definition: FlowDefinition[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> FlowHandle[R]:
        """Start a flow, or return the one that was started with this client id before.

        So a client that does not know whether its first call succeeded can call again. The
        arguments of the second call are ignored. The result is stored until `delete`, or for
        `client_id_retention_s`.
        """
        check_client_id(client_id)
        check_not_in_transaction(self.engine.store)
        async with self.engine.admission.starting(client_id):
            state = await self.engine.store.read(tables.find_by_client_id, client_id)
            if state is not None:
                return self._handle_of(state)
            arguments = definition.encode_arguments(args, kwargs)
            return await self._start(definition, arguments, client_id)

    async def run_flow(
        self, definition: FlowDefinition[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Start a flow and wait for its result."""
        handle = await self.start_flow(definition, *args, **kwargs)
        return await handle.result()

    async def _start(
        self, definition: FlowDefinition[Any, R], arguments: bytes, client_id: str | None = None
    ) -> FlowHandle[R]:
        engine = self.engine
        with (
            outside_transaction(engine.store),
            start_flow_span(self.queues.service.name, definition.name) as span,
        ):
            await engine.store.writer.wait_for_capacity()
            state = engine.admission.new_state(definition, arguments, client_id)
            store_trace(state, span)
            await engine.start_flow(state, FlowAdmitted())
        return self._handle_of(state)

    async def get_by_client_id(self, client_id: str) -> FlowHandle[Any]:
        """Return the flow that was started with a client id; raises FlowNotFoundError."""
        state = await self.engine.store.read(tables.find_by_client_id, client_id)
        if state is None:
            raise FlowNotFoundError(f"no flow has the client id {client_id!r}")
        return self._handle_of(state)

    async def get_handle(self, id: str) -> FlowHandle[Any]:
        """Return a flow by its id or client id; raises FlowNotFoundError."""
        return self._handle_of(await load_flow_state(self.engine.store, id))

    def _handle_of(self, state: FlowState) -> FlowHandle[Any]:
        definition = self.registry.find(state.name)
        type = Any if definition is None else definition.result_type
        return FlowHandle(self, state.id, state.name, state.client_id, type)

    async def signal(self, id: str, name: str, value: Any = None) -> None:
        """Send a signal to a flow, as `admin.signal` does."""
        await self.admin.signal(id, name, value)

    async def cancel(self, id: str, reason: str = "cancelled by the application") -> None:
        """Raise FlowCancelledError in the code of a flow, as `admin.cancel` does."""
        await self.admin.cancel(id, reason)

    async def query(self, id: str, name: str) -> Any:
        """Call a query handler of a running flow, as set with `ctx.set_query_handler`."""
        return await self.admin.query(id, name)

    async def delete(self, id: str) -> None:
        """Delete a flow that has ended, with its result, by its id or client id."""
        await self.admin.delete(id)

    def __repr__(self) -> str:
        state = "not running" if self._engine is None else "running"
        return f"<FlowService of {self.queues.service.name} {state}>"
