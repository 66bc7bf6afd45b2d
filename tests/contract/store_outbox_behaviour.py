"""What every store does with what is posted: the outbox, and idempotency."""

from __future__ import annotations

import asyncio
from itertools import accumulate, pairwise

import pytest

from postroad.core.errors import IdempotencyConflictError, OutboxFullError, StreamDivergedError
from postroad.durable import DeadLetterReason, DurableQueuesConfig, Store
from postroad.durable.bridges.protocol import MessageRejection, extend_chain, initial_chain
from postroad.durable.producer import MessageEncoder, SendMutation
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.outbox import UNREADABLE_QUEUE
from postroad.durable.store.tables.rows import InboxBatch, OutboxBatch, PeerState
from postroad.durable.store.tables.store_tables import StoreTables
from tests.contract.store_behaviour import Place, bodies
from tests.support.durable.nodes import NOW_MS, OWN, PEER, QUEUE, encode, opened, post

ONE_EACH = DurableQueuesConfig(batch_messages_max=1)


async def peer_of(store: Store, name: str = PEER) -> PeerState:
    peer = await store.read(query.find_peer, name)
    assert peer is not None
    return peer


async def pages_of(store: Store, after: int = 0) -> list[OutboxBatch]:
    return await store.read(query.read_outbox_batches, (await peer_of(store)).id, after, 100)


async def spans(store: Store) -> list[tuple[int, int]]:
    return [(page.first, page.last) for page in await pages_of(store)]


async def settle(
    store: Store, upto: int, *refusals: MessageRejection, epoch: int = 1, chain: bytes | None = None
) -> None:
    """The peer has accepted everything up to a number, with the chain that is known here."""
    if chain is None:
        _, chain = await store.read(query.peer_and_chain, PEER, upto)
    told = chain or b"unknown"

    def write(ledger: StoreTables) -> None:
        ledger.outbox.ack(PEER, epoch, upto, told, refusals, NOW_MS)

    await store.write(write)


async def damage_first_page(store: Store) -> None:
    """Make the first page one that nobody can read."""
    await store.write(
        lambda ledger: ledger.database.execute(
            f"UPDATE postroad_outbox SET letters = ? WHERE id % {query.BATCH_ID_SPAN} = 1",
            (b"\xc1",),
        )
    )


async def void(store: Store, page: OutboxBatch) -> None:
    def write(ledger: StoreTables) -> None:
        ledger.outbox.dead_letter_batch(PEER, page, DeadLetterReason.TOO_LARGE, "big", NOW_MS)

    await store.write(write)


async def dead(store: Store) -> list[tuple[bytes, str, str]]:
    """Body, reason and detail of the dead letters."""
    letters = await store.read(query.list_dead_letters, None, 0, 100)
    return [(it.message.body, it.reason, it.detail) for it in letters]


class OutboxBehaviour:
    """What waits to be sent has gapless numbers."""

    async def test_letters_are_kept_in_pages(self, place: Place) -> None:
        config = DurableQueuesConfig(batch_messages_max=3, batch_bytes_max=1_000)
        async with opened(place.store(), config=config) as store:
            await post(store, PEER, *(b"%d" % number for number in range(7)))
            assert await spans(store) == [(1, 3), (4, 6), (7, 7)]
            await post(store, PEER, bytes(600), bytes(600), bytes(5_000), b"", b"")
            assert (await spans(store))[3:] == [(8, 8), (9, 9), (10, 10), (11, 12)]
        async with opened(place.store()) as store:
            await post(store, PEER, b"after a restart")
            assert (await spans(store))[-1] == (13, 13)
            assert (await peer_of(store)).last_seq == 13

    async def test_the_chain_goes_over_all_pages(self, place: Place) -> None:
        async with opened(place.store(), config=ONE_EACH) as store:
            await post(store, PEER, b"1", b"2")
            await post(store, PEER, b"3")
            pages = await pages_of(store)
            letters = [page.data or b"" for page in pages]
            chains = list(
                accumulate(letters, extend_chain, initial=initial_chain(store.id, 1, PEER))
            )
            assert [page.chain for page in pages] == chains[1:]
            peer = await peer_of(store)
            assert (peer.last_chain, peer.acked_chain) == (chains[3], chains[0])
            for number, chain in enumerate(chains):
                _, found = await store.read(query.peer_and_chain, PEER, number)
                assert found == chain

    async def test_peers_have_numbers_of_their_own(self, store: Store) -> None:
        await asyncio.gather(*(post(store, peer, b"x") for peer in (PEER, "other", PEER)))
        heads = {peer.name: peer.last_seq for peer in await store.read(query.list_peers)}
        assert heads == {PEER: 2, "other": 1}

    async def test_pages_are_read_piece_by_piece(self, place: Place) -> None:
        async with opened(place.store(), config=ONE_EACH) as store:
            await post(store, PEER, *(b"%d" % number for number in range(20)))
            assert len(await bodies(store)) == 20
            assert len(await store.read(query.peek_outbox, PEER, 3)) == 3
            assert [page.first for page in await pages_of(store, after=18)] == [19, 20]
            assert await store.read(query.oldest_outbox_ms, (await peer_of(store)).id) is not None

    async def test_letters_to_oneself_go_straight_into_the_queue(self, store: Store) -> None:
        news: list[InboxBatch] = []
        store.commit_listeners.add(lambda it: news.extend(it.inbox_batches))
        await post(store, OWN, b"1", b"2")
        assert [letter.body for page in news for letter in page.messages] == [b"1", b"2"]
        assert await store.read(query.list_peers) == []

    async def test_a_full_mailbox_takes_nothing_more(self, place: Place) -> None:
        async with opened(
            place.store(), config=DurableQueuesConfig(outbox_messages_max=3)
        ) as store:
            await post(store, PEER, b"1", b"2")
            with pytest.raises(OutboxFullError, match="2 messages wait for 'beta'"):
                await post(store, PEER, b"3", b"4")
            await post(store, PEER, b"5")
            await post(store, "other", b"x")
            with pytest.raises(OutboxFullError):
                await post(store, PEER, b"6")
            await settle(store, 2)
            await post(store, PEER, b"7", b"8")
            assert await bodies(store) == [b"5", b"7", b"8"]

    async def test_a_full_mailbox_counts_what_is_not_committed_yet(self, place: Place) -> None:
        async with opened(
            place.store(), config=DurableQueuesConfig(outbox_messages_max=3)
        ) as store:
            calls = (post(store, PEER, b"x") for _ in range(5))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert sum(isinstance(it, OutboxFullError) for it in outcomes) == 2

    async def test_what_is_refused_leaves_no_trace_of_its_peer(self, place: Place) -> None:
        async with opened(
            place.store(), config=DurableQueuesConfig(outbox_messages_max=1)
        ) as store:
            with pytest.raises(OutboxFullError, match="0 messages wait for 'beta'"):
                await post(store, PEER, b"1", b"2")
            with pytest.raises(IdempotencyConflictError):
                await post(store, PEER, b"1", b"2", idempotency_key="once")
            assert await store.read(query.list_peers) == []
            await post(store, PEER, b"3")
            assert await bodies(store) == [b"3"]


class SettlingBehaviour:
    """What a peer has accepted is removed, and what it refused is kept."""

    async def test_exactly_what_was_accepted_is_removed(self, place: Place) -> None:
        async with opened(place.store(), config=ONE_EACH) as store:
            await post(store, PEER, b"1", b"2", b"3")
            chain = (await pages_of(store))[1].chain
            await settle(store, 2)
            assert await spans(store) == [(3, 3)]
            peer = await peer_of(store)
            assert (peer.acked_seq, peer.acked_chain, peer.last_seq) == (2, chain, 3)
            assert (await store.read(query.peer_and_chain, PEER, 2))[1] == chain
            await settle(store, 1)
            assert (await peer_of(store)).acked_seq == 2
            await settle(store, 3, epoch=2)
            assert await spans(store) == [(3, 3)]

    async def test_what_was_refused_becomes_a_dead_letter_once(self, place: Place) -> None:
        async with opened(place.store(), config=DurableQueuesConfig(batch_messages_max=2)) as store:
            await post(store, PEER, b"1", b"2", b"3", b"4")
            refusals = [
                MessageRejection(2, DeadLetterReason.UNKNOWN_QUEUE, "why\0"),
                MessageRejection(3, "x", "not yet"),
            ]
            await settle(store, 2, *refusals)
            await settle(store, 2, *refusals)
            assert await dead(store) == [(b"2", "unknown queue", "why?")]
            (letter,) = await store.read(query.list_dead_letters, QUEUE, 0, 10)
            assert (letter.is_outbound, letter.peer, letter.failures) == (True, PEER, 0)
            await settle(store, 4, *refusals)
            assert [body for body, _, _ in await dead(store)] == [b"2", b"3"]

    async def test_a_page_that_nobody_can_read_does_not_stop_the_others(self, place: Place) -> None:
        async with opened(place.store(), config=ONE_EACH) as store:
            await post(store, PEER, b"1", b"2")
            await damage_first_page(store)
            await settle(store, 1, MessageRejection(1, DeadLetterReason.UNREADABLE, "damaged"))
            assert (await peer_of(store)).acked_seq == 1
            assert await dead(store) == [(b"\xc1", "unreadable", "damaged")]
            (letter,) = await store.read(query.list_dead_letters, UNREADABLE_QUEUE, 0, 10)
            assert (letter.is_outbound, letter.peer) == (True, PEER)

    async def test_a_page_that_nobody_can_read_is_one_dead_letter(self, place: Place) -> None:
        async with opened(place.store(), config=DurableQueuesConfig(batch_messages_max=3)) as store:
            await post(store, PEER, b"1", b"2", b"3")
            await damage_first_page(store)
            refusals = [
                MessageRejection(number, DeadLetterReason.UNREADABLE, "damaged")
                for number in (1, 2, 3)
            ]
            await settle(store, 3, *refusals)
            assert await dead(store) == [(b"\xc1", "unreadable", "damaged")]

    async def test_a_page_that_nobody_can_read_nor_send(self, place: Place) -> None:
        async with opened(place.store(), config=DurableQueuesConfig(batch_messages_max=2)) as store:
            await post(store, PEER, b"1", b"2", b"3")
            await damage_first_page(store)
            await void(store, (await pages_of(store))[0])
            assert await dead(store) == [(b"\xc1", "too large", "big")]
            assert await spans(store) == [(1, 2), (3, 3)]
            assert await bodies(store) == [b"3"]

    @pytest.mark.parametrize(
        ("upto", "chain"),
        [(3, None), (4, b"another chain..."), (6, None)],
        ids=["inside a page", "another history", "never posted"],
    )
    async def test_what_cannot_have_been_accepted_changes_nothing(
        self, place: Place, upto: int, chain: bytes | None
    ) -> None:
        async with opened(place.store(), config=DurableQueuesConfig(batch_messages_max=2)) as store:
            await post(store, PEER, b"1", b"2", b"3", b"4", b"5")
            await settle(store, 2)
            before = await peer_of(store)
            refusal = MessageRejection(3, DeadLetterReason.UNKNOWN_QUEUE, "there is none")
            with pytest.raises(StreamDivergedError, match=f"'beta' claims .* message {upto}"):
                await settle(store, upto, refusal, chain=chain)
            assert await peer_of(store) == before
            assert await spans(store) == [(3, 4), (5, 5)]
            assert await dead(store) == []
            # The number that is right is taken afterwards.
            await settle(store, 5, refusal)
            assert [body for body, _, _ in await dead(store)] == [b"3"]

    async def test_a_page_that_cannot_be_sent_keeps_its_numbers(self, place: Place) -> None:
        async with opened(place.store(), config=DurableQueuesConfig(batch_messages_max=2)) as store:
            await post(store, PEER, b"1", b"2", b"3")
            for _ in range(2):
                await void(store, (await pages_of(store))[0])
            page = (await pages_of(store))[0]
            assert (page.first, page.last, page.data, page.size) == (1, 2, None, 0)
            assert await dead(store) == [(b"1", "too large", "big"), (b"2", "too large", "big")]
            assert await bodies(store) == [b"3"]

    async def test_what_waits_is_counted(self, place: Place) -> None:
        async with opened(place.store(), config=DurableQueuesConfig(batch_messages_max=2)) as store:
            await post(store, PEER, b"1", b"2", b"3", b"4", b"5")
            id = (await peer_of(store)).id
            assert await store.read(query.count_outbox, id) == 5
            await settle(store, 2)
            assert await store.read(query.count_outbox, id) == 3
            await store.write(lambda ledger: ledger.outbox.purge(PEER))
            assert await store.read(query.count_outbox, id) == 0
            assert await store.read(query.oldest_outbox_ms, id) is None
            await post(store, PEER, b"6")
            assert await store.read(query.count_outbox, id) == 1
            assert await store.read(query.oldest_outbox_ms, id) is not None

    async def test_a_purge_leaves_only_numbers(self, store: Store) -> None:
        await post(store, PEER, b"1", b"2")
        assert await store.write(lambda ledger: ledger.outbox.purge(PEER)) == 2
        assert await store.write(lambda ledger: ledger.outbox.purge(PEER)) == 0
        assert await bodies(store) == []
        assert await spans(store) == [(1, 2)]
        await settle(store, 2, MessageRejection(1, "x", "of a purged page"))
        assert await dead(store) == []

    async def test_an_epoch_numbers_what_waits_from_one_again(self, place: Place) -> None:
        async with opened(place.store(), config=DurableQueuesConfig(batch_messages_max=2)) as store:
            await post(store, PEER, b"1", b"2", b"3", b"4", b"5")
            await settle(store, 2)
            assert await store.write(lambda ledger: ledger.outbox.start_epoch(PEER)) == 3
            assert await spans(store) == [(1, 2), (3, 3)]
            await settle(store, 3, epoch=1)
            await post(store, PEER, b"6")
        async with opened(place.store()) as store:
            assert await bodies(store) == [b"3", b"4", b"5", b"6"]
            peer, pages = await peer_of(store), await pages_of(store)
            assert (peer.epoch, peer.last_seq, peer.acked_seq) == (2, 4, 0)
            chain = initial_chain(store.id, 2, PEER)
            assert peer.acked_chain == chain
            for page in pages:
                chain = extend_chain(chain, page.data or b"")
                assert page.chain == chain
            assert all(a.last + 1 == b.first for a, b in pairwise(pages))


class IdempotencyBehaviour:
    """Posting twice under one key is posting once."""

    async def test_the_same_message_is_posted_once(self, place: Place) -> None:
        async with opened(place.store()) as store:
            (id,) = await post(store, PEER, b"1", idempotency_key="once")
            assert await post(store, PEER, b"1", idempotency_key="once") == [id]
        async with opened(place.store()) as store:
            assert await post(store, PEER, b"1", idempotency_key="once") == [id]
            assert await bodies(store) == [b"1"]
            await post(store, "other", b"1", idempotency_key="once")
            assert await bodies(store, "other") == [b"1"]

    async def test_one_message_is_posted_once_by_a_commit_or_batch(self, store: Store) -> None:
        calls = (post(store, PEER, b"1", idempotency_key="once") for _ in range(3))
        ids = await asyncio.gather(*calls)
        assert len({id for (id,) in ids}) == 1
        first, again = await post(store, PEER, b"2", b"2", idempotency_key="batch")
        assert first == again
        assert await bodies(store) == [b"1", b"2"]
        own = [await post(store, OWN, b"1", idempotency_key="once") for _ in range(2)]
        assert own[0] == own[1]
        assert len(await store.read(query.peek_queue, QUEUE, 10)) == 1

    async def test_another_message_of_the_key_is_refused_with_its_batch(self, store: Store) -> None:
        with pytest.raises(IdempotencyConflictError, match="'once'"):
            await post(store, PEER, b"1", b"2", idempotency_key="once")
        assert await bodies(store) == []
        await post(store, PEER, b"1", idempotency_key="once")
        with pytest.raises(IdempotencyConflictError, match="'once'"):
            await post(store, PEER, b"2", idempotency_key="once")
        clerk = MessageEncoder(DurableQueuesConfig(), "alpha")
        posts = [
            encode(clerk, PEER, QUEUE, b"2"),
            encode(clerk, PEER, QUEUE, b"3", idempotency_key="once"),
        ]
        posting = SendMutation(posts, asyncio.get_running_loop().create_future())
        store.submit(posting)
        with pytest.raises(IdempotencyConflictError):
            await posting.done
        assert await bodies(store) == [b"1"]

    async def test_keys_are_forgotten_in_time(self, store: Store) -> None:
        await post(store, PEER, b"1", idempotency_key="once")
        await store.write(lambda ledger: ledger.outbox.purge_sent(1))
        await post(store, PEER, b"1", idempotency_key="once")
        assert await bodies(store) == [b"1"]
        await store.write(lambda ledger: ledger.outbox.purge_sent(ledger.now_ms + 1))
        await post(store, PEER, b"1", idempotency_key="once")
        assert await bodies(store) == [b"1", b"1"]
