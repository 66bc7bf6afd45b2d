"""What other stores have sent: a watermark for each, and what was refused.

Everything here runs inside the transaction of a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from postroad.core.errors import ConfigError, MalformedPayloadError, StreamDivergedError
from postroad.durable.chain import genesis
from postroad.durable.config import MailConfig
from postroad.durable.dedup import FreshPage, GapBefore, sift
from postroad.durable.exchange import DETAIL_CHARS_MAX, Reason, Refusal, Verdict, Window
from postroad.durable.letters import Letter, decode_page
from postroad.durable.names import validate_key, validate_queue_name

from .database import Database
from .queries import find_stream, list_refusals
from .queues import Queues
from .rows import Stream

# Refusals that a sender does not know yet travel in one answer, and must fit into it.
_REFUSALS_MAX = 2_000
# A new one comes with every new store and every epoch, which are rare.
_STREAMS_PER_SENDER = 32


class Arrival(msgspec.Struct, frozen=True):
    """What came of a window."""

    verdict: Verdict
    watermark: int
    chain: bytes
    refusals: list[Refusal]
    detail: str = ""


QueueRule = Callable[[str, str], bool]
"""Whether a sender may open a queue of that name."""


class Streams:
    """Takes windows of other stores into the queues of this one."""

    def __init__(self, database: Database, config: MailConfig, queues: Queues) -> None:
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
                *key, genesis(store, epoch, own_name)
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

    def accept(self, sender: str, window: Window, own_name: str, room: int, now_ms: int) -> Arrival:
        """Keep what is new in a window, as far as there is room, and move the watermark."""
        stream = self.stream(sender, window.store, window.epoch, own_name)
        self._forget_refusals(stream, window.settled)
        before, known = stream.watermark, len(stream.refusals)
        refusals: list[Refusal] = []
        verdict, detail = Verdict.ACCEPTED, ""
        try:
            for fresh in sift(stream.watermark, stream.chain, window):
                room -= 0 if fresh.page.letters is None else len(fresh.page.letters)
                is_crowded = room < 0 and not self._is_first(stream, before, sender)
                if is_crowded or known + len(refusals) > _REFUSALS_MAX:
                    verdict = Verdict.FULL
                    break
                refusals += self._take(sender, fresh, now_ms - window.now_ms, now_ms)
                stream.watermark, stream.chain = fresh.last, fresh.page.chain
        except GapBefore:
            verdict = Verdict.GAP
        except StreamDivergedError as error:
            verdict, detail = Verdict.DIVERGED, str(error)
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

    def _remember(self, stream: Stream, before: int, refusals: Sequence[Refusal]) -> None:
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
            stream.refusals = [it for it in stream.refusals if it.number > settled]
            self.database.execute(
                "DELETE FROM postroad_refusals WHERE stream = ? AND number <= ?",
                (stream.id, settled),
            )

    def _take(self, sender: str, fresh: FreshPage, ahead_ms: int, now_ms: int) -> list[Refusal]:
        """Store the letters of a page; returns those that cannot be."""
        if fresh.page.letters is None:
            return []
        numbers = range(fresh.first, fresh.last + 1)
        try:
            if not fresh.is_intact:
                raise MalformedPayloadError("the page was changed on its way")
            letters = decode_page(fresh.page.letters)
            if len(letters) != fresh.page.count:
                raise MalformedPayloadError(
                    f"{len(letters)} letters where {fresh.page.count} were told"
                )
        except MalformedPayloadError as error:
            detail = str(error)[:DETAIL_CHARS_MAX]
            return [Refusal(number, Reason.UNREADABLE, detail) for number in numbers]
        refusals = list(self._refuse(sender, fresh.first, letters, now_ms - ahead_ms))
        if refusals:
            refused = {refusal.number - fresh.first for refusal in refusals}
            letters = [it for index, it in enumerate(letters) if index not in refused]
        page = None if refusals else fresh.page.letters
        self._queues.store_letters(sender, letters, ahead_ms, now_ms, page=page, is_early=True)
        return refusals

    def _refuse(
        self, sender: str, first: int, letters: Sequence[Letter], sender_now_ms: int
    ) -> Iterator[Refusal]:
        """Those of the letters that this node does not take."""
        size_max = self._config.message_bytes_max
        allowed: dict[str, str | None] = {}
        opened = 0
        for number, letter in enumerate(letters, first):
            if letter.queue not in allowed:
                allowed[letter.queue] = self._why_closed(sender, letter.queue, opened)
                opened += allowed[letter.queue] is None and letter.queue not in self._queues.ids()
            if (detail := allowed[letter.queue]) is not None:
                yield Refusal(number, Reason.UNKNOWN_QUEUE, detail[:DETAIL_CHARS_MAX])
            elif letter.key is not None and (detail := _why_no_key(letter.key)) is not None:
                yield Refusal(number, Reason.UNREADABLE, detail[:DETAIL_CHARS_MAX])
            elif len(letter.body) > size_max:
                detail = f"{len(letter.body)} bytes; this node takes {size_max}"
                yield Refusal(number, Reason.TOO_LARGE, detail)
            elif 0 < letter.expires_ms <= sender_now_ms:
                yield Refusal(number, Reason.EXPIRED, "it expired before it was delivered")

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


def _why_no_key(key: str) -> str | None:
    try:
        validate_key(key)
    except ConfigError as error:
        return str(error)
    return None
