"""What cannot be committed costs the work of its own key, and nobody else's."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import StoreUnavailableError
from postroad.durable import Message, PostgresStore, RetryPolicy, SqliteStore, Store, Transaction
from postroad.durable.consumers.disposition import DispositionMutation
from postroad.durable.store import writer
from postroad.durable.store.tables.store_tables import StoreTables
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.durable.held_commits import held_commit
from tests.support.durable.mail_pairs import AT_ONCE, QUICK, Station, running_station
from tests.support.durable.nodes import once, raising
from tests.support.servers.postgres import fresh_database

FULL = msgspec.structs.replace(QUICK, outbox_messages_max=1)
TABLE = "CREATE TABLE booked (number INTEGER, UNIQUE (number))"


@pytest.fixture
def dsn() -> Iterator[str]:
    with fresh_database() as dsn:
        yield dsn


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        return SqliteStore(tmp_path / "alpha.db")
    return PostgresStore(request.getfixturevalue("dsn"))


@pytest.fixture
async def alpha(store: Store) -> AsyncIterator[Station]:
    """A node that keeps one message for a peer that is never there, and has that one."""
    async with running_station("alpha", store, config=FULL) as station:
        await station.mail.send("x", b"", to="gone")
        async with station.mail.transaction() as tx:
            await tx.execute(TABLE)
        yield station


async def post_all(station: Station, *bodies: str, key: str | None = None) -> None:
    """Post messages to the node itself, in one page."""
    async with station.mail.transaction() as tx:
        for body in bodies:
            tx.send("orders", body.encode(), to="alpha", key=key)


async def depth(station: Station) -> int:
    return (await station.mail.statistics()).queues["orders"].depth


async def wait_for_depth(station: Station, count: int) -> None:
    async def is_reached() -> bool:
        return await depth(station) == count

    await eventually(is_reached, f"{count} messages wait")


async def wait_for_dead(station: Station, count: int) -> None:
    async def is_reached() -> bool:
        return await station.mail.dead_letters.count("orders") == count

    await eventually(is_reached, f"{count} dead letters")


class Handler:
    """Keeps what it is given; some messages wait, are refused, or write a row."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.ended: list[str] = []
        self.go_on = asyncio.Event()

    async def __call__(self, message: Message, tx: Transaction) -> None:
        body = message.body.decode()
        self.runs.append(body)
        if body.startswith("slow"):
            await self.go_on.wait()
        elif body.startswith("bad"):
            tx.send("x", b"", to="gone")
        elif body.startswith("conflict"):
            tx.send("elsewhere", body.encode(), to="alpha", idempotency_key="k")
        elif body.startswith("row"):
            await tx.execute(f"INSERT INTO booked VALUES ({int(body[3:])})")
        self.ended.append(body)


async def booked(station: Station) -> list[int]:
    async with station.mail.transaction() as tx:
        return sorted(row[0] for row in await tx.execute("SELECT number FROM booked"))


@pytest.mark.parametrize("kind", ["bad", "conflict"])
async def test_refused_send_leaves_those_in_hand_and_those_behind_at_work(
    alpha: Station, kind: str
) -> None:
    handler = Handler()
    await alpha.mail.send("elsewhere", b"another", to="alpha", idempotency_key="k")
    others = [f"good{number}" for number in range(10)]
    await post_all(alpha, "slow", f"{kind}1", *others, "row1", f"{kind}2")
    await alpha.mail.consume("orders", handler, concurrency=4, retry=AT_ONCE)
    await wait_for_dead(alpha, 2)
    # All of that while one handler is busy, which is none the worse for it.
    assert handler.runs.count("slow") == 1 and "slow" not in handler.ended
    handler.go_on.set()
    await wait_for_depth(alpha, 0)
    assert [handler.runs.count(body) for body in ("slow", "row1", *others)] == [1] * 12
    assert [handler.runs.count(f"{kind}{number}") for number in (1, 2)] == [3, 3]
    assert await booked(alpha) == [1]


async def test_refused_send_of_a_key_has_those_behind_it_handled_again_in_order(
    alpha: Station,
) -> None:
    handler = Handler()
    await post_all(alpha, "bad", "row1", "plain", "slow", "last", key="a")
    await post_all(alpha, "other", key="b")
    with held_commit(lambda unit: isinstance(unit, DispositionMutation)) as commit:
        retry = RetryPolicy(max_attempts=2, initial_delay_s=0.001, max_delay_s=0.005)
        await alpha.mail.consume("orders", handler, concurrency=4, retry=retry)
        await commit.begun()
        commit.go_on()
    await eventually(lambda: "other" in handler.ended)
    handler.go_on.set()
    await wait_for_depth(alpha, 0)
    (dead,) = await alpha.mail.dead_letters.list("orders")
    assert (dead.message.body, dead.failures, dead.reason) == (b"bad", 2, "failed")
    assert "OutboxFullError" in dead.detail
    # Whatever of them had been handled behind the bad one was handled again after it.
    tail = ["row1", "plain", "slow", "last"]
    of_key = [body for body in handler.ended if body != "other"]
    assert of_key[-5:] == ["bad", *tail]
    assert await booked(alpha) == [1]
    assert handler.runs.count("other") == 1


async def test_failed_commit_has_only_statements_run_again(alpha: Station) -> None:
    handler = Handler()
    await post_all(alpha, "slow", "good1", "row1", "good2")
    with held_commit(lambda unit: getattr(unit, "has_user_statements", False)) as commit:
        await alpha.mail.consume("orders", handler, concurrency=4)
        await commit.begun()
        await eventually(lambda: {"good1", "good2"} <= {*handler.ended})
        commit.fail(StoreUnavailableError("away"))
        await eventually(lambda: handler.runs.count("row1") == 2, "it runs once more")
    await post_all(alpha, "after")
    await eventually(lambda: "after" in handler.ended, "new messages are handled")
    assert "slow" not in handler.ended
    handler.go_on.set()
    await wait_for_depth(alpha, 0)
    assert [handler.runs.count(body) for body in ("slow", "good1", "good2", "after")] == [1] * 4
    assert await booked(alpha) == [1]
    assert await alpha.mail.dead_letters.count() == 0


async def test_failed_commit_leaves_what_was_pulled_to_be_acknowledged(alpha: Station) -> None:
    await post_all(alpha, "1", "2", "3")
    first, second = await alpha.mail.pull("orders", limit=2)
    failing = faults.arm_fault_point(
        "durable.commit.before", once(raising(StoreUnavailableError("away")))
    )
    with failing, pytest.raises(StoreUnavailableError):
        await first.ack()
    await second.ack()
    redelivered = [(await alpha.mail.pull("orders"))[0] for _ in range(2)]
    assert sorted(message.body for message in redelivered) == [b"1", b"3"]
    for message in redelivered:
        await message.ack()
    await wait_for_depth(alpha, 0)


async def test_store_content_wins_over_memory_after_fail_over(alpha: Station) -> None:
    """As after a fail-over to a copy that lacks the last commits."""
    handler = Handler()
    await post_all(alpha, "good1", "good2", "slow", "good3")
    await alpha.mail.consume("orders", handler, concurrency=2)
    await wait_for_depth(alpha, 1)

    def lose_commits(ledger: StoreTables) -> None:
        ledger.database.execute("UPDATE postroad_inbox SET done = NULL, pending = 4")

    await alpha.mail.store.write(lose_commits)
    alpha.mail.dispatchers.get("orders").reload()
    await eventually(lambda: handler.ended.count("good3") == 2, "it is handled again")
    handler.go_on.set()
    await wait_for_depth(alpha, 0)
    assert sorted(handler.ended) == ["good1", "good1", "good2", "good2", "good3", "good3", "slow"]


async def test_purge_removes_messages_in_flight(alpha: Station) -> None:
    handler = Handler()
    await post_all(alpha, "slow", "slow too", "behind", key="a")
    await alpha.mail.consume("orders", handler, concurrency=2)
    await eventually(lambda: handler.runs == ["slow"])
    assert await alpha.mail.admin.purge("orders") == 3
    await post_all(alpha, "new", key="a")
    # Of one key only one is handled at a time, also if it is not there any more.
    assert handler.runs == ["slow"]
    handler.go_on.set()
    await eventually(lambda: handler.ended == ["slow", "new"])
    await wait_for_depth(alpha, 0)


def end_sessions(dsn: str) -> None:
    """Have the server close every other connection to the database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


async def test_lost_connection_with_commits_in_flight_recovers(dsn: str) -> None:
    handler = Handler()

    async def handle(message: Message, tx: Transaction) -> Any:
        await handler(message, tx)
        if message.body == b"slow row":
            await tx.execute("INSERT INTO booked VALUES (100)")

    async with running_station("alpha", PostgresStore(dsn)) as alpha:
        async with alpha.mail.transaction() as tx:
            await tx.execute(TABLE)
        backlog = [f"good{number}" for number in range(20)]
        await post_all(alpha, "slow", "slow row", "row1", "good")
        with held_commit(lambda unit: getattr(unit, "has_user_statements", False)) as commit:
            await alpha.mail.consume("orders", handle, concurrency=4)
            await commit.begun()
            end_sessions(dsn)
        await eventually(lambda: handler.runs.count("row1") == 2, "it runs once more")
        await post_all(alpha, *backlog)
        await eventually(lambda: {*backlog} <= {*handler.ended}, "new messages are handled")
        assert not {"slow", "slow row"} & {*handler.ended}
        handler.go_on.set()
        await wait_for_depth(alpha, 0)
        assert await booked(alpha) == [1, 100]
        assert await alpha.mail.dead_letters.count() == 0
    for body in ("slow", "slow row", *backlog):
        assert handler.runs.count(body) == 1, body


async def test_lost_connection_has_everything_read_again(dsn: str) -> None:
    """Also by those who had nothing in the commit that met it."""
    handler = Handler()
    async with running_station("alpha", PostgresStore(dsn)) as alpha:
        await post_all(alpha, "good1", "slow", "good2")
        await alpha.mail.consume("orders", handler, concurrency=2)
        await wait_for_depth(alpha, 1)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("UPDATE postroad_inbox SET done = NULL, pending = 3")
        end_sessions(dsn)
        with pytest.raises(StoreUnavailableError):
            await alpha.mail.send("x", b"", to="gone")
        await eventually(lambda: handler.ended.count("good2") == 2, "it is handled again")
        handler.go_on.set()
        await wait_for_depth(alpha, 0)
    assert sorted(handler.ended) == ["good1", "good1", "good2", "good2", "slow"]


@pytest.mark.parametrize("is_reloaded", [False, True])
async def test_message_that_undid_the_commit_of_the_one_before_it_comes_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reloaded: bool
) -> None:
    """Of one key and in one commit: the first is handled again, and the guilty one behind it."""
    monkeypatch.setattr(writer, "_GROUP_S", DEADLINE_S)
    handled: list[tuple[bytes, int]] = []
    async with running_station("alpha", SqliteStore(tmp_path / "alpha.db")) as station:
        async with station.mail.transaction() as tx:
            await tx.execute(TABLE)
            await tx.execute("CREATE TABLE strict (x INTEGER NOT NULL ON CONFLICT ROLLBACK)")

        async def handle(message: Message, tx: Transaction) -> None:
            handled.append((message.body, message.attempt))
            if message.body == b"2" and len(handled) == 2:
                with pytest.raises(sqlite3.IntegrityError):
                    await tx.execute("INSERT INTO strict VALUES (NULL)")
                if is_reloaded:
                    # As if something had been announced and was not committed either.
                    station.mail.dispatchers.get("orders").reload()
                return
            await tx.execute(f"INSERT INTO booked VALUES ({message.body.decode()})")

        await post_all(station, "1", "2", "3", key="k")
        await station.mail.consume("orders", handle, concurrency=2, retry=AT_ONCE)
        await wait_for_depth(station, 0)
        async with station.mail.transaction() as tx:
            rows = await tx.execute("SELECT number FROM booked ORDER BY rowid")
    assert rows == [(1,), (2,), (3,)]
    # It has failed, which counts unless everything was read again meanwhile.
    seen = [delivery for delivery in handled if delivery[0] != b"3"]
    assert seen == [(b"1", 1), (b"2", 1), (b"1", 1), (b"2", 1 if is_reloaded else 2)]
