"""What every store does with what it receives: streams of other stores, and its own queues."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from postroad.core import faults
from postroad.core.errors import StoreUnavailable
from postroad.durable import Letter, MailConfig, Reason, Store
from postroad.durable.exchange import Refusal, SentPage, Verdict, Window
from postroad.durable.letters import NEVER_MS
from postroad.durable.store import queries as query
from postroad.durable.store.ledger import Ledger, News
from postroad.durable.store.rows import AsideLetter, InPage
from tests.contract.store_behaviour import Place
from tests.durable_nodes import (
    NOW_MS,
    QUEUE,
    SENDER,
    STORE,
    Correspondent,
    accept,
    make_aside,
    make_letter,
    make_letters,
    once,
    opened,
    put,
    raising,
)

LATER_MS = NOW_MS + 1_000


async def queue_id(store: Store, queue: str = QUEUE) -> int:
    return (await store.read(query.list_queues))[queue][0]


async def inbox(store: Store, queue: str = QUEUE) -> list[InPage]:
    """The pages of a queue."""
    return await store.read(query.read_inbox, queue, await queue_id(store, queue), 0, 100)


async def asides(store: Store, now_ms: int = NEVER_MS) -> list[AsideLetter]:
    """The letters set aside that are due."""
    id = await queue_id(store)
    return await store.read(query.read_aside, QUEUE, id, now_ms, NEVER_MS, 100)


async def ids(store: Store, queue: str = QUEUE) -> list[int]:
    """Numbers of the letters in a queue."""
    return [letter.id for letter in await store.read(query.browse_queue, queue, 1_000)]


async def depth(store: Store) -> int:
    return await store.read(query.count_pending, await queue_id(store))


async def refusals_of(store: Store, after: int = 0) -> list[Refusal]:
    """What the store remembers to have refused."""
    stream = await store.read(query.find_stream, SENDER, STORE, 1)
    assert stream is not None
    return await store.read(query.list_refusals, stream.id, after)


async def finish(store: Store, page: InPage, *indexes: int) -> None:
    def write(ledger: Ledger) -> None:
        for index in indexes:
            ledger.queues.finish(page, index)

    await store.write(write)


def numbered(count: int, start: int = 1, **fields: Any) -> list[Letter]:
    return [make_letter(number, **fields) for number in range(start, start + count)]


class StreamBehaviour:
    """What others send is accepted once, in order."""

    @pytest.fixture
    def sender(self) -> Correspondent:
        return Correspondent([numbered(2), numbered(1, 3), numbered(3, 4)])

    async def test_a_window_is_accepted(self, store: Store, sender: Correspondent) -> None:
        arrival = await accept(store, sender.window())
        assert (arrival.verdict, arrival.watermark) == (Verdict.ACCEPTED, 6)
        assert (arrival.chain, arrival.refusals) == (sender.chains[3], [])
        assert await ids(store) == [1, 2, 3, 4, 5, 6]
        assert {page.sender for page in await inbox(store)} == {SENDER}

    async def test_nothing_is_accepted_twice(self, place: Place, sender: Correspondent) -> None:
        async with opened(place.store()) as store:
            await accept(store, sender.window(0, 2))
            arrival = await accept(store, sender.window(0, 2))
            assert (arrival.verdict, arrival.watermark) == (Verdict.ACCEPTED, 3)
        async with opened(place.store()) as store:
            await accept(store, sender.window(1))
            await accept(store, sender.window())
            assert await ids(store) == [1, 2, 3, 4, 5, 6]

    async def test_a_gap_is_told(self, store: Store, sender: Correspondent) -> None:
        await accept(store, sender.window(0, 1))
        arrival = await accept(store, sender.window(2))
        assert (arrival.verdict, arrival.watermark) == (Verdict.GAP, 2)
        assert arrival.chain == sender.chains[1]
        assert await ids(store) == [1, 2]

    async def test_another_history_is_told(self, store: Store, sender: Correspondent) -> None:
        await accept(store, sender.window(0, 1))
        other = Correspondent([numbered(2, 7), numbered(4, 9)])
        arrival = await accept(store, other.window())
        assert (arrival.verdict, arrival.watermark) == (Verdict.DIVERGED, 2)
        assert arrival.detail
        assert await ids(store) == [1, 2]

    async def test_streams_are_kept_apart(self, store: Store) -> None:
        await accept(store, Correspondent([numbered(1, 1)]).window())
        await accept(store, Correspondent([numbered(1, 2)], epoch=2).window())
        await accept(store, Correspondent([numbered(1, 3)], store=b"another store...").window())
        await accept(store, Correspondent([numbered(1, 4)]).window(), sender="delta")
        assert await ids(store) == [1, 2, 3, 4]

    async def test_pages_whose_letters_were_removed_count(
        self, store: Store, sender: Correspondent
    ) -> None:
        window = sender.window()
        window.pages[1] = msgspec.structs.replace(window.pages[1], letters=None)
        arrival = await accept(store, window)
        assert (arrival.verdict, arrival.watermark, arrival.refusals) == (Verdict.ACCEPTED, 6, [])
        assert await ids(store) == [1, 2, 4, 5, 6]

    async def test_there_may_not_be_room_for_all(self, store: Store, sender: Correspondent) -> None:
        room = len(sender.pages[0].letters or b"") + 1
        arrival = await accept(store, sender.window(), room=room)
        assert (arrival.verdict, arrival.watermark) == (Verdict.FULL, 2)
        assert arrival.chain == sender.chains[1]
        arrival = await accept(store, sender.window(1), room=0)
        assert (arrival.verdict, arrival.watermark) == (Verdict.FULL, 2)
        assert (await accept(store, sender.window(1))).watermark == 6

    async def test_one_page_is_taken_however_large_it_is(
        self, store: Store, sender: Correspondent
    ) -> None:
        arrival = await accept(store, sender.window(), room=0)
        assert (arrival.verdict, arrival.watermark) == (Verdict.FULL, 2)

    async def test_a_failed_commit_accepts_nothing(
        self, store: Store, sender: Correspondent
    ) -> None:
        with faults.armed("durable.commit.before", once(raising(StoreUnavailable("away")))):
            with pytest.raises(StoreUnavailable):
                await accept(store, sender.window())
            assert (await accept(store, sender.window())).watermark == 6
        assert await ids(store) == [1, 2, 3, 4, 5, 6]

    async def test_letters_go_to_their_queues(self, store: Store) -> None:
        letters = [make_letter(1, queue="a"), make_letter(2, queue="b"), make_letter(3, queue="a")]
        await accept(store, Correspondent([letters]).window())
        assert (await ids(store, "a"), await ids(store, "b")) == ([1, 3], [2])

    async def test_times_are_understood_by_the_clock_of_the_sender(self, store: Store) -> None:
        letters = [make_letter(1, due_ms=NOW_MS + 50), make_letter(2)]
        # The sender's clock is 300 ms late.
        await accept(store, Correspondent([letters]).window(now_ms=NOW_MS - 300))
        (aside,), (page,) = await asides(store), await inbox(store)
        assert (aside.due_ms, aside.ahead_ms, page.ahead_ms) == (NOW_MS + 350, 300, 300)
        assert (aside.received_ms, page.received_ms) == (NOW_MS, NOW_MS)


class RefusalBehaviour:
    """What is not taken is remembered until its sender has it."""

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"queue": "closed"}, Reason.UNKNOWN_QUEUE),
            ({"queue": "no name"}, Reason.UNKNOWN_QUEUE),
            ({"queue": "x\0"}, Reason.UNKNOWN_QUEUE),
            ({"key": "a\0"}, Reason.UNREADABLE),
            ({"key": "k" * 2_000}, Reason.UNREADABLE),
            ({"body": bytes(1_001)}, Reason.TOO_LARGE),
            ({"expires_ms": NOW_MS - 300}, Reason.EXPIRED),
        ],
        ids=repr,
    )
    async def test_letters_that_are_not_taken(
        self, place: Place, fields: dict[str, Any], reason: Reason
    ) -> None:
        config = MailConfig(message_bytes_max=1_000)
        async with opened(place.store(), config=config) as store:
            store.use_rule(lambda sender, queue: queue != "closed")
            letters = [make_letter(1), make_letter(2, **fields), make_letter(3)]
            arrival = await accept(store, Correspondent([letters]).window(now_ms=NOW_MS - 300))
            assert [(it.number, it.reason) for it in arrival.refusals] == [(2, reason)]
            assert (arrival.verdict, arrival.watermark) == (Verdict.ACCEPTED, 3)
            assert await ids(store) == [1, 3]
            assert await refusals_of(store) == arrival.refusals

    async def test_no_more_queues_than_allowed_are_opened(self, place: Place) -> None:
        async with opened(place.store(), config=MailConfig(queues_max=2)) as store:
            letters = [make_letter(1, queue="a"), make_letter(2, queue="b")]
            sender = Correspondent(
                [letters, [make_letter(3, queue="c"), make_letter(4, queue="a")]]
            )
            arrival = await accept(store, sender.window())
            assert [it.number for it in arrival.refusals] == [3]
            assert list(await store.read(query.list_queues)) == ["a", "b"]

    async def test_no_more_queues_are_opened_by_one_page_either(self, place: Place) -> None:
        async with opened(place.store(), config=MailConfig(queues_max=2)) as store:
            letters = [make_letter(number, queue=f"queue-{number}") for number in range(1, 6)]
            arrival = await accept(store, Correspondent([letters]).window())
            assert [it.number for it in arrival.refusals] == [3, 4, 5]

    @pytest.mark.parametrize(
        "page",
        [
            SentPage(2, b"x" * 16, b"\x90"),
            SentPage(2, Correspondent([numbered(1)]).chains[1], b"\xc1"),
        ],
        ids=["changed", "nonsense"],
    )
    async def test_a_page_that_nobody_can_read(self, store: Store, page: SentPage) -> None:
        start = Correspondent([])
        window = Window(STORE, 1, 1, 0, NOW_MS, 1, start.chains[0], [page])
        arrival = await accept(store, window)
        assert [(it.number, it.reason) for it in arrival.refusals] == [
            (1, Reason.UNREADABLE),
            (2, Reason.UNREADABLE),
        ]
        assert (arrival.watermark, arrival.chain) == (2, page.chain)

    async def test_a_page_with_fewer_letters_than_told(self, store: Store) -> None:
        sender = Correspondent([numbered(1)])
        window = sender.window()
        window.pages[0] = msgspec.structs.replace(window.pages[0], count=3)
        arrival = await accept(store, window)
        assert [it.number for it in arrival.refusals] == [1, 2, 3]
        assert await store.read(query.list_queues) == {}

    async def test_refusals_are_remembered_until_the_sender_has_settled_them(
        self, place: Place
    ) -> None:
        sender = Correspondent([numbered(1, number, queue="closed") for number in (1, 2, 3)])
        async with opened(place.store()) as store:
            store.use_rule(lambda sender, queue: False)
            await accept(store, sender.window())
        async with opened(place.store()) as store:
            assert [it.number for it in await refusals_of(store)] == [1, 2, 3]
            assert [it.number for it in await refusals_of(store, after=1)] == [2, 3]
            await accept(store, sender.window(settled=2))
            assert [it.number for it in await refusals_of(store)] == [3]

    async def test_a_queue_that_is_there_takes_everybody(self, store: Store) -> None:
        store.use_rule(lambda sender, queue: False)
        await store.write(lambda ledger: ledger.queues.queue_id(QUEUE))
        arrival = await accept(store, Correspondent([numbered(2)]).window())
        assert arrival.refusals == []


class QueueBehaviour:
    """What waits to be handled."""

    async def test_what_is_finished_stays_finished(self, place: Place) -> None:
        freed: dict[str, int] = {}

        def listen(news: News) -> None:
            freed.update(news.freed)

        async with opened(place.store()) as store:
            await put(store, *numbered(20))
            (page,) = await inbox(store)
            await finish(store, page, 0, 9, 19)
            await finish(store, page, 1)
        async with opened(place.store()) as store:
            store.listen(listen)
            (page,) = await inbox(store)
            assert page.done == 1 << 0 | 1 << 1 | 1 << 9 | 1 << 19
            assert await ids(store) == [id for id in range(3, 20) if id != 10]
            assert (await depth(store), page.pending) == (16, 16)
            assert freed == {}
            await finish(store, page, *range(20))
            assert (await inbox(store), await depth(store)) == ([], 0)
            assert freed == {SENDER: page.size}
            assert await store.read(query.sizes_by_sender) == {}

    async def test_what_was_finished_by_a_failed_commit_is_not(self, store: Store) -> None:
        await put(store, *numbered(3))
        (page,) = await inbox(store)
        await finish(store, page, 0)
        failure = once(raising(StoreUnavailable("away")))
        with faults.armed("durable.commit.before", failure), pytest.raises(StoreUnavailable):
            await finish(store, page, 1, 2)
        assert page.done == 1
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
            make_letter(2, due_ms=LATER_MS),
            make_letter(3, priority=5),
            make_letter(4, priority=-5),
            make_letter(5, priority=9, due_ms=LATER_MS),
        )
        assert await depth(store) == 5
        assert [it.letter.id for it in await asides(store, NOW_MS)] == [3, 4]
        assert [it.letter.id for it in await asides(store, LATER_MS)] == [5, 3, 2, 4]
        id = await queue_id(store)
        assert await store.read(query.next_due_ms, id, NOW_MS) == LATER_MS
        assert await store.read(query.next_due_ms, id, LATER_MS) is None
        assert await store.read(query.held_keys, id) == {}

    async def test_letters_set_aside_are_kept_with_all_facts(self, place: Place) -> None:
        letter = make_letter(7, key="k", headers={"a": "b"}, expires_ms=LATER_MS)
        aside = make_aside(letter, due_ms=NOW_MS, holds_key=True, failures=2, ahead_ms=-4)
        aside.error = "what\0 happened"
        async with opened(place.store()) as store:
            await store.write(lambda ledger: ledger.queues.set_aside(aside))
        async with opened(place.store()) as store:
            (found,) = await asides(store)
            assert found == msgspec.structs.replace(aside, error="what? happened")
            found.due_ms, found.failures, found.error = LATER_MS, 3, "again"
            await store.write(lambda ledger: ledger.queues.postpone(found))
            assert await asides(store, NOW_MS) == []
            assert await asides(store, LATER_MS) == [found]

    async def test_the_next_of_a_key_goes_when_the_one_before_is_done(self, store: Store) -> None:
        def set_aside(ledger: Ledger) -> None:
            for number, due_ms in ((1, NOW_MS), (2, NEVER_MS), (3, NEVER_MS)):
                letter = make_letter(number, key="a")
                ledger.queues.set_aside(make_aside(letter, due_ms=due_ms, holds_key=True))
            other = make_letter(4, key="b")
            ledger.queues.set_aside(make_aside(other, due_ms=NEVER_MS, holds_key=True))

        await store.write(set_aside)
        id = await queue_id(store)
        assert await store.read(query.held_keys, id) == {"a": 3, "b": 1}
        for number in (1, 2, 3):
            (due,) = await asides(store, NOW_MS)
            assert due.letter.id == number
            await store.write(lambda ledger, due=due: ledger.queues.finish_aside(due, NOW_MS))
        assert await asides(store, NOW_MS) == []
        assert await store.read(query.held_keys, id) == {"b": 1}

    async def test_whatever_any_handler_says_is_kept(self, store: Store) -> None:
        letter, error = make_letter(1), "FileNotFoundError: caf\udce9\0"

        def write(ledger: Ledger) -> None:
            aside = make_aside(letter, failures=1)
            aside.error = error
            ledger.queues.set_aside(aside)
            ledger.dead.add_inbound(SENDER, letter, Reason.FAILED, error, 3, NOW_MS)

        await store.write(write)
        (dead,) = await store.read(query.list_dead, None, 0, 10)
        assert "FileNotFoundError: caf" in dead.detail
        assert (dead.is_outbound, dead.peer, dead.failures) == (False, SENDER, 3)
        assert dead.letter == letter

    async def test_a_purge_removes_everything_from_one_queue(self, store: Store) -> None:
        await put(store, *numbered(3), make_letter(4, priority=1), make_letter(5, queue="other"))
        (page,) = await inbox(store)
        await finish(store, page, 0)
        assert await store.write(lambda ledger: ledger.queues.purge(QUEUE)) == 3
        assert (await ids(store), await ids(store, "other")) == ([], [5])
        # What was in hand at that moment is finished later, and frees nothing any more.
        news: list[News] = []
        store.listen(news.append)
        await finish(store, page, 1, 2)
        assert [it.freed for it in news] == [{}]

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
        def bury(ledger: Ledger) -> None:
            for letter in make_letters(5):
                ledger.dead.add_inbound(SENDER, letter, Reason.REJECTED, "no", 1, NOW_MS)

        await store.write(bury)
        assert await store.read(query.count_dead) == 5
        first, second = await store.read(query.list_dead, QUEUE, 0, 2)
        assert [it.letter.id for it in await store.read(query.list_dead, None, second.id, 9)] == [
            3,
            4,
            5,
        ]
        assert await store.read(query.list_dead, "other", 0, 9) == []
        assert await store.write(lambda ledger: ledger.dead.remove(first.id)) == first
        assert await store.write(lambda ledger: ledger.dead.remove(first.id)) is None
        assert await store.read(query.find_dead, first.id) is None
        assert await store.read(query.last_dead) == second.id + 3

    async def test_the_oldest_of_a_queue(self, store: Store) -> None:
        await put(store, make_letter(1))
        id = await queue_id(store)
        assert await store.read(query.oldest_in, id) == NOW_MS
        assert len(await store.read(query.browse_queue, QUEUE, 1)) == 1
        (page,) = await inbox(store)
        await finish(store, page, 0)
        assert await store.read(query.oldest_in, id) is None
