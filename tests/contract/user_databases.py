"""Databases as their users use them, in SQLite or PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.servers.postgres import fresh_database


def is_postgres(database: str) -> bool:
    return database.startswith("postgresql://")


def execute(database: str, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
    """Run a statement in a transaction of its own; what it yields."""
    if not is_postgres(database):
        with closing(sqlite3.connect(database, timeout=120)) as connection, connection:
            return connection.execute(statement, parameters).fetchall()
    with psycopg.connect(database) as server:
        cursor = server.execute(statement.replace("?", "%s").encode(), parameters)
        return [] if cursor.description is None else cursor.fetchall()


def insert(database: str, statement: str, rows: Sequence[Sequence[object]]) -> None:
    """Run a statement for each of some rows, in one transaction."""
    if not is_postgres(database):
        with closing(sqlite3.connect(database, timeout=120)) as connection, connection:
            connection.executemany(statement, rows)
        return
    with psycopg.connect(database) as server, server.cursor() as cursor:
        cursor.executemany(statement.replace("?", "%s").encode(), rows)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty one of either kind, for tests that import this."""
    if request.param == "sqlite":
        path = str(tmp_path / "user.db")
        execute(path, "PRAGMA journal_mode = WAL")
        yield path
    else:
        with fresh_database() as dsn:
            yield dsn
