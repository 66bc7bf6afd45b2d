"""What only a store on a server can suffer: lost connections, and the server's death."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import psycopg
import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import (
    ConfigError,
    MissingExtraError,
    StoreLockedError,
    StoreUnavailableError,
)
from postroad.durable import (
    DurableQueues,
    Message,
    OutgoingMessage,
    PostgresStore,
    StaticPeerDirectory,
    Store,
    Transaction,
)
from postroad.durable.store.tables import queries as query
from postroad.net import MessagingService
from tests.contract.store_behaviour import (
    bodies,
    make_table,
    open_both_at_once,
    rows,
    when_possible,
)
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.durable.nodes import OWN, PEER, QUEUE, once, opened, post, posting_of
from tests.support.servers.postgres import PostgresServer, fresh_database, postgres_server


@pytest.fixture
def dsn() -> Iterator[str]:
    with fresh_database() as it:
        yield it


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Every test leaves it running."""
    with postgres_server() as server:
        yield server


def end_sessions(dsn: str) -> None:
    """Have the server close every other connection to the database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def end_session(dsn: str, session: int) -> None:
    """Have the server close one connection, and wait until it has."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        ended = connection.execute("SELECT pg_terminate_backend(%s, 5000)", (session,))
        assert ended.fetchone() == (True,)


async def post_when_possible(store: Store, body: bytes) -> None:
    await when_possible(lambda: post(store, PEER, body, idempotency_key=body.decode()))


async def read_when_possible(store: Store) -> list[bytes]:
    return await when_possible(lambda: bodies(store))


async def test_a_lost_connection_is_made_again(dsn: str) -> None:
    async with opened(PostgresStore(dsn)) as store:
        await store.lock("bridge")
        await post(store, PEER, b"1")
        end_sessions(dsn)
        with pytest.raises(StoreUnavailableError):
            await post(store, PEER, b"2", idempotency_key="2")
        await post_when_possible(store, b"2")
        assert await read_when_possible(store) == [b"1", b"2"]
        # Both locks were taken again.
        for role in ("node", "bridge"):
            with pytest.raises(StoreLockedError):
                await PostgresStore(dsn).open(OWN, role=role)


@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_connection_lost_at_the_commit(dsn: str, point: str) -> None:
    async with opened(PostgresStore(dsn)) as store:
        await post(store, PEER, b"1")

        def lose() -> None:
            end_sessions(dsn)
            raise StoreUnavailableError("the connection is lost")

        with faults.arm_fault_point(f"durable.commit.{point}", once(lose)):
            posting = posting_of(PEER, b"2")
            store.submit(posting)
            _, waiting = await asyncio.wait((posting.done,), timeout=DEADLINE_S)
            assert not waiting
        has_happened = point == "after"
        assert (posting.done.exception() is None) is has_happened
        await post_when_possible(store, b"3")
        expected = [b"1", b"2", b"3"] if has_happened else [b"1", b"3"]
        assert await read_when_possible(store) == expected


async def test_a_transaction_whose_connection_is_lost(dsn: str) -> None:
    async with opened(PostgresStore(dsn)) as store:
        await make_table(store)
        turn = await store.begin_transaction()
        await turn.execute("INSERT INTO mine VALUES (1)")
        waiting = asyncio.create_task(store.begin_transaction())
        end_sessions(dsn)
        with pytest.raises(StoreUnavailableError):
            await turn.execute("INSERT INTO mine VALUES (2)")
        posting = posting_of(PEER, b"with them")
        turn.finish(posting)
        with pytest.raises(StoreUnavailableError):
            await posting.done
        outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
        if not isinstance(outcome, BaseException):
            outcome.finish(None)
        await post_when_possible(store, b"1")
        assert await read_when_possible(store) == [b"1"]
        assert await rows(store) == []


async def test_a_process_whose_store_was_used_by_another_writes_nothing_more(dsn: str) -> None:
    store = PostgresStore(dsn)
    await store.open(OWN)
    await post(store, PEER, b"1")
    end_sessions(dsn)
    async with opened(PostgresStore(dsn)) as other:
        await post(other, PEER, b"2")
    # The lock is free again, but what this one remembers is not so any more.
    with pytest.raises(StoreLockedError, match="start this one again"):
        await post_when_possible(store, b"lost")
    with pytest.raises(StoreLockedError):
        await store.begin_transaction()
    await store.close()
    async with opened(PostgresStore(dsn)) as again:
        assert await bodies(again) == [b"1", b"2"]


async def test_process_that_was_replaced_lets_the_rightful_one_go_on(dsn: str) -> None:
    replaced, rightful = PostgresStore(dsn), PostgresStore(dsn)
    await replaced.open(OWN)
    await post(replaced, PEER, b"1")
    end_sessions(dsn)
    await rightful.open(OWN)
    # Whoever was replaced is the first to connect again, and gets the lock.
    end_sessions(dsn)
    with pytest.raises(StoreLockedError, match="start this one again"):
        await post_when_possible(replaced, b"lost")
    await post_when_possible(rightful, b"2")
    assert replaced.ended.done() and not rightful.ended.done()
    # Also while the rightful one has the lock.
    assert await read_when_possible(rightful) == [b"1", b"2"]
    await replaced.close()
    await rightful.close()


async def test_process_that_was_replaced_ends_although_it_gets_no_lock(dsn: str) -> None:
    replaced = PostgresStore(dsn)
    await replaced.open(OWN)
    await post(replaced, PEER, b"1")
    end_sessions(dsn)
    async with opened(PostgresStore(dsn)) as rightful:
        with pytest.raises(StoreLockedError, match="start this one again"):
            await post_when_possible(replaced, b"lost")
        await eventually(replaced.ended.done, "it has ended")
        await post(rightful, PEER, b"2")
        await replaced.close()
        assert await bodies(rightful) == [b"1", b"2"]


async def test_messages_whose_connection_is_lost_are_handled_again(dsn: str) -> None:
    handled: list[bytes] = []

    async def handle(message: Message, tx: Transaction) -> None:
        ((session,),) = await tx.execute("SELECT pg_backend_pid()")
        if not handled:
            await asyncio.to_thread(end_session, dsn, session)
        handled.append(message.body)

    async with (
        MessagingService("contract", OWN) as service,
        DurableQueues(service, PostgresStore(dsn), directory=StaticPeerDirectory({})) as mail,
    ):
        await mail.send_many(
            [OutgoingMessage(to=OWN, queue=QUEUE, body=body) for body in (b"1", b"2")]
        )
        await mail.consume(QUEUE, handle, concurrency=1)
        await eventually(lambda: handled[1:][-2:] == [b"1", b"2"], "both were handled again")
    async with opened(PostgresStore(dsn)) as store:
        assert await store.read(query.peek_queue, QUEUE, 10) == []


async def test_a_server_that_dies_and_comes_back(server: PostgresServer) -> None:
    with server.database() as dsn:
        async with opened(PostgresStore(dsn)) as store:
            await post(store, PEER, b"1")
            server.kill()
            # Nobody can know what became of the first one; those that follow are refused.
            first = asyncio.create_task(post(store, PEER, b"2", idempotency_key="2"))
            await eventually(store.writer.commit_lock.locked, "the first one is being written")
            with pytest.raises(StoreUnavailableError):
                await post(store, PEER, b"refused")
            server.start()
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.gather(first, return_exceptions=True)
            await post_when_possible(store, b"2")
            assert await read_when_possible(store) == [b"1", b"2"]


async def test_a_store_whose_server_is_gone_can_be_closed(server: PostgresServer) -> None:
    store = PostgresStore(server.dsn)
    await store.open(OWN)
    server.stop()
    try:
        posting = posting_of(PEER, b"1")
        store.submit(posting)
        async with asyncio.timeout(DEADLINE_S):
            await store.close()
        with pytest.raises(StoreUnavailableError):
            await posting.done
        with pytest.raises(StoreUnavailableError, match="cannot be used now"):
            await PostgresStore(server.dsn).open(OWN)
    finally:
        server.start()


async def test_two_nodes_in_one_database_have_schemas_of_their_own(dsn: str) -> None:
    async with (
        opened(PostgresStore(dsn, "one")) as one,
        # A word of the database may be a name as well.
        opened(PostgresStore(dsn, "user"), PEER) as two,
    ):
        await post(one, PEER, b"1")
        assert one.id != two.id
        assert (await bodies(one), await bodies(two)) == ([b"1"], [])


async def test_a_node_and_its_bridge_start_together_on_a_new_schema(dsn: str) -> None:
    for number in range(5):
        schema = f"schema_{number}"
        await open_both_at_once(PostgresStore(dsn, schema), PostgresStore(dsn, schema))


def test_a_schema_or_connection_string_that_is_none_is_refused() -> None:
    for schema in ("", "a b", 'x"; DROP TABLE y', "a-b"):
        with pytest.raises(ConfigError, match="schema"):
            PostgresStore("postgresql://localhost/mail", schema)
    with pytest.raises(ConfigError, match="connection string"):
        PostgresStore("nonsense")


def test_no_text_tells_the_password() -> None:
    store = PostgresStore("postgresql://me:secret@db.example:5433/mail", "one")
    assert repr(store) == "<PostgresStore postgresql://db.example:5433/mail schema one not open>"


def test_the_driver_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match="the extra 'postgres'"):
        PostgresStore("postgresql://localhost/mail")
