"""The library that makes disks slow does so: to SQLite in Python, and to a PostgreSQL server."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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


def time_sqlite(directory: Path) -> float:
    command = [sys.executable, "-c", SQLITE, str(directory / "numbers.db")]
    return float(subprocess.check_output(command))


def time_postgres(directory: Path) -> float:
    with (
        postgres_server(fsync=True) as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):
        connection.execute("CREATE TABLE numbers (number INTEGER)")
        began = time.monotonic()
        for number in range(COMMITS):
            connection.execute("INSERT INTO numbers VALUES (%s)", (number,))
        return time.monotonic() - began


# Nothing can be tested where nothing can be compiled.
if COMPILER is not None:

    @pytest.mark.slow
    @pytest.mark.parametrize("time_commits", [time_sqlite, time_postgres])
    def test_each_commit_with_delayed_syncs_takes_as_long_as_the_delay(
        time_commits: Callable[[Path], float],
        library: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for name, value in slowed(library, DELAY_MS).items():
            monkeypatch.setenv(name, value)
        assert time_commits(tmp_path) >= COMMITS * DELAY_MS / 1000
