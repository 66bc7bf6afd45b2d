"""The sessions of a store in PostgreSQL: their settings, poolers in between, what it warns of."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from postroad.core.errors import StoreLockedError, StoreUnavailableError
from postroad.durable import DurableQueuesConfig, PostgresStore, Store
from postroad.durable.store import store_from_url
from postroad.durable.store.backends.postgres_sessions import PostgresSessions
from tests.contract.store_behaviour import bodies, keep, make_table, rows, when_possible
from tests.support.deadlines import eventually
from tests.support.durable.nodes import OWN, PEER, opened, post
from tests.support.servers.pgbouncer import pgbouncer
from tests.support.servers.postgres import (
    find_account,
    find_binaries,
    fresh_database,
    postgres_server,
)
from tests.support.servers.process import ServerProcess

SETTINGS = {
    "statement_timeout": "1min",
    "lock_timeout": "20s",
    "idle_in_transaction_session_timeout": "20s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15000",
    "synchronous_commit": "on",
    "search_path": "postroad,public,pg_temp",
}
IDLE = "idle_in_transaction_session_timeout"
IDLE_SESSIONS = b"SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction'"


@pytest.fixture
def dsn() -> Iterator[str]:
    with fresh_database() as it:
        yield it


async def show(store: Store, *names: str) -> dict[str, str]:
    """Settings of the session that writes, in a transaction of a user."""
    turn = await store.begin_transaction()
    values = {name: plain((await turn.execute(f"SHOW {name}"))[0][0]) for name in names}
    await keep(turn)
    return values


def plain(value: str) -> str:
    """However lists were written."""
    return value.replace('"', "").replace(" ", "")


def fetch(dsn: str, query: bytes) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


# Settings.


def test_sessions_begin_with_limits(dsn: str) -> None:
    connection, _ = PostgresSessions(dsn, "postroad", "here").open()
    with connection:
        for name, value in SETTINGS.items():
            ((shown,),) = connection.execute(f"SHOW {name}".encode()).fetchall()
            assert plain(shown) == value, name
        client = connection.info.get_parameters()
    assert client["keepalives_idle"] == "5" and client["tcp_user_timeout"] == "15000"


async def test_connection_string_wins_except_for_the_schema(dsn: str) -> None:
    options = "-c lock_timeout=7s --statement-timeout=8s -csearch_path=elsewhere"
    own = make_conninfo(dsn, options=options, keepalives_idle=30)
    connection, _ = PostgresSessions(own, "postroad", "here").open()
    with connection:
        assert connection.info.get_parameters()["keepalives_idle"] == "30"
    async with opened(PostgresStore(own)) as store:
        for _ in range(2):
            # What is set for a transaction of a user does not override it either.
            shown = await show(store, "lock_timeout", "statement_timeout", "search_path", IDLE)
            assert list(shown.values()) == ["7s", "8s", SETTINGS["search_path"], "20s"]


async def test_options_can_be_part_of_a_url(dsn: str) -> None:
    async with opened(store_from_url(f"{dsn}?options=-c%20lock_timeout%3D7s&schema=x")) as store:
        assert await show(store, "lock_timeout") == {"lock_timeout": "7s"}


async def test_hanging_is_measured_by_how_long_transactions_may_take(dsn: str) -> None:
    for timeout_s, expected in ((1, "11s"), (10, "20s"), (60, "70s")):
        config = DurableQueuesConfig(transaction_timeout_s=timeout_s)
        async with opened(PostgresStore(dsn), config=config) as store:
            assert await show(store, IDLE) == {IDLE: expected}


async def test_process_that_hangs_in_a_transaction_loses_its_locks(dsn: str) -> None:
    async with opened(PostgresStore(make_conninfo(dsn, options=f"-c {IDLE}=300"))) as store:
        await make_table(store)
        await post(store, PEER, b"1")
        turn = await store.begin_transaction()
        await turn.execute("INSERT INTO mine VALUES (1)")
        await eventually(lambda: not fetch(dsn, IDLE_SESSIONS), "the server has ended the session")
        with pytest.raises(StoreUnavailableError, match="idle-in-transaction"):
            await turn.execute("INSERT INTO mine VALUES (2)")
        turn.finish(None)
        await when_possible(lambda: post(store, PEER, b"2"))
        assert await rows(store) == []


async def test_lock_of_another_client_keeps_the_store_waiting_not_for_ever(dsn: str) -> None:
    async with opened(PostgresStore(make_conninfo(dsn, options="-c lock_timeout=100"))) as store:
        with psycopg.connect(dsn) as other:
            other.execute("SELECT value FROM postroad.postroad_meta FOR UPDATE")
            with pytest.raises(StoreUnavailableError, match="lock timeout"):
                await post(store, PEER, b"1")
        await when_possible(lambda: post(store, PEER, b"2"))
        assert await bodies(store) == [b"2"]


# Poolers.


@pytest.mark.parametrize("more", ["", "ignore_startup_parameters = options"])
async def test_pooler_that_keeps_sessions(dsn: str, more: str) -> None:
    with pgbouncer(dsn, f"pool_mode = session\n{more}") as pooler:
        async with opened(PostgresStore(pooler.dsn)) as store:
            await make_table(store)
            turn = await store.begin_transaction()
            await turn.execute("SET search_path = public")
            await turn.execute("SET synchronous_commit = off")
            await keep(turn, b"1")
            # How long a user's statements may take comes from the store's own settings.
            names = SETTINGS.keys() - {"lock_timeout", "statement_timeout"}
            assert await show(store, *names) == {name: SETTINGS[name] for name in names}
            await post(store, PEER, b"2")
            assert await bodies(store) == [b"1", b"2"]
            with pytest.raises(StoreLockedError):
                await PostgresStore(dsn).open(OWN)


@pytest.mark.parametrize(
    "more",
    [
        "pool_mode = transaction",
        "pool_mode = transaction\nignore_startup_parameters = options",
        "pool_mode = transaction\nignore_startup_parameters = options\nserver_round_robin = 1",
        "pool_mode = statement",
        "pool_mode = statement\nignore_startup_parameters = options",
    ],
)
async def test_pooler_that_keeps_no_sessions(dsn: str, more: str) -> None:
    with (
        pgbouncer(dsn, more) as pooler,
        psycopg.connect(pooler.dsn, autocommit=True) as one,
        psycopg.connect(pooler.dsn, autocommit=True) as two,
    ):
        # Several sessions that nobody uses.
        async with asyncio.TaskGroup() as group:
            for connection in (one, two):
                group.create_task(asyncio.to_thread(connection.execute, "SELECT pg_sleep(0.2)"))
        with pytest.raises(StoreUnavailableError, match="directly, or set pool_mode"):
            await PostgresStore(pooler.dsn).open(OWN)
        # Nothing is left in sessions that belong to others.
        assert one.execute("SHOW search_path").fetchone() == ('"$user", public',)


# Warnings.


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and "may lose commits" in record.getMessage()
    ]


async def test_it_is_told_that_a_server_may_lose_commits(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    for value in ("off", "local"):
        options = f"-c synchronous_commit={value}"
        async with opened(PostgresStore(make_conninfo(dsn, options=options))) as store:
            await post(store, PEER, b"1")
        (warning,) = warnings_of(caplog)
        assert f"synchronous_commit to {value}" in warning
        caplog.clear()


async def test_standbys_that_lag_behind(caplog: pytest.LogCaptureFixture) -> None:
    with (
        postgres_server(fsync=True, replicates=True) as server,
        server.database() as dsn,
        TemporaryDirectory(prefix="standby-") as directory,
    ):
        # Not even a role without rights is kept in the dark.
        own = make_conninfo(dsn, user="shop", password="shop")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE ROLE shop LOGIN PASSWORD 'shop'")
            connection.execute(
                f"GRANT CREATE ON DATABASE {connection.info.dbname} TO shop".encode()
            )
        async with opened(PostgresStore(own)):
            pass
        assert warnings_of(caplog) == []
        account = find_account()
        if account:
            os.chown(directory, account["user"], account["group"])
        command = [find_binaries() / "pg_receivewal", "-D", directory, "--synchronous"]
        standby = ServerProcess([*map(str, command), "-d", server.dsn], **account)
        try:
            followers = b"SELECT pid FROM pg_stat_replication WHERE state = 'streaming'"
            await eventually(lambda: fetch(dsn, followers), "the standby follows")
            async with opened(PostgresStore(own)) as store:
                await post(store, PEER, b"1")
            (warning,) = warnings_of(caplog)
            assert "standbys (1)" in warning and "set synchronous_standby_names" in warning
            caplog.clear()
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                connection.execute("SELECT pg_reload_conf()")
            names = b"SHOW synchronous_standby_names"
            await eventually(lambda: fetch(dsn, names) == [("*",)], "the setting is in force")
            async with opened(PostgresStore(own)) as store:
                await post(store, PEER, b"2")
            assert warnings_of(caplog) == []
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
                connection.execute("SELECT pg_reload_conf()")
            await eventually(lambda: fetch(dsn, names) == [("",)], "commits wait no more")
        finally:
            standby.stop()
