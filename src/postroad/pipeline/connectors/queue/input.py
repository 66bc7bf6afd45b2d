"""Reads a durable queue of this node, in the commit of the batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from postroad.core import tracing
from postroad.core.errors import UsageError
from postroad.core.tracing import SpanContext
from postroad.durable import DurableQueues, Store
from postroad.durable.names import validate_queue_name
from postroad.durable.store.tables.ranges import (
    DeferredSet,
    MessageRange,
    SenderMessages,
    read_range,
)
from postroad.durable.store.tables.store_tables import CommitEvent, StoreTables
from postroad.pipeline.connectors.connector import InputConnector, Position, RawRecords, Split
from postroad.pipeline.connectors.options import (
    CODECS,
    accept_old_names,
    check_codec,
    check_flag,
    check_name,
    check_positive,
)
from postroad.pipeline.connectors.queue.output import check_account, store_of
from postroad.pipeline.connectors.queue.splits import (
    QueuePosition,
    QueueSplit,
    QueueSplitPlanner,
    bury,
    find_expired,
    find_frontier,
    look,
)
from postroad.pipeline.job import Segment

_SPLIT_SEGMENTS = 10_000
# So much of what was cut stays in memory until it is committed, so that it need not be read again.
_KEPT_BYTES_MAX = 64 * 1024 * 1024
# Of a split so many messages at most are asked for their spans.
_TRACED_LETTERS = 32


class QueueInput(InputConnector):
    """Reads the messages of a queue, each once.

    The progress of the job is in the same store: a message leaves the queue in the commit of what
    was made of it, or when it is in the holding pen for another attempt. Nobody else may consume
    the queue meanwhile. Urgent messages come first and delayed ones when they are due; expired ones
    are dead letters of the node. The order within keys is not kept.

    Args:
        queues: of the node that runs the job, or its store; open when the job begins.
        queue: the name of the queue.
        codec: how a message is a segment: `json`, `msgpack` or `raw`, which gives the bytes as
            `payload`.
        bounded: whether the job ends when there is nothing in the queue that can be read now.
        split_segments: about how many messages a split has at most.
    """

    is_portable = False

    @accept_old_names(slice_segments="split_segments", until_empty="bounded")
    def __init__(
        self,
        queues: DurableQueues | Store,
        queue: str,
        codec: str = "json",
        bounded: bool = False,
        split_segments: int = _SPLIT_SEGMENTS,
    ) -> None:
        self._store: Store | None = store_of(queues)
        self._queue = validate_queue_name(check_name("queue", queue))
        self._codec = check_codec(codec)
        self.is_bounded = check_flag("bounded", bounded)
        self._split_segments = check_positive("split_segments", split_segments)
        self._reset()

    def _reset(self) -> None:
        self._is_open = False
        # Set when there is something new in the queue.
        self._news = asyncio.Event()
        self._next_due_ms: int | None = None
        # The number of the queue, and what of it is in splits. Known when it is open.
        self._id = 0
        self._frontier = QueuePosition()
        self._asides: set[int] = set()
        # What was cut last, until it is known whether it was admitted.
        self._offers: list[_PlannedSplit] = []
        # What splits have, by their numbers.
        self._kept: dict[int, _CachedSplit] = {}
        self._kept_bytes = 0
        # Spans that the first messages of splits belong to, if anybody traces them.
        self._contexts: dict[int, list[SpanContext]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # For other processes, where nothing is done with it but decoding.
        names = ("_queue", "_codec", "is_bounded", "_split_segments")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._store = None
        self._reset()

    # Life.

    async def open(self, uncommitted: Sequence[Position]) -> None:
        store = self._node_store()
        if not store.is_open:
            raise UsageError(f"queue {self._queue!r} cannot be read before its node is started")
        store.claim(self._queue, "a job that reads it")
        try:
            await self._open(store, [stretch_at(position) for position in uncommitted])
        except BaseException:
            store.release(self._queue)
            raise

    async def _open(self, store: Store, stretches: Sequence[MessageRange]) -> None:
        def prepare(ledger: StoreTables) -> int:
            ledger.queues.release_blocked(self._queue)
            return ledger.queues.queue_id(self._queue)

        self._reset()
        self._id = await store.write(prepare)
        self._frontier = await store.read(find_frontier, self._id, stretches)
        for stretch in stretches:
            self._asides.update(_asides_of(stretch))
        store.commit_listeners.add(self._on_news)
        self._is_open = True

    async def close(self) -> None:
        if self._is_open:
            store = self._node_store()
            store.commit_listeners.remove(self._on_news)
            store.release(self._queue)
            self._reset()

    def _node_store(self) -> Store:
        if self._store is None:
            raise UsageError(f"queue {self._queue!r} can be read in its node's own process only")
        return self._store

    def _on_news(self, news: CommitEvent) -> None:
        if self._queue in news.deferred_queues or any(
            arrival.queue == self._queue for arrival in news.inbox_batches
        ):
            self._news.set()

    # Cutting.

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        admitted = 0 if after is None else int(after["slice"])
        self._take_back(admitted)
        self._news.clear()
        pieces: Iterable[QueueSplit] | None = None
        while pieces is None:
            pieces = await self._find(segments)
        return [self._offer(number, piece) for number, piece in enumerate(pieces, admitted + 1)]

    async def _find(self, segments: int) -> list[QueueSplit] | None:
        """What comes next; None if one has to look again."""
        store, now_ms = self._node_store(), _now_ms()
        sight = await store.read(look, self._queue, self._frontier, self._asides, segments, now_ms)
        self._next_due_ms = sight.next_due_ms
        if expired := find_expired(sight, self._frontier, now_ms):
            await store.write(lambda ledger: bury(ledger, self._id, expired))
            return None
        size = min(self._split_segments, self.split_segments_max)
        cutter = QueueSplitPlanner(self._id, segments, size)
        return list(cutter.cut(sight, self._frontier))

    def _offer(self, number: int, piece: QueueSplit) -> Split:
        self._offers.append(_PlannedSplit(number, self._frontier, piece.stretch))
        self._frontier = piece.behind or self._frontier
        self._asides.update(_asides_of(piece.stretch))
        if self._kept_bytes + piece.size <= _KEPT_BYTES_MAX:
            self._kept_bytes += piece.size
            self._kept[number] = _CachedSplit(_to_chunks(piece.bundles), piece.size)
        if tracing.tracer is not None:
            self._contexts[number] = _contexts_of(piece.bundles)
        place = {"slice": number, **msgspec.to_builtins(piece.stretch)}
        return Split(place, piece.segments, {"slice": number})

    def _take_back(self, admitted: int) -> None:
        """Forget splits that were cut, and then not admitted."""
        offers, self._offers = self._offers, []
        lost = [offer for offer in offers if offer.number > admitted]
        if lost:
            self._frontier = lost[0].frontier
        for split in lost:
            self._let_go(split.number, split.stretch)

    def _let_go(self, number: int, stretch: MessageRange) -> None:
        self._asides.difference_update(_asides_of(stretch))
        self._contexts.pop(number, None)
        if (kept := self._kept.pop(number, None)) is not None:
            self._kept_bytes -= kept.size

    async def wait(self, timeout_s: float) -> None:
        if self._next_due_ms is not None:
            timeout_s = min(timeout_s, max(self._next_due_ms - _now_ms(), 0) / 1000)
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return

    # Splits.

    def read(self, place: Position) -> Iterator[RawRecords]:
        kept = self._kept.get(place["slice"])
        if kept is not None:
            return iter(kept.chunks)
        bundles = self._node_store().read_blocking(read_range, stretch_at(place))
        return iter(_to_chunks(bundles))

    @property
    def decode(self) -> Callable[[bytes], Segment]:
        return CODECS[self._codec]

    def span_contexts(self, place: Position) -> Sequence[SpanContext]:
        return self._contexts.get(place["slice"], ())

    def commit(self, ledger: StoreTables, place: Position) -> None:
        check_account(self._store, ledger)
        ledger.queues.delete_range(stretch_at(place))

    async def on_committed(self, places: Sequence[Position]) -> None:
        for place in places:
            self._let_go(place["slice"], stretch_at(place))


class _PlannedSplit(NamedTuple):
    """A split that was cut."""

    number: int
    frontier: QueuePosition
    """Where it was before."""
    stretch: MessageRange


class _CachedSplit(NamedTuple):
    chunks: list[RawRecords]
    size: int


def stretch_at(place: Position) -> MessageRange:
    """The stretch of a queue that a split is."""
    stretch: MessageRange = msgspec.convert(place, MessageRange)
    return stretch


def _asides_of(stretch: MessageRange) -> Sequence[int]:
    return stretch.ids if isinstance(stretch, DeferredSet) else ()


def _contexts_of(bundles: Iterable[SenderMessages]) -> list[SpanContext]:
    letters = (letter for _, letters in bundles for letter in letters)
    contexts = (
        tracing.extract_context(letter.headers) for letter in islice(letters, _TRACED_LETTERS)
    )
    return [context for context in contexts if context is not None]


def _to_chunks(bundles: Iterable[SenderMessages]) -> list[RawRecords]:
    """One for all in a row of one sender: their ids tell them apart for ever."""
    chunks = []
    for sender, group in groupby(bundles, key=itemgetter(0)):
        same = [letters for _, letters in group]
        ids = [letter.id for letters in same for letter in letters]
        chunks.append(
            RawRecords(sender, ids, [letter.body for letters in same for letter in letters])
        )
    return chunks


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
