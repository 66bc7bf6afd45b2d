"""The applications' side of a node that posts: clerks who do one job after the other."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import Counter
from collections.abc import Sequence

from postroad.core.errors import (
    DeadLetterNotFoundError,
    SendRejectedError,
    StoreError,
    StoreUnavailableError,
    TransactionAbortedError,
)
from postroad.durable import DurableQueues
from postroad.testing import require
from tests.simulation.durable.slips import Job, Way


class Fate(enum.Enum):
    PLANNED = "planned"
    UNCERTAIN = "uncertain"
    """It was begun, and nobody heard how that ended."""
    CONFIRMED = "confirmed"
    REFUSED = "refused"
    """It was said that nothing was changed."""


class Books:
    """Where all jobs are, and what handlers saw that leaves no row behind."""

    def __init__(self, clerks: dict[str, list[list[Job]]]) -> None:
        self.jobs = {job.name: job for lists in clerks.values() for jobs in lists for job in jobs}
        self.fates = dict.fromkeys(self.jobs, Fate.PLANNED)
        # How often a handler saw a note.
        self.notes: Counter[str] = Counter()
        # Ids that posting the same thing again must give again.
        self._ids: dict[str, list[int]] = {}

    def is_wanted(self, job: Job) -> bool:
        fate = self.fates[job.name]
        return fate is Fate.PLANNED or (fate is Fate.UNCERTAIN and job.is_idempotent)

    def begin(self, job: Job) -> None:
        self.fates[job.name] = Fate.UNCERTAIN

    def confirm(self, job: Job, ids: Sequence[int] | None) -> None:
        """It was done; `ids` are told where they have to stay the same."""
        self.fates[job.name] = Fate.CONFIRMED
        if ids is not None:
            confirmed = self._ids.setdefault(job.name, list(ids))
            require(
                confirmed == list(ids), f"job {job.name} has ids {ids}, and had {confirmed} before"
            )

    def refuse(self, job: Job) -> None:
        if not job.is_idempotent:
            self.fates[job.name] = Fate.REFUSED

    @property
    def is_done(self) -> bool:
        return not any(map(self.is_wanted, self.jobs.values()))


# Until a job is tried again that could not be done.
_AGAIN_S = 0.25

JOURNAL = "CREATE TABLE IF NOT EXISTS journal (job TEXT PRIMARY KEY)"


class Clerk:
    """Does its jobs in order; after a restart it goes on where it was."""

    def __init__(self, mail: DurableQueues, jobs: list[Job], books: Books) -> None:
        self._mail = mail
        self._jobs = jobs
        self._books = books

    async def work(self) -> None:
        loop = asyncio.get_running_loop()
        for job in self._jobs:
            await asyncio.sleep(max(0.0, job.time - loop.time()))
            while self._books.is_wanted(job):
                await self._do(job)

    async def _do(self, job: Job) -> None:
        self._books.begin(job)
        try:
            ids = await self._post(job)
            if job.is_doubted:
                self._books.confirm(job, ids)
                ids = await self._post(job)
        except (SendRejectedError, StoreUnavailableError, TransactionAbortedError):
            self._books.refuse(job)
            await asyncio.sleep(_AGAIN_S)
        else:
            self._books.confirm(job, ids)

    async def _post(self, job: Job) -> list[int] | None:
        drafts = [parcel.to_draft(is_idempotent=job.is_idempotent) for parcel in job.parcels]
        if job.way is Way.TRANSACTION:
            async with self._mail.transaction() as tx:
                await tx.execute("INSERT OR IGNORE INTO journal VALUES (?)", (job.name,))
                for draft in drafts:
                    tx.send_message(draft)
            return None
        ids = await self._mail.send_many(drafts)
        return ids if job.is_idempotent else None


logger = logging.getLogger("tests.simulation.durable")

_LOOK_INTERVAL_S = 0.5


class Wishes:
    """What shall be done at one node; kept by the test, so that no crash can take it away.

    Attributes:
        resting: queues of which nothing shall be handled.
        has_hope: whether all dead letters shall be tried again, once.
        has_doubts: whether all queues shall be read again, once.
    """

    def __init__(self) -> None:
        self.resting: set[str] = set()
        self.has_hope = self.has_doubts = False

    def clear(self) -> None:
        self.resting.clear()
        self.has_hope = self.has_doubts = False


async def operate(mail: DurableQueues, wishes: Wishes) -> None:
    # What an earlier process was told is still written down.
    paused = await _paused(mail)
    while True:
        try:
            await _grant(mail, wishes, paused)
        except (StoreError, DeadLetterNotFoundError) as error:
            # What cannot be found died and was revived by an attempt that seemed to fail.
            logger.debug("it is tried again: %s", error)
        await asyncio.sleep(_LOOK_INTERVAL_S)


async def _paused(mail: DurableQueues) -> set[str]:
    queues = (await mail.statistics()).queues
    return {name for name, queue in queues.items() if queue.is_paused}


async def _grant(mail: DurableQueues, wishes: Wishes, paused: set[str]) -> None:
    for queue in sorted(paused - wishes.resting):
        await mail.admin.resume(queue)
        paused.remove(queue)
    for queue in sorted(wishes.resting - paused):
        paused.add(queue)
        await mail.admin.pause(queue)
    if wishes.has_doubts:
        mail.store.commit_listeners.publish_reconnect()
        wishes.has_doubts = False
    if wishes.has_hope:
        await mail.dead_letters.retry_many()
        wishes.has_hope = False
