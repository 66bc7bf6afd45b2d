"""Users share commits with others: whatever one of them runs, only its own part fails."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from postroad.core import fault_points as faults
from postroad.core.errors import TransactionAbortedError, UsageError
from postroad.durable import (
    DurableQueues,
    DurableQueuesConfig,
    Message,
    PostgresStore,
    RetryPolicy,
    SqliteStore,
    StaticPeerDirectory,
    Store,
    Transaction,
)
from postroad.durable.store import writer
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.savepoints import SavepointTransaction
from postroad.net import MessagingService
from tests.contract.store_behaviour import bodies, keep, make_table, rows, when_possible
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.durable.nodes import OWN, PEER, QUEUE, once, opened, post, posting_of
from tests.support.servers.postgres import fresh_database

DEFERRED = (
    "CREATE TABLE parent (id BIGINT PRIMARY KEY)",
    "CREATE TABLE child (id BIGINT REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
    "CREATE TABLE eager (id BIGINT UNIQUE DEFERRABLE INITIALLY IMMEDIATE)",
)
SHOWN = (
    "default_transaction_isolation",
    "default_transaction_read_only",
    "lock_timeout",
    "role",
    "search_path",
    "session_authorization",
    "statement_timeout",
    "synchronous_commit",
)


@pytest.fixture
def dsn() -> Iterator[str]:
    with fresh_database() as it:
        yield it


@pytest.fixture
async def postgres(dsn: str) -> AsyncIterator[Store]:
    async with opened(PostgresStore(dsn)) as store:
        await make_table(store)
        yield store


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(SqliteStore(tmp_path / "store.db")) as store:
        await make_table(store)
        yield store


@pytest.fixture
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, all turns that wait share a commit."""
    monkeypatch.setattr(writer, "_GROUP_S", DEADLINE_S)


async def run(turn: SavepointTransaction, *statements: str) -> asyncio.Future[None]:
    """Run statements in a turn, and have it committed with what was run before and after."""
    for statement in statements:
        await turn.execute(statement)
    posting = posting_of(PEER, statements[0].encode())
    turn.finish(posting)
    return posting.done


def count_waiting(database: StoreConnection) -> int:
    """Messages that are neither handled nor dead."""
    tables = ("postroad_inbox", "postroad_aside")
    return sum(database.execute(f"SELECT COUNT(*) FROM {table}")[0][0] for table in tables)


async def execute(store: Store, *statements: str) -> None:
    await (await run(await store.begin_transaction(), *statements))


# Deferred constraints.


@pytest.mark.usefixtures("one_round")
async def test_deferred_constraint_fails_only_whoever_broke_it(postgres: Store) -> None:
    await execute(postgres, *DEFERRED, "INSERT INTO parent VALUES (1)")
    before = postgres.writer.commits
    first = await postgres.begin_transaction()
    waiting = [asyncio.create_task(postgres.begin_transaction()) for _ in range(3)]
    await asyncio.sleep(0)
    beside = posting_of(PEER, b"beside")
    postgres.submit(beside)
    good = await run(first, "INSERT INTO child VALUES (1)", "INSERT INTO mine VALUES (1)")
    bad = await run(await waiting[0], "INSERT INTO child VALUES (9)", "INSERT INTO mine VALUES (9)")
    # What one may put off until the end of its own part is still checked there, and not earlier.
    late = await run(
        await waiting[1], "INSERT INTO child VALUES (2)", "INSERT INTO parent VALUES (2)"
    )
    # And what is checked at once stays so.
    turn = await waiting[2]
    await turn.execute("INSERT INTO eager VALUES (1)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        await turn.execute("INSERT INTO eager VALUES (1)")
    eager = await run(turn, "INSERT INTO mine VALUES (3)")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        await bad
    await asyncio.gather(good, late, eager, beside.done)
    assert postgres.writer.commits == before + 1
    assert await rows(postgres) == [1, 3]
    kept = await bodies(postgres)
    assert b"beside" in kept and b"INSERT INTO child VALUES (9)" not in kept


async def test_deferred_constraint_makes_no_dead_letters_of_others(postgres: Store) -> None:
    """Handlers of one queue with few attempts: the guilty die, and nobody else."""
    await execute(postgres, *DEFERRED)
    await postgres.close()

    async def handle(message: Message, tx: Transaction) -> None:
        kind, number = message.body.split()
        if kind == b"bad":
            await tx.execute("INSERT INTO child VALUES (-1)")
        else:
            await tx.execute("INSERT INTO parent VALUES (%s)", (int(number),))

    service = MessagingService("contract", OWN)
    async with (
        service,
        DurableQueues(service, postgres, directory=StaticPeerDirectory({})) as mail,
    ):
        async with mail.transaction() as tx:
            for number in range(30):
                tx.send(QUEUE, b"good %d" % number, to=OWN)
                if number % 10 == 5:
                    tx.send(QUEUE, b"bad %d" % number, to=OWN)
        retry = RetryPolicy(max_attempts=2, initial_delay_s=0.01)
        await mail.consume(QUEUE, handle, concurrency=4, retry=retry)

        await eventually(lambda: mail.store.read_blocking(count_waiting) == 0, "all is over")
        dead = await mail.dead_letters.list()
    assert sorted(it.message.body for it in dead) == [b"bad 15", b"bad 25", b"bad 5"]


# Settings and locks of a session.

SETTING = [
    "SET LOCAL synchronous_commit = off",
    "SET synchronous_commit = off",
    "/* SET */ SELECT set_config('synchronous_commit', 'off', false)",
    "DO $$ BEGIN PERFORM set_config('synchronous_commit', 'off', false); END $$",
    "DO $$ BEGIN EXECUTE 'SET default_transaction_read_only = on'; END $$",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "SET TRANSACTION READ ONLY",
    "SET search_path = pg_catalog",
    "SET statement_timeout = 1",
    "SET lock_timeout = 0",
    "SET ROLE nobody",
    "SET SESSION AUTHORIZATION nobody",
    "RESET ALL",
    "SELECT pg_advisory_unlock_all()",
    "SELECT set_config('default_transaction_isolation', 'serializable', false)",
]


def count_locks(dsn: str) -> int:
    """Roles in which some process has the store."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        return int(row.fetchall()[0][0])


@pytest.fixture
def nobody(dsn: str) -> Iterator[None]:
    """A role that may do nothing."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE ROLE nobody")
        yield
        connection.execute("DROP ROLE nobody")


@pytest.mark.usefixtures("nobody")
async def test_settings_of_one_transaction_are_its_own(postgres: Store, dsn: str) -> None:
    def show(database: Any) -> list[str]:
        return [database.execute(f"SHOW {name}")[0][0] for name in SHOWN]

    shown = await postgres.write(lambda ledger: show(ledger.database))
    at_commit: list[list[str]] = []
    for number, statement in enumerate(SETTING):
        turn = await postgres.begin_transaction()
        await turn.execute(f"INSERT INTO postroad.mine VALUES ({number})")
        await turn.execute(statement)
        look = once(lambda: at_commit.append(show(postgres._tables.database)))
        with faults.arm_fault_point("durable.commit.before", look):
            await keep(turn, statement.encode())
        assert at_commit.pop() == shown, statement
        await post(postgres, PEER, b"after")
        # Undone it leaves as little.
        turn = await postgres.begin_transaction()
        await turn.execute(statement)
        turn.finish(None)
        await post(postgres, PEER, b"after")
        assert await postgres.write(lambda ledger: show(ledger.database)) == shown, statement
        assert count_locks(dsn) == 1, statement
    assert len(await rows(postgres)) == len(SETTING)


async def test_what_is_prepared_for_others_is_not_dropped_for_long(postgres: Store) -> None:
    for _ in range(8):
        await post(postgres, PEER, b"so that the driver prepares statements")
    for statement in ("DEALLOCATE ALL", "DISCARD ALL", "/**/ discard plans"):
        turn = await postgres.begin_transaction()
        with pytest.raises(UsageError, match="disturb the connection"):
            await turn.execute(statement)
        turn.finish(None)
    turn = await postgres.begin_transaction()
    await turn.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")
    turn.finish(None)
    for _ in range(8):
        await when_possible(lambda: post(postgres, PEER, b"after"))


# Locks of others, and statements that take too long.


async def test_lock_of_another_client_fails_whoever_waits_for_it(dsn: str) -> None:
    config = DurableQueuesConfig(lock_timeout_s=0.05)
    async with opened(PostgresStore(dsn), config=config) as store:
        await make_table(store)
        await execute(store, "INSERT INTO mine VALUES (1)")
        with psycopg.connect(dsn) as other:
            other.execute("SELECT x FROM postroad.mine FOR UPDATE")
            turn = await store.begin_transaction()
            beside = posting_of(PEER, b"beside")
            store.submit(beside)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                await turn.execute("UPDATE mine SET x = 2")
            # Whoever catches that goes on.
            await turn.execute("INSERT INTO mine VALUES (3)")
            await keep(turn, b"kept")
            await beside.done
        await execute(store, "UPDATE mine SET x = 2 WHERE x = 1")
        assert await rows(store) == [2, 3]


async def test_statement_without_limits_keeps_nobody_waiting(dsn: str) -> None:
    config = DurableQueuesConfig(transaction_timeout_s=0.2)
    async with opened(PostgresStore(dsn), config=config) as store:
        turn = await store.begin_transaction()
        await turn.execute("SET LOCAL statement_timeout = 0")
        sleeping = asyncio.create_task(turn.execute("SELECT pg_sleep(600)"))
        await post(store, PEER, b"others go on")
        with pytest.raises(psycopg.errors.QueryCanceled):
            await sleeping
        assert turn.is_timed_out


# Tables of a session that have the names of the store's own.

SHADOWS = [
    "CREATE TEMP TABLE postroad_meta (name TEXT, value TEXT)",
    "CREATE TEMPORARY TABLE Postroad_Outbox AS SELECT 1 AS id",
    "CREATE TEMP VIEW postroad_inbox AS SELECT 1 AS id",
    "CREATE TEMP TABLE shadow (name TEXT, value TEXT)",
]


async def test_temporary_table_with_a_name_of_the_store_hides_nothing(postgres: Store) -> None:
    for statement in SHADOWS:
        await execute(postgres, statement)
        await post(postgres, PEER, b"after")
    await execute(postgres, "ALTER TABLE shadow RENAME TO postroad_dead")
    await post(postgres, PEER, b"last")
    assert (await bodies(postgres))[-1] == b"last"


async def test_temporary_table_with_a_name_of_the_store_is_refused(sqlite: Store) -> None:
    *shadows, harmless = SHADOWS
    for statement in shadows:
        turn = await sqlite.begin_transaction()
        for way in ways(turn):
            with pytest.raises(UsageError, match="others commit with"):
                await way(statement)
                pytest.fail(f"{statement} was let through")
        turn.finish(None)
        await post(sqlite, PEER, b"after")
    turn = await sqlite.begin_transaction()
    await turn.execute(harmless)
    await turn.execute("ALTER TABLE shadow RENAME TO another")
    with pytest.raises(UsageError, match="others commit with"):
        await turn.execute("ALTER TABLE another RENAME TO postroad_dead")
    await keep(turn, b"kept")
    await post(sqlite, PEER, b"after")


# SQLite: statements that undo everything, and settings.

UNDOING = [
    "INSERT OR ROLLBACK INTO mine VALUES (1)",
    "insert or/**/rollback into mine values (1)",
    "UPDATE OR ROLLBACK mine SET x = 2 -- x",
]
SETTINGS = [
    "PRAGMA query_only = ON",
    "; PRAGMA main.query_only(1)",
    "PRAGMA max_page_count = 1",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA journal_mode = OFF",
    "EXPLAIN PRAGMA query_only = ON",
    "ATTACH ':memory:' AS other",
    "DETACH main",
]
HARMLESS = [
    "PRAGMA table_info(mine)",
    "PRAGMA user_version = 7",
    "PRAGMA query_only",
    "EXPLAIN QUERY PLAN SELECT * FROM mine",
    "INSERT OR IGNORE INTO mine VALUES (1)",
    "SELECT 'INSERT OR ROLLBACK'",
    "INSERT INTO strict VALUES (1)",
    "INSERT INTO chained VALUES (1)",
]
TABLES = (
    "CREATE TABLE strict (y NOT NULL ON CONFLICT ROLLBACK)",
    "CREATE TABLE guarded (x)",
    "CREATE TRIGGER guard BEFORE INSERT ON guarded WHEN NEW.x > 5"
    " BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
    "CREATE TABLE chained (x)",
    "CREATE TRIGGER chain AFTER INSERT ON chained BEGIN INSERT INTO guarded VALUES (NEW.x); END",
)


def ways(turn: SavepointTransaction) -> list[Any]:
    """How a user may run a statement."""
    return [
        turn.execute,
        lambda statement: turn.call(lambda it: it.execute(statement).fetchall()),
        lambda statement: turn.call(lambda it: it.cursor().executemany(statement, [()])),
        lambda statement: turn.call_with_session(lambda it: it.execute(text(statement))),
    ]


async def test_statement_that_would_undo_or_set_everything_is_refused(sqlite: Store) -> None:
    await execute(sqlite, *TABLES)
    turn = await sqlite.begin_transaction()
    beside = posting_of(PEER, b"beside")
    sqlite.submit(beside)
    await turn.execute("INSERT INTO mine VALUES (1)")
    for way in ways(turn):
        for statement in UNDOING:
            with pytest.raises(UsageError, match="use OR ABORT"):
                await way(statement)
                pytest.fail(f"{statement} was let through")
        for statement in SETTINGS:
            with pytest.raises(UsageError, match="others commit with"):
                await way(statement)
                pytest.fail(f"{statement} was let through")
    for way in ways(turn)[:2]:
        for statement in HARMLESS:
            await way(statement)
    await keep(turn, b"with 1")
    await beside.done
    assert await rows(sqlite) == [1]


@pytest.mark.parametrize(
    "bad", ["INSERT INTO strict VALUES (NULL)", "INSERT INTO chained VALUES (6)"]
)
@pytest.mark.parametrize("is_caught", [False, True])
@pytest.mark.usefixtures("one_round")
async def test_table_that_undoes_everything_fails_only_the_guilty(
    sqlite: Store, bad: str, is_caught: bool
) -> None:
    await execute(sqlite, *TABLES)
    first = await sqlite.begin_transaction()
    waiting = asyncio.create_task(sqlite.begin_transaction())
    beside = posting_of(PEER, b"beside")
    sqlite.submit(beside)
    innocent = await run(first, "INSERT INTO mine VALUES (1)")
    turn = await waiting
    with pytest.raises(sqlite3.IntegrityError):
        await turn.execute(bad)
    with pytest.raises(TransactionAbortedError):
        await turn.execute("INSERT INTO mine VALUES (2)")
    guilty = posting_of(PEER, b"guilty")
    turn.finish(guilty if is_caught else None)
    with pytest.raises(TransactionAbortedError, match="start it again"):
        await innocent
    await beside.done
    if is_caught:
        with pytest.raises(UsageError, match="the commit that others share"):
            await guilty.done
    assert await rows(sqlite) == []
    assert (await bodies(sqlite))[-1] == b"beside"
    await execute(sqlite, "INSERT INTO mine VALUES (1)")


async def test_only_one_beside_a_statement_that_undid_everything_is_committed(
    sqlite: Store,
) -> None:
    await execute(sqlite, *TABLES)
    beside = posting_of(PEER, b"beside")
    sqlite.submit(beside)
    turn = await sqlite.begin_transaction()
    with pytest.raises(sqlite3.IntegrityError):
        await turn.execute("INSERT INTO strict VALUES (NULL)")
    turn.finish(None)
    await beside.done
    assert (await bodies(sqlite))[-1] == b"beside"
