"""Which message of a queue is handled next."""

import sys

from postroad.durable.consumers.dispatch_order import PrefetchBuffer, QueuedMessage
from postroad.durable.stored_messages import NEVER_MS
from tests.support.cases import each
from tests.support.durable.nodes import NOW_MS, make_aside, make_letter, make_letters, make_page


def make_shelf(*keys: str | None, is_ordered: bool = True) -> PrefetchBuffer:
    """A shelf with one page; the numbers of its letters begin with 1."""
    shelf = PrefetchBuffer(is_ordered=is_ordered, blocked={})
    shelf.add_batch(make_page([make_letter(id, key=key) for id, key in enumerate(keys, 1)]))
    return shelf


def take(shelf: PrefetchBuffer, now_ms: int = NOW_MS) -> QueuedMessage:
    entry = shelf.pop_next(lambda: now_ms)
    assert entry is not None
    return entry


def take_all(shelf: PrefetchBuffer, now_ms: int = NOW_MS) -> list[int]:
    """Take what can be taken at once; the numbers."""
    entries = iter(lambda: shelf.pop_next(lambda: now_ms), None)
    return [entry.message.id for entry in entries]


def ids(entries: list[QueuedMessage]) -> list[int]:
    return [entry.message.id for entry in entries]


def test_prefetch_buffer_returns_messages_in_order_of_arrival() -> None:
    shelf = make_shelf(None, None)
    shelf.add_batch(make_page([make_letter(3)], id=2))
    assert shelf.size == 3
    assert take_all(shelf) == [1, 2, 3]
    shelf = PrefetchBuffer(is_ordered=True, blocked={})
    shelf.add_batch(make_page(make_letters(5), done=0b10101))
    assert shelf.size == 2
    first, second = take(shelf), take(shelf)
    assert ids([first, second]) == [2, 4]
    assert (first.index, second.index) == (1, 3)
    shelf = make_shelf("k")
    entry = take(shelf)
    assert entry.batch is not None
    assert entry.location is entry.batch
    assert (entry.failures, entry.blocks_key, entry.deferred) == (0, False, None)
    assert "key='k'" in repr(entry)


def test_dissolved_prefetch_buffer_releases_its_messages() -> None:
    """They refer to each other, and nobody collects such circles of theirs."""
    page = make_page([make_letter(id, key="k") for id in range(1, 5)])
    before = sys.getrefcount(page)
    shelf = PrefetchBuffer(is_ordered=True, blocked={})
    shelf.add_batch(page)
    for _ in range(2):
        shelf.finish(take(shelf))
    take(shelf)
    shelf.dissolve()
    del shelf
    assert sys.getrefcount(page) == before


def test_messages_of_one_key_wait_for_each_other() -> None:
    shelf = make_shelf("a", "a", "b", "a")
    first, other = take(shelf), take(shelf)
    assert ids([first, other]) == [1, 3]
    assert shelf.pop_next(lambda: NOW_MS) is None
    shelf.finish(first)
    second = take(shelf)
    assert second.message.id == 2
    assert shelf.pop_next(lambda: NOW_MS) is None
    shelf.finish(second)
    assert take_all(shelf) == [4]
    assert take_all(make_shelf("", "")) == [1]
    shelf = make_shelf("a", "a", "b")
    first = take(shelf)
    shelf.requeue(first)
    assert shelf.size == 3
    assert take(shelf) is first
    assert take_all(shelf) == [3]


def test_unordered_messages_do_not_wait_for_their_key() -> None:
    shelf = make_shelf("a", "a", is_ordered=False)
    first, second = take(shelf), take(shelf)
    assert first.key is None
    shelf.block_key(first)
    shelf.finish(second)
    assert shelf.to_defer == []
    assert shelf.size == 0
    shelf = make_shelf("a", None)
    entries = [take(shelf), take(shelf)]
    assert shelf.size == 2
    for entry in entries:
        shelf.finish(entry)
    assert shelf.size == 0
    shelf = make_shelf(None, None)
    shelf.block_key(take(shelf))
    assert take_all(shelf) == [2]
    assert shelf.blocked_keys == 0


def test_failed_message_blocks_its_key() -> None:
    shelf = make_shelf("a", "a", "b", "a")
    first = take(shelf)
    other = take(shelf)
    assert shelf.pop_next(lambda: NOW_MS) is None  # All of the key are known to wait now.
    shelf.block_key(first)
    assert ids(shelf.to_defer) == [2, 4]
    assert shelf.blocked_keys == 1
    shelf.finish(other)
    assert shelf.size == 0
    shelf = make_shelf("a")
    shelf.block_key(take(shelf))
    shelf.add_batch(make_page([make_letter(2, key="a"), make_letter(3, key="b")], id=2))
    assert take_all(shelf) == [3]
    assert ids(shelf.to_defer) == [2]


def test_held_ones_come_back_one_after_the_other() -> None:
    shelf = make_shelf("a", "a", "a")
    first = take(shelf)
    assert shelf.pop_next(lambda: NOW_MS) is None
    shelf.block_key(first)
    for id in (1, 2, 3):
        aside = make_aside(make_letter(id, key="a"), id, holds_key=True, failures=id % 2)
        shelf.add_deferred(aside)
        entry = take(shelf)
        assert (entry.message.id, entry.failures, entry.location) == (id, id % 2, aside)
        shelf.finish(entry)
    assert shelf.blocked_keys == 0
    shelf.add_batch(make_page([make_letter(4, key="a")], id=2))
    assert take_all(shelf) == [4]


def test_keys_held_in_the_store_are_held_until_done() -> None:
    shelf = PrefetchBuffer(is_ordered=True, blocked={"a": 1})
    shelf.add_batch(make_page([make_letter(2, key="a")], id=2))
    assert shelf.pop_next(lambda: NOW_MS) is None
    assert ids(shelf.to_defer) == [2]
    shelf.add_deferred(make_aside(make_letter(1, key="a"), 1, holds_key=True))
    assert take_all(shelf) == [1]
    shelf = PrefetchBuffer(is_ordered=True, blocked={"a": 1})
    aside = make_aside(make_letter(1, key="a"), 1, holds_key=True, failures=1)
    shelf.add_deferred(aside)
    shelf.block_key(take(shelf))
    assert shelf.blocked_keys == 1
    shelf.add_deferred(aside)
    shelf.finish(take(shelf))
    assert shelf.blocked_keys == 0


def test_urgent_message_comes_first_but_waits_for_its_key() -> None:
    shelf = make_shelf(None)
    for id, priority in ((2, -1), (3, 5), (4, 0), (5, 5), (6, -9)):
        shelf.add_deferred(make_aside(make_letter(id, priority=priority), id))
    assert take_all(shelf) == [3, 5, 4, 1, 2, 6]
    shelf = make_shelf("a", "a")
    first = take(shelf)
    shelf.add_deferred(make_aside(make_letter(3, key="a", priority=9), 1))
    assert shelf.pop_next(lambda: NOW_MS) is None
    shelf.finish(first)
    assert take_all(shelf) == [3]
    shelf = make_shelf("a")
    shelf.block_key(take(shelf))
    shelf.add_deferred(make_aside(make_letter(2, key="a", priority=9), 7))
    assert shelf.pop_next(lambda: NOW_MS) is None
    assert ids(shelf.to_defer) == [2]


@each(
    (0, NOW_MS + 9, False),
    (0, NOW_MS + 10, True),
    (100, NOW_MS + 109, False),
    (100, NOW_MS + 110, True),
    (-5, NOW_MS + 5, True),
)
def test_message_expires_by_the_clock_of_its_sender(
    ahead_ms: int, now_ms: int, is_expired: bool
) -> None:
    shelf = PrefetchBuffer(is_ordered=True, blocked={})
    letter = make_letter(expires_ms=NOW_MS + 10)
    shelf.add_batch(make_page([letter], ahead_ms=ahead_ms))
    assert (shelf.pop_next(lambda: now_ms) is None) is is_expired
    assert ids(shelf.expired) == ([1] if is_expired else [])


def test_expired_message_releases_its_key() -> None:
    assert take_all(make_shelf(None), NEVER_MS) == [1]
    shelf = PrefetchBuffer(is_ordered=True, blocked={})
    mortal = {"key": "a", "expires_ms": NOW_MS}
    letters = [make_letter(1, **mortal), make_letter(2, key="a"), make_letter(3, **mortal)]
    shelf.add_batch(make_page([*letters, make_letter(4, key="a")]))
    second = take(shelf)
    assert (second.message.id, ids(shelf.expired)) == (2, [1])
    assert shelf.pop_next(lambda: NOW_MS) is None
    shelf.finish(second)
    assert take_all(shelf) == [4]
    assert ids(shelf.expired) == [1, 3]
    shelf = PrefetchBuffer(is_ordered=True, blocked={"a": 1})
    letter = make_letter(1, key="a", expires_ms=NOW_MS)
    shelf.add_deferred(make_aside(letter, 1, holds_key=True))
    assert shelf.pop_next(lambda: NOW_MS) is None
    assert ids(shelf.expired) == [1]
    assert shelf.blocked_keys == 0
