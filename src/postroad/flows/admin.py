"""What operators do with flows: list, inspect, signal, retry, pause, kill and fork them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from postroad.core.errors import ConfigError, UsageError
from postroad.durable.store import Store
from postroad.durable.store.savepoints import outside_transaction
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.flows.engine import tables
from postroad.flows.engine.background import now_ms
from postroad.flows.engine.engine import FlowEngine
from postroad.flows.errors import FlowNotFoundError
from postroad.flows.history_files import FlowRecordView, read_record
from postroad.flows.inbox.requests import encode_signal
from postroad.flows.machine import values
from postroad.flows.machine.attributes import AttributeValue, Condition, parse_conditions
from postroad.flows.machine.coroutine import pending_commands
from postroad.flows.machine.events import (
    FlowCancelRequested,
    FlowEvent,
    FlowKillRequested,
    FlowPauseRequested,
    FlowResumeRequested,
    FlowRetryRequested,
    SignalReceived,
)
from postroad.flows.machine.history import CommandKind, HistoryEntry
from postroad.flows.machine.state import (
    FlowState,
    ForkOrigin,
    format_flow_id,
    is_flow_id,
    parse_flow_id,
)
from postroad.flows.machine.status import FlowStatus

_SEED_BYTES = 16
_LIST_MAX = 1_000
# Flows read at once where some are searched for.
_SEARCH_PAGE = 200


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """A flow, as operators see it."""

    id: str
    name: str
    version: int
    status: FlowStatus
    started_at: float
    """When it was started or forked."""
    ended_at: float | None
    client_id: str | None
    peer: str | None
    """The node whose session it answers."""
    run: int
    progress: str | None
    wakes_at: float | None
    attempts: int
    error: str | None
    error_id: str | None
    detail: str | None
    """The shortened traceback of the error."""
    forked_from: str | None
    """The flow that it was forked from."""
    forked_step: int | None
    """The first step that it ran itself."""
    parent: str | None = None
    """The flow that started it as a child."""
    arguments: Any = None
    """By name if its code is known; only where a single flow is shown."""
    result: Any = None
    """What it returned; only where a single flow is shown."""
    attributes: dict[str, AttributeValue] = {}
    """Set by its code with `ctx.set_attributes`."""
    waits_for: list[str] = []
    """What its code waits for, such as `signal arrived`; only of a single flow that runs."""


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a flow, as operators see it."""

    number: int
    place: str
    kind: CommandKind
    name: str
    at: float
    value: Any
    error: str | None


def flow_view(state: FlowState) -> FlowView:
    """Build the view of a flow from its state."""
    failure = state.failure
    error = None if failure is None else failure.error
    forked = state.forked_from or None
    return FlowView(
        id=format_flow_id(state.id),
        name=state.name,
        version=state.version,
        status=state.status,
        started_at=(state.started_ms if forked is None else forked.at_ms) / 1000,
        ended_at=None if state.ended_ms is None else state.ended_ms / 1000,
        client_id=state.client_id,
        peer=None if state.initiated_by is None else state.initiated_by.peer,
        run=state.run_number,
        progress=state.progress,
        wakes_at=state.wake_ms / 1000 if state.wake_ms else None,
        attempts=state.attempts,
        error=None if error is None else f"{error.kind.rpartition(':')[2]}: {error.text}",
        error_id=None if failure is None else failure.error_id,
        detail=None if failure is None else failure.detail,
        forked_from=None if forked is None else format_flow_id(forked.flow),
        forked_step=None if forked is None else forked.step,
        attributes=state.attributes or {},
        parent=state.parent or None,
    )


def _meets(state: FlowState, conditions: Sequence[Condition]) -> bool:
    attributes = state.attributes or {}
    return all(condition.matches(attributes) for condition in conditions)


def step_view(number: int, entry: HistoryEntry) -> StepView:
    """Build the view of a step from its history entry."""
    error = entry.error
    return StepView(
        number=number,
        place=".".join(map(str, entry.position)),
        kind=entry.kind,
        name=entry.name,
        at=entry.at_ms / 1000,
        value=_readable(entry.value),
        error=None if error is None else f"{error.kind.rpartition(':')[2]}: {error.text}",
    )


def _readable(encoded: bytes | None) -> Any:
    if encoded is None:
        return None
    try:
        return values.decode_value(encoded)
    except msgspec.DecodeError:
        return encoded


_Texts: TypeAlias = list[str]
_Views: TypeAlias = list[FlowView]
_Steps: TypeAlias = list[StepView]
_Records: TypeAlias = list[HistoryEntry]


class FlowAdmin:
    """Lets operators look at flows and change them; changes are durable when a method returns.

    A flow is named by its id or by the client id that it was started with.

    Args:
        get_engine: returns the engine of the flows; raises UsageError while they do not run.
    """

    def __init__(self, get_engine: Callable[[], FlowEngine]) -> None:
        self._get_engine = get_engine

    @property
    def _engine(self) -> FlowEngine:
        return self._get_engine()

    async def _load_state(self, id: str) -> FlowState:
        return await load_flow_state(self._engine.store, id)

    def _check_readable(self, state: FlowState) -> FlowState:
        if state.status is FlowStatus.UNREADABLE and state.failure is not None:
            raise UsageError(
                f"flow {format_flow_id(state.id)} is unreadable: {state.failure.detail}"
            )
        return state

    # Reading.

    async def list(
        self,
        status: FlowStatus | str | None = None,
        name: str | None = None,
        *,
        before: str | None = None,
        limit: int = 100,
        where: Sequence[str] = (),
    ) -> _Views:
        """Return flows, the newest first.

        Args:
            status: only flows of this status.
            name: only flows of this name.
            before: id of a flow: only flows that were started before it.
            limit: the most flows to return, up to 1,000.
            where: conditions on their attributes, such as `customer=ann` and `amount>=5`: only
                flows that meet all of them.
        """
        if not 0 < limit <= _LIST_MAX:
            raise ConfigError(f"limit={limit} must be from 1 to {_LIST_MAX}")
        status_filter = None if status is None else _status(status)
        last = None if before is None else _parse(before)
        conditions = parse_conditions(where)
        page = _SEARCH_PAGE if conditions else limit
        views: _Views = []
        while True:
            states = await self._engine.store.read(
                tables.list_states, status_filter, name, last, page
            )
            views += [flow_view(state) for state in states if _meets(state, conditions)]
            if len(states) < page or len(views) >= limit:
                return views[:limit]
            last = states[-1].id

    async def counts(self) -> dict[FlowStatus, int]:
        """Return the number of flows of each status that occurs."""
        return await self._engine.store.read(tables.count_by_status)

    async def show(self, id: str) -> FlowView:
        """Return one flow, or raise FlowNotFoundError."""
        state = await self._load_state(id)
        return msgspec.structs.replace(
            flow_view(state),
            arguments=self._arguments_of(state),
            result=_readable(state.result),
            waits_for=self._waits_for(state),
        )

    def _arguments_of(self, state: FlowState) -> Any:
        arguments = _readable(state.arguments or None)
        definition = self._engine.machines.definition_of(state)
        if definition is None or not isinstance(arguments, (list, tuple)):
            return arguments
        args, kwargs = arguments
        return definition.name_arguments(args, kwargs)

    def _waits_for(self, state: FlowState) -> _Texts:
        loaded = self._engine.loaded_flows.get(state.id)
        machine = None if loaded is None else loaded.machine
        if machine is None or machine.code is None or state.status is not FlowStatus.RUNNING:
            return []
        return [
            f"{command.kind} {command.name}".rstrip() for command in pending_commands(machine.code)
        ]

    async def history(self, id: str) -> _Steps:
        """Return the completed steps of a flow, in the order of their completion."""
        state = await self._load_state(id)
        entries = await self._engine.store.read(tables.read_steps, state.id)
        return [step_view(number, entry) for number, entry in enumerate(entries)]

    async def record(self, id: str, first: int = 0) -> FlowRecordView:
        """Return steps of a flow as they are stored, from one on, for an export."""
        state = await self._load_state(id)
        return await self._engine.store.read(read_record, state.id, first)

    async def query(self, id: str, name: str) -> Any:
        """Call a query handler of a running flow, as set with `ctx.set_query_handler`."""
        with outside_transaction(self._engine.store):
            return await self._query(id, name)

    async def _query(self, id: str, name: str) -> Any:
        while True:
            state = await self._load_state(id)
            if state.status is not FlowStatus.RUNNING:
                raise UsageError(
                    f"cannot query flow {id}: it is {state.status}; only running flows can be "
                    "queried"
                )
            loaded = await self._engine.pin(state.id)
            try:
                handlers = {} if loaded.ctx is None else loaded.ctx.query_handlers
                if name not in handlers:
                    names = ", ".join(sorted(handlers)) or "none"
                    raise UsageError(
                        f"flow {id} has no handler for query {name!r}; its queries are: {names}"
                    )
                value = handlers[name]()
                machine = loaded.machine
                if machine is not None and machine.has_deferred:
                    self._engine.commit(loaded, machine, machine.record_deferred(), None)
                # Code runs ahead of its commits: the value counts once they are durable.
                if await loaded.is_durable():
                    return value
            finally:
                self._engine.unpin(loaded)

    # Changing.

    async def _live_state(self, id: str) -> FlowState:
        """Return the state of a flow that has not ended, from memory if it is loaded."""
        number = await self._number_of(id)
        loaded = self._engine.loaded_flows.get(number)
        if loaded is not None and loaded.machine is not None:
            return loaded.machine.state
        state = self._check_readable(await self._load_state(format_flow_id(number)))
        if state.is_ended:
            raise UsageError(f"flow {id} has ended: it is {state.status}")
        return state

    async def _number_of(self, id: str) -> int:
        return parse_flow_id(id) if is_flow_id(id) else (await self._load_state(id)).id

    async def _dispatch(self, id: str, event: FlowEvent) -> None:
        number = await self._number_of(id)
        if number not in self._engine.loaded_flows:
            await self._live_state(id)
        with outside_transaction(self._engine.store):
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._engine.dispatch(number, event, done)
            await done

    async def signal(self, id: str, name: str, value: Any = None) -> None:
        """Send a signal to a flow, where it is stored until the code waits for it.

        Raises:
            SignalBufferFullError: `signal_buffer_max` unread signals are stored already.
            WrongSignalError: the code waits for no such signal, or for one of another type.
        """
        encoded = encode_signal(name, value)
        definition = self._engine.machines.definition_of(await self._live_state(id))
        if definition is not None:
            definition.check_signal(name, encoded)
        await self._dispatch(id, SignalReceived(name, encoded))

    async def retry(self, id: str) -> None:
        """Retry a flow that is parked or waits for its next attempt."""
        await self._dispatch(id, FlowRetryRequested())

    async def pause(self, id: str) -> None:
        """Pause a flow until `resume`; its messages and signals are stored meanwhile."""
        await self._dispatch(id, FlowPauseRequested())

    async def resume(self, id: str) -> None:
        """Resume a paused flow."""
        await self._dispatch(id, FlowResumeRequested())

    async def cancel(self, id: str, reason: str = "cancelled by an operator") -> None:
        """Raise FlowCancelledError in the code of a flow, wherever it waits.

        The code may catch it to undo what it has done, in further steps, and then end.
        """
        await self._dispatch(id, FlowCancelRequested(reason))

    async def kill(self, id: str, reason: str = "killed by an operator") -> None:
        """End a flow; the flows that it has sessions with are notified of its failure."""
        await self._dispatch(id, FlowKillRequested(reason))

    async def fork(self, id: str, step: int) -> str:
        """Start another flow from a step of this one, and return its id.

        The steps before count as completed. Later steps cannot use a session that was opened
        before, because two flows cannot share one.
        """
        number = self._check_readable(await self._load_state(id)).id
        state, entries = await self._engine.store.read(tables.read_run, number)
        if state.initiated_by is not None:
            raise UsageError(
                f"cannot fork flow {id}: it responds to another flow, which knows only this one"
            )
        if not 0 <= step <= len(entries):
            raise UsageError(
                f"cannot fork flow {id} from step {step}: it has steps 0 to {len(entries) - 1}"
            )
        shared_entries = entries[:step]
        for number, entry in enumerate(shared_entries):
            if entry.kind is CommandKind.START:
                raise UsageError(
                    f"step {number} of flow {id} started another flow, which cannot have two "
                    f"parents, so fork from step {number} or an earlier one"
                )
            if entry.sessions:
                raise UsageError(
                    f"step {number} of flow {id} is {entry.label}: a session cannot be shared, "
                    f"so fork from step {number} or an earlier one"
                )
        return await self._fork(state, shared_entries)

    async def _fork(self, state: FlowState, entries: _Records) -> str:
        copy = msgspec.structs.replace(
            state,
            id=self._engine.new_id(),
            status=FlowStatus.PAUSED,
            client_id=None,
            parent=UNSET,
            failure=None,
            result=None,
            ended_ms=None,
            wake_ms=None,
            attempts=0,
            deadline_ms=None,
            forked_from=ForkOrigin(state.id, len(entries), now_ms()),
        )
        copy.clear_suspicion()
        # The original may have drawn the following random values already.
        copy.add_fork_seed(len(entries), os.urandom(_SEED_BYTES))

        def write(stored: StoreTables) -> None:
            tables.insert_state(stored.database, tables.state_row(copy))
            tables.insert_steps(stored.database, copy.id, 0, entries)

        await self._engine.store.write(write)
        id = format_flow_id(copy.id)
        await self.resume(id)
        return id

    async def delete(self, id: str) -> None:
        """Delete a flow that has ended, with its result."""
        state = await self._load_state(id)
        if not state.is_ended:
            raise UsageError(f"cannot delete flow {id}: it is {state.status} and has not ended")
        await self._engine.store.write(lambda stored: tables.delete_flow(stored.database, state.id))


async def load_flow_state(store: Store, id: str) -> FlowState:
    """Read the state of a flow by its id or client id; raises FlowNotFoundError.

    The state in memory may be ahead of it and may still be rolled back.
    """
    if is_flow_id(id):
        state = await store.read(tables.read_state, parse_flow_id(id))
    else:
        state = await store.read(tables.find_by_client_id, id)
    if state is None:
        raise FlowNotFoundError(no_flow(id))
    return state


def no_flow(id: str) -> str:
    """Return the text of the error for a flow that does not exist."""
    if is_flow_id(id):
        return f"this node has no flow {id}"
    return f"no flow has the id or client id {id!r}; ids have 16 digits and letters"


def _parse(id: str) -> int:
    try:
        return parse_flow_id(id)
    except ValueError:
        raise FlowNotFoundError(
            f"{id!r} is no id of a flow: ids have 16 digits and letters"
        ) from None


def _status(status: FlowStatus | str) -> FlowStatus:
    try:
        return FlowStatus(status)
    except ValueError:
        statuses = ", ".join(status.value for status in FlowStatus)
        raise ConfigError(f"status={status!r} must be one of: {statuses}") from None
