"""Plans splits of a queue. Nothing here waits.

Messages in pages are planned in the order they came: everything before the frontier is in a split
or done, and everything behind it is in none. Messages that were set aside are planned when they are
due, urgent ones before the pages and the others behind them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from postroad.durable import DeadLetterReason, StoredMessage
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.ranges import (
    BatchRange,
    DeferredSet,
    MessageRange,
    SenderMessages,
    last_batch,
    unfinished,
)
from postroad.durable.store.tables.rows import DeferredMessage, InboxBatch
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.durable.stored_messages import NEVER_MS

_PAGES_AT_FIRST = 4
_PAGES_AT_ONCE = 256
_ASIDES_AT_ONCE = 256
_SNAPSHOT_BYTES = 32 * 1024 * 1024
_SPLIT_BYTES = 4 * 1024 * 1024


class QueuePosition(NamedTuple):
    """The first message of the pages that is in no split."""

    page: int = 0
    start: int = 0
    """Its index in that page."""


def find_frontier(
    database: StoreConnection, queue: int, stretches: Iterable[MessageRange]
) -> QueuePosition:
    """Where to go on behind stretches that are in splits already."""
    frontier = QueuePosition()
    for stretch in stretches:
        if not isinstance(stretch, BatchRange) or stretch.queue != queue:
            continue
        # It is not there any more if the queue was purged.
        if (last := last_batch(database, stretch)) is not None:
            end = (
                QueuePosition(last + 1)
                if stretch.stop is None
                else QueuePosition(last, stretch.stop)
            )
            frontier = max(frontier, end)
    return frontier


class QueueSnapshot(msgspec.Struct):
    """What is in a queue and in no split, as far as one looks at once."""

    pages: list[InboxBatch] = []
    urgent: list[DeferredMessage] = []
    """Those set aside that come before the pages."""
    patient: list[DeferredMessage] = []
    """Those that come behind all pages; none if there are more pages."""
    next_due_ms: int | None = None
    """When the next message is due that is set aside."""


def look(
    database: StoreConnection,
    queue: str,
    frontier: QueuePosition,
    taken: set[int],
    segments: int,
    now_ms: int,
) -> QueueSnapshot:
    """Look for messages behind the frontier, and for those set aside that are not taken."""
    id, is_paused = query.list_queues(database)[queue]
    if is_paused:
        return QueueSnapshot()
    limit = _ASIDES_AT_ONCE + len(taken)
    asides = [
        aside
        for aside in query.read_deferred(database, queue, id, now_ms, NEVER_MS, limit)
        if aside.id not in taken
    ]
    pages, is_end = _look_at_pages(database, queue, id, frontier, segments)
    return QueueSnapshot(
        pages,
        [aside for aside in asides if aside.message.priority >= 0],
        [aside for aside in asides if aside.message.priority < 0 and is_end],
        query.next_deferred_ms(database, id, now_ms),
    )


def _look_at_pages(
    database: StoreConnection, queue: str, id: int, frontier: QueuePosition, segments: int
) -> tuple[list[InboxBatch], bool]:
    """About as many pages as have so many messages; and whether there are no more."""
    pages: list[InboxBatch] = []
    after, limit = frontier.page - 1, _PAGES_AT_FIRST
    while True:
        more = query.read_inbox_batches(database, queue, id, after, limit)
        pages += more
        if len(more) < limit:
            return pages, True
        after = more[-1].id
        count, size = sum(page.pending for page in pages), sum(page.size for page in pages)
        if count >= segments or size >= _SNAPSHOT_BYTES:
            return pages, False
        # As many again as it takes if they are like those.
        missing = min(segments / count, _SNAPSHOT_BYTES / size) - 1
        limit = min(math.ceil(missing * len(pages)), _PAGES_AT_ONCE)


# Messages whose time is over.


class ExpiredMessages(msgspec.Struct):
    """Messages that were found too late."""

    pages: list[tuple[InboxBatch, list[int]]]
    """Indexes of messages in their pages."""
    asides: list[DeferredMessage]

    def __bool__(self) -> bool:
        return bool(self.pages or self.asides)


def find_expired(snapshot: QueueSnapshot, frontier: QueuePosition, now_ms: int) -> ExpiredMessages:
    """Those in snapshot that may not be handled any more."""
    pages = []
    for page in snapshot.pages:
        start = frontier.start if page.id == frontier.page else 0
        latest_ms = now_ms - page.clock_skew_ms
        late = [
            index
            for index, letter in enumerate(page.messages)
            if letter.expires_ms and letter.expires_ms <= latest_ms
        ]
        if late := [index for index in late if index >= start and not page.done_bits >> index & 1]:
            pages.append((page, late))
    asides = [
        aside
        for aside in (*snapshot.urgent, *snapshot.patient)
        if 0 < aside.message.expires_ms <= now_ms - aside.clock_skew_ms
    ]
    return ExpiredMessages(pages, asides)


def bury(ledger: StoreTables, queue: int, expired: ExpiredMessages) -> None:
    """Make dead letters of them."""
    for page, late in expired.pages:
        bits = sum(1 << index for index in late)
        if ledger.queues.mark_range_done(queue, page.id, page.received_ms, bits):
            for index in late:
                _bury(ledger, page.sender, page.messages[index], 0)
    for aside in expired.asides:
        ledger.queues.delete_deferred(aside, ledger.now_ms)
        _bury(ledger, aside.sender, aside.message, aside.failures)


def _bury(ledger: StoreTables, sender: str, letter: StoredMessage, failures: int) -> None:
    detail = "it expired before it was read"
    ledger.dead_letters.add_inbound(
        sender, letter, DeadLetterReason.EXPIRED, detail, failures, ledger.now_ms
    )


# Splits.


class QueueSplit(NamedTuple):
    """What one split has."""

    stretch: MessageRange
    bundles: list[SenderMessages]
    segments: int
    size: int
    behind: QueuePosition | None
    """Where the frontier is then; None if it stays where it is."""


class _OpenPage(NamedTuple):
    page: InboxBatch
    start: int
    letters: list[StoredMessage]


class QueueSplitPlanner:
    """Plans splits of a snapshot; one has no fewer messages than a page."""

    def __init__(self, queue: int, segments: int, split_segments: int) -> None:
        self._queue = queue
        self._left = segments
        self._split_segments = split_segments
        # Whether there are pages that more is left of than was wanted.
        self._has_more = False

    def cut(self, snapshot: QueueSnapshot, frontier: QueuePosition) -> Iterator[QueueSplit]:
        """The next pieces, in order."""
        yield from self._cut_asides(snapshot.urgent)
        yield from self._cut_pages(snapshot.pages, frontier)
        if not self._has_more:
            yield from self._cut_asides(snapshot.patient)

    def _cut_asides(self, asides: Sequence[DeferredMessage]) -> Iterator[QueueSplit]:
        asides = asides[: max(self._left, 0)]
        self._left -= len(asides)
        if asides:
            stretch = DeferredSet(
                self._queue,
                [aside.id for aside in asides],
                max(aside.received_ms for aside in asides),
            )
            bundles = [(aside.sender, [aside.message]) for aside in asides]
            yield QueueSplit(stretch, bundles, len(asides), _size(bundles), None)

    def _cut_pages(
        self, pages: Sequence[InboxBatch], frontier: QueuePosition
    ) -> Iterator[QueueSplit]:
        """Whole pages as many as are wanted; of the first one, so many messages as are wanted."""
        unfinished_pages = list(_unfinished_of(pages, frontier))
        if unfinished_pages and self._left > 0:
            first = unfinished_pages[0]
            if first.start or len(first.letters) > self._left:
                del unfinished_pages[0]
                yield self._cut_part(first)
        for together in self._gather(unfinished_pages):
            yield self._bind(together)

    def _cut_part(self, first: _OpenPage) -> QueueSplit:
        page, letters = first.page, first.letters[: self._left]
        self._left -= len(letters)
        left = [
            index
            for index in range(first.start, len(page.messages))
            if not page.done_bits >> index & 1
        ][len(letters) :]
        stop = left[0] if left else len(page.messages)
        self._has_more = bool(left)
        bundles = [(page.sender, letters)]
        return QueueSplit(
            BatchRange(self._queue, page.id, page.id, page.received_ms, first.start, stop),
            bundles,
            len(letters),
            _size(bundles),
            QueuePosition(page.id, stop) if left else QueuePosition(page.id + 1),
        )

    def _gather(self, pages: Iterable[_OpenPage]) -> Iterator[list[_OpenPage]]:
        """Whole pages that make a split each."""
        together: list[_OpenPage] = []
        count = size = 0
        for open_page in pages:
            if len(open_page.letters) > self._left:
                self._has_more = True
                break
            self._left -= len(open_page.letters)
            count += len(open_page.letters)
            size += open_page.page.size
            if together and (count > self._split_segments or size > _SPLIT_BYTES):
                yield together
                together, count, size = [], len(open_page.letters), open_page.page.size
            together.append(open_page)
        if together:
            yield together

    def _bind(self, together: Sequence[_OpenPage]) -> QueueSplit:
        first, last = together[0].page.id, together[-1].page.id
        received_ms = max(open_page.page.received_ms for open_page in together)
        return QueueSplit(
            BatchRange(self._queue, first, last, received_ms),
            [(open_page.page.sender, open_page.letters) for open_page in together],
            sum(len(open_page.letters) for open_page in together),
            sum(open_page.page.size for open_page in together),
            QueuePosition(last + 1),
        )


def _unfinished_of(pages: Iterable[InboxBatch], frontier: QueuePosition) -> Iterator[_OpenPage]:
    for page in pages:
        start = frontier.start if page.id == frontier.page else 0
        if letters := unfinished(page.messages, page.done_bits, start):
            yield _OpenPage(page, start, letters)


def _size(bundles: Iterable[SenderMessages]) -> int:
    return sum(len(letter.body) for _, letters in bundles for letter in letters)
