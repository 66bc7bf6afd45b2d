"""Tables do what every connector does, in both kinds of databases; PostgreSQL is a real one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from postroad.pipeline import InputConnector, OutputConnector, Segment
from postroad.pipeline.connectors import SqlInput, SqlOutput
from tests.contract.pipeline_media_behaviour import (
    InputBehaviour,
    OutputBehaviour,
    PortableInputBehaviour,
    PortableOutputBehaviour,
    Source,
    Target,
    UnboundedBehaviour,
    UnwritableBehaviour,
)
from tests.contract.user_databases import execute, insert
from tests.support.servers.postgres import fresh_database


class Table(Source):
    """A table with a key that has gaps."""

    key = "id BIGINT"

    def __init__(self, database: str, *, follow: bool) -> None:
        super().__init__()
        self._database = database
        self._follow = follow
        execute(database, f"CREATE TABLE numbers ({self.key} PRIMARY KEY, n BIGINT, text TEXT)")

    def make_key(self, number: int) -> object:
        return number + number // 4

    async def put(self, segments: Sequence[Segment]) -> None:
        rows = [(self.make_key(it["n"]), it["n"], it["text"]) for it in segments]
        insert(self._database, "INSERT INTO numbers VALUES (?, ?, ?)", rows)

    def connector(self) -> InputConnector:
        return SqlInput(
            self._database,
            "numbers",
            "id",
            "job",
            columns=["n", "text"],
            continuous=self._follow,
            rescan_interval_s=0,
            split_segments=3,
        )


class TextTable(Table):
    """A table whose keys are in another order than its rows came."""

    key = "id TEXT"

    def make_key(self, number: int) -> object:
        return f"{number * 7919 % 1000:03d}/{number}"


class SqlInputBehaviour(InputBehaviour, PortableInputBehaviour):
    """For both kinds of databases."""


@pytest.fixture
def sqlite_path(tmp_path: Path) -> str:
    path = str(tmp_path / "user.db")
    execute(path, "PRAGMA journal_mode = WAL")
    return path


@pytest.fixture
def dsn() -> Iterator[str]:
    with fresh_database() as it:
        yield it


class TestSqlite(SqlInputBehaviour):
    @pytest.fixture
    def source(self, sqlite_path: str) -> Source:
        return Table(sqlite_path, follow=False)


class TestSqliteTexts(SqlInputBehaviour, UnboundedBehaviour):
    @pytest.fixture
    def source(self, sqlite_path: str) -> Source:
        return TextTable(sqlite_path, follow=True)


class TestPostgres(SqlInputBehaviour, UnboundedBehaviour):
    @pytest.fixture
    def source(self, dsn: str) -> Source:
        return Table(dsn, follow=True)


class TestPostgresTexts(SqlInputBehaviour):
    @pytest.fixture
    def source(self, dsn: str) -> Source:
        return TextTable(dsn, follow=False)


class WrittenTable(Target):
    """A table that is written."""

    def __init__(self, database: str) -> None:
        super().__init__()
        self._database = database
        execute(
            database, "CREATE TABLE numbers (postroad_id BIGINT PRIMARY KEY, n BIGINT, text TEXT)"
        )

    def connector(self) -> OutputConnector:
        return SqlOutput(self._database, "numbers")

    async def published(self) -> list[Segment]:
        rows = execute(self._database, "SELECT n, text FROM numbers")
        return [{"n": n, "text": text} for n, text in rows]


class SqlOutputBehaviour(OutputBehaviour, UnwritableBehaviour, PortableOutputBehaviour):
    """For both kinds of databases."""


class TestSqliteOutput(SqlOutputBehaviour):
    @pytest.fixture
    def target(self, sqlite_path: str) -> Target:
        return WrittenTable(sqlite_path)


class TestPostgresOutput(SqlOutputBehaviour):
    @pytest.fixture
    def target(self, dsn: str) -> Target:
        return WrittenTable(dsn)
