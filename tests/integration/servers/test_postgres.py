"""The PostgreSQL server of the tests does what tests ask of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from tests.support.deadlines import eventually
from tests.support.servers.postgres import PostgresServer, fresh_database, postgres_server
from tests.support.source_tree import ROOT

ENDLESS = b"DO $$ BEGIN LOOP END LOOP; END $$"
BUSY = b"SELECT pid FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'DO %'"
HUNG_S = 0.3
STARTS_AND_DIES = """
import os, signal
from tests.support.servers.postgres import postgres_server
with postgres_server() as server:
    print(server.dsn, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Every test leaves it running."""
    with postgres_server() as server:
        yield server


def execute(dsn: str, statement: bytes) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(statement)


def fetch(dsn: str, query: bytes) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, connect_timeout=2) as connection:
        return connection.execute(query).fetchall()


def is_refused(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError as error:
        return "refused" in str(error)
    return False


def test_databases_are_apart() -> None:
    with fresh_database() as one, fresh_database() as two:
        execute(one, b"CREATE TABLE letters (id int)")
        with pytest.raises(psycopg.errors.UndefinedTable):
            fetch(two, b"SELECT id FROM letters")
        assert fetch(one, b"SELECT id FROM letters") == []


def test_database_is_emptied_under_its_clients_and_used_again() -> None:
    with fresh_database() as dsn:
        execute(dsn, b'CREATE SCHEMA "Odd one"')
        execute(dsn, b'CREATE TABLE "Odd one".letters (id int)')
        execute(dsn, b"CREATE TABLE letters (id int)")
        client = psycopg.connect(dsn)
        client.execute("SELECT pg_advisory_lock(1)")
    with pytest.raises(psycopg.OperationalError):
        client.execute("SELECT 1")
    client.close()
    with fresh_database() as again:
        assert again == dsn
        execute(again, b"CREATE TABLE letters (id int)")
        assert fetch(again, b"SELECT pg_try_advisory_lock(1)") == [(True,)]
        schemas = b"SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_)'"
        assert fetch(again, schemas) == [("public",)]


def test_password_is_asked_for() -> None:
    with fresh_database() as dsn, pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(dsn, password="wrong")


async def test_killed_server_keeps_what_was_committed(server: PostgresServer) -> None:
    execute(server.dsn, b"CREATE TABLE killed AS SELECT 7 AS id")
    async with await psycopg.AsyncConnection.connect(server.dsn) as client:
        # The process of a busy client does not end by itself with the one that is killed.
        task = asyncio.create_task(client.execute(ENDLESS))
        await eventually(lambda: fetch(server.dsn, BUSY), "the client is busy")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            await task
    assert is_refused(server.dsn)
    server.start()
    assert fetch(server.dsn, b"SELECT id FROM killed") == [(7,)]


def test_stopped_server_starts_on_its_data(server: PostgresServer) -> None:
    execute(server.dsn, b"CREATE TABLE letters AS SELECT 7 AS id")
    server.stop()
    assert is_refused(server.dsn)
    server.start()
    assert fetch(server.dsn, b"SELECT id FROM letters") == [(7,)]


async def test_paused_server_hangs(server: PostgresServer) -> None:
    async with await psycopg.AsyncConnection.connect(server.dsn) as client:
        server.pause()
        old = asyncio.create_task(client.execute("SELECT 1"))
        new = asyncio.create_task(psycopg.AsyncConnection.connect(server.dsn))
        done, _ = await asyncio.wait({old, new}, timeout=HUNG_S)
        assert not done
        server.resume()
        assert await (await old).fetchall() == [(1,)]
        await (await new).close()


def test_paused_server_can_be_killed(server: PostgresServer) -> None:
    server.pause()
    server.kill()
    server.start()
    assert fetch(server.dsn, b"SELECT 1") == [(1,)]


def test_fsync_is_a_choice(server: PostgresServer) -> None:
    with postgres_server(fsync=True) as other:
        for setting in (b"SHOW fsync", b"SHOW full_page_writes"):
            assert fetch(server.dsn, setting) == [("off",)]
            assert fetch(other.dsn, setting) == [("on",)]


@pytest.fixture
def orphaned_dsn() -> Iterator[str]:
    """The DSN of a server whose tests were killed."""
    with TemporaryDirectory(prefix="postgres-") as directory:
        # For what the killed process leaves; its server passes through on the way to its own.
        Path(directory).chmod(0o711)
        child = subprocess.run(
            [sys.executable, "-c", STARTS_AND_DIES],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": directory},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.returncode == -signal.SIGKILL
        yield child.stdout.strip()


async def test_server_ends_with_the_tests(orphaned_dsn: str) -> None:
    await eventually(lambda: is_refused(orphaned_dsn), "the server has ended")
