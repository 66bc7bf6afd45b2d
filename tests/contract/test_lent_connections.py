"""What functions find in the connection of one driver, beyond what all have."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg import sql
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from postroad.core.errors import StoreUnavailableError, UsageError
from postroad.durable import PostgresStore, SqliteStore, Store
from tests.contract.store_behaviour import bodies, keep, make_table, rows, when_possible
from tests.contract.store_lending_behaviour import insert
from tests.support.durable.nodes import PEER, opened, post
from tests.support.servers.postgres import fresh_database


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(SqliteStore(tmp_path / "store.db")) as store:
        await make_table(store)
        yield store


@pytest.fixture
def dsn() -> Iterator[str]:
    with fresh_database() as it:
        yield it


@pytest.fixture
async def postgres_store(dsn: str) -> AsyncIterator[Store]:
    async with opened(PostgresStore(dsn)) as store:
        await make_table(store)
        yield store


# SQLite.


async def test_rows_and_texts_are_made_as_the_function_says(sqlite_store: Store) -> None:
    def work(connection: sqlite3.Connection) -> tuple[int, bytes]:
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        assert connection.text_factory is bytes
        insert(connection, 1)
        row = connection.execute("SELECT x, 'text' AS text FROM mine").fetchone()
        return row["x"], row["text"]

    turn = await sqlite_store.begin_transaction()
    assert await turn.call(work) == (1, b"text")
    assert await turn.execute("SELECT 'text'") == [("text",)]
    await keep(turn)


async def test_functions_of_sql_are_possible(sqlite_store: Store) -> None:
    def work(connection: sqlite3.Connection) -> Any:
        connection.create_function("twice", 1, lambda number: 2 * number)
        assert connection.in_transaction
        cursor = connection.execute("SELECT twice(?)", (21,))
        assert next(cursor) == (42,)
        assert cursor.description[0][0] == "twice(?)"
        cursor.arraysize = 2
        with pytest.raises(UsageError, match="executescript"):
            cursor.executescript("COMMIT")
        with pytest.raises(UsageError, match="a text"):
            connection.execute(42)  # type: ignore[arg-type]  # That is the mistake.
        return cursor.arraysize

    turn = await sqlite_store.begin_transaction()
    assert await turn.call(work) == 2
    turn.finish(None)


async def test_trouble_of_others_is_not_the_stores(sqlite_store: Store, tmp_path: Path) -> None:
    def work(connection: sqlite3.Connection) -> None:
        insert(connection, 1)
        sqlite3.connect(tmp_path / "nowhere" / "other.db")

    turn = await sqlite_store.begin_transaction()
    with pytest.raises(sqlite3.OperationalError):
        await turn.call(work)
    turn.finish(None)


async def test_trouble_of_the_store_is_named(sqlite_store: Store) -> None:
    database = sqlite_store._tables.database

    def work(connection: sqlite3.Connection) -> None:
        database.execute("PRAGMA query_only = ON")
        try:
            insert(connection, 1)
        finally:
            database.execute("PRAGMA query_only = OFF")

    turn = await sqlite_store.begin_transaction()
    with pytest.raises(StoreUnavailableError, match="cannot be used now"):
        await turn.call(work)
    turn.finish(None)
    await post(sqlite_store, PEER, b"1")


# PostgreSQL.


async def test_statements_may_be_composed_or_bytes(postgres_store: Store) -> None:
    def work(connection: psycopg.Connection[Any]) -> list[Any]:
        table = sql.Identifier("mine")
        connection.execute(sql.SQL("INSERT INTO {} VALUES (%s)").format(table), (1,))
        connection.execute(b"INSERT INTO mine VALUES (2)")
        for statement in (b"COMMIT", sql.SQL("COMMIT")):
            with pytest.raises(UsageError, match="shares with others"):
                connection.execute(statement)
        return connection.execute("SELECT x FROM mine ORDER BY x", params=()).fetchall()

    turn = await postgres_store.begin_transaction()
    assert await turn.call(work) == [(1,), (2,)]
    await keep(turn)
    assert await rows(postgres_store) == [1, 2]


async def test_rows_and_cursors_are_those_of_the_driver(postgres_store: Store) -> None:
    left: list[Any] = []

    def work(connection: psycopg.Connection[Any]) -> None:
        assert connection.autocommit is False
        with connection.cursor(row_factory=dict_row) as cursor:
            cursor.executemany("INSERT INTO mine VALUES (%s)", [(1,), (2,), (3,)])
            assert cursor.execute("SELECT MAX(x) AS x FROM mine").fetchall() == [{"x": 3}]
        with connection.cursor("on_the_server") as cursor:
            cursor.execute("SELECT x FROM mine ORDER BY x")
            assert list(cursor) == [(1,), (2,), (3,)]
        left.append(connection.cursor("left_open").execute("SELECT x FROM mine"))

    turn = await postgres_store.begin_transaction()
    await turn.call(work)
    await keep(turn)
    assert await rows(postgres_store) == [1, 2, 3]


async def test_types_nobody_knows_stay_texts(postgres_store: Store) -> None:
    def work(connection: psycopg.Connection[Any]) -> None:
        connection.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
        assert connection.execute("SELECT 'bad'::mood;").fetchone() == ("bad",)
        assert connection.execute("SELECT 'a;b'").fetchone() == ("a;b",)

    turn = await postgres_store.begin_transaction()
    await turn.call(work)
    turn.finish(None)


async def test_rows_are_copied(postgres_store: Store) -> None:
    def work(connection: psycopg.Connection[Any]) -> None:
        with connection.cursor().copy("COPY mine FROM STDIN") as copy:
            copy.write_row((1,))
        with (
            pytest.raises(psycopg.errors.UniqueViolation),
            connection.cursor().copy("COPY mine FROM STDIN") as copy,
        ):
            copy.write_row((1,))
        with connection.cursor().copy("COPY mine FROM STDIN (FORMAT csv, DELIMITER ';')") as copy:
            copy.write("2\n")
        with (
            pytest.raises(UsageError, match="one statement"),
            connection.cursor().copy("COPY mine FROM STDIN; COMMIT") as copy,
        ):
            copy.write_row((3,))
        insert(connection, 4)

    turn = await postgres_store.begin_transaction()
    await turn.call(work)
    await keep(turn)
    assert await rows(postgres_store) == [1, 2, 4]


async def test_what_lies_below_the_driver_is_refused(postgres_store: Store) -> None:
    def work(connection: psycopg.Connection[Any]) -> None:
        for name in ("adapters", "pgconn"):
            with pytest.raises(UsageError, match=f"{name} is not for"):
                getattr(connection, name)

    turn = await postgres_store.begin_transaction()
    await turn.call(work)
    turn.finish(None)


async def test_a_closed_cursor_is_not_the_stores_trouble(postgres_store: Store) -> None:
    def work(connection: psycopg.Connection[Any]) -> None:
        cursor = connection.cursor()
        cursor.close()
        cursor.execute("SELECT 1")

    turn = await postgres_store.begin_transaction()
    with pytest.raises(psycopg.InterfaceError):
        await turn.call(work)
    await turn.execute("INSERT INTO mine VALUES (1)")
    await keep(turn)
    assert await rows(postgres_store) == [1]


def end_own_session(dsn: str, session: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as other:
        assert other.execute("SELECT pg_terminate_backend(%s, 5000)", (session,)).fetchone()


async def test_connection_lost_in_a_function_is_named(postgres_store: Store, dsn: str) -> None:
    def work(connection: psycopg.Connection[Any]) -> None:
        insert(connection, 1)
        end_own_session(dsn, connection.info.backend_pid)
        insert(connection, 2)

    def work_in_session(session: Session) -> None:
        found = session.execute(sqlalchemy.text("SELECT pg_backend_pid()")).scalar_one()
        end_own_session(dsn, found)
        session.execute(sqlalchemy.text("INSERT INTO mine VALUES (3)"))

    turn = await postgres_store.begin_transaction()
    with pytest.raises(StoreUnavailableError):
        await turn.call(work)
    turn.finish(None)
    turn = await when_possible(postgres_store.begin_transaction)
    with pytest.raises(StoreUnavailableError):
        await turn.call_with_session(work_in_session)
    turn.finish(None)

    async def insert_again() -> None:
        # A transaction may begin before the loss of the connection is seen.
        turn = await postgres_store.begin_transaction()
        try:
            await turn.call_with_session(
                lambda session: session.execute(sqlalchemy.text("INSERT INTO mine VALUES (4)"))
            )
        except StoreUnavailableError:
            turn.finish(None)
            raise
        await keep(turn)

    await when_possible(insert_again)
    assert await rows(postgres_store) == [4]
    assert await bodies(postgres_store) == []
