"""What operators do with flows: look at them, and help those that cannot help themselves."""

from __future__ import annotations

import asyncio
import functools
import os
from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import msgspec

from postroad.core.errors import ConfigError, UsageError
from postroad.durable.store.ledger import Ledger
from postroad.durable.store.turn import outside

from . import tables, values, waiting
from .alarm import now_ms
from .config import FlowsConfig
from .engine import Engine
from .errors import NoSuchFlow
from .events import Event, Killed, Paused, Resumed, Retried, Signalled
from .head import Forked, Head, is_id, parse_id, show_id
from .life import Status
from .messages import is_name
from .records import Kind, Record

_FORGET_AT_ONCE = 500
_ENTROPY_BYTES = 16
_LIST_MAX = 1_000


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """A flow, as people see it."""

    id: str
    name: str
    version: int
    status: Status
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
    kind: Kind
    name: str
    at: float
    value: Any
    error: str | None


def view(head: Head) -> FlowView:
    """A flow, as people see it."""
    trouble = head.trouble
    failure = None if trouble is None else trouble.failure
    forked = head.forked or None
    return FlowView(
        id=show_id(head.id),
        name=head.name,
        version=head.version,
        status=head.status,
        started_at=(head.started_ms if forked is None else forked.at_ms) / 1000,
        ended_at=None if head.ended_ms is None else head.ended_ms / 1000,
        client_id=head.client_id,
        peer=None if head.origin is None else head.origin.peer,
        run=head.run,
        progress=head.progress,
        wakes_at=head.wake_ms / 1000 if head.wake_ms else None,
        attempts=head.attempts,
        error=None if failure is None else f"{failure.kind.rpartition(':')[2]}: {failure.text}",
        error_id=None if trouble is None else trouble.error_id,
        detail=None if trouble is None else trouble.detail,
        forked_from=None if forked is None else show_id(forked.flow),
        forked_step=None if forked is None else forked.step,
    )


def view_step(number: int, record: Record) -> StepView:
    """A step, as people see it."""
    failure = record.failure
    return StepView(
        number=number,
        place=".".join(map(str, record.position)),
        kind=record.kind,
        name=record.name,
        at=record.at_ms / 1000,
        value=_readable(record.value),
        error=None if failure is None else f"{failure.kind.rpartition(':')[2]}: {failure.text}",
    )


def _readable(encoded: bytes | None) -> Any:
    if encoded is None:
        return None
    try:
        return values.decode(encoded)
    except msgspec.DecodeError:
        return encoded


_Texts: TypeAlias = list[str]
_Views: TypeAlias = list[FlowView]
_Steps: TypeAlias = list[StepView]
_Records: TypeAlias = list[Record]


class FlowOperations(ABC):
    """Looks at flows and changes what becomes of them; every change is durable when it returns."""

    config: FlowsConfig

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """What runs them; only while running."""

    async def head_of(self, id: str) -> Head:
        """What is in the store of a flow; raises NoSuchFlow if there is none.

        What is in memory of it is ahead of that, and could still be undone.
        """
        head = await self.engine.store.read(tables.read_head, _parse(id))
        if head is None:
            raise NoSuchFlow(f"no flow {id} is known here")
        return head

    def _checked(self, head: Head) -> Head:
        """The head of a flow that something may happen to; raises UsageError if nothing may."""
        if head.status is Status.UNREADABLE and head.trouble is not None:
            raise UsageError(f"flow {show_id(head.id)} is unreadable: {head.trouble.detail}")
        return head

    # Looking.

    async def list(
        self,
        status: Status | str | None = None,
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
        wanted = None if status is None else _status(status)
        last = None if before is None else _parse(before)
        heads = await self.engine.store.read(tables.list_heads, wanted, name, last, limit)
        return [view(it) for it in heads]

    async def counts(self) -> dict[Status, int]:
        """How many flows there are of each status that occurs."""
        return await self.engine.store.read(tables.count_statuses)

    async def resolve(self, id: str) -> str:
        """The id of a flow, of which its id or its client id is given."""
        if not is_id(id):
            head = await self.engine.store.read(tables.find_client, id)
            if head is not None:
                return show_id(head.id)
        return id

    async def show(self, id: str) -> FlowView:
        """One flow."""
        head = await self.head_of(id)
        return msgspec.structs.replace(
            view(head),
            arguments=self._arguments_of(head),
            result=_readable(head.result),
            waits_for=self._waits_for(head),
        )

    def _arguments_of(self, head: Head) -> Any:
        given = _readable(head.arguments or None)
        definition = self.engine.assembly.definition_of(head)
        if definition is None or not isinstance(given, (list, tuple)):
            return given
        args, kwargs = given
        return definition.name_arguments(args, kwargs)

    def _waits_for(self, head: Head) -> _Texts:
        resident = self.engine.residents.get(head.id)
        machine = None if resident is None else resident.machine
        if machine is None or machine.code is None or head.status is not Status.RUNNING:
            return []
        return [f"{it.kind} {it.name}".rstrip() for it in waiting.asked_by(machine.code)]

    async def history(self, id: str) -> _Steps:
        """The steps of a flow, in the order they were done."""
        head = await self.head_of(id)
        records = await self.engine.store.read(tables.read_steps, head.id)
        return [view_step(number, it) for number, it in enumerate(records)]

    async def query(self, id: str, name: str) -> Any:
        """Ask the code of a flow something; it answers with what `flow.answer` was given."""
        with outside(self.engine.store):
            return await self._query(id, name)

    async def _query(self, id: str, name: str) -> Any:
        while True:
            head = await self.head_of(id)
            if head.status is not Status.RUNNING:
                raise UsageError(f"flow {id} is {head.status}: only one that runs answers")
            resident = await self.engine.pin(head.id)
            try:
                answers = {} if resident.flow is None else resident.flow.answers
                if name not in answers:
                    known = ", ".join(sorted(answers)) or "none"
                    raise UsageError(f"flow {id} answers no query {name!r}; it answers: {known}")
                answer = answers[name]()
                # Code runs ahead of the disk, and what it says may not have happened after all.
                if await resident.is_durable():
                    return answer
            finally:
                self.engine.unpin(resident)

    # Changing.

    async def _head_to_tell(self, id: str) -> Head:
        """The head of a flow to which something may happen, from memory if it is there."""
        resident = self.engine.residents.get(_parse(id))
        if resident is not None and resident.machine is not None:
            return resident.machine.head
        head = self._checked(await self.head_of(id))
        if head.is_over:
            raise UsageError(f"flow {id} has ended: it is {head.status}")
        return head

    async def _tell(self, id: str, event: Event) -> None:
        number = _parse(id)
        if number not in self.engine.residents:
            await self._head_to_tell(id)
        with outside(self.engine.store):
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.engine.tell(number, event, done)
            await done

    async def signal(self, id: str, name: str, value: Any = None) -> None:
        """Send a signal to a flow; it waits there until the code asks for it.

        Raises:
            SignalsFull: `signals_max` of them wait there already.
            WrongSignal: the code asks for no such signal, or for one of another type.
        """
        if not is_name(name):
            raise UsageError(f"no signal can be called {name!r}: 1 to 200 characters")
        encoded = values.encode(value, f"signal {name!r}")
        definition = self.engine.assembly.definition_of(await self._head_to_tell(id))
        if definition is not None:
            definition.check_signal(name, encoded)
        await self._tell(id, Signalled(name, encoded))

    async def retry(self, id: str) -> None:
        """Try a flow again that is parked, or waits to be tried again."""
        await self._tell(id, Retried())

    async def pause(self, id: str) -> None:
        """Have a flow rest; what is said to it is kept."""
        await self._tell(id, Paused())

    async def resume(self, id: str) -> None:
        """Have a flow go on that was paused."""
        await self._tell(id, Resumed())

    async def kill(self, id: str, reason: str = "killed by an operator") -> None:
        """End a flow; everybody it talks to is told that it has failed."""
        await self._tell(id, Killed(reason))

    async def fork(self, id: str, step: int) -> str:
        """Begin a flow anew from one of its steps, as another flow; returns the id of that one.

        Everything before that step counts as done. What comes after may not depend on a session
        that was opened before: two flows cannot have one.
        """
        number = self._checked(await self.head_of(id)).id
        head, records = await self.engine.store.read(tables.read_run, number)
        if head.origin is not None:
            raise UsageError(f"flow {id} responds to another one, which knows only this one")
        if not 0 <= step <= len(records):
            raise UsageError(f"flow {id} has steps 0 to {len(records) - 1}: there is no {step}")
        kept = records[:step]
        for number, record in enumerate(kept):
            if record.sessions:
                raise UsageError(
                    f"step {number} of flow {id} is {record.label}: a session cannot be shared, "
                    f"so fork from step {number} or an earlier one"
                )
        return await self._fork(head, kept)

    async def _fork(self, head: Head, records: _Records) -> str:
        copy = msgspec.structs.replace(
            head,
            id=self.engine.new_id(),
            status=Status.PAUSED,
            client_id=None,
            trouble=None,
            result=None,
            ended_ms=None,
            wake_ms=None,
            attempts=0,
            deadline_ms=None,
            forked=Forked(head.id, len(records), now_ms()),
        )
        copy.acquit()
        # What it draws from here on is its own: the other one may have used the same already.
        copy.fork_entropy(len(records), os.urandom(_ENTROPY_BYTES))

        def write(ledger: Ledger) -> None:
            tables.insert_head(ledger.database, tables.head_row(copy))
            tables.insert_steps(ledger.database, copy.id, 0, records)

        await self.engine.store.write(write)
        id = show_id(copy.id)
        await self.resume(id)
        return id

    async def forget(self, client_id: str) -> None:
        """Let go of a flow that was begun under an id and has ended, with its result."""
        head = await self.engine.store.read(tables.find_client, client_id)
        if head is None:
            raise NoSuchFlow(f"no flow was begun as {client_id!r}")
        if not head.is_over:
            raise UsageError(f"the flow begun as {client_id!r} is {head.status}: it has not ended")
        id = head.id
        await self.engine.store.write(lambda ledger: tables.delete_flow(ledger.database, id))

    async def forget_old(self) -> None:
        """Let go of all that ended long ago."""
        config = self.config
        for has_client, keep_s in ((False, config.keep_s), (True, config.keep_client_s)):
            before_ms = now_ms() - round(keep_s * 1000)
            while True:
                old = await self.engine.store.read(
                    tables.ended_before, before_ms, _FORGET_AT_ONCE, has_client=has_client
                )
                if old:
                    await self.engine.store.write(functools.partial(_delete, ids=old))
                if len(old) < _FORGET_AT_ONCE:
                    break


def _delete(ledger: Ledger, ids: list[int]) -> None:
    for id in ids:
        tables.delete_flow(ledger.database, id)


def _parse(id: str) -> int:
    try:
        return parse_id(id)
    except ValueError:
        raise NoSuchFlow(f"{id!r} is no id of a flow: those have 16 digits and letters") from None


def _status(status: Status | str) -> Status:
    try:
        return Status(status)
    except ValueError:
        known = ", ".join(it.value for it in Status)
        raise ConfigError(f"no flow is ever {status!r}; there are: {known}") from None
