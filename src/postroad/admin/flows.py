"""What operators do with the flows of a node, from outside of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TypeAlias

from postroad.core.errors import StoreLockedError, UsageError
from postroad.durable import Mail, StaticDirectory, Store, store_at
from postroad.durable.store.ledger import Ledger
from postroad.flows import FlowsConfig, FlowView, NoSuchFlow, Status, StepView, tables
from postroad.flows.alarm import now_ms
from postroad.flows.code import Code
from postroad.flows.commit import FlowCommit
from postroad.flows.definition import Registry
from postroad.flows.engine import Engine
from postroad.flows.events import Event, Resumed, Retried
from postroad.flows.head import Head
from postroad.flows.life import Happening, move
from postroad.flows.machine import Machine
from postroad.flows.operations import FlowOperations
from postroad.flows.resident import Resident, fail, resolve
from postroad.net import MessagingService

__all__ = [
    "FlowView",
    "FlowsAtRest",
    "Status",
    "StepView",
    "changing_flows",
    "reading_flows",
]

_OPERATOR = "operator"
_PAGE = 500
_Views: TypeAlias = list[FlowView]
_Ids: TypeAlias = list[str]
_GOING_ON: dict[type, Happening] = {Retried: Happening.RETRY, Resumed: Happening.RESUME}


class StillEngine(Engine):
    """An engine that runs nothing: it knows where flows are, and what new ones are called."""

    _ids: Iterator[int]

    async def open(self) -> None:
        store = self.store

        def prepare(ledger: Ledger) -> int:
            return tables.reserve_ids(ledger.database, ledger.now_ms)

        self._ids = itertools.count(await store.write(prepare))
        self.writing.number_from(await store.read(tables.last_mail_id) + 1)

    def new_id(self) -> int:
        return next(self._ids)


def _no_code(machine: Machine) -> Code:
    raise UsageError(f"no node runs, so nothing runs the code of {machine.head.name!r}")


class FlowsAtRest(FlowOperations):
    """The flows in a store, without a node that runs them.

    Args:
        store: open already.
        can_change: whether no node works on it.
    """

    def __init__(self, store: Store, *, can_change: bool) -> None:
        # Neither of them is ever started: they only write letters for flows that are ended.
        service = MessagingService("operators", store.owner)
        mail = Mail(service, store, directory=StaticDirectory(), config=store.config)
        self.config = FlowsConfig()
        self._engine = StillEngine(mail, Registry([]), self.config)
        self._can_change = can_change
        self._has_tables = False

    @property
    def engine(self) -> Engine:
        return self._engine

    async def start(self) -> None:
        """See what is there, and make ready to change it."""
        self._has_tables = await self.engine.store.read(tables.has_tables)
        if self._has_tables and self._can_change:
            await self._engine.open()

    async def stop(self) -> None:
        """Let all go."""
        await self._engine.close()

    # Looking.

    async def head_of(self, id: str) -> Head:
        if not self._has_tables:
            raise NoSuchFlow(f"no flow {id} is known here: this store never had any")
        return await super().head_of(id)

    async def list(
        self,
        status: Status | str | None = None,
        name: str | None = None,
        *,
        before: str | None = None,
        limit: int = 100,
    ) -> _Views:
        if not self._has_tables:
            return []
        return await super().list(status, name, before=before, limit=limit)

    async def counts(self) -> dict[Status, int]:
        return await super().counts() if self._has_tables else {}

    async def resolve(self, id: str) -> str:
        return await super().resolve(id) if self._has_tables else id

    async def all_of(self, status: Status) -> _Ids:
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

    async def forget(self, client_id: str) -> None:
        self._check_can_change()
        await super().forget(client_id)

    async def _tell(self, id: str, event: Event) -> None:
        """Write down what becomes of a flow, for the next start of its node."""
        self._check_can_change()
        head = self._checked(await self.head_of(id))
        found = await self.engine.store.read(tables.read_flow, head.id)
        if found is None or found.head.is_over:
            raise UsageError(f"flow {id} has ended: it is {head.status}")
        happening = _GOING_ON.get(type(event))
        try:
            if happening is None:
                await self._handle(found, event)
            else:
                await self._let_go_on(found.head, happening)
        except UsageError as error:
            raise UsageError(f"flow {id}: {error}") from None

    async def _let_go_on(self, head: Head, happening: Happening) -> None:
        """Have a flow go on where there is code for it."""
        head.status = move(head.status, happening).status
        head.wake_ms = 0
        head.come_further()
        row = tables.head_row(head)
        await self.engine.store.write(
            lambda ledger: tables.update_head(ledger.database, row, with_arguments=False)
        )

    async def _handle(self, found: tables.StoredFlow, event: Event) -> None:
        """Have something happen to a flow that needs no code of it."""
        machine = Machine(
            found.head, _no_code, records=found.records, kept=found.kept, signals=found.signals
        )
        transition = machine.handle(event, now_ms())
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_settled(unit: FlowCommit, error: Exception | None) -> None:
            resolve(settled) if error is None else fail(settled, error)

        engine, resident = self.engine, Resident(found.head.id)
        engine.store.submit(
            engine.writing.make_unit(resident, machine, transition, None, on_settled)
        )
        await settled


@asynccontextmanager
async def reading_flows(location: str) -> AsyncIterator[FlowsAtRest]:
    """Look at the flows of a node that runs or not: at a path, or `postgresql://...`."""
    store = store_at(location)
    # Others may read at the same time, and nothing is written: nobody need be locked out.
    await store.open(role=_OPERATOR, take_over=True)
    async with _flows_of(store, can_change=False) as flows:
        yield flows


@asynccontextmanager
async def changing_flows(location: str) -> AsyncIterator[FlowsAtRest]:
    """Change what becomes of the flows of a node that is not running.

    Raises:
        StoreLockedError: it is running, and has them in memory.
    """
    store = store_at(location)
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
    store = store_at(location)
    await store.open(role=_OPERATOR, take_over=True)
    await store.close()
    return store.owner
