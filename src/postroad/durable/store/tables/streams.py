"""Streams of other stores: a watermark for each, and rejections.

Duplicates are below the watermark, and dropped by `new_batches` (bridges/protocol.py).

Everything here runs inside the transaction of a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from postroad.core.errors import ConfigError, MalformedPayloadError, StreamDivergedError
from postroad.durable.bridges.protocol import (
    DETAIL_CHARS_MAX,
    DeadLetterReason,
    MessageRejection,
    NewBatch,
    SequenceGap,
    StreamWindow,
    WindowStatus,
    initial_chain,
    new_batches,
)
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.names import validate_key, validate_queue_name
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.stored_messages import StoredMessage, decode_batch

from .queries import find_stream, list_rejections
from .queues import QueueTable
from .rows import InboxBatch, SenderStream

# Rejections that a sender does not know yet must fit into one ack.
_REJECTIONS_MAX = 2_000
# Every new store and every new epoch creates one, which is rare.
_STREAMS_PER_SENDER = 32
# More messages would block the event loop for longer than a thread switch takes.
_PREPARED_MAX = 64


class WindowResult(msgspec.Struct, frozen=True):
    """The result of storing a window."""

    status: WindowStatus
    watermark: int
    chain: bytes
    rejections: list[MessageRejection]
    detail: str = ""


QueuePolicy = Callable[[str, str], bool]
"""Whether a sender may create a queue of this name."""


class StreamTable:
    """Stores windows of other stores in the queues of this one, inside a commit."""

    def __init__(
        self, database: StoreConnection, config: DurableQueuesConfig, queues: QueueTable
    ) -> None:
        self.database = database
        self._config = config
        self._queues = queues
        self.queue_policy: QueuePolicy = lambda sender, queue: True
        # As the next commit will leave them; dropped when a commit fails.
        self._streams: dict[tuple[str, bytes, int], SenderStream] = {}

    def stream(self, sender: str, store: bytes, epoch: int, own_name: str) -> SenderStream:
        """Return how far the stream of a sender's store was accepted; a new one starts at 0."""
        key = (sender, store, epoch)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = find_stream(self.database, *key) or self._add_stream(
                *key, initial_chain(store, epoch, own_name)
            )
            stream.rejections = list_rejections(self.database, stream.id, 0)
        return stream

    def _add_stream(self, sender: str, store: bytes, epoch: int, chain: bytes) -> SenderStream:
        self._evict_oldest(sender)
        stream = SenderStream(self._queues.next_id("postroad_streams"), 0, chain)
        self.database.execute(
            "INSERT INTO postroad_streams (id, sender, store, epoch, watermark, chain)"
            " VALUES (?, ?, ?, ?, 0, ?)",
            (stream.id, sender, store, epoch, chain),
        )
        return stream

    def _evict_oldest(self, sender: str) -> None:
        """Evict streams of a sender beyond the number that it can need.

        If an evicted one is used again, its sender notices that this node does not know it.
        """
        rows = self.database.execute(
            "SELECT id FROM postroad_streams WHERE sender = ? ORDER BY id DESC", (sender,)
        )
        for (id,) in rows[_STREAMS_PER_SENDER - 1 :]:
            self.database.execute("DELETE FROM postroad_streams WHERE id = ?", (id,))
            self.database.execute("DELETE FROM postroad_refusals WHERE stream = ?", (id,))
            self._streams.clear()

    # Receiving.

    def prepare(
        self, sender: str, window: StreamWindow, credit: int, now_ms: int
    ) -> InboxBatch | None:
        """Return the batch that `accept` will store, if memory is enough to know it.

        Only for a window of few messages for one queue. A returned batch was not rejected, and
        must be passed to `accept` with the window.
        """
        stream = self._streams.get((sender, window.store, window.epoch))
        if stream is None or stream.rejections or len(window.batches) != 1:
            return None
        try:
            (new_batch,) = new_batches(stream.watermark, stream.chain, window)
            if new_batch.batch.count > _PREPARED_MAX:
                return None
            data, messages = _decode_messages(new_batch)
        except (SequenceGap, StreamDivergedError, MalformedPayloadError, ValueError):
            return None
        queue = messages[0].queue
        if len(data) > credit or not self._queues.is_cached(queue):
            return None
        if any(message.queue != queue or not message.is_fifo for message in messages):
            return None
        if any(self._rejections(sender, new_batch.first, messages, window.now_ms)):
            return None
        return self._queues.build_batch(sender, messages, len(data), now_ms - window.now_ms, now_ms)

    def accept(
        self,
        sender: str,
        window: StreamWindow,
        own_name: str,
        credit: int,
        now_ms: int,
        prepared: InboxBatch | None = None,
    ) -> WindowResult:
        """Store the new batches of a window within the credit, and advance the watermark."""
        stream = self.stream(sender, window.store, window.epoch, own_name)
        self._purge_rejections(stream, window.acked)
        before, known_rejections = stream.watermark, len(stream.rejections)
        rejections: list[MessageRejection] = []
        status, detail = WindowStatus.ACCEPTED, ""
        try:
            for new_batch in new_batches(stream.watermark, stream.chain, window):
                credit -= 0 if new_batch.batch.data is None else len(new_batch.batch.data)
                is_over_credit = credit < 0 and not self._has_nothing_stored(stream, before, sender)
                if is_over_credit or known_rejections + len(rejections) > _REJECTIONS_MAX:
                    status = WindowStatus.FULL
                    break
                if prepared is None:
                    rejections += self._store_batch(
                        sender, new_batch, now_ms - window.now_ms, now_ms
                    )
                else:
                    self._queues.store_batch(prepared, new_batch.batch.data or b"")
                    prepared = None
                stream.watermark, stream.chain = new_batch.last, new_batch.batch.chain
        except SequenceGap:
            status = WindowStatus.GAP
        except StreamDivergedError as error:
            status, detail = WindowStatus.DIVERGED, str(error)
        if prepared is not None:
            raise RuntimeError(
                f"batch of {sender!r} was announced before its commit, but must not be stored "
                f"({status}): this is a bug"
            )
        self._record_progress(stream, before, rejections)
        # Sent with each ack until they are acknowledged: the first ack with them may have been
        # lost, and its window may be sent again on another path.
        return WindowResult(status, stream.watermark, stream.chain, list(stream.rejections), detail)

    def _has_nothing_stored(self, stream: SenderStream, before: int, sender: str) -> bool:
        """Whether nothing of the sender is stored: then it may send one batch of any size."""
        if stream.watermark > before:
            return False
        rows = self.database.execute(
            "SELECT 1 FROM postroad_inbox WHERE sender = ? UNION ALL"
            " SELECT 1 FROM postroad_aside WHERE sender = ? LIMIT 1",
            (sender, sender),
        )
        return not rows

    def _record_progress(
        self, stream: SenderStream, before: int, rejections: Sequence[MessageRejection]
    ) -> None:
        if stream.watermark == before:
            return
        self.database.execute(
            "UPDATE postroad_streams SET watermark = ?, chain = ? WHERE id = ?",
            (stream.watermark, stream.chain, stream.id),
        )
        for rejection in rejections:
            self.database.execute(
                "INSERT INTO postroad_refusals (stream, number, reason, detail)"
                " VALUES (?, ?, ?, ?)",
                (stream.id, rejection.number, rejection.reason, rejection.detail),
            )
        stream.rejections += rejections

    def _purge_rejections(self, stream: SenderStream, acked: int) -> None:
        """Drop rejections that the sender has dead-lettered."""
        if stream.rejections and stream.rejections[0].number <= acked:
            stream.rejections = [
                rejection for rejection in stream.rejections if rejection.number > acked
            ]
            self.database.execute(
                "DELETE FROM postroad_refusals WHERE stream = ? AND number <= ?",
                (stream.id, acked),
            )

    def _store_batch(
        self, sender: str, new_batch: NewBatch, clock_skew_ms: int, now_ms: int
    ) -> list[MessageRejection]:
        """Store the messages of a batch; returns the rejected ones."""
        if new_batch.batch.data is None:
            return []
        numbers = range(new_batch.first, new_batch.last + 1)
        try:
            _, messages = _decode_messages(new_batch)
        except MalformedPayloadError as error:
            detail = str(error)[:DETAIL_CHARS_MAX]
            return [
                MessageRejection(number, DeadLetterReason.UNREADABLE, detail) for number in numbers
            ]
        rejections = list(
            self._rejections(sender, new_batch.first, messages, now_ms - clock_skew_ms)
        )
        if rejections:
            rejected = {rejection.number - new_batch.first for rejection in rejections}
            messages = [message for index, message in enumerate(messages) if index not in rejected]
        batch = None if rejections else new_batch.batch.data
        self._queues.store_messages(
            sender, messages, clock_skew_ms, now_ms, batch=batch, is_early=True
        )
        return rejections

    def _rejections(
        self, sender: str, first: int, messages: Sequence[StoredMessage], sender_now_ms: int
    ) -> Iterator[MessageRejection]:
        """Return the rejected messages of a batch."""
        size_max = self._config.message_bytes_max
        allowed: dict[str, str | None] = {}
        opened = 0
        for number, message in enumerate(messages, first):
            if message.queue not in allowed:
                allowed[message.queue] = self._queue_rejection_reason(sender, message.queue, opened)
                opened += allowed[message.queue] is None and message.queue not in self._queues.ids()
            if (detail := allowed[message.queue]) is not None:
                yield MessageRejection(
                    number, DeadLetterReason.UNKNOWN_QUEUE, detail[:DETAIL_CHARS_MAX]
                )
            elif (
                message.key is not None
                and (detail := _key_rejection_reason(message.key)) is not None
            ):
                yield MessageRejection(
                    number, DeadLetterReason.UNREADABLE, detail[:DETAIL_CHARS_MAX]
                )
            elif len(message.body) > size_max:
                detail = f"{len(message.body)} bytes; this node takes {size_max}"
                yield MessageRejection(number, DeadLetterReason.TOO_LARGE, detail)
            elif 0 < message.expires_ms <= sender_now_ms:
                yield MessageRejection(
                    number, DeadLetterReason.EXPIRED, "it expired before it was delivered"
                )

    def _queue_rejection_reason(self, sender: str, queue: str, opened: int) -> str | None:
        """Return why a sender may not write to a queue; None if it may."""
        queues = self._queues.ids()
        if queue in queues:
            return None
        try:
            validate_queue_name(queue)
        except ConfigError as error:
            return str(error)
        if not self.queue_policy(sender, queue):
            return f"there is no queue {queue!r}, and {sender!r} may not open it"
        if len(queues) + opened >= self._config.queues_max:
            return f"there is no queue {queue!r}, and no more than {len(queues)} may be opened"
        return None

    def on_rolled_back(self) -> None:
        """Drop what is only in memory, after a failed commit."""
        self._streams.clear()


def _decode_messages(new_batch: NewBatch) -> tuple[bytes, list[StoredMessage]]:
    """Return bytes and messages of a batch; raises MalformedPayloadError if they do not match."""
    data = new_batch.batch.data or b""
    if not new_batch.is_intact:
        raise MalformedPayloadError("the batch was changed in transit")
    messages = decode_batch(data)
    if len(messages) != new_batch.batch.count:
        raise MalformedPayloadError(
            f"{len(messages)} messages where {new_batch.batch.count} were announced"
        )
    return data, messages


def _key_rejection_reason(key: str) -> str | None:
    try:
        validate_key(key)
    except ConfigError as error:
        return str(error)
    return None
