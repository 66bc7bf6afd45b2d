"""What other stores have sent: a watermark for each, and what was refused.

Everything here runs inside the transaction of a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from postroad.core.errors import ConfigError, MalformedPayloadError, StreamDivergedError
from postroad.durable.bridges.dedup import NewBatch, SequenceGap, new_batches
from postroad.durable.bridges.hash_chain import initial_chain
from postroad.durable.bridges.protocol import (
    DETAIL_CHARS_MAX,
    DeadLetterReason,
    MessageRejection,
    StreamWindow,
    WindowStatus,
)
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.names import validate_key, validate_queue_name
from postroad.durable.stored_messages import StoredMessage, decode_batch

from .database import Database
from .queries import find_stream, list_refusals
from .queues import Queues
from .rows import InPage, Stream

# Refusals that a sender does not know yet travel in one answer, and must fit into it.
_REFUSALS_MAX = 2_000
# A new one comes with every new store and every epoch, which are rare.
_STREAMS_PER_SENDER = 32
# More letters keep the event loop busy for longer than they would wait for a thread.
_PREPARED_MAX = 64


class Arrival(msgspec.Struct, frozen=True):
    """What came of a window."""

    verdict: WindowStatus
    watermark: int
    chain: bytes
    refusals: list[MessageRejection]
    detail: str = ""


QueueRule = Callable[[str, str], bool]
"""Whether a sender may open a queue of that name."""


class Streams:
    """Takes windows of other stores into the queues of this one."""

    def __init__(self, database: Database, config: DurableQueuesConfig, queues: Queues) -> None:
        self.database = database
        self._config = config
        self._queues = queues
        self.may_open: QueueRule = lambda sender, queue: True
        # As the next commit will leave them; forgotten when one fails.
        self._streams: dict[tuple[str, bytes, int], Stream] = {}

    def stream(self, sender: str, store: bytes, epoch: int, own_name: str) -> Stream:
        """How far a sender's store has been accepted; at the beginning if it is new."""
        key = (sender, store, epoch)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = find_stream(self.database, *key) or self._add_stream(
                *key, initial_chain(store, epoch, own_name)
            )
            stream.refusals = list_refusals(self.database, stream.id, 0)
        return stream

    def _add_stream(self, sender: str, store: bytes, epoch: int, chain: bytes) -> Stream:
        self._forget_oldest(sender)
        stream = Stream(self._queues.next_id("postroad_streams"), 0, chain)
        self.database.execute(
            "INSERT INTO postroad_streams (id, sender, store, epoch, watermark, chain)"
            " VALUES (?, ?, ?, ?, 0, ?)",
            (stream.id, sender, store, epoch, chain),
        )
        return stream

    def _forget_oldest(self, sender: str) -> None:
        """Keep no more streams of a sender than it can need.

        Should one that is forgotten come back, its sender notices that this node forgot it.
        """
        rows = self.database.execute(
            "SELECT id FROM postroad_streams WHERE sender = ? ORDER BY id DESC", (sender,)
        )
        for (id,) in rows[_STREAMS_PER_SENDER - 1 :]:
            self.database.execute("DELETE FROM postroad_streams WHERE id = ?", (id,))
            self.database.execute("DELETE FROM postroad_refusals WHERE stream = ?", (id,))
            self._streams.clear()

    # Receiving.

    def prepare(self, sender: str, window: StreamWindow, room: int, now_ms: int) -> InPage | None:
        """The page that `accept` is going to store, if that follows from what is in memory.

        Only for a window of few letters for one queue. A page that is returned was not refused, and
        is to be given to `accept` with the window.
        """
        stream = self._streams.get((sender, window.store, window.epoch))
        if stream is None or stream.refusals or len(window.batches) != 1:
            return None
        try:
            (fresh,) = new_batches(stream.watermark, stream.chain, window)
            if fresh.batch.count > _PREPARED_MAX:
                return None
            data, letters = _read(fresh)
        except (SequenceGap, StreamDivergedError, MalformedPayloadError, ValueError):
            return None
        queue = letters[0].queue
        if len(data) > room or not self._queues.knows(queue):
            return None
        if any(letter.queue != queue or not letter.is_fifo for letter in letters):
            return None
        if any(self._refuse(sender, fresh.first, letters, window.now_ms)):
            return None
        return self._queues.page_of(sender, letters, len(data), now_ms - window.now_ms, now_ms)

    def accept(
        self,
        sender: str,
        window: StreamWindow,
        own_name: str,
        room: int,
        now_ms: int,
        prepared: InPage | None = None,
    ) -> Arrival:
        """Keep what is new in a window, as far as there is room, and move the watermark."""
        stream = self.stream(sender, window.store, window.epoch, own_name)
        self._forget_refusals(stream, window.acked)
        before, known_rejections = stream.watermark, len(stream.refusals)
        refusals: list[MessageRejection] = []
        verdict, detail = WindowStatus.ACCEPTED, ""
        try:
            for fresh in new_batches(stream.watermark, stream.chain, window):
                room -= 0 if fresh.batch.data is None else len(fresh.batch.data)
                is_crowded = room < 0 and not self._is_first(stream, before, sender)
                if is_crowded or known_rejections + len(refusals) > _REFUSALS_MAX:
                    verdict = WindowStatus.FULL
                    break
                if prepared is None:
                    refusals += self._take(sender, fresh, now_ms - window.now_ms, now_ms)
                else:
                    self._queues.store_page(prepared, fresh.batch.data or b"")
                    prepared = None
                stream.watermark, stream.chain = fresh.last, fresh.batch.chain
        except SequenceGap:
            verdict = WindowStatus.GAP
        except StreamDivergedError as error:
            verdict, detail = WindowStatus.DIVERGED, str(error)
        if prepared is not None:
            raise RuntimeError(
                f"a page of {sender!r} was told of that is not to be stored: {verdict}"
            )
        self._remember(stream, before, refusals)
        # Told with every answer until they are settled: the one they were told with first may have
        # got lost, and its window come again by another way.
        return Arrival(verdict, stream.watermark, stream.chain, list(stream.refusals), detail)

    def _is_first(self, stream: Stream, before: int, sender: str) -> bool:
        """Whether nothing of the sender is here: it may always send one page, however large."""
        if stream.watermark > before:
            return False
        rows = self.database.execute(
            "SELECT 1 FROM postroad_inbox WHERE sender = ? UNION ALL"
            " SELECT 1 FROM postroad_aside WHERE sender = ? LIMIT 1",
            (sender, sender),
        )
        return not rows

    def _remember(self, stream: Stream, before: int, refusals: Sequence[MessageRejection]) -> None:
        if stream.watermark == before:
            return
        self.database.execute(
            "UPDATE postroad_streams SET watermark = ?, chain = ? WHERE id = ?",
            (stream.watermark, stream.chain, stream.id),
        )
        for refusal in refusals:
            self.database.execute(
                "INSERT INTO postroad_refusals (stream, number, reason, detail)"
                " VALUES (?, ?, ?, ?)",
                (stream.id, refusal.number, refusal.reason, refusal.detail),
            )
        stream.refusals += refusals

    def _forget_refusals(self, stream: Stream, settled: int) -> None:
        """Drop refusals that the sender has made dead letters of."""
        if stream.refusals and stream.refusals[0].number <= settled:
            stream.refusals = [
                rejection for rejection in stream.refusals if rejection.number > settled
            ]
            self.database.execute(
                "DELETE FROM postroad_refusals WHERE stream = ? AND number <= ?",
                (stream.id, settled),
            )

    def _take(
        self, sender: str, fresh: NewBatch, ahead_ms: int, now_ms: int
    ) -> list[MessageRejection]:
        """Store the letters of a page; returns those that cannot be."""
        if fresh.batch.data is None:
            return []
        numbers = range(fresh.first, fresh.last + 1)
        try:
            _, letters = _read(fresh)
        except MalformedPayloadError as error:
            detail = str(error)[:DETAIL_CHARS_MAX]
            return [
                MessageRejection(number, DeadLetterReason.UNREADABLE, detail) for number in numbers
            ]
        refusals = list(self._refuse(sender, fresh.first, letters, now_ms - ahead_ms))
        if refusals:
            refused = {refusal.number - fresh.first for refusal in refusals}
            letters = [letter for index, letter in enumerate(letters) if index not in refused]
        page = None if refusals else fresh.batch.data
        self._queues.store_letters(sender, letters, ahead_ms, now_ms, page=page, is_early=True)
        return refusals

    def _refuse(
        self, sender: str, first: int, letters: Sequence[StoredMessage], sender_now_ms: int
    ) -> Iterator[MessageRejection]:
        """Those of the letters that this node does not take."""
        size_max = self._config.message_bytes_max
        allowed: dict[str, str | None] = {}
        opened = 0
        for number, letter in enumerate(letters, first):
            if letter.queue not in allowed:
                allowed[letter.queue] = self._why_closed(sender, letter.queue, opened)
                opened += allowed[letter.queue] is None and letter.queue not in self._queues.ids()
            if (detail := allowed[letter.queue]) is not None:
                yield MessageRejection(
                    number, DeadLetterReason.UNKNOWN_QUEUE, detail[:DETAIL_CHARS_MAX]
                )
            elif letter.key is not None and (detail := _why_no_key(letter.key)) is not None:
                yield MessageRejection(
                    number, DeadLetterReason.UNREADABLE, detail[:DETAIL_CHARS_MAX]
                )
            elif len(letter.body) > size_max:
                detail = f"{len(letter.body)} bytes; this node takes {size_max}"
                yield MessageRejection(number, DeadLetterReason.TOO_LARGE, detail)
            elif 0 < letter.expires_ms <= sender_now_ms:
                yield MessageRejection(
                    number, DeadLetterReason.EXPIRED, "it expired before it was delivered"
                )

    def _why_closed(self, sender: str, queue: str, opened: int) -> str | None:
        """Why a sender may not write into a queue; None if it may."""
        queues = self._queues.ids()
        if queue in queues:
            return None
        try:
            validate_queue_name(queue)
        except ConfigError as error:
            return str(error)
        if not self.may_open(sender, queue):
            return f"there is no queue {queue!r}, and {sender!r} may not open it"
        if len(queues) + opened >= self._config.queues_max:
            return f"there is no queue {queue!r}, and no more than {len(queues)} may be opened"
        return None

    def forget(self) -> None:
        """Drop what is only in memory: the commit failed."""
        self._streams.clear()


def _read(fresh: NewBatch) -> tuple[bytes, list[StoredMessage]]:
    """The bytes and letters of a page; raises MalformedPayloadError if they are not as told."""
    data = fresh.batch.data or b""
    if not fresh.is_intact:
        raise MalformedPayloadError("the page was changed on its way")
    letters = decode_batch(data)
    if len(letters) != fresh.batch.count:
        raise MalformedPayloadError(f"{len(letters)} letters where {fresh.batch.count} were told")
    return data, letters


def _why_no_key(key: str) -> str | None:
    try:
        validate_key(key)
    except ConfigError as error:
        return str(error)
    return None
