"""What every store does with what it receives: streams of other stores."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import StoreUnavailableError
from postroad.durable import DeadLetterReason, DurableQueuesConfig, Store, StoredMessage
from postroad.durable.bridges.protocol import (
    MessageRejection,
    StreamWindow,
    WindowStatus,
    WireBatch,
)
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.rows import DeferredMessage, InboxBatch
from postroad.durable.stored_messages import NEVER_MS
from tests.contract.store_behaviour import Place
from tests.support.durable.nodes import (
    NOW_MS,
    QUEUE,
    SENDER,
    STORE,
    Correspondent,
    accept,
    make_letter,
    once,
    opened,
    raising,
)


async def queue_id(store: Store, queue: str = QUEUE) -> int:
    return (await store.read(query.list_queues))[queue][0]


async def inbox(store: Store, queue: str = QUEUE) -> list[InboxBatch]:
    """The pages of a queue."""
    return await store.read(query.read_inbox_batches, queue, await queue_id(store, queue), 0, 100)


async def asides(store: Store, now_ms: int = NEVER_MS) -> list[DeferredMessage]:
    """The letters set aside that are due."""
    id = await queue_id(store)
    return await store.read(query.read_deferred, QUEUE, id, now_ms, NEVER_MS, 100)


async def ids(store: Store, queue: str = QUEUE) -> list[int]:
    """Numbers of the letters in a queue."""
    return [letter.id for letter in await store.read(query.peek_queue, queue, 1_000)]


async def refusals_of(store: Store, after: int = 0, epoch: int = 1) -> list[MessageRejection]:
    """What the store remembers to have refused."""
    stream = await store.read(query.find_stream, SENDER, STORE, epoch)
    assert stream is not None
    return await store.read(query.list_rejections, stream.id, after)


def numbered(count: int, start: int = 1, **fields: Any) -> list[StoredMessage]:
    return [make_letter(number, **fields) for number in range(start, start + count)]


class StreamBehaviour:
    """What others send is accepted once, in order."""

    @pytest.fixture
    def sender(self) -> Correspondent:
        return Correspondent([numbered(2), numbered(1, 3), numbered(3, 4)])

    async def test_a_window_is_accepted(self, store: Store, sender: Correspondent) -> None:
        arrival = await accept(store, sender.window())
        assert (arrival.status, arrival.watermark) == (WindowStatus.ACCEPTED, 6)
        assert (arrival.chain, arrival.rejections) == (sender.chains[3], [])
        assert await ids(store) == [1, 2, 3, 4, 5, 6]
        assert {page.sender for page in await inbox(store)} == {SENDER}

    async def test_nothing_is_accepted_twice(self, place: Place, sender: Correspondent) -> None:
        async with opened(place.store()) as store:
            await accept(store, sender.window(0, 2))
            arrival = await accept(store, sender.window(0, 2))
            assert (arrival.status, arrival.watermark) == (WindowStatus.ACCEPTED, 3)
        async with opened(place.store()) as store:
            await accept(store, sender.window(1))
            await accept(store, sender.window())
            assert await ids(store) == [1, 2, 3, 4, 5, 6]

    async def test_a_gap_is_told(self, store: Store, sender: Correspondent) -> None:
        await accept(store, sender.window(0, 1))
        arrival = await accept(store, sender.window(2))
        assert (arrival.status, arrival.watermark) == (WindowStatus.GAP, 2)
        assert arrival.chain == sender.chains[1]
        assert await ids(store) == [1, 2]

    async def test_another_history_is_told(self, store: Store, sender: Correspondent) -> None:
        await accept(store, sender.window(0, 1))
        other = Correspondent([numbered(2, 7), numbered(4, 9)])
        arrival = await accept(store, other.window())
        assert (arrival.status, arrival.watermark) == (WindowStatus.DIVERGED, 2)
        assert arrival.detail
        assert await ids(store) == [1, 2]

    async def test_streams_are_kept_apart(self, store: Store) -> None:
        await accept(store, Correspondent([numbered(1, 1)]).window())
        await accept(store, Correspondent([numbered(1, 2)], epoch=2).window())
        await accept(store, Correspondent([numbered(1, 3)], store=b"another store...").window())
        await accept(store, Correspondent([numbered(1, 4)]).window(), sender="delta")
        assert await ids(store) == [1, 2, 3, 4]

    async def test_pages_without_letters_count(self, store: Store, sender: Correspondent) -> None:
        window = sender.window()
        window.batches[1] = msgspec.structs.replace(window.batches[1], data=None)
        arrival = await accept(store, window)
        assert (arrival.status, arrival.watermark, arrival.rejections) == (
            WindowStatus.ACCEPTED,
            6,
            [],
        )
        assert await ids(store) == [1, 2, 4, 5, 6]

    async def test_there_may_not_be_room_for_all(self, store: Store, sender: Correspondent) -> None:
        room = len(sender.pages[0].data or b"") + 1
        arrival = await accept(store, sender.window(), room=room)
        assert (arrival.status, arrival.watermark) == (WindowStatus.FULL, 2)
        assert arrival.chain == sender.chains[1]
        arrival = await accept(store, sender.window(1), room=0)
        assert (arrival.status, arrival.watermark) == (WindowStatus.FULL, 2)
        assert (await accept(store, sender.window(1))).watermark == 6

    async def test_one_page_is_taken_of_any_size(self, store: Store, sender: Correspondent) -> None:
        arrival = await accept(store, sender.window(), room=0)
        assert (arrival.status, arrival.watermark) == (WindowStatus.FULL, 2)

    async def test_failed_commit_accepts_nothing(self, store: Store, sender: Correspondent) -> None:
        with faults.arm_fault_point(
            "durable.commit.before", once(raising(StoreUnavailableError("away")))
        ):
            with pytest.raises(StoreUnavailableError):
                await accept(store, sender.window())
            assert (await accept(store, sender.window())).watermark == 6
        assert await ids(store) == [1, 2, 3, 4, 5, 6]

    async def test_letters_go_to_their_queues(self, store: Store) -> None:
        letters = [make_letter(1, queue="a"), make_letter(2, queue="b"), make_letter(3, queue="a")]
        await accept(store, Correspondent([letters]).window())
        assert (await ids(store, "a"), await ids(store, "b")) == ([1, 3], [2])

    async def test_times_are_understood_by_the_clock_of_the_sender(self, store: Store) -> None:
        letters = [make_letter(1, deliver_at_ms=NOW_MS + 50), make_letter(2)]
        # The sender's clock is 300 ms late.
        await accept(store, Correspondent([letters]).window(now_ms=NOW_MS - 300))
        (aside,), (page,) = await asides(store), await inbox(store)
        assert (aside.due_ms, aside.clock_skew_ms, page.clock_skew_ms) == (NOW_MS + 350, 300, 300)
        assert (aside.received_ms, page.received_ms) == (NOW_MS, NOW_MS)


class RefusalBehaviour:
    """What is not taken is remembered until its sender has it."""

    async def test_letters_that_are_not_taken(self, place: Place) -> None:
        cases: list[tuple[dict[str, Any], DeadLetterReason]] = [
            ({"queue": "closed"}, DeadLetterReason.UNKNOWN_QUEUE),
            ({"queue": "no name"}, DeadLetterReason.UNKNOWN_QUEUE),
            ({"queue": "x\0"}, DeadLetterReason.UNKNOWN_QUEUE),
            ({"key": "a\0"}, DeadLetterReason.UNREADABLE),
            ({"key": "k" * 2_000}, DeadLetterReason.UNREADABLE),
            ({"body": bytes(1_001)}, DeadLetterReason.TOO_LARGE),
            ({"expires_ms": NOW_MS - 300}, DeadLetterReason.EXPIRED),
        ]
        config = DurableQueuesConfig(message_bytes_max=1_000)
        async with opened(place.store(), config=config) as store:
            store.set_queue_policy(lambda sender, queue: queue != "closed")
            for epoch, (fields, reason) in enumerate(cases, 1):
                letters = [make_letter(1), make_letter(2, **fields), make_letter(3)]
                author = Correspondent([letters], epoch=epoch)
                arrival = await accept(store, author.window(now_ms=NOW_MS - 300))
                assert [(it.number, it.reason) for it in arrival.rejections] == [(2, reason)], (
                    fields
                )
                assert (arrival.status, arrival.watermark) == (WindowStatus.ACCEPTED, 3), fields
                assert await ids(store) == [1, 3] * epoch, fields
                assert await refusals_of(store, epoch=epoch) == arrival.rejections, fields

    async def test_no_more_queues_than_allowed_are_opened(self, place: Place) -> None:
        async with opened(place.store(), config=DurableQueuesConfig(queues_max=2)) as store:
            letters = [make_letter(1, queue="a"), make_letter(2, queue="b")]
            sender = Correspondent(
                [letters, [make_letter(3, queue="c"), make_letter(4, queue="a")]]
            )
            arrival = await accept(store, sender.window())
            assert [it.number for it in arrival.rejections] == [3]
            assert list(await store.read(query.list_queues)) == ["a", "b"]

    async def test_no_more_queues_are_opened_by_one_page_either(self, place: Place) -> None:
        async with opened(place.store(), config=DurableQueuesConfig(queues_max=2)) as store:
            letters = [make_letter(number, queue=f"queue-{number}") for number in range(1, 6)]
            arrival = await accept(store, Correspondent([letters]).window())
            assert [it.number for it in arrival.rejections] == [3, 4, 5]

    @pytest.mark.parametrize(
        "page",
        [
            WireBatch(2, b"x" * 16, b"\x90"),
            WireBatch(2, Correspondent([numbered(1)]).chains[1], b"\xc1"),
        ],
        ids=["changed", "nonsense"],
    )
    async def test_a_page_that_nobody_can_read(self, store: Store, page: WireBatch) -> None:
        start = Correspondent([])
        window = StreamWindow(STORE, 1, 1, 0, NOW_MS, 1, start.chains[0], [page])
        arrival = await accept(store, window)
        assert [(it.number, it.reason) for it in arrival.rejections] == [
            (1, DeadLetterReason.UNREADABLE),
            (2, DeadLetterReason.UNREADABLE),
        ]
        assert (arrival.watermark, arrival.chain) == (2, page.chain)

    async def test_a_page_with_fewer_letters_than_told(self, store: Store) -> None:
        sender = Correspondent([numbered(1)])
        window = sender.window()
        window.batches[0] = msgspec.structs.replace(window.batches[0], count=3)
        arrival = await accept(store, window)
        assert [it.number for it in arrival.rejections] == [1, 2, 3]
        assert await store.read(query.list_queues) == {}

    async def test_refusals_are_remembered_until_the_sender_settles_them(
        self, place: Place
    ) -> None:
        sender = Correspondent([numbered(1, number, queue="closed") for number in (1, 2, 3)])
        async with opened(place.store()) as store:
            store.set_queue_policy(lambda sender, queue: False)
            await accept(store, sender.window())
        async with opened(place.store()) as store:
            assert [it.number for it in await refusals_of(store)] == [1, 2, 3]
            assert [it.number for it in await refusals_of(store, after=1)] == [2, 3]
            # The first answer may have got lost, and the window come again by another way.
            again = await accept(store, sender.window())
            assert [it.number for it in again.rejections] == [1, 2, 3]
            arrival = await accept(store, sender.window(settled=2))
            assert [it.number for it in arrival.rejections] == [3]
            assert [it.number for it in await refusals_of(store)] == [3]

    async def test_a_queue_that_is_there_takes_everybody(self, store: Store) -> None:
        store.set_queue_policy(lambda sender, queue: False)
        await store.write(lambda ledger: ledger.queues.queue_id(QUEUE))
        arrival = await accept(store, Correspondent([numbered(2)]).window())
        assert arrival.rejections == []
