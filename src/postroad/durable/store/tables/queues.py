"""The queues of this node: batches in the order of arrival, and deferred messages.

Everything here runs inside the transaction of a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.stored_messages import (
    NEVER_MS,
    StoredMessage,
    encode_batch,
    encode_stored_message,
)

from .queries import count_pending, sizes_by_sender
from .ranges import BatchRange, MessageRange, bits_between
from .rows import DeferredMessage, InboxBatch, add_checksum, sanitize_text

_NUMBERED = ("postroad_inbox", "postroad_aside", "postroad_queues", "postroad_streams")


class QueueTable:
    """The queues of a store, inside a commit."""

    def __init__(self, database: StoreConnection) -> None:
        self.database = database
        # As the next commit will leave them; dropped when a commit fails.
        self._ids: dict[str, int] | None = None
        # Read before anything is deleted and never dropped: no number is used again while this
        # process lives, because readers of the tables remember their positions.
        self._next_ids = {table: _first_free_id(database, table) for table in _NUMBERED}
        # Batches that changed in this commit, with their state before.
        self._changed: dict[int, tuple[InboxBatch, int]] = {}
        # Notified of batches as soon as it is certain that they will be written.
        self.on_precommit: Callable[[InboxBatch], None] = lambda batch: None
        # For the commit event: new batches of this commit, and the change of each sender's
        # bytes on this node.
        self.inbox_batches: list[InboxBatch] = []
        self.deferred_queues: dict[str, None] = {}
        self.bytes_by_sender: dict[str, int] = {}

    # Names and numbers.

    def queue_id(self, name: str) -> int:
        """Return the number of a queue; created if it is new."""
        queues = self.ids()
        id = queues.get(name)
        if id is None:
            id = queues[name] = self.next_id("postroad_queues")
            self.database.execute(
                "INSERT INTO postroad_queues (id, name, is_paused) VALUES (?, ?, 0)", (id, name)
            )
        return id

    def ids(self) -> dict[str, int]:
        """Return the numbers of all queues."""
        if self._ids is None:
            rows = self.database.execute("SELECT name, id FROM postroad_queues")
            self._ids = dict(rows)
        return self._ids

    def next_id(self, table: str) -> int:
        """Return a number for a new row."""
        id = self._next_ids[table]
        self._next_ids[table] = id + 1
        return id

    def store_messages(
        self,
        sender: str,
        messages: Sequence[StoredMessage],
        clock_skew_ms: int,
        now_ms: int,
        *,
        batch: bytes | None = None,
        is_early: bool = False,
    ) -> None:
        """Add messages to their queues.

        Args:
            sender: the node they came from.
            messages: in order.
            clock_skew_ms: by how much this node's clock is ahead of the sender's.
            now_ms: the time.
            batch: what they came in, if all of them did.
            is_early: whether consumers may get them before they are committed.
        """
        by_queue: dict[str, list[StoredMessage]] = {}
        for message in messages:
            if message.is_fifo:
                by_queue.setdefault(message.queue, []).append(message)
            else:
                self._defer_new(sender, message, clock_skew_ms, now_ms)
        for together in by_queue.values():
            is_whole = batch is not None and len(together) == len(messages)
            data = batch if is_whole and batch is not None else encode_batch(together)
            inbox_batch = self.build_batch(sender, together, len(data), clock_skew_ms, now_ms)
            if is_early:
                self.on_precommit(inbox_batch)
            self.store_batch(inbox_batch, data)

    def is_cached(self, queue: str) -> bool:
        """Whether the number of a queue is in memory."""
        return self._ids is not None and queue in self._ids

    def build_batch(
        self, sender: str, messages: list[StoredMessage], size: int, clock_skew_ms: int, now_ms: int
    ) -> InboxBatch:
        """Return a new batch of messages that are all for one queue."""
        id = self.next_id("postroad_inbox")
        return InboxBatch(id, messages[0].queue, sender, messages, size, clock_skew_ms, now_ms)

    def store_batch(self, batch: InboxBatch, data: bytes) -> None:
        """Write a batch; `data` is its encoded messages."""
        self.database.execute(
            "INSERT INTO postroad_inbox"
            " (id, queue, sender, size, pending, received_ms, ahead_ms, letters)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                batch.id,
                self.queue_id(batch.queue),
                batch.sender,
                batch.size,
                len(batch.messages),
                batch.received_ms,
                batch.clock_skew_ms,
                add_checksum(data),
            ),
        )
        self.inbox_batches.append(batch)
        self._count(batch.sender, batch.size)

    # Handling.

    def mark_done(self, batch: InboxBatch, messages: int) -> None:
        """Mark messages of a batch as done, each of them a bit."""
        if batch.id not in self._changed:
            self._changed[batch.id] = (batch, batch.done_bits)
        batch.done_bits |= messages

    def refresh(self, batch: InboxBatch) -> int | None:
        """Correct a batch in memory by what is stored; the bits of what is done with there.

        None if the store does not have it any more.
        """
        rows = self.database.execute(
            "SELECT done FROM postroad_inbox WHERE id = ? AND received_ms = ?",
            (batch.id, batch.received_ms),
        )
        if not rows:
            return None
        stored = 0 if rows[0][0] is None else int.from_bytes(rows[0][0])
        _, before = self._changed.get(batch.id, (batch, batch.done_bits))
        # The changes of this commit are kept.
        new = batch.done_bits & ~before
        batch.done_bits = stored | new
        if new:
            self._changed[batch.id] = (batch, stored)
        return batch.done_bits

    def refresh_deferred(self, deferred: DeferredMessage) -> bool:
        """Update a deferred message in memory from the store; False if it is not there any more."""
        rows = self.database.execute(
            "SELECT holds_key, failures FROM postroad_aside WHERE id = ? AND received_ms = ?",
            (deferred.id, deferred.received_ms),
        )
        for blocks_key, failures in rows:
            deferred.blocks_key, deferred.failures = bool(blocks_key), failures
        return bool(rows)

    def delete_deferred(self, deferred: DeferredMessage, now_ms: int) -> None:
        """Delete a deferred message, and release the next one of its key."""
        for (size,) in self.database.execute(
            "DELETE FROM postroad_aside WHERE id = ? RETURNING LENGTH(letter)", (deferred.id,)
        ):
            self._count(deferred.sender, -size)
        if deferred.blocks_key:
            self._release_key_head(self.queue_id(deferred.queue), deferred.message.key, now_ms)
            self.deferred_queues[deferred.queue] = None

    def _defer_new(
        self, sender: str, message: StoredMessage, clock_skew_ms: int, now_ms: int
    ) -> None:
        due_ms = message.deliver_at_ms + clock_skew_ms if message.deliver_at_ms else now_ms
        self.defer(
            DeferredMessage(
                0, message.queue, sender, message, due_ms, False, 0, clock_skew_ms, now_ms
            )
        )

    def defer(self, deferred: DeferredMessage) -> None:
        """Store a message as deferred, until it is due."""
        deferred.id = self.next_id("postroad_aside")
        message, data = deferred.message, add_checksum(encode_stored_message(deferred.message))
        self.database.execute(
            "INSERT INTO postroad_aside (id, queue, sender, key, priority, due_ms, holds_key,"
            " failures, error, received_ms, ahead_ms, letter)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                deferred.id,
                self.queue_id(deferred.queue),
                deferred.sender,
                message.key,
                message.priority,
                deferred.due_ms,
                int(deferred.blocks_key),
                deferred.failures,
                sanitize_text(deferred.error),
                deferred.received_ms,
                deferred.clock_skew_ms,
                data,
            ),
        )
        self._count(deferred.sender, len(data))
        self._ensure_key_head(deferred)
        self.deferred_queues[deferred.queue] = None

    def reschedule(self, deferred: DeferredMessage) -> None:
        """Reschedule a deferred message."""
        self.database.execute(
            "UPDATE postroad_aside SET due_ms = ?, holds_key = ?, failures = ?, error = ?"
            " WHERE id = ?",
            (
                deferred.due_ms,
                int(deferred.blocks_key),
                deferred.failures,
                sanitize_text(deferred.error),
                deferred.id,
            ),
        )
        self._ensure_key_head(deferred)
        self.deferred_queues[deferred.queue] = None

    def _ensure_key_head(self, deferred: DeferredMessage) -> None:
        """Release the first deferred message of a key, unless another message still blocks it."""
        if deferred.due_ms < NEVER_MS:
            return
        queue, key = self.queue_id(deferred.queue), deferred.message.key
        rows = self.database.execute(
            "SELECT 1 FROM postroad_aside WHERE queue = ? AND key = ? AND holds_key = 1"
            " AND due_ms < ? LIMIT 1",
            (queue, key, NEVER_MS),
        )
        if not rows:
            self._release_key_head(queue, key, 0)

    def _release_key_head(self, queue: int, key: str | None, due_ms: int) -> None:
        self.database.execute(
            "UPDATE postroad_aside SET due_ms = ? WHERE id = (SELECT MIN(id) FROM"
            " postroad_aside WHERE queue = ? AND key = ? AND holds_key = 1)",
            (due_ms, queue, key),
        )

    def release_orphaned_keys(self, queue: str) -> None:
        """Release the first message of each key whose blocking message does not exist any more."""
        self.database.execute(
            "UPDATE postroad_aside SET due_ms = 0 WHERE id IN (SELECT MIN(id) FROM postroad_aside"
            " WHERE queue = ? AND holds_key = 1 GROUP BY key HAVING MIN(due_ms) >= ?)",
            (self.queue_id(queue), NEVER_MS),
        )

    def pause(self, queue: str, is_paused: bool) -> None:
        """Record whether a queue is paused."""
        self.database.execute(
            "UPDATE postroad_queues SET is_paused = ? WHERE id = ?",
            (int(is_paused), self.queue_id(queue)),
        )

    def release_blocked(self, queue: str) -> None:
        """Release all messages that wait for their key: order does not matter any more."""
        self.database.execute(
            "UPDATE postroad_aside SET holds_key = 0,"
            " due_ms = CASE WHEN due_ms >= ? THEN 0 ELSE due_ms END"
            " WHERE queue = ? AND holds_key = 1",
            (NEVER_MS, self.queue_id(queue)),
        )

    # Ranges, for readers that have a queue for themselves.

    def delete_range(self, message_range: MessageRange) -> None:
        """Mark the messages of a range as done, as far as they exist."""
        if not isinstance(message_range, BatchRange):
            for id in message_range.ids:
                self._delete(
                    "DELETE FROM postroad_aside WHERE id = ? AND queue = ? AND received_ms <= ?"
                    " RETURNING sender, LENGTH(letter)",
                    (id, message_range.queue, message_range.received_ms),
                )
        elif message_range.stop is not None:
            bits = bits_between(message_range.start, message_range.stop)
            self.mark_range_done(
                message_range.queue, message_range.first, message_range.received_ms, bits
            )
        else:
            self._delete(
                "DELETE FROM postroad_inbox WHERE queue = ? AND id BETWEEN ? AND ?"
                " AND received_ms <= ? RETURNING sender, size",
                (
                    message_range.queue,
                    message_range.first,
                    message_range.last,
                    message_range.received_ms,
                ),
            )

    def mark_range_done(self, queue: int, batch: int, received_ms: int, bits: int) -> bool:
        """Mark some messages of a batch as done; False if the batch does not exist any more.

        Goes by what is stored, and not by a batch in memory as `mark_done` does.
        """
        rows = self.database.execute(
            "SELECT pending, done FROM postroad_inbox"
            " WHERE id = ? AND queue = ? AND received_ms <= ?",
            (batch, queue, received_ms),
        )
        for pending, data in rows:
            before = 0 if data is None else int.from_bytes(data)
            done = before | bits
            remaining = pending + before.bit_count() - done.bit_count()
            if remaining:
                self.database.execute(
                    "UPDATE postroad_inbox SET done = ?, pending = ? WHERE id = ?",
                    (done.to_bytes((done.bit_length() + 7) // 8), remaining, batch),
                )
            else:
                self._delete(
                    "DELETE FROM postroad_inbox WHERE id = ? RETURNING sender, size", (batch,)
                )
        return bool(rows)

    def _delete(self, statement: str, parameters: Sequence[object]) -> None:
        for sender, size in self.database.execute(statement, parameters):
            self._count(sender, -size)

    def purge(self, queue: str) -> int:
        """Delete all messages of a queue; returns how many."""
        id = self.queue_id(queue)
        for sender, size in sizes_by_sender(self.database, id).items():
            self._count(sender, -size)
        count = count_pending(self.database, id)
        self.database.execute("DELETE FROM postroad_inbox WHERE queue = ?", (id,))
        self.database.execute("DELETE FROM postroad_aside WHERE queue = ?", (id,))
        return count

    def _count(self, sender: str, size: int) -> None:
        self.bytes_by_sender[sender] = self.bytes_by_sender.get(sender, 0) + size

    # The end of a commit.

    def flush(self) -> None:
        """Write which messages of which batches are done."""
        for batch, _ in self._changed.values():
            pending = batch.pending
            if pending:
                self.database.execute(
                    "UPDATE postroad_inbox SET done = ?, pending = ? WHERE id = ?",
                    (batch.done_bits.to_bytes((len(batch.messages) + 7) // 8), pending, batch.id),
                )
            else:
                # It may not exist any more, if the queue was purged.
                for (size,) in self.database.execute(
                    "DELETE FROM postroad_inbox WHERE id = ? RETURNING size", (batch.id,)
                ):
                    self._count(batch.sender, -size)

    def on_committed(self) -> None:
        """Clear the changes of a durable commit."""
        self._changed.clear()
        self.inbox_batches, self.deferred_queues, self.bytes_by_sender = [], {}, {}

    def on_rolled_back(self) -> None:
        """Drop what is only in memory, after a failed commit."""
        for batch, done in self._changed.values():
            batch.done_bits = done
        self._changed.clear()
        self._ids = None
        self.inbox_batches.clear()
        self.deferred_queues.clear()
        self.bytes_by_sender.clear()


def _first_free_id(database: StoreConnection, table: str) -> int:
    return int(database.execute(f"SELECT COALESCE(MAX(id), 0) + 1 FROM {table}")[0][0])
