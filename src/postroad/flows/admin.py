"""What operators do with flows: look at them, and help those that cannot help themselves."""

from __future__ import annotations

import asyncio
import functools
import os
from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import msgspec

from postroad.core.errors import ConfigError, UsageError
from postroad.durable.store.savepoints import outside_transaction
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.flows.config import FlowsConfig
from postroad.flows.engine import tables
from postroad.flows.engine.background import now_ms
from postroad.flows.engine.engine import FlowEngine
from postroad.flows.errors import FlowNotFoundError
from postroad.flows.machine import values
from postroad.flows.machine.coroutine import pending_commands
from postroad.flows.machine.events import (
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
from postroad.flows.sessions.messages import is_valid_name

_PURGE_BATCH = 500
_SEED_BYTES = 16
_LIST_MAX = 1_000


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """A flow, as people see it."""

    id: str
    name: str
    version: int
    status: FlowStatus
    started_at: float
    """When it was begun, or forked."""
    ended_at: float | None
    client_id: str | None
    peer: str | None
    """The node it responds to."""
    run: int
    progress: str | None
    wakes_at: float | None
    attempts: int
    error: str | None
    error_id: str | None
    detail: str | None
    """Where the error happened."""
    forked_from: str | None
    """The flow whose steps it began with."""
    forked_step: int | None
    """The first step that is its own."""
    arguments: Any = None
    """What it was begun with, by name if its code is known; only where one flow is shown."""
    result: Any = None
    """What it returned, if it has; likewise."""
    waits_for: list[str] = []
    """What its code waits for, as `signal arrived`; likewise, and only while the node runs it."""


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """A step, as people see it."""

    number: int
    place: str
    kind: CommandKind
    name: str
    at: float
    value: Any
    error: str | None


def flow_view(state: FlowState) -> FlowView:
    """A flow, as people see it."""
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
    )


def step_view(number: int, entry: HistoryEntry) -> StepView:
    """A step, as people see it."""
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


class FlowAdmin(ABC):
    """Looks at flows and changes what becomes of them; every change is durable when it returns."""

    config: FlowsConfig

    @property
    @abstractmethod
    def engine(self) -> FlowEngine:
        """What runs them; only while running."""

    async def load_state(self, id: str) -> FlowState:
        """What is in the store of a flow; raises FlowNotFoundError if there is none.

        What is in memory of it is ahead of that, and could still be undone.
        """
        state = await self.engine.store.read(tables.read_state, _parse(id))
        if state is None:
            raise FlowNotFoundError(f"no flow {id} is known here")
        return state

    def _checked(self, state: FlowState) -> FlowState:
        """The head of a flow that something may happen to; raises UsageError if nothing may."""
        if state.status is FlowStatus.UNREADABLE and state.failure is not None:
            raise UsageError(
                f"flow {format_flow_id(state.id)} is unreadable: {state.failure.detail}"
            )
        return state

    # Looking.

    async def list(
        self,
        status: FlowStatus | str | None = None,
        name: str | None = None,
        *,
        before: str | None = None,
        limit: int = 100,
    ) -> _Views:
        """Flows, the newest first.

        Args:
            status: only those of this one.
            name: only those of this one.
            before: only those begun before this one.
            limit: as many as that.
        """
        if not 0 < limit <= _LIST_MAX:
            raise ConfigError(f"limit={limit} must be from 1 to {_LIST_MAX}")
        status_filter = None if status is None else _status(status)
        last = None if before is None else _parse(before)
        states = await self.engine.store.read(tables.list_states, status_filter, name, last, limit)
        return [flow_view(state) for state in states]

    async def counts(self) -> dict[FlowStatus, int]:
        """How many flows there are of each status that occurs."""
        return await self.engine.store.read(tables.count_by_status)

    async def resolve(self, id: str) -> str:
        """The id of a flow, of which its id or its client id is given."""
        if not is_flow_id(id):
            state = await self.engine.store.read(tables.find_by_client_id, id)
            if state is not None:
                return format_flow_id(state.id)
        return id

    async def show(self, id: str) -> FlowView:
        """One flow."""
        state = await self.load_state(id)
        return msgspec.structs.replace(
            flow_view(state),
            arguments=self._arguments_of(state),
            result=_readable(state.result),
            waits_for=self._waits_for(state),
        )

    def _arguments_of(self, state: FlowState) -> Any:
        arguments = _readable(state.arguments or None)
        definition = self.engine.machines.definition_of(state)
        if definition is None or not isinstance(arguments, (list, tuple)):
            return arguments
        args, kwargs = arguments
        return definition.name_arguments(args, kwargs)

    def _waits_for(self, state: FlowState) -> _Texts:
        loaded = self.engine.loaded_flows.get(state.id)
        machine = None if loaded is None else loaded.machine
        if machine is None or machine.code is None or state.status is not FlowStatus.RUNNING:
            return []
        return [
            f"{command.kind} {command.name}".rstrip() for command in pending_commands(machine.code)
        ]

    async def history(self, id: str) -> _Steps:
        """The steps of a flow, in the order they were done."""
        state = await self.load_state(id)
        entries = await self.engine.store.read(tables.read_steps, state.id)
        return [step_view(number, entry) for number, entry in enumerate(entries)]

    async def query(self, id: str, name: str) -> Any:
        """Call a query handler of a running flow, as set with `ctx.set_query_handler`."""
        with outside_transaction(self.engine.store):
            return await self._query(id, name)

    async def _query(self, id: str, name: str) -> Any:
        while True:
            state = await self.load_state(id)
            if state.status is not FlowStatus.RUNNING:
                raise UsageError(f"flow {id} is {state.status}: only one that runs answers")
            loaded = await self.engine.pin(state.id)
            try:
                handlers = {} if loaded.ctx is None else loaded.ctx.query_handlers
                if name not in handlers:
                    names = ", ".join(sorted(handlers)) or "none"
                    raise UsageError(f"flow {id} answers no query {name!r}; it answers: {names}")
                value = handlers[name]()
                machine = loaded.machine
                if machine is not None and machine.has_deferred:
                    self.engine.commit(loaded, machine, machine.record_deferred(), None)
                # Code runs ahead of the disk, and what it says may not have happened after all.
                if await loaded.is_durable():
                    return value
            finally:
                self.engine.unpin(loaded)

    # Changing.

    async def _live_state(self, id: str) -> FlowState:
        """The head of a flow to which something may happen, from memory if it is there."""
        loaded = self.engine.loaded_flows.get(_parse(id))
        if loaded is not None and loaded.machine is not None:
            return loaded.machine.state
        state = self._checked(await self.load_state(id))
        if state.is_ended:
            raise UsageError(f"flow {id} has ended: it is {state.status}")
        return state

    async def _dispatch(self, id: str, event: FlowEvent) -> None:
        number = _parse(id)
        if number not in self.engine.loaded_flows:
            await self._live_state(id)
        with outside_transaction(self.engine.store):
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.engine.dispatch(number, event, done)
            await done

    async def signal(self, id: str, name: str, value: Any = None) -> None:
        """Send a signal to a flow; it waits there until the code asks for it.

        Raises:
            SignalBufferFullError: `signal_buffer_max` of them wait there already.
            WrongSignalError: the code asks for no such signal, or for one of another type.
        """
        if not is_valid_name(name):
            raise UsageError(f"no signal can be called {name!r}: 1 to 200 characters")
        encoded = values.encode_value(value, f"signal {name!r}")
        definition = self.engine.machines.definition_of(await self._live_state(id))
        if definition is not None:
            definition.check_signal(name, encoded)
        await self._dispatch(id, SignalReceived(name, encoded))

    async def retry(self, id: str) -> None:
        """Try a flow again that is parked, or waits to be tried again."""
        await self._dispatch(id, FlowRetryRequested())

    async def pause(self, id: str) -> None:
        """Have a flow rest; what is said to it is kept."""
        await self._dispatch(id, FlowPauseRequested())

    async def resume(self, id: str) -> None:
        """Have a flow go on that was paused."""
        await self._dispatch(id, FlowResumeRequested())

    async def kill(self, id: str, reason: str = "killed by an operator") -> None:
        """End a flow; everybody it talks to is told that it has failed."""
        await self._dispatch(id, FlowKillRequested(reason))

    async def fork(self, id: str, step: int) -> str:
        """Begin a flow anew from one of its steps, as another flow; returns the id of that one.

        Everything before that step counts as done. What comes after may not depend on a session
        that was opened before: two flows cannot have one.
        """
        number = self._checked(await self.load_state(id)).id
        state, entries = await self.engine.store.read(tables.read_run, number)
        if state.initiated_by is not None:
            raise UsageError(f"flow {id} responds to another one, which knows only this one")
        if not 0 <= step <= len(entries):
            raise UsageError(f"flow {id} has steps 0 to {len(entries) - 1}: there is no {step}")
        shared_entries = entries[:step]
        for number, entry in enumerate(shared_entries):
            if entry.sessions:
                raise UsageError(
                    f"step {number} of flow {id} is {entry.label}: a session cannot be shared, "
                    f"so fork from step {number} or an earlier one"
                )
        return await self._fork(state, shared_entries)

    async def _fork(self, state: FlowState, entries: _Records) -> str:
        copy = msgspec.structs.replace(
            state,
            id=self.engine.new_id(),
            status=FlowStatus.PAUSED,
            client_id=None,
            failure=None,
            result=None,
            ended_ms=None,
            wake_ms=None,
            attempts=0,
            deadline_ms=None,
            forked_from=ForkOrigin(state.id, len(entries), now_ms()),
        )
        copy.clear_suspicion()
        # What it draws from here on is its own: the other one may have used the same already.
        copy.add_fork_seed(len(entries), os.urandom(_SEED_BYTES))

        def write(stored: StoreTables) -> None:
            tables.insert_state(stored.database, tables.state_row(copy))
            tables.insert_steps(stored.database, copy.id, 0, entries)

        await self.engine.store.write(write)
        id = format_flow_id(copy.id)
        await self.resume(id)
        return id

    async def delete(self, client_id: str) -> None:
        """Let go of a flow that was begun under an id and has ended, with its result."""
        state = await self.engine.store.read(tables.find_by_client_id, client_id)
        if state is None:
            raise FlowNotFoundError(f"no flow was begun as {client_id!r}")
        if not state.is_ended:
            raise UsageError(f"the flow begun as {client_id!r} is {state.status}: it has not ended")
        id = state.id
        await self.engine.store.write(lambda stored: tables.delete_flow(stored.database, id))

    async def purge_expired(self) -> None:
        """Let go of all that ended long ago."""
        config = self.config
        for has_client, retention_s in (
            (False, config.retention_s),
            (True, config.client_id_retention_s),
        ):
            before_ms = now_ms() - round(retention_s * 1000)
            while True:
                old = await self.engine.store.read(
                    tables.list_ended_before, before_ms, _PURGE_BATCH, has_client=has_client
                )
                if old:
                    await self.engine.store.write(functools.partial(_delete, ids=old))
                if len(old) < _PURGE_BATCH:
                    break


def _delete(stored: StoreTables, ids: list[int]) -> None:
    for id in ids:
        tables.delete_flow(stored.database, id)


def _parse(id: str) -> int:
    try:
        return parse_flow_id(id)
    except ValueError:
        raise FlowNotFoundError(
            f"{id!r} is no id of a flow: those have 16 digits and letters"
        ) from None


def _status(status: FlowStatus | str) -> FlowStatus:
    try:
        return FlowStatus(status)
    except ValueError:
        statuses = ", ".join(status.value for status in FlowStatus)
        raise ConfigError(f"no flow is ever {status!r}; there are: {statuses}") from None
