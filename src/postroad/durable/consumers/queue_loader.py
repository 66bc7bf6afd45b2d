"""Loads the messages of one queue from the store, up to a limit in memory."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from postroad.core.errors import StoreError
from postroad.core.limits import RetryPolicy
from postroad.core.timing import backoff
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.consumers.dispatch_order import PrefetchBuffer, QueuedMessage
from postroad.durable.consumers.read_position import ReadPosition
from postroad.durable.store import Store
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.rows import DeferredMessage, InboxBatch
from postroad.durable.store.tables.store_tables import CommitEvent

logger = logging.getLogger("postroad.durable")

_BATCHES_PER_READ = 8
_DEFERRED_PER_READ = 256
# A wall clock may jump; periodic scans make up for it.
_RESCAN_INTERVAL_S = 30.0
_REPAIR_FIRST_S = 0.05
_REPAIR_MAX_S = 5.0
# With more blocked keys than this, loading pauses until some are released.
_BLOCKED_KEYS_MAX = 10_000


class QueueLoader(ABC):
    """Keeps the prefetch buffer of a queue filled.

    Attributes:
        changed: set when there may be something to take.
    """

    def __init__(
        self,
        store: Store,
        config: DurableQueuesConfig,
        queue: str,
        queue_id: int,
        *,
        is_ordered: bool,
        retry: RetryPolicy,
    ) -> None:
        self.queue = queue
        self.retry = retry
        self._store = store
        self._config = config
        self._id = queue_id
        # Below this number more messages are loaded.
        self._low_watermark = config.prefetch_messages // 2
        self._is_ordered = is_ordered
        self._loop = asyncio.get_running_loop()
        self._buffer = PrefetchBuffer(is_ordered=is_ordered, blocked={})
        # One object for each batch and message in memory, also after a reload.
        self._batches: dict[int, InboxBatch] = {}
        self._deferred: dict[int, DeferredMessage] = {}
        self._position = ReadPosition()
        self._is_deferred_due = True
        self._has_more_deferred = False
        # Messages and batches that were removed while the table was read, which may contain them.
        self._removed_while_loading: dict[int, None] = {}
        self._batches_removed_while_loading: dict[int, None] = {}
        self._deferred_timer: asyncio.TimerHandle | None = None
        # Whether a reload is pending; until then nothing is dispatched.
        self._is_stale = True
        self._is_closed = False
        self.changed = asyncio.Event()
        self._loading = self._loop.create_task(self._load(), name=f"postroad queue {queue}")
        self._is_load_requested = asyncio.Event()
        self._is_load_requested.set()

    @abstractmethod
    async def _reload_all(self) -> None:
        """Load the whole queue again from the store."""

    def on_commit(self, event: CommitEvent) -> None:
        """Load the new messages of a commit."""
        for batch in event.inbox_batches:
            if batch.queue == self.queue:
                if self._position.on_committed(batch.id, has_capacity=self._has_capacity):
                    self._add_batch(batch)
                elif self._position.has_more:
                    self._request_load()
        if self.queue in event.deferred_queues:
            self._is_deferred_due = True
            self._request_load()

    def on_precommit(self, batch: InboxBatch) -> None:
        """Dispatch a batch before its commit is done."""
        if self._position.on_precommit(batch.id, has_capacity=self._has_capacity):
            self._add_batch(batch)

    def reload(self) -> None:
        """Reload: the store may differ from memory."""
        self._is_stale = True
        self._request_load()

    def _unload(self, entries: Sequence[QueuedMessage]) -> None:
        last: InboxBatch | None = None
        for entry in entries:
            if (sequence := entry.key_sequence) is not None:
                self._buffer.remove_committed(entry, sequence)
            if (batch := entry.batch) is not None:
                if batch is not last and not batch.pending:
                    self._batches.pop(batch.id, None)
                    self._batches_removed_while_loading[batch.id] = None
                last = batch
            elif entry.deferred is not None:
                self._deferred.pop(entry.deferred.id, None)
                self._removed_while_loading[entry.deferred.id] = None
                self._is_deferred_due |= self._has_more_deferred
        if self._buffer.size < self._low_watermark:
            self._request_load()

    @property
    def _has_capacity(self) -> bool:
        return not self._is_stale and self._buffer.size < self._config.prefetch_messages

    def _add_batch(self, batch: InboxBatch) -> None:
        self._batches[batch.id] = batch
        self._buffer.add_batch(batch)
        self.changed.set()

    def _request_load(self) -> None:
        if not self._is_load_requested.is_set() and (
            self._is_stale or self._is_deferred_due or self._position.has_more
        ):
            self._is_load_requested.set()

    async def _load(self) -> None:
        """Keep the buffer filled, until closed."""
        failures = 0
        while not self._is_closed:
            await self._is_load_requested.wait()
            self._is_load_requested.clear()
            try:
                await self._load_once()
                failures = 0
            except Exception as error:
                failures += 1
                if isinstance(error, StoreError):
                    logger.warning("cannot read queue %r, retrying: %s", self.queue, error)
                else:
                    logger.exception("cannot read queue %r, retrying", self.queue)
                await self._pause(failures)
                self._is_load_requested.set()

    async def _load_once(self) -> None:
        if self._is_stale:
            await self._reload_all()
        if self._is_deferred_due:
            await self._load_deferred()
        while (
            self._has_capacity
            and self._position.has_more
            and self._buffer.blocked_keys < _BLOCKED_KEYS_MAX
        ):
            await self._load_batches()
        self.changed.set()

    async def _load_batches(self) -> None:
        self._batches_removed_while_loading.clear()
        batches = await self._store.read(
            query.read_inbox_batches,
            self.queue,
            self._id,
            self._position.position,
            _BATCHES_PER_READ,
        )
        if self._is_stale:
            return
        self._position.on_loaded(
            [batch.id for batch in batches], is_end=len(batches) < _BATCHES_PER_READ
        )
        for batch in batches:
            if batch.id not in self._batches_removed_while_loading:
                self._add_batch(self._batches.get(batch.id, batch))

    async def _load_deferred(self) -> None:
        self._is_deferred_due = False
        self._removed_while_loading.clear()
        limit = _DEFERRED_PER_READ + len(self._deferred)
        now = now_ms()
        deferred_messages = await self._store.read(
            query.read_deferred, self.queue, self._id, now, self._latest_ms(now), limit
        )
        next_ms = await self._store.read(query.next_deferred_ms, self._id, now)
        if self._is_stale:
            return
        self._has_more_deferred = len(deferred_messages) == limit
        for deferred in deferred_messages:
            if deferred.id not in self._deferred and deferred.id not in self._removed_while_loading:
                self._deferred[deferred.id] = deferred
                self._buffer.add_deferred(deferred)
        self._schedule_deferred_scan(next_ms, now)

    def _latest_ms(self, now: int) -> int:
        """A scheduled retry may have been planned by a clock that was set back since."""
        return now + round(self.retry.max_delay_s * 1000) + 1_000

    def _schedule_deferred_scan(self, next_ms: int | None, now: int) -> None:
        if self._deferred_timer is not None:
            self._deferred_timer.cancel()
            self._deferred_timer = None
        if next_ms is not None:
            pause_s = min((next_ms - now) / 1000, _RESCAN_INTERVAL_S)
            self._deferred_timer = self._loop.call_later(max(pause_s, 0.001), self._scan_deferred)

    def _scan_deferred(self) -> None:
        self._is_deferred_due = True
        self._request_load()

    async def _pause(self, attempt: int) -> None:
        pause_s = backoff(
            attempt,
            initial_delay_s=_REPAIR_FIRST_S,
            max_delay_s=_REPAIR_MAX_S,
            jitter=random.random(),
        )
        await asyncio.sleep(pause_s)

    async def _stop_reading(self) -> None:
        if self._deferred_timer is not None:
            self._deferred_timer.cancel()
        self._loading.cancel()
        await asyncio.gather(self._loading, return_exceptions=True)


def now_ms() -> int:
    """Return the wall clock, as in messages."""
    return time.time_ns() // 1_000_000
