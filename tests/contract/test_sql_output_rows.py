"""Which rows an output writes: each once, and a bad one harms no other."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.pipeline import Segment
from postroad.pipeline.connectors import Committable, SqlOutput, UnwritableSegmentsError
from tests.contract.user_databases import database, execute
from tests.support.deadlines import DEADLINE_S
from tests.support.servers.postgres import fresh_database, postgres_server

__all__ = ["database"]

TABLE = "CREATE TABLE numbers (postroad_id BIGINT PRIMARY KEY, n BIGINT, text TEXT)"
HIGHEST = (1 << 64) - 1


@asynccontextmanager
async def writing(database: str, **options: Any) -> AsyncIterator[SqlOutput]:
    connector = SqlOutput(database, "numbers", **options)
    await connector.open("job", [])
    try:
        yield connector
    finally:
        await connector.close()


def stage(
    connector: SqlOutput, segments: Sequence[Segment], ids: Sequence[int] = ()
) -> Committable:
    stager = connector.create_writer("job-1")
    stager.write(ids or range(len(segments)), segments)
    staged = stager.prepare_commit()
    assert staged is not None
    return staged


async def write(connector: SqlOutput, *segments: Segment) -> None:
    await connector.commit(stage(connector, segments))


def rows(database: str, columns: str = "postroad_id, n, text") -> list[Any]:
    return execute(database, f"SELECT {columns} FROM numbers ORDER BY 1")


async def test_the_id_is_the_key(database: str) -> None:
    execute(database, TABLE)
    async with writing(database) as connector:
        staged = stage(connector, [{"n": 1}, {"n": 2, "text": "two"}], [HIGHEST, 5])
        await connector.commit(staged)
        execute(database, "UPDATE numbers SET text = 'changed' WHERE n = 2")
        await connector.commit(staged)
    assert rows(database) == [(-1, 1, None), (5, 2, "changed")]


async def test_a_key_of_ones_own_is_updated(database: str) -> None:
    execute(database, "CREATE TABLE numbers (a BIGINT, b TEXT, n BIGINT, PRIMARY KEY (a, b))")
    async with writing(database, key=["a", "b"]) as connector:
        await write(connector, {"a": 1, "b": "x", "n": 1}, {"a": 1, "b": "y", "n": 2})
        await write(connector, {"a": 1, "b": "x", "n": 3}, {"a": 1, "b": "y"})
        with pytest.raises(UnwritableSegmentsError) as refused:
            stage(connector, [{"a": 1, "b": "x"}, {"a": 2}, {"a": None, "b": "z"}], [7, 8, 9])
        assert set(refused.value.reasons) == {8, 9}
    assert rows(database, "b, n") == [("x", 3), ("y", 2)]


async def test_only_some_columns(database: str) -> None:
    execute(database, TABLE)
    async with writing(database, columns=["n"]) as connector:
        await write(connector, {"n": 1, "text": "left out", "other": 1})
    assert rows(database) == [(0, 1, None)]


async def test_a_row_that_is_refused_harms_no_other(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    execute(database, TABLE.replace("n BIGINT", "n BIGINT NOT NULL CHECK (n < 100)"))
    segments: list[Segment] = [{"n": n, "text": str(n)} for n in range(40)]
    segments[3] = {"n": None, "text": "null"}
    segments[17] = {"n": 100, "text": "too high"}
    segments[18] = {"n": 18, "text": "18", "unknown": 1}
    segments[39] = {"n": 1 << 63, "text": "too long"}
    async with writing(database) as connector:
        staged = stage(connector, segments)
        with caplog.at_level(logging.WARNING, "postroad.pipeline"):
            await connector.commit(staged)
            await connector.commit(staged)
    good = [n for n in range(39) if n not in (3, 17, 18)]
    assert rows(database) == [(n, n, str(n)) for n in good]
    refused = execute(database, "SELECT * FROM numbers_postroad_refused ORDER BY id")
    assert [id for id, _, _ in refused] == [3, 17, 18, 39]
    assert all(reason for _, reason, _ in refused)
    assert json.loads(refused[1][2]) == segments[17]
    assert "refused 4 rows" in caplog.text


async def test_segments_that_no_statement_can_have(database: str) -> None:
    execute(database, TABLE)
    segments: list[Segment] = [
        {"n": 0},
        {"n": 1, "what?": 1},
        {"n": 2, "": 1},
        {"n": 3, "a\0": 1},
        {"n": 4, "text": {(1, 2): "no key of JSON"}},
        {"n": 5, "100%": 1},
        {"n": 6, "text": "%s ?"},
    ]
    async with writing(database) as connector:
        await write(connector, *segments)
    assert rows(database, "n, text") == [(0, None), (6, "%s ?")]
    refused = execute(database, "SELECT id FROM numbers_postroad_refused ORDER BY id")
    assert refused == [(1,), (2,), (3,), (4,), (5,)]


async def test_rows_that_are_all_refused(database: str) -> None:
    execute(database, TABLE.replace("n BIGINT", "n BIGINT CHECK (n < 0)"))
    async with writing(database) as connector:
        await write(connector, *({"n": n} for n in range(20)))
    assert rows(database) == []
    assert execute(database, "SELECT COUNT(*) FROM numbers_postroad_refused") == [(20,)]


async def test_constraints_that_wait_for_the_end(tmp_path: Path) -> None:
    with fresh_database() as dsn:
        execute(dsn, "CREATE TABLE others (n BIGINT PRIMARY KEY)")
        execute(dsn, "INSERT INTO others VALUES (1)")
        execute(dsn, TABLE)
        execute(
            dsn,
            "ALTER TABLE numbers ADD FOREIGN KEY (n) REFERENCES others"
            " DEFERRABLE INITIALLY DEFERRED",
        )
        async with writing(dsn) as connector:
            await write(connector, {"n": 1}, {"n": 2})
        assert rows(dsn, "n") == [(1,)]
        assert execute(dsn, "SELECT id FROM numbers_postroad_refused") == [(1,)]


async def test_values_in_postgres() -> None:
    with fresh_database() as dsn:
        execute(
            dsn,
            "CREATE TABLE numbers (postroad_id BIGINT PRIMARY KEY, d NUMERIC, at TIMESTAMPTZ,"
            " day DATE, j JSONB, b BYTEA, f DOUBLE PRECISION)",
        )
        at = datetime(2024, 2, 29, tzinfo=UTC)
        segment = {"d": "1.50", "at": at, "day": "2024-02-29", "j": {"a": [1]}, "b": b"\0", "f": 1}
        async with writing(dsn) as connector:
            await write(connector, segment, {"j": [1, "x"]}, {"d": "no number"}, {"day": "\0"})
        found = execute(dsn, "SELECT d::text, at, day::text, j, b, f FROM numbers ORDER BY 1")
        assert found == [
            ("1.50", at, "2024-02-29", {"a": [1]}, b"\0", 1.0),
            (None, None, None, [1, "x"], None, None),
        ]
        refused = execute(dsn, "SELECT id FROM numbers_postroad_refused ORDER BY id")
        assert refused == [(2,), (3,)]


async def test_values_in_sqlite(tmp_path: Path) -> None:
    path = str(tmp_path / "user.db")
    execute(path, TABLE)
    async with writing(path) as connector:
        at = datetime(2024, 2, 29, tzinfo=UTC)
        await write(connector, {"text": {"a": [1]}}, {"text": at}, {"text": b"\0"})
    assert rows(path, "postroad_id, text") == [
        (0, '{"a":[1]}'),
        (1, "2024-02-29T00:00:00+00:00"),
        (2, b"\0"),
    ]


@pytest.mark.parametrize(
    ("table", "options"),
    [
        ("CREATE TABLE others (n BIGINT)", {}),
        ("CREATE TABLE numbers (n BIGINT)", {}),
        ("CREATE TABLE numbers (postroad_id BIGINT)", {}),
        (TABLE, {"key": ["n"]}),
    ],
)
async def test_a_table_that_cannot_be_written(
    database: str, table: str, options: dict[str, Any]
) -> None:
    execute(database, table)
    with pytest.raises(ConfigError, match="'numbers' cannot be written"):
        async with writing(database, **options):
            pytest.fail("it opened")


async def test_options_that_are_wrong() -> None:
    with pytest.raises(ConfigError, match="'key'"):
        SqlOutput("x.db", "numbers", key=[])
    with pytest.raises(ConfigError, match="'columns'"):
        SqlOutput("x.db", "numbers", key="n", columns=["text"])


async def test_a_table_that_vanishes_is_waited_for(database: str) -> None:
    execute(database, TABLE)
    async with writing(database) as connector:
        staged = stage(connector, [{"n": 1}])
        execute(database, "DROP TABLE numbers")
        with pytest.raises(OSError, match="numbers"):
            await connector.commit(staged)
        execute(database, TABLE)
        await connector.commit(staged)
    assert rows(database, "n") == [(1,)]


async def test_a_server_that_is_down_is_waited_for() -> None:
    with postgres_server() as server, server.database() as dsn:
        execute(dsn, TABLE)
        async with writing(dsn) as connector:
            staged = stage(connector, [{"n": 1}])
            server.kill()
            async with asyncio.timeout(DEADLINE_S):
                for _ in range(2):
                    with pytest.raises(OSError, match="postgresql://"):
                        await connector.commit(staged)
            server.start()
            await connector.commit(staged)
        assert rows(dsn, "n") == [(1,)]
