"""The queue that nobody can fill alone."""

import pytest

from postroad.cells.delivery.fair_queue import FairQueue

SIZE = 10


def fill(queue: FairQueue[str], source: str, size: int = 1) -> int:
    """How much a source gets in that never stops."""
    count = 0
    while queue.try_put(f"{source}{count}", size, source):
        count += 1
    return count


def test_items_are_taken_first_in_first_out_whoever_offers_them() -> None:
    queue: FairQueue[str] = FairQueue(SIZE, 100)
    for name in ("a", "b", "c"):
        assert queue.try_put(name, 1, name)
    assert [queue.pop(), queue.pop(), queue.pop()] == ["a", "b", "c"]
    assert not queue

    queue = FairQueue(SIZE, 100)
    items = ["a0", "b0", "a1", "c0", "b1"]
    for item in items:
        assert queue.try_put(item, 1, item[0])
    assert list(queue.pop_all()) == items

    queue = FairQueue(SIZE, 100)
    with pytest.raises(IndexError):
        queue.pop()


def test_flood_gets_half_and_leaves_room() -> None:
    queue: FairQueue[str] = FairQueue(1000, 10_000)
    assert fill(queue, "a") == 500
    assert fill(queue, "b") == 250
    assert fill(queue, "c") == 125
    assert queue.try_put("d0", 1, "d")

    queue = FairQueue(1000, 100)
    assert fill(queue, "a", size=10) == 5
    assert queue.try_put("b0", 50, "b")
    assert not queue.try_put("b1", 1, "b")
    assert queue.bytes == 100

    queue = FairQueue(2, 100)
    assert queue.try_put("a0", 7, "a")
    assert not queue.try_put("a1", 7, "a")
    assert (len(queue), queue.bytes) == (1, 7)
    assert list(queue.pop_all()) == ["a0"]

    queue = FairQueue(SIZE, 100)
    assert fill(queue, "a") == 5
    queue.pop()
    assert queue.try_put("next", 1, "a")
    assert not queue.try_put("one more", 1, "a")


def test_empty_queue_accepts_any_size_and_forgets_senders() -> None:
    queue: FairQueue[str] = FairQueue(SIZE, 100)
    assert queue.try_put("huge", 1_000, "a")
    assert not queue.try_put("small", 1, "b")
    assert queue.pop() == "huge"
    assert queue.try_put("small", 1, "b")
    assert not queue.try_put("huge", 1_000, "a")

    queue = FairQueue(SIZE, 100)
    fill(queue, "a")
    fill(queue, "b", size=3)
    list(queue.pop_all())
    assert (len(queue), queue.bytes) == (0, 0)
    assert fill(queue, "a") == 5

    queue = FairQueue(SIZE, 100)
    queue.try_put("first", 1, "a")
    taken = []
    for item in queue.pop_all():
        taken.append(item)
        if item == "first":
            assert queue.try_put("meanwhile", 1, "a")
    assert taken == ["first", "meanwhile"]


def test_replies_need_capacity_but_no_share() -> None:
    queue: FairQueue[str] = FairQueue(SIZE, 100)
    assert fill(queue, "a") == 5
    for number in range(5):
        assert queue.try_put(f"owed {number}", 1, "a", bypasses_share=True)
    assert not queue.try_put("no place", 1, "a", bypasses_share=True)
    assert len(queue) == SIZE

    queue = FairQueue(SIZE, 100)
    assert queue.try_put("a0", 50, "a")
    assert not queue.try_put("a1", 50, "a")
    assert not queue.try_put("too large", 51, "a", bypasses_share=True)
    assert queue.try_put("owed", 50, "a", bypasses_share=True)
    assert queue.bytes == 100

    queue = FairQueue(SIZE, 100)
    for number in range(5):
        assert queue.try_put(f"owed {number}", 1, "a", bypasses_share=True)
    assert not queue.try_put("a", 1, "a")
    assert queue.try_put("b", 1, "b")
    list(queue.pop_all())
    assert fill(queue, "a") == 5
