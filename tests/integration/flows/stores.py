"""Stores of every kind for one node, opened again and again on the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from postroad.durable import MemoryDisk, MemoryStore, PostgresStore, SqliteStore, Store
from tests.support.servers.postgres import fresh_database

MakeStore = Callable[[], Store]


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStore]:
    """Opens the same store again and again."""
    if request.param == "sqlite":
        yield lambda: SqliteStore(tmp_path / "books.db")
    elif request.param == "memory":
        disk = MemoryDisk()
        yield lambda: MemoryStore(disk)
    else:
        with fresh_database() as dsn:
            yield lambda: PostgresStore(dsn)
