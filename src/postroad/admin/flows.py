"""What operators do with the flows of a node, from outside of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

from postroad.core.errors import StoreLockedError, UsageError
from postroad.durable import DurableQueues, StaticPeerDirectory, Store, store_from_url
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.flows import FlowNotFoundError, FlowsConfig, FlowStatus, FlowView, StepView
from postroad.flows.admin import FlowAdmin, no_flow
from postroad.flows.definition import FlowRegistry
from postroad.flows.engine import tables
from postroad.flows.engine.background import now_ms
from postroad.flows.engine.engine import FlowEngine
from postroad.flows.engine.flow_mutation import FlowMutation
from postroad.flows.engine.loaded_flow import LoadedFlow, fail_future, resolve_future
from postroad.flows.machine.coroutine import FlowCoroutine
from postroad.flows.machine.events import FlowEvent, FlowResumeRequested, FlowRetryRequested
from postroad.flows.machine.state import FlowState
from postroad.flows.machine.state_machine import FlowStateMachine
from postroad.flows.machine.status import FlowTrigger, apply_trigger
from postroad.net import MessagingService

__all__ = [
    "FlowStatus",
    "FlowView",
    "FlowsAtRest",
    "StepView",
    "changing_flows",
    "reading_flows",
]

_OPERATOR = "operator"
_PAGE = 500
_Views: TypeAlias = list[FlowView]
_Ids: TypeAlias = list[str]
_TRIGGERS: dict[type, FlowTrigger] = {
    FlowRetryRequested: FlowTrigger.RETRY,
    FlowResumeRequested: FlowTrigger.RESUME,
}


class StillEngine(FlowEngine):
    """An engine that runs nothing: it knows where flows are, and what new ones are called."""

    _ids: Iterator[int]

    async def open(self) -> None:
        store = self.store

        def prepare(ledger: StoreTables) -> int:
            return tables.reserve_ids(ledger.database, ledger.now_ms)

        self._ids = itertools.count(await store.write(prepare))
        self.mutations.set_next_id(await store.read(tables.last_buffered_id) + 1)

    def new_id(self) -> int:
        return next(self._ids)


def _no_code(machine: FlowStateMachine) -> FlowCoroutine:
    raise UsageError(f"no node runs, so nothing runs the code of {machine.state.name!r}")


class FlowsAtRest(FlowAdmin):
    """The flows in a store, without a node that runs them.

    Args:
        store: open already.
        can_change: whether no node works on it.
    """

    def __init__(self, store: Store, *, can_change: bool) -> None:
        self.store = store
        # Neither of them is ever started: they only write letters for flows that are ended.
        service = MessagingService("operators", store.owner)
        queues = DurableQueues(service, store, directory=StaticPeerDirectory(), config=store.config)
        self._still_engine = StillEngine(queues, FlowRegistry([]), FlowsConfig())
        super().__init__(lambda: self._still_engine)
        self._can_change = can_change
        self._has_tables = False

    async def start(self) -> None:
        """See what is there, and make ready to change it."""
        self._has_tables = await self._engine.store.read(tables.has_tables)
        if self._has_tables and self._can_change:
            await self._still_engine.open()

    async def stop(self) -> None:
        """Let all go."""
        await self._still_engine.close()

    # Looking.

    async def _load_state(self, id: str) -> FlowState:
        if not self._has_tables:
            raise FlowNotFoundError(f"{no_flow(id)}: this store never had flows")
        return await super()._load_state(id)

    async def list(
        self,
        status: FlowStatus | str | None = None,
        name: str | None = None,
        *,
        before: str | None = None,
        limit: int = 100,
        where: Sequence[str] = (),
    ) -> _Views:
        if not self._has_tables:
            return []
        return await super().list(status, name, before=before, limit=limit, where=where)

    async def counts(self) -> dict[FlowStatus, int]:
        return await super().counts() if self._has_tables else {}

    async def all_of(self, status: FlowStatus) -> _Ids:
        """The ids of all flows of a status, the newest first."""
        ids: _Ids = []
        while views := await self.list(status, before=ids[-1] if ids else None, limit=_PAGE):
            ids += [it.id for it in views]
        return ids

    # Changing.

    def _check_can_change(self) -> None:
        if not self._can_change:
            raise UsageError("these flows were opened to be looked at: use changing_flows")

    async def fork(self, id: str, step: int) -> str:
        self._check_can_change()
        return await super().fork(id, step)

    async def delete(self, id: str) -> None:
        self._check_can_change()
        await super().delete(id)

    async def _dispatch(self, id: str, event: FlowEvent) -> None:
        """Write down what becomes of a flow, for the next start of its node."""
        self._check_can_change()
        state = self._check_readable(await self._load_state(id))
        found = await self._engine.store.read(tables.read_flow, state.id)
        if found is None or found.state.is_ended:
            raise UsageError(f"flow {id} has ended: it is {state.status}")
        trigger = _TRIGGERS.get(type(event))
        try:
            if trigger is None:
                await self._handle(found, event)
            else:
                await self._apply_trigger(found.state, trigger)
        except UsageError as error:
            raise UsageError(f"flow {id}: {error}") from None

    async def _apply_trigger(self, state: FlowState, trigger: FlowTrigger) -> None:
        """Have a flow go on where there is code for it."""
        state.status = apply_trigger(state.status, trigger).status
        state.wake_ms = 0
        state.reset_attempts()
        row = tables.state_row(state)
        await self._engine.store.write(
            lambda ledger: tables.update_state(ledger.database, row, with_arguments=False)
        )

    async def _handle(self, found: tables.StoredFlow, event: FlowEvent) -> None:
        """Have something happen to a flow that needs no code of it."""
        machine = FlowStateMachine(
            found.state,
            _no_code,
            entries=found.entries,
            buffered=found.buffered,
            signals=found.signals,
        )
        transition = machine.handle(event, now_ms())
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_settled(mutation: FlowMutation, error: Exception | None) -> None:
            resolve_future(settled) if error is None else fail_future(settled, error)

        engine, loaded = self._engine, LoadedFlow(found.state.id)
        engine.store.submit(engine.mutations.build(loaded, machine, transition, None, on_settled))
        await settled


@asynccontextmanager
async def reading_flows(location: str) -> AsyncIterator[FlowsAtRest]:
    """Look at the flows of a node that runs or not: at a path, or `postgresql://...`."""
    store = store_from_url(location)
    # Others may read at the same time, and no flow is changed: nobody need be locked out.
    await store.open(role=_OPERATOR, force=True)
    async with _flows_of(store, can_change=False) as flows:
        yield flows


@asynccontextmanager
async def changing_flows(location: str) -> AsyncIterator[FlowsAtRest]:
    """Change what becomes of the flows of a node that is not running.

    Raises:
        StoreLockedError: it is running, and has them in memory.
    """
    store = store_from_url(location)
    try:
        await store.open()
    except StoreLockedError as error:
        node = await _owner_of(location)
        raise StoreLockedError(
            f"{error}, or leave out --store: node {node} does this itself"
        ) from None
    async with _flows_of(store, can_change=True) as flows:
        yield flows


@asynccontextmanager
async def _flows_of(store: Store, *, can_change: bool) -> AsyncIterator[FlowsAtRest]:
    try:
        flows = FlowsAtRest(store, can_change=can_change)
        try:
            await flows.start()
            yield flows
        finally:
            await flows.stop()
    finally:
        await store.close()


async def _owner_of(location: str) -> str:
    store = store_from_url(location)
    await store.open(role=_OPERATOR, force=True)
    await store.close()
    return store.owner
