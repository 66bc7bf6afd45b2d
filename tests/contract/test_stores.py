"""Every kind of store keeps to the same behaviour; PostgreSQL is a real one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from postroad.durable import MemoryDisk, MemoryStore, PostgresStore, SqliteStore, Store
from tests.contract.store_behaviour import CommitBehaviour, OpeningBehaviour, store
from tests.contract.store_handling_behaviour import HeldBehaviour, LaneBehaviour
from tests.contract.store_inbox_behaviour import RefusalBehaviour, StreamBehaviour
from tests.contract.store_lending_behaviour import LendingBehaviour
from tests.contract.store_operator_behaviour import OperatorBehaviour
from tests.contract.store_outbox_behaviour import (
    IdempotencyBehaviour,
    OutboxBehaviour,
    SettlingBehaviour,
)
from tests.contract.store_precommit_behaviour import EarlyBehaviour
from tests.contract.store_queue_behaviour import QueueBehaviour
from tests.contract.store_range_behaviour import (
    BesideBehaviour,
    BoundPagesBehaviour,
    StretchBehaviour,
)
from tests.contract.store_savepoint_behaviour import FailureBehaviour, TurnBehaviour
from tests.contract.store_session_behaviour import SessionBehaviour
from tests.support.servers.postgres import fresh_database

__all__ = ["store"]


class StoreBehaviour(
    OpeningBehaviour,
    CommitBehaviour,
    TurnBehaviour,
    LendingBehaviour,
    SessionBehaviour,
    FailureBehaviour,
    OutboxBehaviour,
    SettlingBehaviour,
    IdempotencyBehaviour,
    StreamBehaviour,
    RefusalBehaviour,
    QueueBehaviour,
    OperatorBehaviour,
    StretchBehaviour,
    BoundPagesBehaviour,
    BesideBehaviour,
    HeldBehaviour,
    LaneBehaviour,
    EarlyBehaviour,
):
    """For every store."""


class SqlitePlace:
    """A file."""

    mark = "?"
    reads_beside = True

    def __init__(self, directory: Path) -> None:
        self.path = directory / "mail" / "store.db"
        self._copy = directory / "copy.db"

    def store(self) -> Store:
        return SqliteStore(self.path)

    def back_up(self) -> None:
        shutil.copy(self.path, self._copy)

    def restore(self) -> None:
        for path in self.path.parent.glob("store.db-*"):
            path.unlink()
        shutil.copy(self._copy, self.path)


class TestSqlite(StoreBehaviour):
    @pytest.fixture
    def place(self, tmp_path: Path) -> SqlitePlace:
        return SqlitePlace(tmp_path)


class MemoryPlace:
    """A disk in memory."""

    mark = "?"
    reads_beside = False

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self._copy = b""

    def store(self) -> Store:
        return MemoryStore(self.disk)

    def back_up(self) -> None:
        self._copy = self.disk.backup()

    def restore(self) -> None:
        self.disk.restore(self._copy)


class TestMemory(StoreBehaviour):
    @pytest.fixture
    def place(self) -> MemoryPlace:
        return MemoryPlace()


class PostgresPlace:
    """A database of its own on a shared server."""

    mark = "%s"
    reads_beside = True

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]

    def store(self) -> Store:
        return PostgresStore(self.dsn)

    def back_up(self) -> None:
        self._manage(f"CREATE DATABASE {self._name}_copy TEMPLATE {self._name}")

    def restore(self) -> None:
        self._manage(f"DROP DATABASE {self._name}")
        self._manage(f"ALTER DATABASE {self._name}_copy RENAME TO {self._name}")

    def _manage(self, statement: str) -> None:
        dsn = psycopg.conninfo.make_conninfo(self.dsn, dbname="postgres")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(statement.encode())


class TestPostgres(StoreBehaviour):
    @pytest.fixture
    def place(self) -> Iterator[PostgresPlace]:
        with fresh_database() as dsn:
            yield PostgresPlace(dsn)
