"""What every store does for those who read a queue in stretches."""

from __future__ import annotations

import asyncio

import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import StoreUnavailableError, UsageError
from postroad.durable import DurableQueuesConfig, Store
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.ranges import (
    BatchRange,
    DeferredSet,
    MessageRange,
    last_batch,
    read_range,
)
from postroad.durable.store.tables.store_tables import CommitEvent, StoreTables
from postroad.durable.stored_messages import NEVER_MS, encode_stored_message, join_batch
from tests.contract.store_behaviour import Place, bodies
from tests.contract.store_inbox_behaviour import asides, ids, inbox, numbered, queue_id
from tests.contract.store_queue_behaviour import depth, finish
from tests.support.durable.nodes import (
    NOW_MS,
    OWN,
    PEER,
    QUEUE,
    SENDER,
    make_aside,
    make_letter,
    once,
    opened,
    post,
    put,
    raising,
)


async def take_out(store: Store, stretch: MessageRange) -> dict[str, int]:
    """Take a stretch out; by how much the senders have less here then."""
    news: list[CommitEvent] = []
    store.commit_listeners.add(news.append)
    await store.write(lambda ledger: ledger.queues.delete_range(stretch))
    store.commit_listeners.remove(news.append)
    return {sender: size for it in news for sender, size in it.bytes_by_sender.items()}


async def read(store: Store, stretch: MessageRange) -> list[tuple[str, list[int]]]:
    found = await store.read(read_range, stretch)
    return [(sender, [it.id for it in letters]) for sender, letters in found]


class StretchBehaviour:
    """Letters that are read together and taken out together."""

    async def test_pages_in_a_row(self, store: Store) -> None:
        for number, sender in ((1, SENDER), (3, SENDER), (5, "delta"), (7, SENDER)):
            await put(store, make_letter(number), make_letter(number + 1), sender=sender)
        await put(store, make_letter(9, queue="other"))
        first, second, third, fourth = await inbox(store)
        await finish(store, second, 0)
        stretch = BatchRange(await queue_id(store), first.id, third.id, NOW_MS)
        assert await read(store, stretch) == [
            (SENDER, [1, 2]),
            (SENDER, [4]),
            ("delta", [5, 6]),
        ]
        assert await store.read(last_batch, stretch) == third.id
        held = await take_out(store, stretch)
        assert held == {SENDER: -first.size - second.size, "delta": -third.size}
        assert (await ids(store), await ids(store, "other")) == ([7, 8], [9])
        assert await store.read(query.sizes_by_sender) == {
            SENDER: fourth.size + len(encode_stored_message(make_letter(9, queue="other"))) + 1
        }
        assert await read(store, stretch) == []
        assert await store.read(last_batch, stretch) is None
        assert await take_out(store, stretch) == {}

    async def test_some_letters_of_a_page(self, place: Place) -> None:
        async with opened(place.store()) as store:
            await put(store, *numbered(20))
            (page,) = await inbox(store)
            await finish(store, page, 0, 19)
            id = await queue_id(store)
            middle = BatchRange(id, page.id, page.id, NOW_MS, 5, 15)
            assert await read(store, middle) == [(SENDER, list(range(6, 16)))]
            assert await take_out(store, middle) == {}
        async with opened(place.store()) as store:
            assert await ids(store) == [2, 3, 4, 5, 16, 17, 18, 19]
            assert await depth(store) == 8
            rest = BatchRange(id, page.id, page.id, NOW_MS, 15, 20)
            assert await read(store, rest) == [(SENDER, [16, 17, 18, 19])]
            await take_out(store, rest)
            await take_out(store, rest)
            assert await depth(store) == 4
            first = BatchRange(id, page.id, page.id, NOW_MS, 0, 5)
            assert await take_out(store, first) == {SENDER: -page.size}
            assert await store.read(query.sizes_by_sender) == {}

    async def test_letters_that_were_set_aside(self, store: Store) -> None:
        await put(store, *(make_letter(number, priority=number) for number in range(1, 5)))
        rows = [it.id for it in await asides(store)]
        stretch = DeferredSet(await queue_id(store), rows[1:3], NOW_MS)
        assert await read(store, stretch) == [(SENDER, [3]), (SENDER, [2])]
        sizes = await store.read(query.sizes_by_sender)
        held = await take_out(store, stretch)
        left = await store.read(query.sizes_by_sender)
        assert left[SENDER] == sizes[SENDER] + held[SENDER]
        assert [it.message.id for it in await asides(store)] == [4, 1]
        assert await read(store, stretch) == []

    async def test_a_commit_that_fails_takes_nothing_out(self, store: Store) -> None:
        await put(store, *numbered(3))
        (page,) = await inbox(store)
        stretch = BatchRange(await queue_id(store), page.id, page.id, NOW_MS)
        failure = once(raising(StoreUnavailableError("away")))
        with (
            faults.arm_fault_point("durable.commit.before", failure),
            pytest.raises(StoreUnavailableError),
        ):
            await take_out(store, stretch)
        assert await read(store, stretch) == [(SENDER, [1, 2, 3])]

    @pytest.mark.parametrize("is_part", [False, True])
    async def test_what_came_later_is_not_taken_for_it(self, place: Place, is_part: bool) -> None:
        async with opened(place.store()) as store:
            await put(store, make_letter(1))
            await put(store, make_letter(2, priority=1))
            (page,), (aside,) = await inbox(store), await asides(store)
            stop = 1 if is_part else None
            before = BatchRange(await queue_id(store), page.id, page.id, NOW_MS, 0, stop)
            aside_before = DeferredSet(before.queue, [aside.id], NOW_MS)
            await store.write(lambda ledger: ledger.queues.purge(QUEUE))
        async with opened(place.store()) as store:

            def put_later(ledger: StoreTables) -> None:
                letters = make_letter(3), make_letter(4, priority=1)
                ledger.queues.store_messages(SENDER, letters, 0, NOW_MS + 1)

            await store.write(put_later)
            (again,), (aside_again,) = await inbox(store), await asides(store)
            assert (again.id, aside_again.id) == (page.id, aside.id)
            for stretch in (before, aside_before):
                assert await read(store, stretch) == []
                await take_out(store, stretch)
            assert await store.read(last_batch, before) is None
            assert await ids(store) == [3, 4]

    async def test_letters_that_wait_for_others_of_their_key_are_let_go(self, store: Store) -> None:
        def set_aside(ledger: StoreTables) -> None:
            for number, due_ms in ((1, NOW_MS + 5), (2, NEVER_MS), (3, NEVER_MS)):
                letter = make_letter(number, key="a")
                ledger.queues.defer(make_aside(letter, due_ms=due_ms, holds_key=True))

        await store.write(set_aside)
        await store.write(lambda ledger: ledger.queues.release_blocked(QUEUE))
        assert [it.message.id for it in await asides(store, NOW_MS)] == [2, 3]
        assert [it.message.id for it in await asides(store, NOW_MS + 5)] == [1, 2, 3]
        assert await store.read(query.blocked_keys, await queue_id(store)) == {}


class BoundPagesBehaviour:
    """Letters that are bound to pages before they are posted."""

    async def test_pages_are_posted_as_they_are(self, place: Place) -> None:
        pages = [
            (2, join_batch([encode_stored_message(make_letter(it)) for it in (1, 2)])),
            (1, join_batch([encode_stored_message(make_letter(3))])),
        ]
        async with opened(place.store(), config=DurableQueuesConfig(batch_messages_max=1)) as store:
            await post(store, PEER, b"before")
            await store.write(lambda ledger: ledger.enqueue_batches(PEER, pages))
            await post(store, PEER, b"after")
            assert await bodies(store) == [b"before", b"1", b"2", b"3", b"after"]
            found = await store.read(query.read_outbox_batches, 1, 0, 10)
            assert [(it.first, it.last) for it in found] == [(1, 1), (2, 3), (4, 4), (5, 5)]
        async with opened(place.store()) as store:
            peer = await store.read(query.find_peer, PEER)
            assert peer is not None
            assert (peer.last_seq, peer.last_chain) == (5, found[-1].chain)

    async def test_pages_to_itself_are_in_the_queue(self, store: Store) -> None:
        news: list[CommitEvent] = []
        store.commit_listeners.add(news.append)
        page = join_batch([encode_stored_message(make_letter(it)) for it in (1, 2)])
        await store.write(lambda ledger: ledger.enqueue_batches(OWN, [(2, page)]))
        assert await ids(store) == [1, 2]
        assert [it.sender for it in await inbox(store)] == [OWN]
        assert [page.queue for it in news for page in it.inbox_batches] == [QUEUE]

    async def test_pages_of_a_failed_commit_are_not_there(self, store: Store) -> None:
        pages = [(1, join_batch([encode_stored_message(make_letter(1))]))]
        failure = once(raising(StoreUnavailableError("away")))
        with (
            faults.arm_fault_point("durable.commit.before", failure),
            pytest.raises(StoreUnavailableError),
        ):
            await store.write(lambda ledger: ledger.enqueue_batches(PEER, pages))
        await store.write(lambda ledger: ledger.enqueue_batches(PEER, pages))
        found = await store.read(query.read_outbox_batches, 1, 0, 10)
        assert [(it.first, it.last) for it in found] == [(1, 1)]


class BesideBehaviour:
    """Reading without an event loop, and having a queue for oneself."""

    async def test_any_thread_can_read(self, place: Place) -> None:
        async with opened(place.store()) as store:
            await put(store, *numbered(3))
            id = await queue_id(store)
            assert store.read_blocking(query.count_pending, id) == 3
            found = await asyncio.gather(
                *(asyncio.to_thread(store.read_blocking, query.count_pending, id) for _ in range(8))
            )
            assert found == [3] * 8
            await put(store, make_letter(4))
            assert store.read_blocking(query.count_pending, id) == 4
        with pytest.raises(UsageError, match="not open"):
            store.read_blocking(query.count_pending, id)
        async with opened(store):
            assert store.read_blocking(query.count_pending, id) == 4

    async def test_a_queue_has_one_claim(self, store: Store) -> None:
        store.claim(QUEUE, "a job")
        with pytest.raises(UsageError, match="'orders' has a job already"):
            store.claim(QUEUE, "a consumer")
        store.claim("other", "a consumer")
        store.release(QUEUE)
        store.release(QUEUE)
        store.claim(QUEUE, "a consumer")
        await store.close()
        assert store.claims == {}

    async def test_who_listens_no_more_hears_nothing(self, store: Store) -> None:
        news: list[CommitEvent] = []
        listen = news.append
        store.commit_listeners.add(listen)
        store.commit_listeners.remove(listen)
        store.commit_listeners.remove(listen)
        await put(store, make_letter(1))
        assert news == []
