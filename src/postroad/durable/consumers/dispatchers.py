"""The dispatchers of a running node, one for each queue that is consumed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from postroad.core.errors import UsageError
from postroad.core.limits import RetryPolicy
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.consumers.dispatcher import QueueDispatcher
from postroad.durable.names import validate_queue_name
from postroad.durable.store import Store
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.rows import InboxBatch
from postroad.durable.store.tables.store_tables import CommitEvent
from postroad.durable.telemetry import RateTotals


class Dispatchers:
    """Opens the dispatchers of queues, and notifies them of commits."""

    def __init__(self, store: Store, config: DurableQueuesConfig, totals: RateTotals) -> None:
        self._store = store
        self._config = config
        self._totals = totals
        self._by_queue: dict[str, QueueDispatcher] = {}
        self._is_open = True

    def __iter__(self) -> Iterator[QueueDispatcher]:
        return iter(self._by_queue.values())

    def find(self, queue: str) -> QueueDispatcher | None:
        """Return the dispatcher of a queue, or None if it is not consumed."""
        return self._by_queue.get(queue)

    def get(self, queue: str) -> QueueDispatcher:
        """Return the dispatcher of a queue that is consumed."""
        return self._by_queue[queue]

    async def declare(self, queue: str) -> int:
        """Create a queue unless it exists; returns its number."""
        validate_queue_name(queue)
        return await self._store.write(lambda tables: tables.queues.queue_id(queue))

    async def open(
        self, queue: str, is_ordered: bool = True, retry: RetryPolicy | None = None
    ) -> QueueDispatcher:
        """Return the dispatcher of a queue, which hands out its messages one by one.

        Raises:
            UsageError: it is open already with other settings, or its messages are read by a job.
        """
        self._check_open()
        id = await self.declare(queue)
        queues = await self._store.read(query.list_queues)
        self._check_open()
        dispatcher = self._by_queue.get(queue)
        if dispatcher is None:
            self._store.claim(queue, "a consumer")
            dispatcher = self._by_queue[queue] = QueueDispatcher(
                self._store,
                self._config,
                queue,
                id,
                is_ordered=is_ordered,
                retry=retry or RetryPolicy(),
                totals=self._totals,
            )
            dispatcher.is_paused = queues[queue][1]
        elif not dispatcher.matches(is_ordered, retry):
            raise UsageError(f"queue {queue!r} is in use already, with other settings")
        return dispatcher

    def release(self, queue: str) -> None:
        """Allow another consumer of a queue, after its dispatcher was closed."""
        if self._by_queue.pop(queue, None) is not None:
            self._store.release(queue)

    async def close(self) -> None:
        """Close all dispatchers; they wait until what was handled is committed."""
        self._is_open = False
        await asyncio.gather(*(dispatcher.close() for dispatcher in self._by_queue.values()))
        self._by_queue.clear()

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError("the durable queues of this node are not running: start() them first")

    def on_commit(self, event: CommitEvent) -> None:
        """Notify all dispatchers of a commit."""
        for dispatcher in self._by_queue.values():
            dispatcher.on_commit(event)

    def on_precommit(self, batch: InboxBatch) -> None:
        """Notify a dispatcher of a batch that is being committed."""
        if (dispatcher := self._by_queue.get(batch.queue)) is not None:
            dispatcher.on_precommit(batch)

    def on_precommit_aborted(self, batches: Sequence[InboxBatch]) -> None:
        """Notify dispatchers that the commit of batches failed."""
        for batch in batches:
            if (dispatcher := self._by_queue.get(batch.queue)) is not None:
                dispatcher.on_precommit_aborted(batch)

    def reload(self) -> None:
        """Make all dispatchers reload their queues."""
        for dispatcher in self._by_queue.values():
            dispatcher.reload()
