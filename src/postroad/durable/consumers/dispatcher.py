"""Dispatches the messages of one queue to consumers, and commits their dispositions.

The store has the truth; everything in here is a cache of it. If the store rejects a disposition,
its message has failed, and messages of its key that were handled after it are handled again. If a
commit fails, everything is reloaded, except messages in flight that are still stored; dispositions
from meanwhile are committed then.

After an error, `QueueDispatcher.is_final_failure` decides whether it is retried or a dead letter.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from postroad.core import fault_points as faults
from postroad.core.errors import Reject, StoreError, TransactionAbortedError
from postroad.core.limits import RetryPolicy
from postroad.core.log_throttle import ThrottledLogger, describe_error
from postroad.durable.bridges.protocol import DeadLetterReason
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.consumers.dispatch_order import PrefetchBuffer, QueuedMessage
from postroad.durable.consumers.disposition import (
    ConfirmationMutation,
    DispositionMutation,
    FailedDelivery,
)
from postroad.durable.consumers.queue_loader import QueueLoader, now_ms
from postroad.durable.producer import EncodedMessage
from postroad.durable.store import Store
from postroad.durable.store.mutations import resolve_future
from postroad.durable.store.tables.rows import InboxBatch
from postroad.durable.stored_messages import NEVER_MS
from postroad.durable.telemetry import RateTotals

logger = logging.getLogger("postroad.durable")

DISPATCHED = faults.declare_fault_point("durable.consumer.dispatched")
HANDLED = faults.declare_fault_point("durable.consumer.handled")

_DETAIL_CHARS_MAX = 2_000
_WARN_INTERVAL_S = 5.0


class QueueDispatcher(QueueLoader):
    """The messages of one queue that this process has loaded."""

    def __init__(
        self,
        store: Store,
        config: DurableQueuesConfig,
        queue: str,
        queue_id: int,
        *,
        is_ordered: bool,
        retry: RetryPolicy,
        totals: RateTotals,
    ) -> None:
        super().__init__(store, config, queue, queue_id, is_ordered=is_ordered, retry=retry)
        self._totals = totals
        self._in_flight: dict[QueuedMessage, None] = {}
        self._acks: list[QueuedMessage] = []
        self.uncommitted = 0
        self._uncommitted_acks_max = config.uncommitted_acks_max
        # Dispositions that are being committed, and those that wait for the queue to be reloaded.
        self._submitted: dict[DispositionMutation, None] = {}
        self._deferred_mutations: list[DispositionMutation] = []
        # Messages whose disposition the store rejected, until all after them are released and those
        # before them are handled again.
        self._rejected: dict[QueuedMessage, Exception] = {}
        self._failed_in_a_row = 0
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        self.is_paused = False
        self.handled = self.failed = 0

    # Dispatching.

    def next_message(self) -> QueuedMessage | None:
        """Return the next message to handle; None if there is none at the moment."""
        if self._is_stale or self._is_closed or self.is_paused:
            return None
        if self.uncommitted >= self._uncommitted_acks_max:
            return None
        buffer = self._buffer
        entry = buffer.pop_next(now_ms)
        while self._rejected and entry is not None and entry in self._rejected:
            # Messages before it had to be handled again first.
            self._nack(FailedDelivery(entry, self._rejected.pop(entry)))
            entry = buffer.pop_next(now_ms)
        if buffer.to_defer or buffer.expired:
            self._flush_buffer()
        if entry is not None:
            self._in_flight[entry] = None
            if DISPATCHED.is_armed:
                DISPATCHED.hit(entry=entry)
        if buffer.size < self._low_watermark:
            self._request_load()
        return entry

    async def wait(self) -> None:
        """Wait until there may be a message."""
        self.changed.clear()
        await self.changed.wait()

    def _flush_buffer(self) -> None:
        """Write what the prefetch buffer does not keep any more."""
        displaced, self._buffer.to_defer = self._buffer.to_defer, []
        expired, self._buffer.expired = self._buffer.expired, []
        mutation = DispositionMutation(self._on_committed)
        for entry in displaced:
            mutation.defer(entry, due_ms=NEVER_MS, failures=entry.failures)
        for entry in expired:
            mutation.dead_letter(
                entry, DeadLetterReason.EXPIRED, "it expired before it was handled", entry.failures
            )
        self._submit(mutation)

    # Dispositions.

    def prepare_ack(
        self, entry: QueuedMessage, sends: Sequence[EncodedMessage] = ()
    ) -> DispositionMutation | None:
        """Acknowledge a handled message; returns the disposition to commit with its transaction."""
        if not self._release(entry):
            return None
        HANDLED.hit(entry=entry)
        self.handled += 1
        if not self._is_stale:
            self._buffer.finish(entry)
        return DispositionMutation(self._on_committed, finished=(entry,), sends=sends)

    def ack(self, entry: QueuedMessage) -> None:
        """Acknowledge a handled message that has no transaction and no sends."""
        sequence = entry.key_sequence
        if (
            entry.is_aborted
            or self._is_stale
            or self._is_closed
            or (
                sequence is not None
                and (sequence.is_aborted or sequence.waiting or entry.deferred is not None)
            )
        ):
            if not self._release(entry):
                return
            if not self._is_stale:
                self._buffer.finish(entry)
        else:
            # As above, inlined for messages without waiting successors: most take this path.
            del self._in_flight[entry]
            self._buffer.size -= 1
            if sequence is not None:
                sequence.is_acquired = False
        if HANDLED.is_armed:
            HANDLED.hit(entry=entry)
        self.handled += 1
        if not self._acks:
            self._loop.call_soon(self._flush_acks)
        self._acks.append(entry)
        self.uncommitted += 1

    def _flush_acks(self) -> None:
        acks, self._acks = self._acks, []
        if acks:
            self.uncommitted -= len(acks)
            self._submit(DispositionMutation(self._on_committed, finished=acks))

    def submit(self, mutation: DispositionMutation) -> None:
        """Commit a disposition of `prepare_ack`."""
        self._flush_acks()
        self._submit(mutation)

    def track(self, mutation: DispositionMutation) -> None:
        """Track a disposition of `prepare_ack` that a transaction or a flow commits."""
        self._flush_acks()
        mutation.is_external = True
        self._submitted[mutation] = None
        self.uncommitted += len(mutation.entries())

    def _submit(self, mutation: DispositionMutation) -> None:
        self.uncommitted += len(mutation.entries())
        if self._is_stale:
            self._defer_mutation(mutation)
        else:
            self._submitted[mutation] = None
            self._store.submit(mutation)

    def _defer_mutation(self, mutation: DispositionMutation) -> None:
        """Commit a disposition after the queue was reloaded, and none after it before."""
        mutation.abort_successors()
        self._deferred_mutations.append(mutation)

    def nack(
        self, entry: QueuedMessage, error: BaseException, pause_s: float | None = None
    ) -> None:
        """Handle the failure of a handler: retry later, or dead-letter the message."""
        if self._release(entry):
            self._flush_acks()
            self._count_failure()
            self._nack(FailedDelivery(entry, error, pause_s))

    def _count_failure(self) -> None:
        self.failed += 1
        self._totals.failed.add(1, self._loop.time())

    def _nack(self, failure: FailedDelivery) -> None:
        entry, error, _ = failure
        is_final = self.is_final_failure(entry, error)
        mutation = self._failure_disposition(failure, is_final=is_final)
        if not self._is_stale:
            if is_final:
                self._buffer.finish(entry)
            else:
                self._buffer.block_key(entry)
            followers, self._buffer.to_defer = self._buffer.to_defer, []
            for follower in followers:
                mutation.defer(follower, due_ms=NEVER_MS, failures=follower.failures)
        self._submit(mutation)

    def is_final_failure(self, entry: QueuedMessage, error: BaseException) -> bool:
        """Whether a message is not retried after this failure."""
        return entry.failures + 1 >= self.retry.max_attempts or self._is_permanent(error)

    def _is_permanent(self, error: BaseException) -> bool:
        return isinstance(error, Reject) or not self.retry.allows(error)

    def _failure_disposition(
        self, failure: FailedDelivery, *, is_final: bool
    ) -> DispositionMutation:
        """Return the disposition of a message whose handler failed: a retry or a dead letter."""
        entry, error, pause_s = failure
        mutation = DispositionMutation(self._on_committed)
        mutation.failure = failure
        failures = entry.failures + 1
        detail = describe_error(error)[:_DETAIL_CHARS_MAX]
        if is_final:
            reason = (
                DeadLetterReason.REJECTED if self._is_permanent(error) else DeadLetterReason.FAILED
            )
            mutation.dead_letter(entry, reason, detail, failures)
        else:
            if pause_s is None:
                pause_s = self.retry.delay_s(failures, random.random())
            due_ms = now_ms() + round(pause_s * 1000)
            mutation.defer(entry, due_ms=due_ms, failures=failures, error=detail)
        return mutation

    def requeue(self, entry: QueuedMessage) -> None:
        """Return an unhandled message to the queue."""
        if self._release(entry) and not self._is_stale:
            self._buffer.requeue(entry)
            self.changed.set()

    def _release(self, entry: QueuedMessage) -> bool:
        """Whether the disposition of a message counts: not if one before it failed."""
        del self._in_flight[entry]
        if self._is_closed or entry.is_aborted:
            is_lost = True
        else:
            # After a reload it may be committed once those before it are.
            sequence = entry.key_sequence
            is_lost = sequence is not None and sequence.is_aborted and not self._is_stale
        if is_lost and not self._is_stale and not self._is_closed:
            self._return_to_buffer(entry)
        return not is_lost

    def _return_to_buffer(self, entry: QueuedMessage) -> None:
        """Release a message that is handled again, with those of its key."""
        first = self._buffer.return_to_buffer(entry)
        if first is not None:
            error = self._rejected.pop(first, None)
            if error is None:
                self._buffer.requeue(first)
            else:
                self._nack(FailedDelivery(first, error))
        if self._buffer.to_defer:
            self._flush_buffer()
        self.changed.set()

    def _log_failure(self, entry: QueuedMessage, error: Exception) -> None:
        self._log.log(
            "refused",
            self._loop.time(),
            "queue %r: the work of a handler cannot be committed, attempt %d of %d: %s: %s; %s",
            self.queue,
            entry.failures + 1,
            self.retry.max_attempts,
            type(error).__name__,
            error,
            "the message is a dead letter"
            if self.is_final_failure(entry, error)
            else "the message will be redelivered",
        )

    # Results of commits.

    def _on_committed(self, mutation: DispositionMutation, error: Exception | None) -> None:
        self._submitted.pop(mutation, None)
        entries = mutation.entries()
        if error is None:
            self._failed_in_a_row = 0
            self._totals.handled.add(len(mutation.finished), self._loop.time())
            self.uncommitted -= len(entries)
            if lost := mutation.lost:
                entries = [entry for entry in entries if entry not in lost]
            self._unload(entries)
            if lost:
                self._undo(mutation, lost)
        else:
            self._on_failed(mutation, error)
        self.changed.set()

    def _on_failed(self, mutation: DispositionMutation, error: Exception) -> None:
        """Handle a disposition that is not in the store."""
        is_store_error = isinstance(error, StoreError)
        is_rejected = not is_store_error and not isinstance(error, TransactionAbortedError)
        if is_store_error or (is_rejected and len(mutation.finished) != 1):
            self.suspend(error)
        if self._is_stale and mutation.is_repeatable and not is_rejected and not self._is_closed:
            self._defer_mutation(mutation)
            return
        self.uncommitted -= len(mutation.entries())
        if is_rejected and len(mutation.finished) == 1:
            self._reject(mutation.finished[0], error)
        mutation.abort_successors()
        self._undo(mutation, mutation.entries())

    def _reject(self, entry: QueuedMessage, error: Exception) -> None:
        """Handle the rejection of a disposition as a failure of the handler."""
        if not entry.is_superseded:
            self._rejected[entry] = error
            self._count_failure()
            self._log_failure(entry, error)

    def _undo(self, mutation: DispositionMutation, entries: Sequence[QueuedMessage]) -> None:
        """Handle messages again, with those that were handled after them."""
        if self._is_closed:
            return
        for entry in entries:
            if not entry.is_superseded:
                _void_successors(entry)
                if self._is_stale:
                    # It stays aborted: it follows a rejected one when that is handled again.
                    entry.is_aborted |= entry not in self._rejected
                else:
                    self._buffer.revert(entry, mutation.is_key_blocked_by(entry))
                    self._return_to_buffer(entry)

    def suspend(self, error: Exception) -> None:
        """Invalidate memory after a failed commit: dispatch nothing until it is reloaded."""
        if not self._is_stale:
            logger.warning("queue %r is reloaded: %s", self.queue, error)
            self._failed_in_a_row += 1
        self.reload()

    # Reloading.

    def on_precommit_aborted(self, batch: InboxBatch) -> None:
        """Withdraw batches whose commit failed."""
        if self._batches.pop(batch.id, None) is not None:
            for entry in self._outside_buffer():
                if entry.batch is batch:
                    entry.is_aborted = True
                    _void_successors(entry)
            self.reload()

    def _outside_buffer(self) -> list[QueuedMessage]:
        """Return all dispatched messages that are not known to be committed."""
        mutations = [*self._submitted, *self._deferred_mutations]
        handled = [entry for mutation in mutations for entry in mutation.entries()]
        return [*self._in_flight, *handled, *self._acks, *self._rejected]

    async def _reload_all(self) -> None:
        """Reload everything; messages in flight stay if the store has them unchanged."""
        if self._failed_in_a_row > 1:
            await self._pause(self._failed_in_a_row - 1)
        done: asyncio.Future[None] = self._loop.create_future()

        def on_complete(confirmation: ConfirmationMutation, error: Exception | None) -> None:
            # At once, before the next commit.
            if error is None and not self._is_closed:
                self._restart(confirmation)
            resolve_future(done, error)

        self._store.submit(ConfirmationMutation(self.queue, self._outside_buffer(), on_complete))
        await done

    def _restart(self, confirmation: ConfirmationMutation) -> None:
        """Drop everything but messages in flight that the store has confirmed."""
        self._flush_acks()
        before, self._buffer = (
            self._buffer,
            PrefetchBuffer(is_ordered=self._is_ordered, blocked=confirmation.blocked_keys),
        )
        self._batches.clear()
        self._deferred.clear()
        self._position.reset()
        self._is_deferred_due = True
        self._is_stale = False
        parked, self._deferred_mutations = (
            sorted(self._deferred_mutations, key=lambda mutation: mutation.number),
            [],
        )
        rejected, self._rejected = self._rejected, {}
        for mutation in self._submitted:
            for entry in mutation.results():
                if self._retain(entry, confirmation, is_intact=not entry.is_lost):
                    self._buffer.finish(entry)
        for entry, error in rejected.items():
            if self._retain(entry, confirmation, is_intact=not entry.is_aborted):
                self._nack(FailedDelivery(entry, error))
        for mutation in parked:
            self._resubmit(mutation, confirmation)
        for entry in self._in_flight:
            if not self._retain(entry, confirmation, is_intact=not entry.is_aborted):
                self._buffer.occupy(entry)
        before.dissolve()

    def _retain(
        self, entry: QueuedMessage, confirmation: ConfirmationMutation, *, is_intact: bool
    ) -> bool:
        """Add a message to the new buffer; False if it is handled again, or is not there."""
        if not is_intact or not confirmation.confirms(entry):
            entry.is_aborted = entry.is_superseded = True
            return False
        if entry.batch is not None:
            self._batches[entry.batch.id] = entry.batch
        elif entry.deferred is not None:
            self._deferred[entry.deferred.id] = entry.deferred
        self._buffer.adopt(entry)
        return True

    def _resubmit(self, mutation: DispositionMutation, confirmation: ConfirmationMutation) -> None:
        self.uncommitted -= len(mutation.entries())
        retained = [
            entry
            for entry in mutation.results()
            if self._retain(entry, confirmation, is_intact=not entry.is_aborted)
        ]
        if not retained:
            if mutation.waiter is not None:
                resolve_future(
                    mutation.waiter,
                    TransactionAbortedError(
                        "the queue was changed meanwhile; the message was not acknowledged"
                    ),
                )
        elif mutation.failure is not None:
            self._nack(mutation.failure)
        else:
            for entry in retained:
                self._buffer.finish(entry)
            mutation.finished, mutation.error = retained, None
            self._submit(mutation)

    # State.

    async def close(self) -> None:
        """Stop dispatching; dispositions are still committed by the store."""
        self._flush_acks()
        self._is_closed = True
        self.changed.set()
        await self._stop_reading()
        parked, self._deferred_mutations = self._deferred_mutations, []
        for mutation in parked:
            self.uncommitted -= len(mutation.entries())
            if mutation.waiter is not None:
                resolve_future(
                    mutation.waiter,
                    TransactionAbortedError("the queue is closed; the message will be redelivered"),
                )
        while self.uncommitted:
            # The next reader of the queue must see the dispositions.
            await self.wait()

    def matches(self, is_ordered: bool, retry: RetryPolicy | None) -> bool:
        """Whether its settings are these; None stands for any."""
        return self._is_ordered == is_ordered and retry in (None, self.retry)

    @property
    def in_flight(self) -> int:
        """The number of messages that are being handled."""
        return len(self._in_flight)


def _void_successors(entry: QueuedMessage) -> None:
    """Handle messages again that were handled after another one because of it."""
    if entry.key_sequence is not None:
        chain = entry.key_sequence.chain
        for other in chain[chain.index(entry) + 1 :] if entry in chain else ():
            other.is_aborted = True
