"""What every store does while its queues are worked off: bytes held, and the order of commits."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import OutboxFullError, StoreUnavailableError, TransactionAbortedError
from postroad.durable import DurableQueuesConfig, Store
from postroad.durable.consumers.dispatch_order import KeySequence, PrefetchBuffer, QueuedMessage
from postroad.durable.consumers.disposition import DispositionMutation
from postroad.durable.producer import EncodedMessage, MessageEncoder
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.store_tables import CommitEvent, StoreTables
from tests.contract.store_behaviour import Place, bodies
from tests.contract.store_inbox_behaviour import asides, ids, inbox, numbered
from tests.contract.store_queue_behaviour import LATER_MS, finish, finish_aside
from tests.support.durable.nodes import (
    NOW_MS,
    PEER,
    QUEUE,
    SENDER,
    encode,
    make_aside,
    make_letter,
    once,
    opened,
    put,
    raising,
)


class Scales:
    """Adds up what the commits of a store tell about the bytes it holds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[str, int] = {}
        store.commit_listeners.add(self._listen)

    def _listen(self, news: CommitEvent) -> None:
        for sender, size in news.bytes_by_sender.items():
            self._held[sender] = self._held.get(sender, 0) + size

    async def weigh(self) -> dict[str, int]:
        """Bytes by sender, which are the same when one counts what is in the tables."""
        held = {sender: size for sender, size in self._held.items() if size}
        assert held == await self._store.read(query.sizes_by_sender)
        return held


class HeldBehaviour:
    """How many bytes there are of each sender is told with every commit."""

    async def test_every_byte_that_comes_is_told(self, store: Store) -> None:
        scales = Scales(store)
        await put(
            store, *numbered(2), make_letter(3, priority=1), make_letter(4, deliver_at_ms=LATER_MS)
        )
        held = (await scales.weigh())[SENDER]
        await put(store, make_letter(5, body=bytes(1_000)), sender="delta")
        await put(store, make_letter(6, body=bytes(1_000), priority=1), sender="delta")
        after = await scales.weigh()
        assert after[SENDER] == held
        assert 2_000 < after["delta"] < 2_200

    async def test_every_byte_that_goes_is_told_once(self, store: Store) -> None:
        await put(
            store, *numbered(2), make_letter(3, priority=1), make_letter(4, deliver_at_ms=LATER_MS)
        )
        news: list[dict[str, int]] = []
        store.commit_listeners.add(lambda it: news.append(it.bytes_by_sender))
        (page,) = await inbox(store)
        await finish(store, page, 0)
        assert news == []
        await finish(store, page, 1)
        assert news.pop() == {SENDER: -page.size}
        for aside in await asides(store):
            await finish_aside(store, aside)
            assert news.pop()[SENDER] < 0
            await finish_aside(store, aside)
            assert news == []
        assert await store.read(query.sizes_by_sender) == {}

    async def test_a_purge_frees_one_queue(self, store: Store) -> None:
        scales = Scales(store)
        letters = numbered(2), numbered(2, queue="other")
        await put(store, *letters[0], *letters[1], make_letter(9, priority=1))
        await put(store, *letters[1], sender="delta")
        before = await scales.weigh()
        await store.write(lambda ledger: ledger.queues.purge(QUEUE))
        after = await scales.weigh()
        assert after["delta"] == before["delta"] == after[SENDER] < before[SENDER]
        await store.write(lambda ledger: ledger.queues.purge("other"))
        assert await scales.weigh() == {}

    async def test_a_letter_that_leaves_its_page_is_held_by_itself(self, store: Store) -> None:
        scales = Scales(store)
        await put(store, *numbered(2, body=bytes(100)))
        before = (await scales.weigh())[SENDER]
        (page,) = await inbox(store)
        letters = [make_aside(letter, failures=1) for letter in page.messages]

        def set_aside(index: int, ledger: StoreTables) -> None:
            ledger.queues.mark_done(page, 1 << index)
            ledger.queues.defer(letters[index])

        await store.write(partial(set_aside, 0))
        assert (await scales.weigh())[SENDER] > before + 100
        await store.write(partial(set_aside, 1))
        assert 200 < (await scales.weigh())[SENDER] < before + 100
        for aside in letters:
            await finish_aside(store, aside)
        assert await scales.weigh() == {}

    async def test_what_a_failed_commit_brought_is_not_told(self, store: Store) -> None:
        scales = Scales(store)
        await put(store, make_letter(1))
        held = await scales.weigh()
        with faults.arm_fault_point(
            "durable.commit.before", once(raising(StoreUnavailableError("away")))
        ):
            with pytest.raises(StoreUnavailableError):
                await put(store, make_letter(2), make_letter(3, priority=1))
            await store.write(lambda ledger: None)
        assert await scales.weigh() == held


class Outcomes:
    """Units of a queue, and what they heard."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._done: list[asyncio.Future[Exception | None]] = []

    def submit(self, lane: KeySequence, entry: QueuedMessage, *posts: EncodedMessage) -> None:
        """Have a message committed that was handled, with what its handler posted."""
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._done.append(done)
        entry.key_sequence = lane

        def on_settled(unit: DispositionMutation, error: Exception | None) -> None:
            # As a consumer does.
            lane.is_aborted |= error is not None
            done.set_result(error)

        self._store.submit(DispositionMutation(on_settled, finished=(entry,), sends=posts))

    async def kinds(self) -> list[type | None]:
        errors = await asyncio.gather(*self._done)
        return [None if error is None else type(error) for error in errors]


async def take_all(store: Store) -> list[QueuedMessage]:
    """Everything in the pages of the queue."""
    shelf = PrefetchBuffer(is_ordered=False, blocked={})
    for page in await inbox(store):
        shelf.add_batch(page)
    return [
        entry for _ in range(shelf.size) if (entry := shelf.pop_next(lambda: NOW_MS)) is not None
    ]


class LaneBehaviour:
    """After a message that could not be committed, no later one of its key is."""

    async def test_a_refused_post_stops_those_behind_it(self, place: Place) -> None:
        async with opened(
            place.store(), config=DurableQueuesConfig(outbox_messages_max=1)
        ) as store:
            await put(store, *numbered(4))
            entries = await take_all(store)
            clerk = MessageEncoder(store.config, "alpha")
            posts = [encode(clerk, PEER, QUEUE, body) for body in (b"1", b"2", b"3")]
            lane, outcomes = KeySequence(), Outcomes(store)
            outcomes.submit(lane, entries[0])
            outcomes.submit(lane, entries[1], *posts[:2])
            outcomes.submit(lane, entries[2], posts[2])
            # Another key goes on.
            outcomes.submit(KeySequence(), entries[3])
            assert await outcomes.kinds() == [None, OutboxFullError, TransactionAbortedError, None]
            assert await ids(store) == [2, 3]
            assert await bodies(store) == []

    async def test_a_failed_commit_stops_those_behind_it(self, store: Store) -> None:
        await put(store, *numbered(3))
        entries = await take_all(store)
        lane, outcomes = KeySequence(), Outcomes(store)
        with faults.arm_fault_point(
            "durable.commit.before", once(raising(StoreUnavailableError("away")))
        ):
            outcomes.submit(lane, entries[0])
            assert await outcomes.kinds() == [StoreUnavailableError]
        outcomes.submit(lane, entries[1])
        outcomes.submit(KeySequence(), entries[2])
        assert await outcomes.kinds() == [StoreUnavailableError, TransactionAbortedError, None]
        assert await ids(store) == [1, 2]

    async def test_a_retry_is_as_before_if_it_cannot_be_written(self, store: Store) -> None:
        await put(store, make_letter(1, priority=1))
        (aside,) = await asides(store)
        before = aside.due_ms
        shelf = PrefetchBuffer(is_ordered=False, blocked={})
        shelf.add_deferred(aside)
        entry = shelf.pop_next(lambda: LATER_MS)
        assert entry is not None
        unit = DispositionMutation(lambda unit, error: None)
        unit.defer(entry, due_ms=LATER_MS, failures=1, error="why")
        with faults.arm_fault_point(
            "durable.commit.before", once(raising(StoreUnavailableError("away")))
        ):
            with pytest.raises(StoreUnavailableError):
                await store.write(unit.apply)
            assert (aside.due_ms, aside.failures, aside.error) == (before, 0, None)
            await store.write(unit.apply)
        (found,) = await asides(store)
        assert (found.due_ms, found.failures, found.error) == (LATER_MS, 1, "why")
