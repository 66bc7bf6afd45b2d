"""What every store does for operators: mail that is moved, paused, counted and tried again."""

from __future__ import annotations

import msgspec
import pytest

from postroad.core.errors import ConfigError, DeadLetterNotFoundError, UsageError
from postroad.durable import (
    DeadLetterGroup,
    DeadLetterReason,
    DurableQueuesAdmin,
    Store,
    StoredMessage,
)
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.rows import RETRIED_HEADER
from postroad.durable.store.tables.schema import MIGRATIONS
from postroad.durable.store.tables.store_tables import CommitEvent, StoreTables
from tests.contract.store_behaviour import Place
from tests.contract.store_inbox_behaviour import asides, ids, inbox, numbered, queue_id
from tests.contract.store_queue_behaviour import finish
from tests.support.durable.nodes import (
    NOW_MS,
    PEER,
    QUEUE,
    SENDER,
    make_aside,
    make_letter,
    opened,
    post,
    put,
)

OTHER = "other"


async def bury(store: Store, *kinds: tuple[str, str, str]) -> None:
    """Make dead letters of these queues, reasons and details, one after the other."""

    def write(ledger: StoreTables) -> None:
        for place, (queue, reason, detail) in enumerate(kinds):
            letter = make_letter(place + 1, queue=queue)
            ledger.dead_letters.add_inbound(SENDER, letter, reason, detail, 1, NOW_MS + place)

    await store.write(write)


async def die(store: Store, letter: StoredMessage) -> None:
    await store.write(
        lambda ledger: ledger.dead_letters.add_inbound(
            SENDER, letter, DeadLetterReason.FAILED, "", 1, NOW_MS
        )
    )


class OperatorBehaviour:
    """What operators do."""

    async def test_messages_are_moved_in_order_to_another_queue(self, store: Store) -> None:
        await put(store, *numbered(3))
        await put(store, *numbered(2, 4), sender="somebody")
        await put(store, make_letter(6, queue=OTHER))
        (page, _) = await inbox(store)
        await finish(store, page, 1)
        assert await DurableQueuesAdmin(store).move(QUEUE, OTHER) == 4
        assert (await ids(store), await ids(store, OTHER)) == ([], [6, 1, 3, 4, 5])
        moved = await store.read(query.peek_queue, OTHER, 10)
        assert {it.queue for it in moved} == {OTHER}
        senders = [it.sender for it in await inbox(store, OTHER)]
        assert senders == [SENDER, SENDER, "somebody"]

    async def test_some_are_moved_and_the_others_stay(self, store: Store) -> None:
        await put(store, *numbered(5))
        held: list[dict[str, int]] = []
        operations = DurableQueuesAdmin(store)
        assert await operations.move(QUEUE, OTHER, limit=2) == 2
        assert (await ids(store), await ids(store, OTHER)) == ([3, 4, 5], [1, 2])
        store.commit_listeners.add(lambda news: held.append(dict(news.bytes_by_sender)))
        assert await operations.move(QUEUE, OTHER, limit=10) == 3
        assert (await ids(store), await ids(store, OTHER)) == ([], [1, 2, 3, 4, 5])
        # What a sender has here is counted: it leaves one queue and comes into the other.
        assert list(held[0]) == [SENDER]
        assert await store.read(query.sizes_by_sender) == {
            SENDER: sum(page.size for page in await inbox(store, OTHER))
        }

    async def test_what_waited_for_a_retry_is_moved_as_if_new(self, store: Store) -> None:
        letter = make_letter(1, key="k")
        later = make_letter(3, deliver_at_ms=NOW_MS + 60_000)

        def write(ledger: StoreTables) -> None:
            ledger.queues.defer(make_aside(letter, failures=2, holds_key=True))

        await store.write(write)
        await put(store, make_letter(2, key="k"), later)
        assert await DurableQueuesAdmin(store).move(QUEUE, OTHER) == 3
        assert (await ids(store), await asides(store)) == ([], [])
        # It is the first of its key again, and what is not due is not.
        assert await ids(store, OTHER) == [1, 2, 3]
        id = await queue_id(store, OTHER)
        (waiting,) = await store.read(query.read_deferred, OTHER, id, NOW_MS * 2, NOW_MS * 2, 9)
        assert (waiting.message.id, waiting.failures) == (3, 0)
        assert await store.read(query.blocked_keys, id) == {}

    async def test_many_large_messages_are_moved_page_by_page(self, store: Store) -> None:
        body = bytes(400_000)
        await put(store, *(make_letter(number, body=body) for number in range(1, 8)))
        assert await DurableQueuesAdmin(store).move(QUEUE, OTHER) == 7
        assert await ids(store, OTHER) == [1, 2, 3, 4, 5, 6, 7]
        assert all(page.size < 2_000_000 for page in await inbox(store, OTHER))

    async def test_nothing_is_moved_into_itself_or_while_it_is_consumed(self, store: Store) -> None:
        await put(store, *numbered(1))
        operations = DurableQueuesAdmin(store)
        with pytest.raises(ConfigError, match="into itself"):
            await operations.move(QUEUE, QUEUE)
        store.claim(QUEUE, "a consumer")
        with pytest.raises(UsageError, match="pause it"):
            await operations.move(QUEUE, OTHER)
        store.release(QUEUE)
        assert await operations.move("nobody", OTHER) == 0
        assert await ids(store) == [1]

    async def test_a_message_is_found_by_its_id(self, store: Store) -> None:
        await put(store, *numbered(3))
        operations = DurableQueuesAdmin(store)
        assert [it.id for it in await operations.find_messages(QUEUE, 2)] == [2]
        assert await operations.find_messages(QUEUE, 9) == []
        assert await operations.find_messages(OTHER, 2) == []

    async def test_a_paused_bridge_is_remembered(self, place: Place) -> None:
        async with opened(place.store()) as store:
            await post(store, PEER, b"1")
            operations = DurableQueuesAdmin(store)
            assert not (await operations.statistics()).peers[PEER].is_paused
            await operations.bridges.pause(PEER)
            await operations.bridges.pause("never-heard-of")
        async with opened(place.store()) as store:
            operations = DurableQueuesAdmin(store)
            peers = (await operations.statistics()).peers
            assert {name: it.is_paused for name, it in peers.items()} == {
                PEER: True,
                "never-heard-of": True,
            }
            peer = await store.read(query.find_peer, PEER)
            assert peer is not None
            assert await store.read(query.read_outbox_batches_of_epoch, peer.id, 0, 9) == (None, [])
            await operations.bridges.resume(PEER)
            epoch, pages = await store.read(query.read_outbox_batches_of_epoch, peer.id, 0, 9)
            assert (epoch, len(pages)) == (1, 1)

    async def test_a_peer_that_is_paused_can_be_posted_to(self, store: Store) -> None:
        operations = DurableQueuesAdmin(store)
        await operations.bridges.pause(PEER)
        await post(store, PEER, b"1", b"2")
        statistics = (await operations.statistics()).peers[PEER]
        assert (statistics.depth, statistics.is_paused) == (2, True)

    async def test_dead_letters_by_what_they_died_of(self, store: Store) -> None:
        await bury(
            store,
            (QUEUE, DeadLetterReason.FAILED, "ValueError"),
            (QUEUE, DeadLetterReason.FAILED, "KeyError"),
            (OTHER, DeadLetterReason.FAILED, "ValueError"),
            (QUEUE, DeadLetterReason.EXPIRED, ""),
            (QUEUE, DeadLetterReason.FAILED, "ValueError"),
        )
        operations = DurableQueuesAdmin(store)
        assert await operations.dead_letters.groups() == [
            _group(QUEUE, DeadLetterReason.FAILED, "ValueError", 2, 0, 4),
            _group(QUEUE, DeadLetterReason.EXPIRED, "", 1, 3, 3),
            _group(QUEUE, DeadLetterReason.FAILED, "KeyError", 1, 1, 1),
            _group(OTHER, DeadLetterReason.FAILED, "ValueError", 1, 2, 2),
        ]
        assert await operations.dead_letters.count() == 5
        assert await operations.dead_letters.count(QUEUE) == 4
        assert await operations.dead_letters.count(reason=DeadLetterReason.FAILED) == 4
        assert await operations.dead_letters.count(OTHER, reason=DeadLetterReason.EXPIRED) == 0
        expired = await operations.dead_letters.list(QUEUE, reason=DeadLetterReason.EXPIRED)
        assert [it.message.id for it in expired] == [4]

    async def test_dead_letters_of_a_reason_are_tried_again_or_dropped(self, store: Store) -> None:
        kinds = [
            (QUEUE, reason, "")
            for reason in (
                DeadLetterReason.FAILED,
                DeadLetterReason.EXPIRED,
                DeadLetterReason.FAILED,
            )
        ]
        await bury(store, *kinds)
        operations = DurableQueuesAdmin(store)
        assert await operations.dead_letters.retry_many(reason=DeadLetterReason.FAILED) == 2
        assert await ids(store) == [1, 3]
        assert (
            await operations.dead_letters.drop_many(queue=OTHER, reason=DeadLetterReason.EXPIRED)
            == 0
        )
        assert (
            await operations.dead_letters.drop_many(queue=QUEUE, reason=DeadLetterReason.EXPIRED)
            == 1
        )
        assert await operations.dead_letters.count() == 0

    async def test_some_dead_letters_are_tried_again_or_dropped(self, store: Store) -> None:
        await bury(store, *([(QUEUE, DeadLetterReason.FAILED, "")] * 4))
        operations = DurableQueuesAdmin(store)
        first, second, third, _ = [it.id for it in await operations.dead_letters.list()]
        assert await operations.dead_letters.retry_many([first, third, first, 99]) == 2
        assert await operations.dead_letters.drop_many([first, second]) == 1
        assert await operations.dead_letters.count() == 1
        assert await ids(store) == [1, 3]

    async def test_a_dead_letter_knows_how_often_it_was_tried_again(self, store: Store) -> None:
        await bury(store, (QUEUE, DeadLetterReason.FAILED, ""))
        operations = DurableQueuesAdmin(store)
        for retried in range(3):
            (dead,) = await operations.dead_letters.list()
            assert dead.retried == retried
            await operations.dead_letters.retry(dead.id)
            (letter,) = await store.read(query.peek_queue, QUEUE, 9)
            assert letter.headers == {RETRIED_HEADER: str(retried + 1)}
            await store.write(lambda ledger: ledger.queues.purge(QUEUE))
            await die(store, letter)
        with pytest.raises(DeadLetterNotFoundError):
            await operations.dead_letters.get(99)

    async def test_nonsense_of_a_sender_counts_for_nothing(self, store: Store) -> None:
        letter = make_letter(1, headers={RETRIED_HEADER: "²", "colour": "red"})

        await die(store, letter)
        operations = DurableQueuesAdmin(store)
        (dead,) = await operations.dead_letters.list()
        assert dead.retried == 0
        await operations.dead_letters.retry(dead.id)
        (again,) = await store.read(query.peek_queue, QUEUE, 9)
        assert again == msgspec.structs.replace(
            letter, headers={"colour": "red", RETRIED_HEADER: "1"}
        )

    async def test_a_dead_letter_is_found_by_its_message(self, store: Store) -> None:
        await bury(store, *([(QUEUE, DeadLetterReason.FAILED, "")] * 3))
        operations = DurableQueuesAdmin(store)
        await operations.dead_letters.drop((await operations.dead_letters.list())[0].id)
        # The second dead letter is about the second message.
        assert [it.id for it in await operations.dead_letters.find(2)] == [2]
        assert await operations.dead_letters.find(1) == []
        await die(store, make_letter(1))
        (found,) = await operations.dead_letters.find(1)
        assert found.message.id == 1

    async def test_a_store_of_an_earlier_version_is_brought_up_to_date(self, place: Place) -> None:
        async with opened(place.store()) as store:
            await post(store, PEER, b"1")
            assert len(MIGRATIONS) >= 2

            def go_back(ledger: StoreTables) -> None:
                ledger.database.execute("ALTER TABLE postroad_peers DROP COLUMN is_paused")
                ledger.database.execute("DROP INDEX postroad_dead_kind")
                ledger.database.execute("DROP TABLE postroad_arrivals")
                ledger.database.execute(
                    "UPDATE postroad_meta SET value = '1' WHERE name = 'schema'"
                )

            await store.write(go_back)
        async with opened(place.store()) as store:
            operations = DurableQueuesAdmin(store)
            assert (await operations.statistics()).peers[PEER].depth == 1
            await operations.bridges.pause(PEER)
            assert (await operations.statistics()).peers[PEER].is_paused

    async def test_others_hear_of_what_was_moved(self, store: Store) -> None:
        await put(store, *numbered(2))
        news: list[CommitEvent] = []
        store.commit_listeners.add(news.append)
        await DurableQueuesAdmin(store).move(QUEUE, OTHER)
        assert [page.queue for it in news for page in it.inbox_batches] == [OTHER]


def _group(
    queue: str, reason: str, detail: str, count: int, oldest: int, newest: int
) -> DeadLetterGroup:
    return DeadLetterGroup(
        queue=queue,
        reason=reason,
        detail=detail,
        count=count,
        oldest_ms=NOW_MS + oldest,
        newest_ms=NOW_MS + newest,
    )
