"""A copy takes the place of the database: nothing goes on with what the copy does not know."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from postroad.core.errors import StoreError, StoreLockedError, StoreMismatchError
from postroad.durable import DurableQueues, Message, StaticPeerDirectory, Store, Transaction
from postroad.durable.store.backends.postgres import PostgresBackend
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.schema import MIGRATIONS
from postroad.flows import FlowService
from postroad.net import MessagingService
from tests.contract.store_behaviour import bodies, when_possible
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.durable.fail_overs import Replicated, ReplicatedDatabase, ReplicatedDisk
from tests.support.durable.nodes import OWN, PEER, QUEUE, opened, post
from tests.support.servers.postgres import fresh_database


@pytest.fixture(params=["memory", "postgres"])
def database(request: pytest.FixtureRequest) -> Iterator[Replicated]:
    if request.param == "memory":
        yield ReplicatedDisk()
    else:
        with fresh_database() as dsn:
            yield ReplicatedDatabase(dsn)


async def post_when_possible(store: Store, body: bytes) -> None:
    await when_possible(lambda: post(store, PEER, body))


async def check_it_has_ended(store: Store, failure: type[StoreError], text: str) -> None:
    """Whatever is asked of a store, it says why it does nothing any more."""
    with pytest.raises(failure, match=text):
        await post_when_possible(store, b"lost")
    assert store.ended.done()
    with pytest.raises(failure, match=text):
        await store.begin_transaction()
    with pytest.raises(failure, match=text):
        await store.read(query.list_peers)
    with pytest.raises(failure, match=text):
        store.read_blocking(query.list_peers)


async def test_idle_store_notices_that_commits_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresBackend, "idle_check_s", 0.05)
    with fresh_database() as dsn:
        database = ReplicatedDatabase(dsn)
        async with opened(database.store()) as store:
            await post(store, PEER, b"1")
            await asyncio.to_thread(database.copy)
            await post_when_possible(store, b"2")
            await asyncio.to_thread(database.fail_over)
            await eventually(store.ended.done)
            assert "1 commits behind" in str(store.ended.result())


async def test_store_that_lost_commits_ends_and_a_new_one_goes_on(database: Replicated) -> None:
    async with opened(database.store()) as store:
        await post(store, PEER, b"1")
        await asyncio.to_thread(database.copy)
        for number in range(5):
            await post_when_possible(store, b"%d" % number)
        await asyncio.to_thread(database.fail_over)
        await check_it_has_ended(store, StoreMismatchError, "5 commits behind")
        # The lock is free already.
        async with opened(database.store()) as again:
            await post(again, PEER, b"2")
            assert await bodies(again) == [b"1", b"2"]


async def test_store_whose_copy_has_everything_goes_on(database: Replicated) -> None:
    async with opened(database.store()) as store:
        await post(store, PEER, b"1")
        await asyncio.to_thread(database.copy)
        await asyncio.to_thread(database.fail_over)
        await post_when_possible(store, b"2")
        assert await when_possible(lambda: bodies(store)) == [b"1", b"2"]
        assert not store.ended.done()


async def test_store_whose_copy_lost_its_tables_ends(database: Replicated) -> None:
    await asyncio.to_thread(database.copy)
    async with opened(database.store()) as store:
        await post(store, PEER, b"1")
        await asyncio.to_thread(database.fail_over)
        await check_it_has_ended(store, StoreMismatchError, "no tables of this store")


@pytest.mark.parametrize("more", [0, 1])
async def test_store_whose_copy_went_its_own_way_ends(database: Replicated, more: int) -> None:
    """The number of commits fits, but they are not those of this process."""
    async with opened(database.store()) as store:
        await post(store, PEER, b"1")
        await asyncio.to_thread(database.copy)
        for number in range(5):
            await post_when_possible(store, b"%d" % number)
        count = store._tables.commits + more
        await asyncio.to_thread(database.fail_over)
        database.execute(
            f"UPDATE postroad_meta SET value = '{count} 0123456789abcdef'"
            " WHERE name = 'commits.node'"
        )
        await check_it_has_ended(
            store, StoreMismatchError, f"has a commit {count} that this node did"
        )


async def test_store_whose_copy_was_used_by_another_process_ends(database: Replicated) -> None:
    async with opened(database.store()) as store:
        await post(store, PEER, b"1")
        await asyncio.to_thread(database.copy)
        await post_when_possible(store, b"2")
        await asyncio.to_thread(database.fail_over)
        async with opened(database.store(), role="bridge"):
            # Another role is no other process of this one.
            pass
        database.execute("UPDATE postroad_meta SET value = 'other' WHERE name = 'process.node'")
        await check_it_has_ended(store, StoreLockedError, "start this one again")


async def test_old_process_commits_nothing_once_tables_are_newer(database: Replicated) -> None:
    newer = len(MIGRATIONS) + 1
    async with opened(database.store()) as store:
        await post(store, PEER, b"1")
        database.execute(f"UPDATE postroad_meta SET value = '{newer}' WHERE name = 'schema'")
        await check_it_has_ended(store, StoreMismatchError, f"schema {newer}")


async def test_what_waits_for_a_store_that_ends_is_told(database: Replicated) -> None:
    async with opened(database.store()) as store:
        await asyncio.to_thread(database.copy)
        await post_when_possible(store, b"1")
        turn = await store.begin_transaction()
        await turn.execute("SELECT 1")
        waiting = [asyncio.create_task(post(store, PEER, b"%d" % number)) for number in range(3)]
        beginning = asyncio.create_task(store.begin_transaction())
        await asyncio.sleep(0)
        await asyncio.to_thread(database.fail_over)
        turn.finish(None)
        async with asyncio.timeout(DEADLINE_S):
            outcomes = await asyncio.gather(*waiting, beginning, return_exceptions=True)
        assert all(isinstance(outcome, StoreError) for outcome in outcomes)
        await eventually(store.ended.done, "it has ended")


async def test_mail_that_lost_commits_handles_nothing_more(database: Replicated) -> None:
    handled: list[bytes] = []
    gate = asyncio.Event()

    async def handle(message: Message, tx: Transaction) -> None:
        if len(handled) == 5:
            await gate.wait()
        handled.append(message.body)
        await tx.execute("SELECT 1")

    service = MessagingService("contract", OWN)
    mail = DurableQueues(service, database.store(), directory=StaticPeerDirectory({}))
    async with service, mail, FlowService(mail, []) as flows:
        async with mail.transaction() as tx:
            for number in range(20):
                tx.send(QUEUE, b"%d" % number, to=OWN)
        await asyncio.to_thread(database.copy)
        await when_possible(lambda: mail.send("other", b"it is connected again", to=OWN))
        await when_possible(lambda: mail.store.read(query.list_queues))
        await mail.consume(QUEUE, handle, concurrency=1)
        await eventually(lambda: len(handled) == 5, "some are handled")
        await asyncio.to_thread(database.fail_over)
        gate.set()
        await eventually(mail.store.ended.done, "the store has ended")
        with pytest.raises(StoreMismatchError, match="commits behind"):
            await mail.send(QUEUE, b"lost", to=PEER)
        with pytest.raises(StoreMismatchError, match="commits behind"):
            await mail.consume("another", handle)
        await eventually(
            lambda: flows._stop_task is not None and flows._stop_task.done(), "no flows"
        )
        with pytest.raises(StoreMismatchError, match="commits behind"):
            await flows.admin.list()
    # All of them are there again for the next process, of which the copy knew nothing.
    again: list[bytes] = []

    async def handle_again(message: Message, tx: Transaction) -> None:
        again.append(message.body)

    service = MessagingService("contract", OWN)
    async with (
        service,
        DurableQueues(service, database.store(), directory=StaticPeerDirectory({})) as mail,
    ):
        await mail.consume(QUEUE, handle_again)
        await eventually(lambda: len(again) >= 20, "all are handled")
    assert sorted(again) == sorted(b"%d" % number for number in range(20))
