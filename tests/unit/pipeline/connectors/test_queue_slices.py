"""Letters of a queue are cut in order, each into one slice, however the pages are."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from postroad.durable.store.tables.ranges import BatchRange, DeferredSet, bits_between, unfinished
from postroad.durable.store.tables.rows import InboxBatch
from postroad.durable.stored_messages import encode_batch
from postroad.pipeline.connectors.queue.splits import (
    QueuePosition,
    QueueSnapshot,
    QueueSplit,
    QueueSplitPlanner,
    find_expired,
)
from tests.support.durable.nodes import NOW_MS, QUEUE, SENDER, make_aside, make_letter

QUEUE_ID = 3


def page_of(id: int, numbers: range, done: int = 0, sender: str = SENDER) -> InboxBatch:
    letters = [make_letter(number) for number in numbers]
    size = len(encode_batch(letters))
    return InboxBatch(
        id, QUEUE, sender, letters, size, 0, NOW_MS + id, done & bits_between(0, len(letters))
    )


@st.composite
def pages(draw: st.DrawFn) -> list[InboxBatch]:
    found, number = [], 1
    for id in draw(st.lists(st.integers(1, 40), unique=True, max_size=8).map(sorted)):
        count = draw(st.integers(1, 12))
        done = draw(st.just(0) | st.integers(0, (1 << count) - 1))
        found.append(page_of(id, range(number, number + count), done))
        number += count
    return found


def cut_all(
    found: list[InboxBatch], segments: int, split_segments: int
) -> Iterator[tuple[int, QueueSplit]]:
    """Cut again and again until there is nothing; the pieces, each with the number of its cut."""
    frontier, cuts = QueuePosition(), 0
    while True:
        cuts += 1
        sight = QueueSnapshot(pages=[it for it in found if it.id >= frontier.page])
        pieces = list(QueueSplitPlanner(QUEUE_ID, segments, split_segments).cut(sight, frontier))
        if not pieces:
            return
        for piece in pieces:
            assert piece.behind is not None
            assert piece.behind > frontier
            frontier = piece.behind
            yield cuts, piece


def letters_in(found: list[InboxBatch], stretch: object) -> list[int]:
    """What somebody finds who reads a stretch later."""
    assert isinstance(stretch, BatchRange)
    assert stretch.queue == QUEUE_ID
    return [
        letter.id
        for it in found
        if stretch.first <= it.id <= stretch.last and it.received_ms <= stretch.received_ms
        for letter in unfinished(it.messages, it.done_bits, stretch.start, stretch.stop)
    ]


@given(pages(), st.integers(1, 30), st.integers(1, 20))
def test_each_letter_is_in_one_slice(
    found: list[InboxBatch], segments: int, split_segments: int
) -> None:
    expected = [letter.id for it in found for letter in unfinished(it.messages, it.done_bits)]
    cut: list[int] = []
    per_cut: dict[int, int] = {}
    for number, piece in cut_all(found, segments, split_segments):
        ids = [letter.id for _, letters in piece.bundles for letter in letters]
        assert ids == letters_in(found, piece.stretch)
        assert piece.segments == len(ids) > 0
        per_cut[number] = per_cut.get(number, 0) + len(ids)
        cut += ids
    assert cut == expected
    assert all(count <= segments for count in per_cut.values())


def test_whole_pages_in_a_row_are_one_slice() -> None:
    found = [
        page_of(4, range(1, 4)),
        page_of(6, range(4, 7)),
        page_of(9, range(7, 10), sender="delta"),
    ]
    (piece,) = QueueSplitPlanner(QUEUE_ID, 100, 100).cut(
        QueueSnapshot(pages=found), QueuePosition()
    )
    assert piece.stretch == BatchRange(QUEUE_ID, 4, 9, NOW_MS + 9)
    assert [(sender, len(letters)) for sender, letters in piece.bundles] == [
        (SENDER, 3),
        (SENDER, 3),
        ("delta", 3),
    ]
    assert (piece.segments, piece.behind) == (9, QueuePosition(10))


def test_slices_have_about_so_many_letters() -> None:
    found = [page_of(id, range(id * 10, id * 10 + 5)) for id in range(1, 6)]
    pieces = QueueSplitPlanner(QUEUE_ID, 100, 10).cut(QueueSnapshot(pages=found), QueuePosition())
    assert [it.segments for it in pieces] == [10, 10, 5]


def test_a_page_is_cut_in_parts_only_where_it_comes_first() -> None:
    found = [page_of(1, range(1, 9)), page_of(2, range(9, 17))]
    parts = [piece.stretch for _, piece in cut_all(found, 5, 100)]
    assert parts == [
        BatchRange(QUEUE_ID, 1, 1, NOW_MS + 1, 0, 5),
        BatchRange(QUEUE_ID, 1, 1, NOW_MS + 1, 5, 8),
        BatchRange(QUEUE_ID, 2, 2, NOW_MS + 2, 0, 5),
        BatchRange(QUEUE_ID, 2, 2, NOW_MS + 2, 5, 8),
    ]


def test_urgent_letters_come_before_the_pages_and_patient_ones_behind() -> None:
    sight = QueueSnapshot(
        pages=[page_of(1, range(1, 4))],
        urgent=[make_aside(make_letter(10, priority=5), id=7)],
        patient=[make_aside(make_letter(11, priority=-5), id=8)],
    )
    urgent, middle, patient = QueueSplitPlanner(QUEUE_ID, 5, 100).cut(sight, QueuePosition())
    assert urgent.stretch == DeferredSet(QUEUE_ID, [7], NOW_MS)
    assert urgent.behind is None
    assert middle.segments == 3
    assert patient.stretch == DeferredSet(QUEUE_ID, [8], NOW_MS)
    assert [
        it.segments for it in QueueSplitPlanner(QUEUE_ID, 4, 100).cut(sight, QueuePosition())
    ] == [1, 3]
    sight.pages.append(page_of(2, range(4, 9)))
    assert [
        it.segments for it in QueueSplitPlanner(QUEUE_ID, 8, 100).cut(sight, QueuePosition())
    ] == [1, 3]
    assert [
        it.segments for it in QueueSplitPlanner(QUEUE_ID, 2, 100).cut(sight, QueuePosition())
    ] == [1, 1]
    assert [
        it.segments for it in QueueSplitPlanner(QUEUE_ID, 1, 100).cut(sight, QueuePosition())
    ] == [1]


def test_expired_letters_are_found_by_the_clock_of_their_sender() -> None:
    letters = [make_letter(n, expires_ms=NOW_MS + n if n != 3 else 0) for n in range(6)]
    # This node's clock is two milliseconds ahead.
    page = InboxBatch(1, QUEUE, SENDER, letters, 100, 2, NOW_MS, done_bits=0b10)
    asides = [
        make_aside(make_letter(7, expires_ms=NOW_MS + 4), ahead_ms=2),
        make_aside(make_letter(8, expires_ms=NOW_MS + 5), ahead_ms=2),
    ]
    sight = QueueSnapshot(pages=[page], urgent=asides)
    expired = find_expired(sight, QueuePosition(1, 0), NOW_MS + 6)
    assert [indexes for _, indexes in expired.pages] == [[0, 2, 4]]
    assert [it.message.id for it in expired.asides] == [7]
    # What is in a slice already is not looked at.
    assert [it for _, it in find_expired(sight, QueuePosition(1, 3), NOW_MS + 6).pages] == [[4]]
    assert not find_expired(sight, QueuePosition(), NOW_MS)
