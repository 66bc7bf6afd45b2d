"""What holds for every course of events: each message once, and in order within its key."""

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import MalformedPayloadError, StreamDivergedError
from postroad.durable import DurableQueuesConfig, StoredMessage
from postroad.durable.bridges.protocol import (
    SequenceGap,
    StreamAck,
    StreamOpen,
    StreamWindow,
    WindowStatus,
    decode_stream_message,
    encode,
    new_batches,
)
from postroad.durable.bridges.send_window import BridgeSendWindow, StreamIdentity
from postroad.durable.consumers.dispatch_order import PrefetchBuffer, QueuedMessage
from postroad.durable.store.tables.rows import DeferredMessage, OutboxBatch
from postroad.durable.stored_messages import NEVER_MS, decode_batch, encode_batch
from tests.support.durable.nodes import (
    NOW_MS,
    Correspondent,
    make_aside,
    make_letter,
    make_letters,
    make_page,
)

# More than any of these queues needs to become empty.
ROUNDS_MAX = 200
MAIL = DurableQueuesConfig(window_bytes=150, windows_max=3)

# A queue and those who work on it.


class Desk:
    """A shelf, and a store that knows of letters set aside only what a consumer writes down."""

    def __init__(self, *, is_ordered: bool) -> None:
        self.shelf = PrefetchBuffer(is_ordered=is_ordered, blocked={})
        self.rows: dict[int, DeferredMessage] = {}
        self.on_shelf: set[int] = set()
        self.in_hand: list[QueuedMessage] = []
        self.handled: list[StoredMessage] = []
        self.expired: list[StoredMessage] = []
        self._pages = self._rows = 0

    def add_page(self, letters: list[StoredMessage]) -> None:
        """Letters arrive: plain ones in a page, the others by themselves."""
        for letter in letters:
            if not letter.is_fifo:
                self._write(make_aside(letter))
        self._pages += 1
        self.shelf.add_batch(make_page([it for it in letters if it.is_fifo], self._pages))

    def _write(self, aside: DeferredMessage) -> None:
        self._rows += 1
        aside.id = self._rows
        self.rows[aside.id] = aside

    def take(self, now_ms: int) -> None:
        """Take something up, if there is anything."""
        self._load()
        entry = self.shelf.pop_next(lambda: now_ms)
        self._clear()
        if entry is not None:
            self.in_hand.append(entry)

    def _load(self) -> None:
        for row in sorted(self.rows.values(), key=lambda it: it.id):
            if row.due_ms < NEVER_MS and row.id not in self.on_shelf:
                self.on_shelf.add(row.id)
                self.shelf.add_deferred(row)

    def _clear(self) -> None:
        for entry in self.shelf.expired:
            self.expired.append(entry.message)
            self._remove(entry)
        self.shelf.expired.clear()
        for entry in self.shelf.to_defer:
            self._hold_back(entry, NEVER_MS)
        self.shelf.to_defer.clear()

    def finish(self, entry: QueuedMessage) -> None:
        self.in_hand.remove(entry)
        self.shelf.finish(entry)
        self.handled.append(entry.message)
        self._remove(entry)
        self._clear()

    def _remove(self, entry: QueuedMessage) -> None:
        if (row := entry.deferred) is None:
            return
        del self.rows[row.id]
        if row.blocks_key:
            key = row.message.key
            held = [it for it in self.rows.values() if it.blocks_key and it.message.key == key]
            if held:
                min(held, key=lambda it: it.id).due_ms = NOW_MS

    def fail(self, entry: QueuedMessage) -> None:
        self.in_hand.remove(entry)
        self.shelf.block_key(entry)
        self._hold_back(entry, NOW_MS)
        self._clear()

    def _hold_back(self, entry: QueuedMessage, due_ms: int) -> None:
        row = entry.deferred
        if row is None:
            self._write(row := make_aside(entry.message))
        self.on_shelf.discard(row.id)
        row.due_ms, row.blocks_key = due_ms, entry.key is not None

    def give_back(self, entry: QueuedMessage) -> None:
        self.in_hand.remove(entry)
        self.shelf.requeue(entry)

    def check_held_keys(self) -> None:
        """The shelf holds the keys that one would find in the store."""
        held = {row.message.key for row in self.rows.values() if row.blocks_key}
        assert self.shelf.blocked_keys == len(held)

    def work_off(self, now_ms: int) -> None:
        """Handle everything that is left."""
        for _ in range(ROUNDS_MAX):
            self.take(now_ms)
            if self.in_hand:
                self.finish(self.in_hand[0])
            if not self.shelf.size and not self.rows:
                return


STEPS = ("take", "take", "finish", "fail", "give_back", "page")
steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7)), max_size=60)
keys = st.sampled_from([None, "a", "a", "b", "c"])
plain = st.lists(st.lists(keys, min_size=1, max_size=6), min_size=1, max_size=6)
kinds = st.fixed_dictionaries(
    {
        "key": keys,
        "priority": st.sampled_from([0, 0, 0, 5, -5]),
        "expires_ms": st.sampled_from([0, 0, 0, NOW_MS - 1, NOW_MS + 1]),
    }
)
mixed = st.lists(st.lists(kinds, min_size=1, max_size=6), min_size=1, max_size=6)


def run(desk: Desk, pages: list[list[StoredMessage]], script: Sequence[tuple[str, int]]) -> None:
    """Do what the script says, then work off the rest."""
    waiting = list(pages)
    desk.add_page(waiting.pop(0))
    for step, choice in script:
        if step == "take":
            desk.take(NOW_MS)
        elif step == "page":
            if waiting:
                desk.add_page(waiting.pop(0))
        elif desk.in_hand:
            getattr(desk, step)(desk.in_hand[choice % len(desk.in_hand)])
        busy = [entry.key for entry in desk.in_hand if entry.key is not None]
        assert len(set(busy)) == len(busy)
        desk.check_held_keys()
    for letters in waiting:
        desk.add_page(letters)
    desk.work_off(NOW_MS)


def number(pages: Sequence[Sequence[dict[str, object]]]) -> list[list[StoredMessage]]:
    numbers = iter(range(1, 1_000))
    return [[make_letter(next(numbers), **facts) for facts in page] for page in pages]


@given(pages=plain, script=steps)
def test_each_message_once_and_in_the_order_of_its_key(
    pages: list[list[str | None]], script: list[tuple[str, int]]
) -> None:
    letters = number([[{"key": key} for key in page] for page in pages])
    desk = Desk(is_ordered=True)
    run(desk, letters, script)
    ids = [letter.id for letter in desk.handled]
    assert sorted(ids) == [letter.id for page in letters for letter in page]
    for key in ("a", "b", "c"):
        of_key = [letter.id for letter in desk.handled if letter.key == key]
        assert of_key == sorted(of_key)
    assert (desk.shelf.size, desk.shelf.blocked_keys, desk.rows) == (0, 0, {})


@given(pages=mixed, script=steps, is_ordered=st.booleans())
def test_each_message_once_whatever_its_kind(
    pages: list[list[dict[str, object]]], script: list[tuple[str, int]], is_ordered: bool
) -> None:
    letters = number(pages)
    desk = Desk(is_ordered=is_ordered)
    run(desk, letters, script)
    expired = {it.id for page in letters for it in page if 0 < it.expires_ms <= NOW_MS}
    done = desk.handled + desk.expired
    assert sorted(it.id for it in done) == [it.id for page in letters for it in page]
    assert {it.id for it in desk.expired} == expired
    assert (desk.shelf.size, desk.shelf.blocked_keys, desk.rows) == (0, 0, {})


# A stream and those who accept it.

cuts = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30)
sizes = st.lists(st.integers(1, 4), min_size=1, max_size=8)


class Receiver:
    """Accepts windows as a store does."""

    def __init__(self, chain: bytes) -> None:
        self.watermark, self.chain = 0, chain
        self.accepted: list[int] = []

    def accept(self, window: StreamWindow) -> WindowStatus:
        try:
            for fresh in new_batches(self.watermark, self.chain, window):
                assert fresh.is_intact
                self.accepted += range(fresh.first, fresh.last + 1)
                self.watermark, self.chain = fresh.last, fresh.batch.chain
        except SequenceGap:
            return WindowStatus.GAP
        except StreamDivergedError:
            return WindowStatus.DIVERGED
        return WindowStatus.ACCEPTED


@given(sizes=sizes, cuts=cuts)
def test_any_cutting_into_windows_accepts_each_number_once(
    sizes: list[int], cuts: list[tuple[int, int]]
) -> None:
    sender = Correspondent([make_letters(size) for size in sizes])
    receiver = Receiver(sender.chains[0])
    for start, length in [*cuts, (0, len(sizes))]:
        start = min(start, len(sizes))
        before = receiver.watermark
        verdict = receiver.accept(sender.window(start, start + length))
        is_after = sender.firsts[start] > before + 1 and start < len(sizes) and length > 0
        assert verdict is (WindowStatus.GAP if is_after else WindowStatus.ACCEPTED)
    assert receiver.accepted == list(range(1, sender.head + 1))


@given(sizes=sizes, cuts=cuts, at=st.integers(0, 7), accepted=st.integers(0, 8))
def test_history_that_went_another_way_is_never_mixed_in(
    sizes: list[int], cuts: list[tuple[int, int]], at: int, accepted: int
) -> None:
    at = min(at, len(sizes) - 1)
    pages = [make_letters(size) for size in sizes]
    others = [*pages[:at], make_letters(sizes[at], body=b"other"), *pages[at + 1 :]]
    one, other = Correspondent(pages), Correspondent(others)
    receiver = Receiver(one.chains[0])
    receiver.accept(one.window(0, max(accepted, at + 1)))
    known = receiver.watermark
    for start, length in cuts:
        receiver.accept(other.window(min(start, len(sizes)), min(start + length, len(sizes))))
    assert receiver.watermark == known


@given(sizes=sizes, script=st.lists(st.sampled_from(["send", "answer", "lose"]), max_size=40))
def test_windows_arrive_in_order_whatever_is_lost(sizes: list[int], script: list[str]) -> None:
    sender = Correspondent([make_letters(size) for size in sizes])
    receiver = Receiver(sender.chains[0])
    rows = [
        OutboxBatch(first, first + page.count - 1, page.chain, page.data)
        for first, page in zip(sender.firsts, sender.pages, strict=False)
    ]
    course = StreamIdentity(peer="alpha", store=sender.store, epoch=1, token=1)

    def offer() -> BridgeSendWindow:
        answer = StreamAck(WindowStatus.ACCEPTED, receiver.watermark, receiver.chain, 1 << 30, [])
        return BridgeSendWindow(course, MAIL, answer)

    outflow, flying = offer(), list[StreamWindow]()
    for step in [*script, *["lose", *["send", "answer"] * len(rows)]]:
        if step == "send":
            chosen = outflow.select_batches([page for page in rows if page.first > outflow.sent])
            if chosen:
                flying.append(outflow.next_window(chosen, outflow.accepted, NOW_MS))
        elif step == "lose":
            # The connection broke: nobody knows which of the windows came through.
            for window in flying[::2]:
                receiver.accept(window)
            outflow, flying = offer(), []
        elif flying:
            verdict = receiver.accept(flying.pop(0))
            assert verdict is WindowStatus.ACCEPTED
            outflow.on_ack(StreamAck(verdict, receiver.watermark, receiver.chain, 1 << 30, []))
    assert receiver.accepted == list(range(1, sender.head + 1))


letters = st.builds(
    StoredMessage,
    id=st.integers(0, 2**63 - 1),
    queue=st.text(max_size=8),
    body=st.binary(max_size=20),
    sent_ms=st.integers(0, 2**60),
    key=st.none() | st.text(max_size=8),
    headers=st.none() | st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3),
    priority=st.integers(-1_000, 1_000),
    deliver_at_ms=st.integers(0, 2**60),
    expires_ms=st.integers(0, 2**60),
    reply_to=st.none() | st.text(max_size=8),
    in_reply_to=st.none() | st.integers(0, 2**63 - 1),
)


@given(st.lists(letters, max_size=20))
def test_pages_are_read_back(page: list[StoredMessage]) -> None:
    assert decode_batch(encode_batch(page)) == page
    assert encode_batch(page) == msgspec.msgpack.encode(page)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed(data: bytes) -> None:
    kinds: list[Any] = [StreamOpen, StreamAck, StreamWindow]
    for kind in kinds:
        try:
            message = decode_stream_message(kind, data)
        except MalformedPayloadError:
            continue
        assert decode_stream_message(kind, encode(message)) == message
