"""The applications' side of a node that posts: clerks who do one job after the other."""

from __future__ import annotations

import asyncio

from postroad.core.errors import PostRefused, StoreUnavailable, TransactionLost
from postroad.durable import Mail
from tests.simulation.durable.books import Books
from tests.simulation.durable.slips import Job, Way

# Until a job is tried again that could not be done.
_AGAIN_S = 0.25

JOURNAL = "CREATE TABLE IF NOT EXISTS journal (job TEXT PRIMARY KEY)"


class Clerk:
    """Does its jobs in order; after a restart it goes on where it was."""

    def __init__(self, mail: Mail, jobs: list[Job], books: Books) -> None:
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
        except (PostRefused, StoreUnavailable, TransactionLost):
            self._books.refuse(job)
            await asyncio.sleep(_AGAIN_S)
        else:
            self._books.confirm(job, ids)

    async def _post(self, job: Job) -> list[int] | None:
        drafts = [it.to_draft(is_idempotent=job.is_idempotent) for it in job.parcels]
        if job.way is Way.TRANSACTION:
            async with self._mail.transaction() as tx:
                await tx.execute("INSERT OR IGNORE INTO journal VALUES (?)", (job.name,))
                for draft in drafts:
                    tx.post_draft(draft)
            return None
        ids = await self._mail.post_all(drafts)
        return ids if job.is_idempotent else None
