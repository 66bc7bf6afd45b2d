"""The pens of pipelines are the same in every kind of store; PostgreSQL is a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.durable import MemoryStore, PostgresStore, SqliteStore, Store
from tests.contract.pipeline_pen_behaviour import (
    AccountBehaviour,
    ExpiryBehaviour,
    SharingBehaviour,
    pens,
)
from tests.contract.pipeline_root_behaviour import DeadBehaviour, DueBehaviour, RetryBehaviour
from tests.support.servers.postgres import fresh_database

__all__ = ["pens"]


class PenBehaviour(
    AccountBehaviour, ExpiryBehaviour, SharingBehaviour, DueBehaviour, RetryBehaviour, DeadBehaviour
):
    """For every store."""


class TestSqlite(PenBehaviour):
    @pytest.fixture
    def bare_store(self, tmp_path: Path) -> Store:
        return SqliteStore(tmp_path / "store.db")


class TestMemory(PenBehaviour):
    @pytest.fixture
    def bare_store(self) -> Store:
        return MemoryStore()


class TestPostgres(PenBehaviour):
    @pytest.fixture
    def bare_store(self) -> Iterator[Store]:
        with fresh_database() as dsn:
            yield PostgresStore(dsn)
