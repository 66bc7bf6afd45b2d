"""Commits prepared output after the batch is committed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import quote

import msgspec

from postroad.durable.store import Store
from postroad.durable.store.database import Database
from postroad.pipeline.connectors.connector import Committable, OutputConnector
from postroad.pipeline.coordinator.job_store import JobStore

# Whoever settles a batch waits so long for its publication, and not for longer.
_WAIT_S = 10.0
# So many that were thrown away are remembered: more than can be on their way to be settled.
_DISCARDED_MAX = 10_000


class OutputCommitter:
    """Publishes what was settled, one thing after the other.

    Args:
        store: where the notes of what was settled are.
        job: the job's name.
        outputs: by the names of their tasks.
        complain: called with the name of an output and what is wrong with it, or None.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        outputs: Mapping[str, OutputConnector],
        complain: Callable[[str, str | None], None],
    ) -> None:
        self._store = store
        self._job = job
        self._outputs = outputs
        self._complain = complain
        self._publishing: asyncio.Task[None] | None = None
        # Whether something was settled since the notes were read, or could not be published.
        self._has_news = False
        self._is_stuck = False
        self._discarded: dict[bytes, None] = {}

    @property
    def has_uncommitted(self) -> bool:
        """Whether something is still to be published."""
        return self._has_news or self._is_stuck or self._publishing is not None

    async def commit(self) -> bool:
        """Publish everything that was settled, as far as that is possible now.

        Returns:
            Whether that is done; it goes on by itself if it takes long.
        """
        self._has_news = True
        publishing = self._publishing
        if publishing is None:
            publishing = self._publishing = asyncio.create_task(self._publish())
        await asyncio.wait([publishing], timeout=_WAIT_S)
        if not publishing.done():
            return False
        if self._publishing is publishing:
            self._publishing = None
        publishing.result()
        return not self._has_news

    async def _publish(self) -> None:
        while self._has_news:
            self._has_news = False
            await self._publish_noted()

    async def _publish_noted(self) -> None:
        stuck: set[str] = set()
        for id, name, staged in await self._store.read(lambda it: self._pen(it).pending_commits()):
            # In order; and an output that cannot be written to keeps no other waiting.
            if name in stuck or self._outputs[name].is_external:
                continue
            try:
                await self._outputs[name].commit(staged)
            except OSError as error:
                self._complain(name, f"output {name!r} cannot be published to: {error}")
                stuck.add(name)
                continue
            self._complain(name, None)
            await self._store.write(
                lambda ledger, id=id: self._pen(ledger.database).remove_pending_commit(id)  # type: ignore[misc]
            )
        self._is_stuck = bool(stuck)

    async def abort(self, staged: Iterable[tuple[str, Committable]]) -> None:
        """Throw away what was staged, but for what is still to be published."""
        noted = await self._store.read(lambda it: self._pen(it).pending_commits())
        wanted = {_key(name, it) for _, name, it in noted}
        for name, it in staged:
            key = _key(name, it)
            if key not in wanted:
                self._discarded[key] = None
                await self._outputs[name].abort(it)
        while len(self._discarded) > _DISCARDED_MAX:
            del self._discarded[next(iter(self._discarded))]

    def has_discarded(self, staged: Iterable[tuple[str, Committable]]) -> bool:
        """Whether some of it was thrown away."""
        # Mostly nothing was, and then what may be large needs no look.
        return bool(self._discarded) and any(_key(*it) in self._discarded for it in staged)

    async def close(self) -> None:
        """Publish no more; what is left is published when the job runs again."""
        publishing, self._publishing = self._publishing, None
        if publishing is not None:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)

    def _pen(self, database: Database) -> JobStore:
        return JobStore(database, self._job)


def _key(name: str, staged: Committable) -> bytes:
    encoded = msgspec.msgpack.encode((name, staged), order="sorted")
    return hashlib.blake2b(encoded, digest_size=16).digest()


_SEPARATOR = "+"


def writer_id(job: str, part: str, task: str) -> str:
    """A name for what a part of a batch writes to an output; good for a file."""
    return writer_id_prefix(job, task) + part


def writer_id_prefix(job: str, task: str) -> str:
    """What such names of an output begin with, and those of no other output or job."""
    return f"{quote(job, safe='')}{_SEPARATOR}{quote(task, safe='')}{_SEPARATOR}"
