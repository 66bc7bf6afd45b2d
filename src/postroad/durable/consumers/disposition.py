"""Writes dispositions of messages: done, deferred or dead letter.

It decides nothing: which of them a message gets, `QueueDispatcher` decides (dispatcher.py).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from postroad.core.errors import PostroadError, TransactionAbortedError
from postroad.durable.consumers.dispatch_order import QueuedMessage
from postroad.durable.producer import EncodedMessage, append_sends, check_sends
from postroad.durable.store.mutations import Mutation, resolve_future
from postroad.durable.store.tables.queries import blocked_keys
from postroad.durable.store.tables.rows import DeferredMessage, InboxBatch
from postroad.durable.store.tables.store_tables import StoreTables

_next_number = itertools.count().__next__


class FailedDelivery(NamedTuple):
    """A message whose handler failed, and its error."""

    entry: QueuedMessage
    error: BaseException
    delay_s: float | None = None


class DeadLettering:
    """A message that becomes a dead letter."""

    __slots__ = ("detail", "entry", "failures", "reason")

    def __init__(self, entry: QueuedMessage, reason: str, detail: str, failures: int) -> None:
        self.entry = entry
        self.reason = reason
        self.detail = detail
        self.failures = failures


class DispositionMutation(Mutation):
    """The outcome of one or more messages, committed with the work of their handlers."""

    __slots__ = (
        "dead_letterings",
        "deferred",
        "failure",
        "finished",
        "is_external",
        "lost",
        "number",
        "on_committed",
        "rescheduled",
        "sends",
        "waiter",
    )

    def __init__(
        self,
        on_complete: Callable[[DispositionMutation, Exception | None], None],
        finished: Sequence[QueuedMessage] = (),
        sends: Sequence[EncodedMessage] = (),
    ) -> None:
        super().__init__()
        # In the order of their creation.
        self.number = _next_number()
        self.on_committed = on_complete
        self.finished = finished
        self.sends = sends
        # Called with the result of the commit.
        self.waiter: asyncio.Future[None] | None = None
        # Whether another mutation commits it, which alone can repeat it.
        self.is_external = False
        # Messages that could not be committed, unlike the others.
        self.lost: Sequence[QueuedMessage] = ()
        # Messages that leave their batch and become deferred messages.
        self.deferred: list[tuple[QueuedMessage, DeferredMessage]] = []
        # Deferred messages, in their new state.
        self.rescheduled: list[tuple[QueuedMessage, DeferredMessage]] = []
        self.dead_letterings: list[DeadLettering] = []
        # The message and its error, if this disposition is about a single failure.
        self.failure: FailedDelivery | None = None

    @property
    def is_lost(self) -> bool:
        """Whether part of it cannot be committed, because a message before it failed to commit."""
        for entry in self.entries():
            # `entry.is_lost` would take twice as long.
            if entry.is_aborted or (
                (sequence := entry.key_sequence) is not None and sequence.is_aborted
            ):
                return True
        return False

    def results(self) -> Sequence[QueuedMessage]:
        """Messages that a handler has handled, unlike those that were deferred or expired."""
        return self.finished if self.failure is None else (self.failure.entry,)

    def is_key_blocked_by(self, entry: QueuedMessage) -> int:
        """Return the change of the blocks on a key by this disposition."""
        if any(entry is other for other, _ in self.deferred):
            return 1
        if any(entry is other for other, _ in self.rescheduled):
            return 0 if entry.blocks_key else 1
        return -1 if entry.blocks_key else 0

    @property
    def is_repeatable(self) -> bool:
        """Whether it can be repeated without handling messages again."""
        return not self.is_external and self.waiter is None

    def defer(
        self, entry: QueuedMessage, *, due_ms: int, failures: int, error: str | None = None
    ) -> None:
        """Defer a message until it is due; later ones of its key wait for it."""
        blocks_key = entry.key is not None or entry.blocks_key
        if (before := entry.deferred) is not None:
            deferred = msgspec.structs.replace(
                before,
                due_ms=due_ms,
                blocks_key=blocks_key,
                failures=failures,
                error=error or before.error,
            )
            self.rescheduled.append((entry, deferred))
            return
        location = entry.location
        deferred = DeferredMessage(
            id=0,
            queue=location.queue,
            sender=location.sender,
            message=entry.message,
            due_ms=due_ms,
            blocks_key=blocks_key,
            failures=failures,
            clock_skew_ms=location.clock_skew_ms,
            received_ms=location.received_ms,
            error=error,
        )
        self.deferred.append((entry, deferred))

    def dead_letter(self, entry: QueuedMessage, reason: str, detail: str, failures: int) -> None:
        """Dead-letter a message."""
        self.dead_letterings.append(DeadLettering(entry, reason, detail, failures))

    def entries(self) -> Sequence[QueuedMessage]:
        """Return all messages of this disposition."""
        if not (self.deferred or self.rescheduled or self.dead_letterings):
            return self.finished
        return [
            *self.finished,
            *(entry for entry, _ in self.deferred),
            *(entry for entry, _ in self.rescheduled),
            *(dead_lettering.entry for dead_lettering in self.dead_letterings),
        ]

    def apply(self, tables: StoreTables) -> None:
        entries = self.entries()
        # `is_lost` would take twice as long.
        lost = [
            entry
            for entry in entries
            if entry.is_aborted
            or ((sequence := entry.key_sequence) is not None and sequence.is_aborted)
        ]
        if lost and len(lost) == len(entries):
            raise TransactionAbortedError("a message before this one could not be committed")
        self.lost = lost
        self.write(tables)

    def write(self, tables: StoreTables) -> None:
        """Write the disposition, except for messages that are lost."""
        duplicates = self._check(tables) if self.sends else ()
        lost = self.lost and set(self.lost)
        finished = self.finished
        _finish(tables, [entry for entry in finished if entry not in lost] if lost else finished)
        for entry, deferred in self.deferred:
            if entry not in lost:
                _finish(tables, (entry,))
                tables.queues.defer(deferred)
        for entry, deferred in self.rescheduled:
            if entry not in lost:
                tables.queues.reschedule(deferred)
        for dead_lettering in self.dead_letterings:
            if dead_lettering.entry not in lost:
                self._dead_letter(tables, dead_lettering)
        append_sends(tables, self.sends, duplicates)

    def fail(self, error: Exception) -> None:
        self.abort_successors()
        super().fail(error)

    def _check(self, tables: StoreTables) -> Sequence[int | None]:
        try:
            return check_sends(tables, self.sends)
        except PostroadError:
            self.abort_successors()
            raise

    def abort_successors(self) -> None:
        """Abort all dispositions that come after this one."""
        for entry in self.entries():
            if entry.key_sequence is not None:
                entry.key_sequence.is_aborted = True

    def _dead_letter(self, tables: StoreTables, dead_lettering: DeadLettering) -> None:
        entry = dead_lettering.entry
        tables.dead_letters.add_inbound(
            entry.location.sender,
            entry.message,
            dead_lettering.reason,
            dead_lettering.detail,
            dead_lettering.failures,
            tables.now_ms,
        )
        _finish(tables, (entry,))

    def on_complete(self, error: Exception | None) -> None:
        self.on_committed(self, error)
        if self.waiter is not None:
            resolve_future(self.waiter, error)


def _finish(tables: StoreTables, entries: Sequence[QueuedMessage]) -> None:
    """Mark messages as done; most are in the order of their batches, and written so."""
    batch: InboxBatch | None = None
    messages = 0
    for entry in entries:
        if entry.batch is not batch:
            if batch is not None:
                tables.queues.mark_done(batch, messages)
            batch, messages = entry.batch, 0
        if batch is not None:
            messages |= 1 << entry.index
        elif entry.deferred is not None:
            tables.queues.delete_deferred(entry.deferred, tables.now_ms)
    if batch is not None:
        tables.queues.mark_done(batch, messages)


class ConfirmationMutation(Mutation):
    """Compares messages in flight with the store before a queue is reloaded.

    A mutation like any other: it sees the mutations that were submitted before it, and no others.

    Attributes:
        blocked_keys: the keys that are held by messages deferred, with the number of those.
    """

    __slots__ = ("_batches", "_deferred", "_on_committed", "_queue", "blocked_keys")

    def __init__(
        self,
        queue: str,
        entries: Sequence[QueuedMessage],
        on_complete: Callable[[ConfirmationMutation, Exception | None], None],
    ) -> None:
        super().__init__()
        self._queue = queue
        self._on_committed = on_complete
        self.blocked_keys: dict[str, int] = {}
        # With the bits of messages that are done; None if the store does not have the batch.
        self._batches: dict[int, tuple[InboxBatch, int | None]] = {}
        self._deferred: dict[int, tuple[DeferredMessage, bool]] = {}
        for entry in entries:
            if entry.batch is not None:
                self._batches[entry.batch.id] = (entry.batch, None)
            elif entry.deferred is not None:
                self._deferred[entry.deferred.id] = (entry.deferred, False)

    def apply(self, tables: StoreTables) -> None:
        queues = tables.queues
        queues.release_orphaned_keys(self._queue)
        self.blocked_keys = blocked_keys(tables.database, queues.queue_id(self._queue))
        for batch, _ in self._batches.values():
            self._batches[batch.id] = (batch, queues.refresh(batch))
        for deferred, _ in self._deferred.values():
            self._deferred[deferred.id] = (deferred, queues.refresh_deferred(deferred))

    def confirms(self, entry: QueuedMessage) -> bool:
        """Whether a message is stored and not done."""
        if entry.batch is not None:
            _, done = self._batches.get(entry.batch.id, (None, None))
            return done is not None and not done >> entry.index & 1
        return (
            entry.deferred is not None and self._deferred.get(entry.deferred.id, (None, False))[1]
        )

    def on_complete(self, error: Exception | None) -> None:
        self._on_committed(self, error)
