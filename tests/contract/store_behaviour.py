"""What every store does, whatever database it is in. Each kind inherits these suites.

Here: opening and committing. Transactions of users and failures are in
`store_savepoint_behaviour`, messages in `store_outbox_behaviour`, `store_inbox_behaviour`,
`store_queue_behaviour` and `store_handling_behaviour`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import pytest

from postroad.core.errors import (
    ConfigError,
    DeadLetterNotFoundError,
    StoreLockedError,
    StoreMismatchError,
    StoreUnavailableError,
    UsageError,
)
from postroad.durable import DurableQueuesConfig, Store
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.mutations import FunctionMutation, Mutation
from postroad.durable.store.savepoints import SavepointTransaction
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.schema import MIGRATIONS, read_meta, write_meta
from postroad.durable.store.tables.store_tables import CommitEvent, StoreTables
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.nodes import OWN, PEER, QUEUE, opened, post, posting_of

T = TypeVar("T")


class Place(Protocol):
    """Where the data of one test is."""

    mark: str
    """How a user's statement says that there is a parameter."""
    reads_beside: bool
    """Whether one can read while a transaction is open."""

    def store(self) -> Store:
        """A store on the data of this place."""

    def back_up(self) -> None:
        """Keep a copy of the data; no store may be open."""

    def restore(self) -> None:
        """Go back to the copy; no store may be open."""


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    """An open store, in which a user has a table."""
    async with opened(place.store()) as store:
        await make_table(store)
        yield store


async def bodies(store: Store, peer: str = PEER) -> list[bytes]:
    """What waits for a peer."""
    return [letter.body for letter in await store.read(query.peek_outbox, peer, 1_000)]


async def when_possible(work: Callable[[], Awaitable[T]]) -> T:
    """The result of some work, as soon as the store can be used again."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await work()
            except StoreUnavailableError:
                await asyncio.sleep(0.01)


def set_fact(name: str, value: str = "set") -> Any:
    return lambda ledger: write_meta(ledger.database, name, value)


async def make_table(store: Store) -> None:
    """A table of a user's own."""
    await store.write(lambda ledger: ledger.database.execute("CREATE TABLE mine (x BIGINT UNIQUE)"))


async def keep(turn: SavepointTransaction, *texts: bytes) -> None:
    """End a turn well, with messages that are posted with it."""
    posting = posting_of(PEER, *texts)
    turn.finish(posting)
    await posting.done


async def rows(store: Store) -> list[int]:
    """What is in it."""

    def select(database: StoreConnection) -> list[int]:
        return [x for (x,) in database.execute("SELECT x FROM mine ORDER BY x")]

    return await store.read(select)


async def open_both_at_once(node: Store, bridge: Store) -> None:
    """A node and its bridge process start on a new store, and agree on what it is."""
    opening = (node.open(OWN), bridge.open(OWN, role="bridge"))
    outcomes = await asyncio.gather(*opening, return_exceptions=True)
    await asyncio.gather(node.close(), bridge.close())
    assert list(outcomes) == [None, None]
    assert node.id == bridge.id


class OpeningBehaviour:
    """A store is one node's, and one process's in each role."""

    async def test_a_store_keeps_its_identity(self, place: Place) -> None:
        async with opened(place.store()) as store:
            id = store.id
            assert len(id) == 16
        async with opened(place.store()) as store:
            assert store.id == id
            assert store.owner == OWN

    async def test_another_node_is_refused(self, place: Place) -> None:
        async with opened(place.store()):
            pass
        with pytest.raises(StoreMismatchError, match="belongs to node 'alpha'"):
            await place.store().open(PEER)
        async with opened(place.store()) as store:
            assert store.owner == OWN

    async def test_a_second_process_is_refused(self, place: Place) -> None:
        second = place.store()
        async with opened(place.store()):
            with pytest.raises(StoreLockedError, match="stop that one first"):
                await second.open(OWN)
        async with opened(second) as store:
            await post(store, PEER, b"now it may")

    async def test_roles_are_locked_one_by_one(self, place: Place) -> None:
        async with opened(place.store()) as store:
            await store.lock("bridge")
            with pytest.raises(StoreLockedError, match="bridge"):
                await place.store().open(OWN, role="bridge")
        async with opened(place.store(), role="bridge"), opened(place.store()) as store:
            with pytest.raises(StoreLockedError, match="bridge"):
                await store.lock("bridge")

    async def test_a_store_of_a_newer_version_is_refused(self, place: Place) -> None:
        newer = len(MIGRATIONS) + 1
        async with opened(place.store()) as store:
            await store.write(set_fact("schema", str(newer)))
        with pytest.raises(StoreMismatchError, match=f"schema {newer}"):
            await place.store().open(OWN)

    async def test_whoever_does_not_know_the_owner_is_told(self, place: Place) -> None:
        with pytest.raises(StoreMismatchError, match="never used"):
            await place.store().open()
        async with opened(place.store()) as store:
            id = store.id
        store = place.store()
        await store.open()
        assert (store.owner, store.id) == (OWN, id)
        await store.close()

    async def test_the_settings_of_the_node_are_those_of_its_bridge(self, place: Place) -> None:
        config = DurableQueuesConfig(windows_max=2, ack_timeout_s=0.5)
        async with (
            opened(place.store(), config=config) as node,
            opened(place.store(), role="bridge") as bridge,
        ):
            assert bridge.config == node.config == config
        async with opened(place.store(), config=DurableQueuesConfig()) as node:
            assert node.config == DurableQueuesConfig()
            await node.write(set_fact("config", '{"windows_max": 0}'))
        async with opened(place.store()) as node:
            assert node.config == DurableQueuesConfig(), "what is not valid is not used"

    async def test_a_store_may_be_taken_over(self, place: Place) -> None:
        async with opened(place.store(), role="bridge") as old:
            new = place.store()
            await new.open(OWN, role="bridge", force=True)
            assert new.id == old.id
            await new.close()

    async def test_same_object_is_opened_again_and_idle_meanwhile(self, place: Place) -> None:
        store = place.store()
        with pytest.raises(ConfigError):
            await store.open("")
        for number in (1, 2):
            assert "not open" in repr(store)
            with pytest.raises(UsageError, match="is not open"):
                await store.write(set_fact("x"))
            with pytest.raises(UsageError, match="is not open"):
                await store.read(query.list_peers)
            await store.close()
            async with opened(store):
                with pytest.raises(UsageError, match="open already"):
                    await store.open(OWN)
                await post(store, PEER, b"%d" % number)
        async with opened(store):
            assert await bodies(store) == [b"1", b"2"]

    async def test_whoever_gives_up_opening_keeps_nobody_out(self, place: Place) -> None:
        opening = asyncio.create_task(place.store().open(OWN))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        async with opened(place.store()) as store:
            await post(store, PEER, b"x")

    async def test_a_copy_brings_back_what_was(self, place: Place) -> None:
        async with opened(place.store()) as store:
            await post(store, PEER, b"1")
            id = store.id
        place.back_up()
        async with opened(place.store()) as store:
            await post(store, PEER, b"2")
        place.restore()
        async with opened(place.store()) as store:
            assert store.id == id
            assert await bodies(store) == [b"1"]
            await post(store, PEER, b"3")
            assert await bodies(store) == [b"1", b"3"]


class CommitBehaviour:
    """Many units share a commit, and none harms another."""

    async def test_units_are_done_in_order_and_together(self, store: Store) -> None:
        done: list[int] = []
        await store.write(set_fact("warm"))
        before = store.writer.commits

        def write(number: int, ledger: StoreTables) -> None:
            done.append(number)

        units = [FunctionMutation(partial(write, number)) for number in range(200)]
        for unit in units:
            store.submit(unit)
        await asyncio.gather(*(unit.done for unit in units))
        assert done == list(range(200))
        assert 1 <= store.writer.commits - before <= 2

    async def test_the_result_of_a_write_is_returned(self, store: Store) -> None:
        assert await store.write(lambda ledger: ledger.owner) == OWN

    async def test_a_unit_that_is_refused_harms_no_other(self, store: Store) -> None:
        def refuse(ledger: StoreTables) -> None:
            raise DeadLetterNotFoundError("there is none")

        refused = FunctionMutation(refuse)
        others = [posting_of(PEER, b"1"), posting_of(PEER, b"2")]
        for unit in (others[0], refused, others[1]):
            store.submit(unit)
        with pytest.raises(DeadLetterNotFoundError):
            await refused.done
        await asyncio.gather(*(unit.done for unit in others))
        assert await bodies(store) == [b"1", b"2"]

    async def test_a_unit_that_breaks_harms_no_other(self, store: Store) -> None:
        def break_down(ledger: StoreTables) -> None:
            write_meta(ledger.database, "half", "done")
            raise ZeroDivisionError

        broken = FunctionMutation(break_down)
        others = [posting_of(PEER, b"1"), posting_of(OWN, b"own"), posting_of(PEER, b"2")]
        units: list[Mutation] = [*others[:2], broken, others[2]]
        for unit in units:
            store.submit(unit)
        with pytest.raises(ZeroDivisionError):
            await broken.done
        await asyncio.gather(*(unit.done for unit in others))
        assert await bodies(store) == [b"1", b"2"]
        own = await store.read(query.peek_queue, QUEUE, 10)
        assert [letter.body for letter in own] == [b"own"]
        assert await store.read(read_meta, "half") is None

    async def test_a_broken_statement_harms_no_other(self, store: Store) -> None:
        broken = FunctionMutation(lambda ledger: ledger.database.execute("SELECT x FROM nowhere"))
        other = posting_of(PEER, b"1")
        store.submit(broken)
        store.submit(other)
        with pytest.raises(Exception, match="nowhere"):
            await broken.done
        await other.done
        assert await bodies(store) == [b"1"]

    async def test_news_are_told_before_whoever_waits_hears(self, store: Store) -> None:
        told: list[str] = []

        def listen(news: CommitEvent) -> None:
            told.extend(f"{peer} {page.first}-{page.last}" for peer, page in news.outbox_batches)

        store.commit_listeners.add(listen)
        posting = posting_of(PEER, b"1", b"2")
        posting.done.add_done_callback(lambda _: told.append("heard"))
        store.submit(posting)
        await posting.done
        await asyncio.sleep(0)
        assert told == [f"{PEER} 1-2", "heard"]

    async def test_nobody_needs_to_wait(self, store: Store) -> None:
        writing = asyncio.create_task(post(store, PEER, b"1"))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await post(store, PEER, b"2")
        assert await bodies(store) == [b"1", b"2"]

    async def test_closing_commits_what_was_submitted(self, place: Place) -> None:
        async with opened(place.store()) as store:
            store.submit(posting_of(PEER, b"1"))
            store.submit(posting_of(PEER, b"2"), lazy=True)
        async with opened(place.store()) as store:
            assert await bodies(store) == [b"1", b"2"]

    async def test_what_is_not_urgent_is_written_too(self, store: Store) -> None:
        posting = posting_of(PEER, b"1")
        store.submit(posting, lazy=True)
        async with asyncio.timeout(DEADLINE_S):
            await posting.done

    async def test_too_much_that_is_unwritten_makes_others_wait(self, place: Place) -> None:
        config = DurableQueuesConfig(write_queue_bytes_max=1_000)
        async with opened(place.store(), config=config) as store:
            first = posting_of(PEER, bytes(2_000))
            assert store.writer.has_capacity
            store.submit(first)
            assert not store.writer.has_capacity
            await store.writer.wait_for_capacity()
            assert store.writer.has_capacity
            await first.done
