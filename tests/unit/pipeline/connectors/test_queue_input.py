"""What becomes of the letters of a queue that a job reads."""

from __future__ import annotations

import asyncio
import pickle
import time

import pytest

from postroad.core.errors import ConfigError, UsageError
from postroad.durable import (
    DeadLetterReason,
    DurableQueuesAdmin,
    MemoryDisk,
    MemoryStore,
    StoredMessage,
)
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.durable.stored_messages import NEVER_MS
from postroad.pipeline import QueueInput
from postroad.pipeline.connectors.queue import input as queue_input
from postroad.pipeline.connectors.queue import splits as queue_slices
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.nodes import NOW_MS, QUEUE, SENDER, make_aside, make_letter, opened, put
from tests.support.pipeline.desk_jobs import Clock
from tests.unit.pipeline.connectors.queue_stores import NODE, Reading, letters, reading


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def put_now(it: Reading, *found: StoredMessage) -> None:
    """Put letters into the queue that were received now."""

    def write(ledger: StoreTables) -> None:
        ledger.queues.store_messages(SENDER, found, 0, ledger.now_ms)

    await it.store.write(write)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the input goes by; letters are put in when it was started."""
    clock = Clock()
    clock.now_ms = NOW_MS
    monkeypatch.setattr(queue_input, "_now_ms", clock)
    return clock


# Reading.


async def test_a_letter_is_told_from_all_others_by_its_sender_and_its_id() -> None:
    async with reading() as it:
        await put(it.store, *letters(7, 8), sender="beta")
        await put(it.store, *letters(9), sender="beta")
        await put(it.store, *letters(7), sender="gamma")
        (found,) = await it.cut()
        chunks = list(it.connector.read(found.position))
    assert [(chunk.source, list(chunk.positions)) for chunk in chunks] == [
        ("beta", [7, 8, 9]),
        ("gamma", [7]),
    ]
    assert [it.connector.decode(raw) for raw in chunks[0].raws] == [
        {"n": 7},
        {"n": 8},
        {"n": 9},
    ]


async def test_many_small_pages_are_cut_at_once() -> None:
    async with reading() as it:
        for id in range(1, 301):
            await put(it.store, *letters(id))
        (found,) = await it.cut(250)
        assert it.ids([found]) == list(range(1, 251))
        assert it.ids(await it.cut()) == list(range(251, 301))


async def test_few_large_letters_are_cut_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_slices, "_SNAPSHOT_BYTES", 10_000)
    monkeypatch.setattr(queue_slices, "_SPLIT_BYTES", 3_000)
    async with reading() as it:
        for id in range(1, 21):
            await put(it.store, make_letter(id, body=bytes(1_000)))
        slices = await it.cut()
        assert [it.estimated_segments for it in slices] == [2] * 5
        assert it.ids(slices) == list(range(1, 11))
        assert await it.read_all() == list(range(11, 21))


async def test_what_is_not_kept_in_memory_is_read_from_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading() as it:
        await put(it.store, *letters(*range(1, 20)), make_letter(20, priority=1, body=b"{}"))
        monkeypatch.setattr(queue_input, "_KEPT_BYTES_MAX", 0)
        slices = await it.cut(8)
        assert it.ids(slices) == [20, *range(1, 8)]
        rest = await it.cut()
        assert await asyncio.to_thread(it.ids, rest) == list(range(8, 20))
        await it.settle(slices)
        assert it.ids(slices) == []
        assert it.ids(rest) == list(range(8, 20))


async def test_what_is_settled_is_not_kept() -> None:
    async with reading() as it:
        await put(it.store, *letters(*range(1, 20)))
        slices = [*await it.cut(5), *await it.cut(5)]
        await it.settle(slices)
        await it.cut()
        await it.connector.plan_splits(it.after, 1_000)
        await it.settle(slices)
        assert list(it.connector._kept) == [3]
        assert (
            it.connector._kept_bytes == sum(kept.size for kept in it.connector._kept.values()) > 0
        )


async def test_slices_that_were_not_admitted_are_cut_again() -> None:
    async with reading() as it:
        await put(it.store, *letters(*range(1, 10)), make_letter(10, priority=1))
        first = await it.cut(4)
        lost = await it.connector.plan_splits(it.after, 3)
        assert it.ids(lost) == [4, 5, 6]
        await put(it.store, make_letter(11, priority=1))
        again = await it.cut(4)
        assert it.ids(again) == [11, 4, 5, 6]
        assert it.ids([*first, *again, *await it.cut()]) == [10, 1, 2, 3, 11, 4, 5, 6, 7, 8, 9]


async def test_a_crash_in_the_middle_of_a_page() -> None:
    disk = MemoryDisk()
    async with reading(disk) as it:
        await put(it.store, *letters(*range(1, 21)))
        first, second, third = [await it.cut(5) for _ in range(3)]
        await it.settle(second)
    for unsettled in ([*first, *third], [*first], []):
        copy = MemoryDisk()
        copy.restore(disk.backup())
        async with reading(copy, unsettled, it.after) as again:
            assert again.ids(unsettled) == [
                id for it in unsettled for id in again_ids(it.position["start"])
            ]
            expected = {*range(1, 6), *range(11, 21)} - set(again.ids(unsettled))
            assert set(await again.read_all()) == expected


def again_ids(start: int) -> range:
    return range(start + 1, start + 6)


async def test_a_queue_that_was_purged_is_read_from_its_beginning() -> None:
    disk = MemoryDisk()
    async with reading(disk) as it:
        await put_now(it, *letters(*range(1, 21)))
        slices = [*await it.cut(5), *await it.cut()]
        assert await DurableQueuesAdmin(it.store).purge(QUEUE) == 20
    # What comes later was received later.
    await asyncio.sleep(0.002)
    async with reading(disk, slices, it.after) as again:
        # The new page has the number of the one that is gone.
        await put_now(again, *letters(*range(31, 41)))
        assert again.ids(slices) == []
        found = await again.cut()
        await again.settle(slices)
        assert again.ids(found) == list(range(31, 41))


async def test_a_purge_while_slices_are_being_read() -> None:
    async with reading() as it:
        await put(it.store, *letters(*range(1, 11)))
        slices = await it.cut(5)
        await DurableQueuesAdmin(it.store).purge(QUEUE)
        await put(it.store, *letters(11, 12))
        assert it.ids(await it.cut()) == [11, 12]
        await it.settle(slices)
        assert len(await it.store.read(query.peek_queue, QUEUE, 100)) == 2


# Turns.


async def test_urgent_letters_come_first_and_patient_ones_last() -> None:
    async with reading() as it:
        await put(
            it.store,
            make_letter(1, priority=-1),
            make_letter(2),
            make_letter(3, priority=1),
            make_letter(4, priority=9),
        )
        assert await it.read_all() == [4, 3, 2, 1]


async def test_delayed_letters_are_read_when_they_are_due(clock: Clock) -> None:
    async with reading() as it:
        soon = clock() + 50
        await put(
            it.store,
            make_letter(1, deliver_at_ms=soon),
            make_letter(2, deliver_at_ms=soon + 100_000),
        )
        assert await it.cut() == []
        await asyncio.wait_for(it.connector.wait(DEADLINE_S), DEADLINE_S / 2)
        assert await it.cut() == []
        clock.advance(0.05)
        assert it.ids(await it.cut()) == [1]
        # It is in a slice, and so in no other.
        assert await it.cut() == []


async def test_letters_set_aside_are_in_one_slice_also_after_a_crash() -> None:
    disk = MemoryDisk()
    async with reading(disk) as it:
        await put(it.store, make_letter(1, priority=1), make_letter(2, priority=1))
        slices = await it.cut(1)
    async with reading(disk, slices, it.after) as again:
        assert again.ids(slices) == [1]
        assert again.ids(await again.cut()) == [2]
        await again.settle(slices)
        assert [it.id for it in await again.store.read(query.peek_queue, QUEUE, 9)] == [2]


async def test_expired_letters_are_dead() -> None:
    disk = MemoryDisk()
    async with reading(disk) as it:
        past = now_ms() - 1
        await put_now(it, *(make_letter(n, expires_ms=past if n % 2 else 0) for n in range(1, 7)))
        await put_now(it, make_letter(7, expires_ms=past), make_letter(8, expires_ms=past))
        await put_now(it, make_letter(9, priority=1, expires_ms=past))
        await put_now(it, make_letter(10, expires_ms=past + 100_000))
        slices = await it.cut()
        assert it.ids(slices) == [2, 4, 6, 10]
        assert sum(it.estimated_segments for it in slices) == 4
        dead = await it.store.read(query.list_dead_letters, QUEUE, 0, 100)
        assert sorted(it.message.id for it in dead) == [1, 3, 5, 7, 8, 9]
        assert {it.reason for it in dead} == {DeadLetterReason.EXPIRED}
    async with reading(disk, slices, it.after) as again:
        assert again.ids(slices) == [2, 4, 6, 10]
        await again.settle(slices)
        assert await again.store.read(query.sizes_by_sender) == {}


async def test_letters_that_expire_in_a_page_that_is_read_in_parts(clock: Clock) -> None:
    async with reading() as it:
        soon = clock() + 30
        await put(
            it.store, *(make_letter(n, expires_ms=soon if n % 2 else 0) for n in range(1, 11))
        )
        first = await it.cut(4)
        assert it.ids(first) == [1, 2, 3, 4]
        await it.settle(first)
        second = await it.cut(2)
        clock.advance(0.03)
        rest = await it.cut()
        # What was cut in time is read, however late.
        assert (it.ids(second), it.ids(rest)) == ([5, 6], [8, 10])
        await it.settle([*second, *rest])
        assert await it.store.read(query.peek_queue, QUEUE, 9) == []
        assert await it.store.read(query.count_dead_letters) == 2


async def test_a_paused_queue_is_not_read() -> None:
    async with reading() as it:
        await put(it.store, *letters(1, 2))
        await DurableQueuesAdmin(it.store).pause(QUEUE)
        assert await it.cut() == []
        await DurableQueuesAdmin(it.store).resume(QUEUE)
        assert it.ids(await it.cut()) == [1, 2]


async def test_what_a_consumer_left_behind_is_read() -> None:
    disk = MemoryDisk()
    async with opened(MemoryStore(disk), NODE) as store:
        await put(store, *letters(1, 2, 3))

        def handle(ledger: StoreTables) -> None:
            (page,) = query.read_inbox_batches(ledger.database, QUEUE, 1, 0, 1)
            ledger.queues.mark_done(page, 1 << 1)
            for number, due_ms in ((4, 1), (5, NEVER_MS)):
                letter = make_letter(number, key="k")
                ledger.queues.defer(make_aside(letter, due_ms=due_ms, holds_key=True))

        await store.write(handle)
    async with reading(disk) as it:
        assert await it.read_all() == [4, 5, 1, 3]


# Waiting.


async def test_new_letters_end_the_waiting() -> None:
    async with reading() as it:
        for letter in (make_letter(1), make_letter(2, priority=1)):
            waiting = asyncio.create_task(it.connector.wait(DEADLINE_S))
            await put(it.store, make_letter(3, queue="other"))
            assert not waiting.done()
            await put(it.store, letter)
            await asyncio.wait_for(waiting, DEADLINE_S / 2)
            assert it.ids(await it.cut()) == [letter.id]


async def test_what_came_since_the_last_cut_is_not_waited_for() -> None:
    async with reading() as it:
        await it.cut()
        await put(it.store, make_letter(1))
        await asyncio.wait_for(it.connector.wait(DEADLINE_S), DEADLINE_S / 2)


async def test_waiting_ends_without_letters_too() -> None:
    async with reading() as it:
        await asyncio.wait_for(it.connector.wait(0.01), DEADLINE_S)


# Life and options.


async def test_a_queue_has_an_end_where_that_is_wanted() -> None:
    async with reading(bounded=True) as it:
        assert it.connector.is_bounded
    async with reading() as it:
        assert not it.connector.is_bounded


async def test_it_lets_the_queue_go() -> None:
    disk = MemoryDisk()
    async with opened(MemoryStore(disk), NODE) as store:
        connector, other = QueueInput(store, QUEUE), QueueInput(store, QUEUE)
        for _ in range(2):
            await connector.open([])
            with pytest.raises(UsageError, match="'orders' has a job that reads it already"):
                await other.open([])
            # What could not be opened may be closed.
            await other.close()
            await connector.close()
        await other.open([])
        await other.close()


async def test_the_store_must_be_open() -> None:
    connector = QueueInput(MemoryStore(), QUEUE)
    with pytest.raises(UsageError, match="before its node is started"):
        await connector.open([])


async def test_another_process_can_only_decode() -> None:
    async with reading() as it:
        await put(it.store, *letters(1))
        (found,) = await it.cut()
        copy: QueueInput = pickle.loads(pickle.dumps(it.connector))
        assert copy.decode(b'{"n":1}') == {"n": 1}
        assert not copy.is_portable
        with pytest.raises(UsageError, match="in its node's own process only"):
            copy.read(found.position)


def test_other_codecs() -> None:
    connector = QueueInput(MemoryStore(), QUEUE, codec="msgpack")
    assert connector.decode(b"\x81\xa1n\x01") == {"n": 1}


@pytest.mark.parametrize(
    ("option", "value"),
    [("queue", ""), ("queue", 5), ("queue", "a b"), ("codec", "xml"), ("bounded", "yes"),
     ("split_segments", 0)],
)  # fmt: skip
def test_wrong_options_are_named(option: str, value: object) -> None:
    options: dict[str, object] = {"queue": QUEUE} | {option: value}
    with pytest.raises(ConfigError, match=option):
        QueueInput(MemoryStore(), **options)  # type: ignore[arg-type]
