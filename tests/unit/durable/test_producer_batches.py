"""Posts that share a commit: one unit for all of them, and for each its own outcome."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import OutboxFullError, StoreUnavailableError
from postroad.durable import DurableQueuesConfig, MemoryStore, Store
from postroad.durable.producer import MessageEncoder, SendBatchMutation, submit_send
from postroad.durable.store.mutations import FunctionMutation
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.store_tables import StoreTables
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.nodes import OWN, PEER, QUEUE, once, opened, posting_of, raising

ROOM = 3
OTHER = "delta"


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """One that keeps three messages for each peer."""
    async with opened(
        MemoryStore(), config=DurableQueuesConfig(outbox_messages_max=ROOM)
    ) as opened_store:
        yield opened_store


_clerk = MessageEncoder(DurableQueuesConfig(), "alpha")


def post(store: Store, *numbers: int, peer: str = PEER) -> list[asyncio.Future[None]]:
    """Post numbers that wait for the same commit."""
    return [
        submit_send(store.writer, _clerk.encode_fast(peer, QUEUE, b"%d" % number))
        for number in numbers
    ]


async def outcomes(*waiting: asyncio.Future[None]) -> list[bool]:
    """For each whether it was taken; otherwise its mailbox was full."""
    async with asyncio.timeout(DEADLINE_S):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(result is None or isinstance(result, OutboxFullError) for result in results)
    return [result is None for result in results]


async def numbers(store: Store, peer: str = PEER) -> list[int]:
    return [int(message.body) for message in await store.read(query.peek_outbox, peer, 100)]


def break_down(ledger: StoreTables) -> None:
    raise ZeroDivisionError


async def test_concurrent_sends_share_one_mutation(store: Store) -> None:
    await store.write(lambda ledger: None)
    before = store.writer.commits
    first = post(store, 1)
    unit = store.writer.last_queued
    others = [*post(store, 2, 3), *post(store, 4, peer=OTHER)]
    assert isinstance(unit, SendBatchMutation)
    assert store.writer.last_queued is unit
    assert await outcomes(*first, *others) == [True] * 4
    assert store.writer.commits == before + 1
    assert (await numbers(store), await numbers(store, OTHER)) == ([1, 2, 3], [4])


async def test_send_keeps_its_order_in_next_commit(store: Store) -> None:
    before = post(store, 1)
    between = posting_of(PEER, b"2", idempotency_key="i")
    store.submit(between)
    after = post(store, 3)
    await asyncio.gather(*before, between.done, *after)
    assert await numbers(store) == [1, 2, 3]


async def test_started_commit_accepts_no_more_sends(store: Store) -> None:
    first = post(store, 1)
    unit = store.writer.last_queued
    await asyncio.gather(*first)
    second = post(store, 2)
    assert store.writer.last_queued is not unit
    await asyncio.gather(*second)
    assert await numbers(store) == [1, 2]


async def test_sends_beyond_outbox_capacity_are_rejected(store: Store) -> None:
    assert await outcomes(*post(store, 1, 2, 3, 4, 5)) == [True, True, True, False, False]
    assert await numbers(store) == [1, 2, 3]
    assert await outcomes(*post(store, 6)) == [False]


async def test_full_outbox_does_not_affect_other_peers(store: Store) -> None:
    full, other = post(store, *range(5)), post(store, 7, 8, peer=OTHER)
    own = post(store, *range(10), peer=OWN)
    assert (await outcomes(*full)).count(False) == 2
    assert await outcomes(*other, *own) == [True] * 12
    assert await numbers(store, OTHER) == [7, 8]
    messages = await store.read(query.peek_queue, QUEUE, 100)
    assert [int(message.body) for message in messages] == list(range(10))


@pytest.mark.parametrize("index", range(5))
async def test_cancelled_waiter_does_not_affect_others(store: Store, index: int) -> None:
    waiting = post(store, 1, 2, 3, 4, 5)
    waiting.pop(index).cancel()
    expected = [True, True, True, False, False]
    del expected[index]
    assert await outcomes(*waiting) == expected
    # What was posted is posted, whether anybody waits or not.
    assert await numbers(store) == [1, 2, 3]


async def test_all_hear_of_a_commit_that_failed(store: Store) -> None:
    with faults.arm_fault_point(
        "durable.commit.before", once(raising(StoreUnavailableError("away")))
    ):
        waiting = [*post(store, 1, 2), *post(store, 3, peer=OTHER)]
        waiting[1].cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
    kinds = [type(result) for result in results]
    assert kinds == [StoreUnavailableError, asyncio.CancelledError, StoreUnavailableError]
    assert await numbers(store) == []
    assert await outcomes(*post(store, 4, 5, 6, 7)) == [True, True, True, False]


async def test_sends_beside_failing_mutation_are_stored_once(store: Store) -> None:
    waiting = post(store, 1, 2, 3, 4)
    broken = FunctionMutation(break_down)
    store.submit(broken)
    with pytest.raises(ZeroDivisionError):
        await broken.done
    assert await outcomes(*waiting) == [True, True, True, False]
    assert await numbers(store) == [1, 2, 3]


async def test_batched_sends_count_as_queued_bytes() -> None:
    async with opened(
        MemoryStore(), config=DurableQueuesConfig(write_queue_bytes_max=1_000)
    ) as store:
        writer, body = store.writer, bytes(400)
        waiting = [submit_send(writer, _clerk.encode_fast(PEER, QUEUE, body)) for _ in range(2)]
        assert writer.has_capacity
        waiting.append(submit_send(writer, _clerk.encode_fast(PEER, QUEUE, body)))
        assert not writer.has_capacity
        await asyncio.gather(*waiting)
        assert writer.has_capacity
