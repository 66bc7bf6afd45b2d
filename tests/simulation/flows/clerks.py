"""The clients of a bank: they give orders, and want to know what came of them."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

from postroad.core.errors import OutboxFullError, PostroadError, StoreError, TransactionAbortedError
from postroad.flows import (
    DrainingError,
    FlowError,
    FlowHandle,
    FlowKilledError,
    FlowNotFoundError,
    FlowService,
    FlowStatus,
)
from postroad.testing import require
from tests.simulation.flows.bank import APPROVAL, INITIATORS
from tests.simulation.flows.orders import Job, Kind


class Fate(enum.Enum):
    PLANNED = "planned"
    UNCERTAIN = "uncertain"
    """It was given, and nobody heard whether a flow was begun."""
    BEGUN = "begun"
    REFUSED = "refused"
    """It was said that no flow was begun."""


class Garbage(NamedTuple):
    """Something in the mail that no flow can make sense of."""

    sender: str
    receiver: str
    body: bytes


class Books:
    """Where all orders are.

    Attributes:
        ids: of the flows that were begun for them.
        endings: what clients were told came of them.
        is_signalled: those whose signal was sent for sure.
        first_ms: the first times of schedules, as far as somebody was told.
        garbage: what was posted that is no letter of a flow, and whether it was for sure.
    """

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = {job.name: job for job in jobs}
        self.fates = dict.fromkeys(self.jobs, Fate.PLANNED)
        self.ids: dict[str, str] = {}
        self.endings: dict[str, str] = {}
        self.is_signalled: dict[str, bool] = {}
        self.first_ms: dict[str, int] = {}
        self.garbage: dict[Garbage, bool] = {}

    def is_wanted(self, job: Job) -> bool:
        fate = self.fates[job.name]
        return fate is Fate.PLANNED or (fate is Fate.UNCERTAIN and job.is_named)

    def begin(self, job: Job) -> None:
        self.fates[job.name] = Fate.UNCERTAIN

    def confirm(self, job: Job, id: str) -> None:
        self.fates[job.name] = Fate.BEGUN
        confirmed = self.ids.setdefault(job.name, id)
        require(confirmed == id, f"{job.name} is flow {id}, and was {confirmed} before")

    def refuse(self, job: Job) -> None:
        if not job.is_named:
            self.fates[job.name] = Fate.REFUSED

    def tell(self, job: Job, ending: str) -> None:
        previous = self.endings.setdefault(job.name, ending)
        require(
            previous == ending, f"{job.name} ended with {ending!r}, and with {previous!r} before"
        )

    def expect(self, name: str, next_ms: int) -> None:
        self.first_ms.setdefault(name, next_ms)

    def is_over(self, job: Job) -> bool:
        """Whether its client has nothing more to do or to wait for."""
        return not self.is_wanted(job) and (job.name not in self.ids or job.name in self.endings)

    @property
    def is_done(self) -> bool:
        return all(map(self.is_over, self.jobs.values()))


# Until something is tried again that could not be done.
_AGAIN_S = 0.25
_START_POLL_S = 0.02

FAILED = "failed"
KILLED = "killed"
_REFUSALS = (DrainingError, OutboxFullError, StoreError, TransactionAbortedError)


class Clerk:
    """Sees to one order; after a restart it goes on where it was."""

    def __init__(
        self, flows: FlowService, job: Job, books: Books, on_told: Callable[[], None]
    ) -> None:
        self._flows = flows
        self._job = job
        self._books = books
        self._on_told = on_told

    async def work(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._job.time - loop.time()))
        while self._books.is_wanted(self._job):
            await self._begin()
        if self._books.fates[self._job.name] is not Fate.BEGUN:
            return
        if self._job.order.kind is Kind.APPROVE:
            await asyncio.sleep(self._job.pause_s)
            await self._approve()
        await self._await_result()

    async def _begin(self) -> None:
        job, books = self._job, self._books
        books.begin(job)
        count = job.repeats if job.is_named else 1
        begun = await asyncio.gather(*(self._give() for _ in range(count)), return_exceptions=True)
        for started in begun:
            if isinstance(started, FlowHandle):
                books.confirm(job, started.id)
            elif not isinstance(started, _REFUSALS):
                raise started
        if books.fates[job.name] is Fate.BEGUN:
            self._on_told()
        else:
            books.refuse(job)
            await asyncio.sleep(_AGAIN_S)

    async def _give(self) -> FlowHandle[str]:
        order = self._job.order
        definition = INITIATORS[order.kind]
        if not self._job.is_named:
            return await self._flows.start_flow(definition, order)
        if crc32(order.name.encode()) % 2:
            return await self._flows.start_flow_with_id(order.name, definition, order)
        async with self._flows.queues.transaction() as tx:
            tx.start_flow_with_id(order.name, definition, order)
        while True:
            try:
                return await self._flows.get_by_client_id(order.name)
            except FlowNotFoundError:
                await asyncio.sleep(_START_POLL_S)

    async def _approve(self) -> None:
        job, books = self._job, self._books
        while not books.is_signalled.get(job.name):
            try:
                await self._flows.signal(books.ids[job.name], APPROVAL, job.order.is_approved)
            except (StoreError, TransactionAbortedError):
                await asyncio.sleep(_AGAIN_S)
                continue
            except PostroadError:
                # It has ended without it.
                books.is_signalled[job.name] = True
            else:
                books.is_signalled[job.name] = True
                self._on_told()

    async def _await_result(self) -> None:
        while True:
            try:
                self._books.tell(self._job, await self._find_ending())
                self._on_told()
                return
            except StoreError:
                await asyncio.sleep(_AGAIN_S)

    async def _find_ending(self) -> str:
        if self._job.is_named:
            handle = await self._flows.get_by_client_id(self._job.name)
        else:
            handle = await self._flows.get_handle(self._books.ids[self._job.name])
        try:
            return str(await handle.result())
        except FlowKilledError:
            # Its own end, or the error of a child that it did not catch.
            return KILLED if (await handle.wait()).status is FlowStatus.KILLED else FAILED
        except FlowError:
            return FAILED
