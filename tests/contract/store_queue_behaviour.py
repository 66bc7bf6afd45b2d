"""What every store does with its own queues, and with dead letters."""

from __future__ import annotations

import msgspec
import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import StoreUnavailableError
from postroad.durable import DeadLetterReason, Store
from postroad.durable.consumers.dispatch_order import PrefetchBuffer, QueuedMessage
from postroad.durable.consumers.disposition import DispositionMutation
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.rows import DeferredMessage, InboxBatch
from postroad.durable.store.tables.store_tables import CommitEvent, StoreTables
from postroad.durable.stored_messages import NEVER_MS
from tests.contract.store_behaviour import Place
from tests.contract.store_inbox_behaviour import asides, ids, inbox, numbered, queue_id
from tests.support.durable.nodes import (
    NOW_MS,
    QUEUE,
    SENDER,
    make_aside,
    make_letter,
    make_letters,
    once,
    opened,
    put,
    raising,
)

LATER_MS = NOW_MS + 1_000


async def depth(store: Store) -> int:
    return await store.read(query.count_pending, await queue_id(store))


async def finish(store: Store, page: InboxBatch, *indexes: int) -> None:
    def write(ledger: StoreTables) -> None:
        for index in indexes:
            ledger.queues.mark_done(page, 1 << index)

    await store.write(write)


async def finish_aside(store: Store, aside: DeferredMessage) -> None:
    await store.write(lambda ledger: ledger.queues.delete_deferred(aside, NOW_MS))


async def take_unordered(store: Store) -> QueuedMessage:
    """What a consumer that does not keep the order of keys handles next."""
    shelf = PrefetchBuffer(is_ordered=False, blocked={})
    for aside in await asides(store, NEVER_MS - 1):
        shelf.add_deferred(aside)
    entry = shelf.pop_next(lambda: NOW_MS)
    assert entry is not None
    return entry


class QueueBehaviour:
    """What waits to be handled."""

    async def test_what_is_finished_stays_finished(self, place: Place) -> None:
        held: dict[str, int] = {}

        def listen(news: CommitEvent) -> None:
            held.update(news.bytes_by_sender)

        async with opened(place.store()) as store:
            await put(store, *numbered(20))
            (page,) = await inbox(store)
            await finish(store, page, 0, 9, 19)
            await finish(store, page, 1)
        async with opened(place.store()) as store:
            store.commit_listeners.add(listen)
            (page,) = await inbox(store)
            assert page.done_bits == 1 << 0 | 1 << 1 | 1 << 9 | 1 << 19
            assert await ids(store) == [id for id in range(3, 20) if id != 10]
            assert (await depth(store), page.pending) == (16, 16)
            assert held == {}
            await finish(store, page, *range(20))
            assert (await inbox(store), await depth(store)) == ([], 0)
            assert held == {SENDER: -page.size}
            assert await store.read(query.sizes_by_sender) == {}

    async def test_what_was_finished_by_a_failed_commit_is_not(self, store: Store) -> None:
        await put(store, *numbered(3))
        (page,) = await inbox(store)
        await finish(store, page, 0)
        failure = once(raising(StoreUnavailableError("away")))
        with (
            faults.arm_fault_point("durable.commit.before", failure),
            pytest.raises(StoreUnavailableError),
        ):
            await finish(store, page, 1, 2)
        assert page.done_bits == 1
        assert await ids(store) == [2, 3]

    async def test_numbers_of_pages_are_never_used_again(self, store: Store) -> None:
        seen = []
        for number in (1, 2, 3):
            await put(store, make_letter(number))
            (page,) = await inbox(store)
            seen.append(page.id)
            await finish(store, page, 0)
        assert seen == sorted(set(seen))

    async def test_urgent_and_delayed_letters_are_set_aside(self, store: Store) -> None:
        await put(
            store,
            make_letter(1),
            make_letter(2, deliver_at_ms=LATER_MS),
            make_letter(3, priority=5),
            make_letter(4, priority=-5),
            make_letter(5, priority=9, deliver_at_ms=LATER_MS),
        )
        assert await depth(store) == 5
        assert [it.message.id for it in await asides(store, NOW_MS)] == [3, 4]
        assert [it.message.id for it in await asides(store, LATER_MS)] == [5, 3, 2, 4]
        id = await queue_id(store)
        assert await store.read(query.next_deferred_ms, id, NOW_MS) == LATER_MS
        assert await store.read(query.next_deferred_ms, id, LATER_MS) is None
        assert await store.read(query.blocked_keys, id) == {}

    async def test_letters_set_aside_are_kept_with_all_facts(self, place: Place) -> None:
        letter = make_letter(7, key="k", headers={"a": "b"}, expires_ms=LATER_MS)
        aside = make_aside(letter, due_ms=NOW_MS, holds_key=True, failures=2, ahead_ms=-4)
        aside.error = "what\0 happened"
        async with opened(place.store()) as store:
            await store.write(lambda ledger: ledger.queues.defer(aside))
        async with opened(place.store()) as store:
            (found,) = await asides(store)
            assert found == msgspec.structs.replace(aside, error="what? happened")
            found.due_ms, found.failures, found.error = LATER_MS, 3, "again"
            await store.write(lambda ledger: ledger.queues.reschedule(found))
            assert await asides(store, NOW_MS) == []
            assert await asides(store, LATER_MS) == [found]

    async def test_the_next_of_a_key_goes_when_the_one_before_is_done(self, store: Store) -> None:
        def set_aside(ledger: StoreTables) -> None:
            for number, due_ms in ((1, NOW_MS), (2, NEVER_MS), (3, NEVER_MS)):
                letter = make_letter(number, key="a")
                ledger.queues.defer(make_aside(letter, due_ms=due_ms, holds_key=True))
            other = make_letter(4, key="b")
            ledger.queues.defer(make_aside(other, due_ms=NOW_MS + 1, holds_key=True))

        await store.write(set_aside)
        id = await queue_id(store)
        assert await store.read(query.blocked_keys, id) == {"a": 3, "b": 1}
        for number in (1, 2, 3):
            (due,) = await asides(store, NOW_MS)
            assert due.message.id == number
            await finish_aside(store, due)
        assert await asides(store, NOW_MS) == []
        assert await store.read(query.blocked_keys, id) == {"b": 1}

    @pytest.mark.parametrize("way", ["set aside", "postponed", "forgotten"])
    async def test_one_that_waits_for_nobody_goes(self, store: Store, way: str) -> None:
        def wait_for_nobody(ledger: StoreTables) -> None:
            for number in (1, 2):
                due_ms = NOW_MS if way == "postponed" and number == 1 else NEVER_MS
                aside = make_aside(make_letter(number, key="a"), due_ms=due_ms, holds_key=True)
                ledger.queues.defer(aside)
                if way == "postponed" and number == 1:
                    aside.due_ms = NEVER_MS
                    ledger.queues.reschedule(aside)
            if way == "forgotten":
                ledger.database.execute("UPDATE postroad_aside SET due_ms = ?", (NEVER_MS,))
                ledger.queues.release_orphaned_keys(QUEUE)

        await store.write(wait_for_nobody)
        (due,) = await asides(store, NOW_MS)
        assert due.message.id == 1
        await finish_aside(store, due)
        (due,) = await asides(store, NOW_MS)
        assert due.message.id == 2

    async def test_held_key_is_released_when_order_matters_no_more(self, store: Store) -> None:
        def set_aside(ledger: StoreTables) -> None:
            for number, due_ms in ((1, NOW_MS), (2, NEVER_MS)):
                letter = make_letter(number, key="a")
                ledger.queues.defer(make_aside(letter, due_ms=due_ms, holds_key=True))

        await store.write(set_aside)
        # A consumer that ignores keys: the first one fails once more, then it is handled.
        entry = await take_unordered(store)
        again = DispositionMutation(lambda unit, error: None)
        again.defer(entry, due_ms=NOW_MS, failures=2)
        await store.write(again.apply)
        entry = await take_unordered(store)
        assert entry.message.id == 1
        await store.write(DispositionMutation(lambda unit, error: None, finished=(entry,)).apply)
        assert (await take_unordered(store)).message.id == 2

    async def test_whatever_any_handler_says_is_kept(self, store: Store) -> None:
        letter, error = make_letter(1), "FileNotFoundError: name \udce9\0"

        def write(ledger: StoreTables) -> None:
            aside = make_aside(letter, failures=1)
            aside.error = error
            ledger.queues.defer(aside)
            ledger.dead_letters.add_inbound(
                SENDER, letter, DeadLetterReason.FAILED, error, 3, NOW_MS
            )

        await store.write(write)
        (dead,) = await store.read(query.list_dead_letters, None, 0, 10)
        assert "FileNotFoundError: name" in dead.detail
        assert (dead.is_outbound, dead.peer, dead.failures) == (False, SENDER, 3)
        assert dead.message == letter

    async def test_a_purge_removes_everything_from_one_queue(self, store: Store) -> None:
        await put(store, *numbered(3), make_letter(4, priority=1), make_letter(5, queue="other"))
        (page,) = await inbox(store)
        await finish(store, page, 0)
        assert await store.write(lambda ledger: ledger.queues.purge(QUEUE)) == 3
        assert (await ids(store), await ids(store, "other")) == ([], [5])
        # What was in hand at that moment is finished later, and frees nothing any more.
        news: list[CommitEvent] = []
        store.commit_listeners.add(news.append)
        await finish(store, page, 1, 2)
        assert [it.bytes_by_sender for it in news] == []

    async def test_a_pause_is_remembered(self, place: Place) -> None:
        async with opened(place.store()) as store:
            await store.write(lambda ledger: ledger.queues.pause(QUEUE, True))
            await put(store, make_letter(1, queue="other"))
        async with opened(place.store()) as store:
            paused = {name: it[1] for name, it in (await store.read(query.list_queues)).items()}
            assert paused == {QUEUE: True, "other": False}
            await store.write(lambda ledger: ledger.queues.pause(QUEUE, False))
            assert not (await store.read(query.list_queues))[QUEUE][1]

    async def test_dead_letters_are_listed_and_taken_out(self, store: Store) -> None:
        def bury(ledger: StoreTables) -> None:
            for letter in make_letters(5):
                ledger.dead_letters.add_inbound(
                    SENDER, letter, DeadLetterReason.REJECTED, "no", 1, NOW_MS
                )

        await store.write(bury)
        assert await store.read(query.count_dead_letters) == 5
        first, second = await store.read(query.list_dead_letters, QUEUE, 0, 2)
        assert [
            it.message.id for it in await store.read(query.list_dead_letters, None, second.id, 9)
        ] == [
            3,
            4,
            5,
        ]
        assert await store.read(query.list_dead_letters, "other", 0, 9) == []
        assert await store.write(lambda ledger: ledger.dead_letters.remove(first.id)) == first
        assert await store.write(lambda ledger: ledger.dead_letters.remove(first.id)) is None
        assert await store.read(query.find_dead_letter, first.id) is None
        assert await store.read(query.last_dead_letter_id) == second.id + 3

    async def test_the_oldest_of_a_queue(self, store: Store) -> None:
        await put(store, make_letter(1))
        id = await queue_id(store)
        assert await store.read(query.oldest_inbox_ms, id, NOW_MS) == NOW_MS
        assert len(await store.read(query.peek_queue, QUEUE, 1)) == 1
        (page,) = await inbox(store)
        await finish(store, page, 0)
        assert await store.read(query.oldest_inbox_ms, id, NOW_MS) is None
