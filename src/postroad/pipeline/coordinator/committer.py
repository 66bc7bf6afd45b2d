"""Commits prepared output after the batch is committed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from urllib.parse import quote

import msgspec

from postroad.durable.store import Store
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.pipeline.connectors.connector import (
    Committable,
    OutputConnector,
    RejectedSegment,
    UnwritableSegmentsError,
    decode_segment,
)
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.progress import PendingAcks
from postroad.pipeline.coordinator.records import FailedRoot, SegmentAttempt, StoredRoot
from postroad.pipeline.job import RetryPolicy, Segment

# Whoever settles a batch waits so long for its publication, and not for longer.
_WAIT_S = 10.0
# So many that were thrown away are remembered: more than can be on their way to be settled.
_DISCARDED_MAX = 10_000
# So many segments that an output refused are written again at a time.
_RETRIES_MAX = 1_000
# What killed attempts left is looked for so often.
_CLEANING_INTERVAL_S = 60.0
# Clocks of hosts differ by no more: what a host with a slow clock has just staged looks old.
_CLOCKS_DIFFER_S = 86_400.0

logger = logging.getLogger("postroad.pipeline")


class OutputCommitter:
    """Publishes what was settled, one thing after the other.

    Args:
        store: where the notes of what was settled are.
        job: the job's name.
        outputs: by the names of their tasks.
        complain: called with the name of an output and what is wrong with it, or None.
        policies: how often, and when, outputs try again what they refused.
        acks: told what is published, and what was refused.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        outputs: Mapping[str, OutputConnector],
        complain: Callable[[str, str | None], None],
        policies: Mapping[str, RetryPolicy],
        acks: PendingAcks,
    ) -> None:
        self._store = store
        self._job = job
        self._outputs = outputs
        self._complain = complain
        self._policies = policies
        self._acks = acks
        # When the batch before the last one was settled, the last one, and when it was cleaned up.
        self._settled_s: tuple[float, float] = (0.0, 0.0)
        self._cleaned_s = time.time()
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
        noted = await self._store.read(lambda it: self._pen(it).pending_commits())
        for name, output in self._outputs.items():
            pending = [(id, staged) for id, task, staged in noted if task == name]
            if not (pending and output.commits_together):
                continue
            if not await self._publish_together(name, output, pending):
                stuck.add(name)
        for id, name, staged in noted:
            output = self._outputs[name]
            # In order; and an output that cannot be written to keeps no other waiting.
            if name in stuck or output.commits_together or output.is_external:
                continue
            try:
                rejected = await output.commit(staged) or ()
            except OSError as error:
                self._complain(name, f"output {name!r} cannot be published to: {error}")
                stuck.add(name)
                continue
            self._complain(name, None)
            await self._record_commit(id, name, rejected)
            if rejected:
                await self._quietly(name, output.abort(staged))
        self._is_stuck = bool(stuck)

    async def _publish_together(
        self, name: str, output: OutputConnector, pending: Sequence[tuple[int, Committable]]
    ) -> bool:
        application = f"{writer_id_prefix(self._job, name)}{self._store.id.hex()}"
        try:
            await output.commit_together(application, pending)
        except OSError as error:
            self._complain(name, f"output {name!r} cannot be published to: {error}")
            return False
        self._complain(name, None)

        def record(ledger: StoreTables) -> None:
            for id, _ in pending:
                self._pen(ledger.database).remove_pending_commit(id)

        await self._store.write(record)
        for id, _ in pending:
            self._acks.on_published(id)
        return True

    async def _record_commit(self, id: int, name: str, rejected: Sequence[RejectedSegment]) -> None:
        now_ms = time.time_ns() // 1_000_000
        failed = [
            FailedRoot(
                it.id,
                name,
                0,
                it.segment,
                SegmentAttempt(0, now_ms, name, f"it was refused: {it.reason}", [name]),
                [],
            )
            for it in rejected
        ]

        def record(ledger: StoreTables) -> None:
            pen = self._pen(ledger.database)
            pen.record_failures(failed, self._policies, now_ms, random.random)
            pen.remove_pending_commit(id)

        if rejected:
            logger.warning(
                "output %r refused %d segments, the first because: %s",
                name,
                len(rejected),
                rejected[0].reason,
            )
        await self._store.write(record)
        self._acks.on_published(id, len(rejected))

    async def _quietly(self, name: str, removing: Awaitable[None]) -> None:
        """Remove something; where that is not possible, another time will do."""
        try:
            await removing
        except OSError as error:
            logger.debug("output %r cannot be cleaned up: %s", name, error)

    # What was refused.

    async def retry_rejected(self) -> None:
        """Write again what outputs refused when it was committed, as far as it is due."""
        now_ms = time.time_ns() // 1_000_000
        for name, output in self._outputs.items():
            latest_ms = now_ms + round(1000 * self._policies[name].max_s) + 1
            due = await self._store.read(
                lambda it, name=name, latest_ms=latest_ms: self._pen(it).due_roots(  # type: ignore[misc]
                    name, now_ms, _RETRIES_MAX, latest_ms
                )
            )
            if due:
                await self._retry(name, output, due, now_ms)

    async def _retry(
        self, name: str, output: OutputConnector, due: Sequence[StoredRoot], now_ms: int
    ) -> None:
        prefix = writer_id_prefix(self._job, name)
        try:
            staged, reasons = await asyncio.to_thread(
                _write_again, output, f"{prefix}{secrets.token_hex(8)}", due
            )
        except OSError as error:
            self._complain(name, f"output {name!r} cannot be written: {error}")
            return
        failed = [
            FailedRoot(
                root.root,
                name,
                root.generation,
                root.segment,
                SegmentAttempt(root.generation, now_ms, name, reasons[root.root], [name]),
                [],
            )
            for root in due
            if root.root in reasons
        ]

        def settle(ledger: StoreTables) -> list[int]:
            pen = self._pen(ledger.database)
            # Those that are refused once more keep their history.
            pen.retire([root.root for root in due if root.root not in reasons])
            pen.record_failures(failed, self._policies, now_ms, random.random)
            unpublished = None
            if staged is not None:
                unpublished = output.commit_in_transaction(ledger, staged)
            return [] if unpublished is None else [pen.add_pending_commit(name, unpublished)]

        self._acks.add(len(due) - len(failed), await self._store.write(settle))
        await self.commit()

    # Removal.

    async def on_settled(self) -> None:
        """A batch is settled: what batches before it have left behind may go."""
        now_s = time.time()
        before_s = self._settled_s[1] - _CLOCKS_DIFFER_S
        self._settled_s = self._settled_s[1], now_s
        if before_s <= 0 or now_s - self._cleaned_s < _CLEANING_INTERVAL_S:
            return
        self._cleaned_s = now_s
        noted = await self._store.read(lambda it: self._pen(it).pending_commits())
        for name, output in self._outputs.items():
            kept = [staged for _, task, staged in noted if task == name]
            prefix = writer_id_prefix(self._job, name)
            await self._quietly(name, output.remove_abandoned(prefix, kept, before_s))

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

    def _pen(self, database: StoreConnection) -> JobStore:
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


def _write_again(
    output: OutputConnector, writer: str, roots: Sequence[StoredRoot]
) -> tuple[Committable | None, dict[int, str]]:
    """Stage segments; also returns why some cannot be written, by their ids."""
    pending: dict[int, Segment] = {it.root: decode_segment(it.segment) for it in roots}
    reasons: dict[int, str] = {}
    stager = output.create_writer(writer)
    try:
        while pending:
            try:
                stager.write(list(pending), list(pending.values()))
                break
            except UnwritableSegmentsError as error:
                reasons |= error.reasons
                pending = {id: it for id, it in pending.items() if id not in error.reasons}
        return stager.prepare_commit(), reasons
    except BaseException:
        stager.abort()
        raise
