"""The library that makes disks slow does so: to SQLite in Python, and to a PostgreSQL server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from tests.support.servers.postgres import postgres_server
from tests.support.slow_sync import COMPILER, build, slowed

COMMITS = 20
DELAY_MS = 20
SQLITE = f"""
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("PRAGMA synchronous = FULL")
connection.execute("CREATE TABLE numbers (number INTEGER)")
began = time.monotonic()
for number in range({COMMITS}):
    connection.execute("INSERT INTO numbers VALUES (?)", (number,))
print(time.monotonic() - began)
"""


@pytest.fixture(scope="module")
def library() -> Iterator[Path]:
    # Not in tmp_path, whose parents are closed to the account of the server.
    with TemporaryDirectory(prefix="slow-sync-") as directory:
        Path(directory).chmod(0o755)
        path = Path(directory, "slow_sync.so")
        build(path)
        yield path


def time_sqlite(directory: Path, environment: dict[str, str]) -> float:
    command = [sys.executable, "-c", SQLITE, str(directory / "numbers.db")]
    return float(subprocess.check_output(command, env=os.environ | environment))


def time_postgres() -> float:
    with (
        postgres_server(fsync=True) as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):
        connection.execute("CREATE TABLE numbers (number INTEGER)")
        began = time.monotonic()
        for number in range(COMMITS):
            connection.execute("INSERT INTO numbers VALUES (%s)", (number,))
        return time.monotonic() - began


def test_sqlite_with_delayed_syncs_waits_at_each_commit(library: Path, tmp_path: Path) -> None:
    assert time_sqlite(tmp_path, slowed(library, DELAY_MS)) >= COMMITS * DELAY_MS / 1000


@pytest.mark.slow
def test_postgres_with_delayed_syncs_waits_at_each_commit(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slowed(library, DELAY_MS).items():
        monkeypatch.setenv(name, value)
    assert time_postgres() >= COMMITS * DELAY_MS / 1000


if COMPILER is None:
    # Nothing to be tested here, and nothing to be skipped.
    del test_sqlite_with_delayed_syncs_waits_at_each_commit
    del test_postgres_with_delayed_syncs_waits_at_each_commit
