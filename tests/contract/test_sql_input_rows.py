"""Which rows of a table are read: all of them, however late they come, and each once."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors import Position, SqlInput
from tests.contract.user_databases import database, execute, insert
from tests.support.deadlines import DEADLINE_S
from tests.support.servers.postgres import fresh_database, postgres_server

__all__ = ["database"]


@pytest.fixture
def dsn() -> Iterator[str]:
    with fresh_database() as it:
        yield it


class Reader:
    """Reads a table as a desk would, and settles everything at once."""

    def __init__(self, connector: SqlInput) -> None:
        self.connector = connector
        self.position: Position | None = None

    async def take(self, segments: int = 100) -> list[Any]:
        """The values of `n` of what is there now."""
        found: list[Any] = []
        for it in await self.connector.plan_splits(self.position, segments):
            self.position = json.loads(json.dumps(it.next_position))
            found += [row["n"] for row in self.rows(it.position)]
            await self.connector.on_committed([it.position])
        return found

    def rows(self, place: Position) -> list[dict[str, Any]]:
        return [self.connector.decode(raw) for it in self.connector.read(place) for raw in it.raws]


@asynccontextmanager
async def reading(database: str, **options: Any) -> AsyncIterator[Reader]:
    connector = SqlInput(database, **({"table": "numbers", "key": "n", "reader": "job"} | options))
    await connector.open([])
    try:
        yield Reader(connector)
    finally:
        await connector.close()


def make_numbers(database: str, *numbers: object, key: str = "BIGINT") -> None:
    execute(database, f"CREATE TABLE numbers (n {key} PRIMARY KEY)")
    put(database, *numbers)


def put(database: str, *numbers: object) -> None:
    insert(database, "INSERT INTO numbers VALUES (?)", [(it,) for it in numbers])


def taken(database: str) -> list[Any]:
    return execute(database, "SELECT low, high, slice FROM numbers_postroad_job ORDER BY low")


# Late rows.


async def test_a_transaction_that_commits_late_loses_nothing(dsn: str) -> None:
    execute(dsn, "CREATE TABLE numbers (n BIGSERIAL PRIMARY KEY, text TEXT)")
    with psycopg.connect(dsn) as late, psycopg.connect(dsn) as rolled_back:
        add = b"INSERT INTO numbers (text) VALUES ('x') RETURNING n"
        execute(dsn, add.decode())
        assert late.execute(add).fetchone() == (2,)
        assert rolled_back.execute(add).fetchone() == (3,)
        execute(dsn, add.decode())
        async with reading(dsn) as reader:
            assert await reader.take() == [1, 4]
            assert await reader.take() == []
            late.commit()
            rolled_back.rollback()
            execute(dsn, add.decode())
            assert await reader.take() == [5]
            assert await reader.take() == [2]
            assert await reader.take() == []
            assert taken(dsn) == [(1, 2, 0), (4, 5, 0)]


async def test_late_rows_are_found_while_others_keep_coming(database: str) -> None:
    make_numbers(database, 10, 20)
    async with reading(database, late_s=0) as reader:
        assert await reader.take() == [10, 20]
        put(database, 5, 15, 30)
        assert await reader.take() == [5, 15, 30]
        assert await reader.take() == []


async def test_late_texts_are_found(database: str) -> None:
    make_numbers(database, "b", "d", key="TEXT")
    async with reading(database) as reader:
        assert await reader.take() == ["b", "d"]
        put(database, "a", "c", "e")
        assert await reader.take() == ["a", "c", "e"]
        assert await reader.take() == []


async def test_no_more_late_rows_than_are_wanted(database: str) -> None:
    make_numbers(database, 100)
    async with reading(database, late_s=0) as reader:
        assert await reader.take() == [100]
        put(database, *range(10), 200)
        assert await reader.take(4) == [0, 1, 2, 3]
        assert await reader.take(7) == [4, 5, 6, 7, 8, 9, 200]
        assert await reader.take() == []


async def test_a_row_between_others_of_a_slice_is_not_part_of_it(database: str) -> None:
    make_numbers(database, 1, 3)
    async with reading(database) as reader:
        (only,) = await reader.connector.plan_splits(None, 10)
        put(database, 2)
        assert reader.rows(only.position) == [{"n": 1}, {"n": 3}]


async def test_a_job_without_an_end_looks_for_late_rows_at_times(database: str) -> None:
    make_numbers(database, 10)
    async with reading(database, follow=True, late_s=3600) as reader:
        assert await reader.take() == [10]
        put(database, 20)
        assert await reader.take() == [20]
        put(database, 5)
        assert await reader.take() == []
    async with reading(database, follow=True, late_s=0) as again:
        again.position = reader.position
        assert await again.take() == [5]


# What is remembered of them.


async def test_numbers_without_gaps_are_one_range(database: str) -> None:
    make_numbers(database, *range(1, 101))
    async with reading(database, split_segments=7) as reader:
        while await reader.take(20):
            continue
        assert taken(database) == [(1, 100, 0)]
        put(database, *range(101, 110))
        assert len(await reader.take()) == 9
        assert await reader.take() == []
        assert taken(database) == [(1, 109, 0)]


@pytest.mark.parametrize("bits", [16, 32, 64])
async def test_the_lowest_and_the_highest_keys(database: str, bits: int) -> None:
    lowest, highest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    type = {16: "SMALLINT", 32: "INTEGER", 64: "BIGINT"}[bits]
    make_numbers(database, lowest, highest - 1, highest, key=type)
    async with reading(database, split_segments=1) as reader:
        assert await reader.take() == [lowest, highest - 1, highest]
        put(database, lowest + 1)
        assert await reader.take() == [lowest + 1]
        assert await reader.take() == []
        assert taken(database) == [(lowest, lowest + 1, 0), (highest - 1, highest, 0)]


async def test_what_was_settled_before_a_crash_is_noted_by_the_next_process(database: str) -> None:
    make_numbers(database, *range(6))
    async with reading(database, split_segments=2) as first:
        slices = await first.connector.plan_splits(None, 6)
    again = SqlInput(database, "numbers", "n", "job", split_segments=2)
    await again.open([slices[1].position])
    assert await again.plan_splits(slices[2].next_position, 5) == []
    assert taken(database) == [(0, 1, 0), (2, 3, 2), (4, 5, 0)]
    await again.on_committed([slices[1].position])
    assert await again.plan_splits(slices[2].next_position, 5) == []
    assert taken(database) == [(0, 5, 0)]
    await again.close()


async def test_a_second_job_needs_a_name_of_its_own(database: str) -> None:
    make_numbers(database, 1, 2)
    async with reading(database) as first:
        assert await first.take() == [1, 2]
        assert await first.take() == []
    async with reading(database) as second:
        with pytest.raises(ConfigError, match="choose another 'consumer'"):
            await second.take()
    async with reading(database, reader="other") as third:
        assert await third.take() == [1, 2]


async def test_keys_that_are_lost_are_no_empty_slice(database: str) -> None:
    make_numbers(database, 1, 2)
    async with reading(database) as reader:
        (only,) = await reader.connector.plan_splits(None, 10)
        execute(database, "DELETE FROM numbers_postroad_job")
        with pytest.raises(OSError, match="numbers_postroad_job"):
            reader.rows(only.position)


# What rows have.


async def test_values_in_sqlite(tmp_path: Path) -> None:
    path = str(tmp_path / "user.db")
    execute(path, "CREATE TABLE numbers (n INTEGER PRIMARY KEY, a, b, c, d)")
    insert(path, "INSERT INTO numbers VALUES (?, ?, ?, ?, ?)", [(1, None, 1.5, b"\xff", "ä")])
    execute(path, "INSERT INTO numbers VALUES (2, CAST(x'ff' AS TEXT), 0, 0, 0)")
    async with reading(path) as reader:
        (only,) = await reader.connector.plan_splits(None, 10)
        ((_, positions, raws),) = reader.connector.read(only.position)
        assert reader.connector.decode(raws[0]) == {
            "n": 1,
            "a": None,
            "b": 1.5,
            "c": b"\xff",
            "d": "ä",
        }
        assert positions == [1, 2]
        with pytest.raises(ValueError, match="Expected `object`"):
            reader.connector.decode(raws[1])


async def test_values_in_postgres(dsn: str) -> None:
    values = {
        "decimal": ("NUMERIC", "12.30", "12.30"),
        "date": ("DATE", "2024-02-29", "2024-02-29"),
        "never": ("DATE", "infinity", "infinity"),
        "time": ("TIMESTAMP", "2024-02-29 12:00:01.5", "2024-02-29T12:00:01.500000"),
        "zoned": ("TIMESTAMPTZ", "2024-02-29 12:00Z", datetime(2024, 2, 29, 12, tzinfo=UTC)),
        "endless": ("TIMESTAMPTZ", "-infinity", "-infinity"),
        "id": ("UUID", str(uuid.UUID(int=7)), str(uuid.UUID(int=7))),
        "bytes": ("BYTEA", b"\0\xff", b"\0\xff"),
        "json": ("JSONB", '{"a": [1, null]}', {"a": [1, None]}),
        "list": ("BIGINT[]", "{1,2}", [1, 2]),
        "address": ("INET", "10.0.0.1", "10.0.0.1"),
        "nothing": ("TEXT", None, None),
        "flag": ("BOOLEAN", True, True),
    }
    columns = ", ".join(f'"{name}" {type}' for name, (type, _, _) in values.items())
    execute(dsn, f"CREATE TABLE numbers (n BIGINT PRIMARY KEY, {columns})")
    places = ", ".join("?" * len(values))
    given = [value for _, value, _ in values.values()]
    execute(dsn, f"INSERT INTO numbers VALUES (1, {places})", given)
    async with reading(dsn) as reader:
        (only,) = await reader.connector.plan_splits(None, 10)
        (row,) = reader.rows(only.position)
        assert row == {"n": 1} | {name: it for name, (_, _, it) in values.items()}


@pytest.mark.parametrize("key", ["TEXT", "VARCHAR(20)", "CHAR(20)"])
async def test_keys_may_be_any_text(database: str, key: str) -> None:
    texts = ["a'b", 'say "x"', "back\\slash", "{1,2}", "NULL", "", "ä, ö", "%s ?"]
    make_numbers(database, *texts, key=key)
    async with reading(database) as reader:
        found = await reader.take()
        assert sorted(it.rstrip() for it in found) == sorted(texts)
        assert await reader.take() == []


async def test_rows_that_are_gone_are_told_of(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_numbers(database, 1, 2, 3)
    async with reading(database) as reader:
        (only,) = await reader.connector.plan_splits(None, 10)
        execute(database, "DELETE FROM numbers WHERE n = 2")
        assert reader.rows(only.position) == [{"n": 1}, {"n": 3}]
    assert "1 rows of table 'numbers' were deleted" in caplog.text


async def test_the_connection_string_may_have_options(dsn: str) -> None:
    execute(dsn, "CREATE SCHEMA other")
    execute(dsn, "CREATE TABLE other.numbers (n BIGINT PRIMARY KEY)")
    execute(dsn, "INSERT INTO other.numbers VALUES (1)")
    async with reading(f"{dsn}?options=-csearch_path%3Dother") as reader:
        assert await reader.take() == [1]
    async with reading(dsn, table="other.numbers", reader="second") as reader:
        assert await reader.take() == [1]


async def test_keys_may_be_uuids(dsn: str) -> None:
    ids = [str(uuid.UUID(int=it)) for it in (5, 1, 3)]
    make_numbers(dsn, *ids, key="UUID")
    async with reading(dsn) as reader:
        assert await reader.take() == sorted(ids)
        put(dsn, str(uuid.UUID(int=2)))
        assert await reader.take() == [str(uuid.UUID(int=2))]


async def test_a_long_slice_is_read_in_several_chunks(database: str) -> None:
    make_numbers(database, *range(1_200))
    async with reading(database) as reader:
        (only,) = await reader.connector.plan_splits(None, 2_000)
        chunks = list(reader.connector.read(only.position))
        assert len(chunks) == 3
        assert [key for it in chunks for key in it.positions] == list(range(1_200))


# What is wrong.


async def test_a_table_that_is_not_there(database: str) -> None:
    with pytest.raises(ConfigError, match="'numbers'"):
        async with reading(database):
            pytest.fail("it opened")


async def test_a_column_that_is_not_there(database: str) -> None:
    make_numbers(database)
    with pytest.raises(ConfigError, match="other"):
        async with reading(database, columns=["other"]):
            pytest.fail("it opened")


async def test_keys_that_are_no_keys(database: str) -> None:
    execute(database, "CREATE TABLE numbers (n DOUBLE PRECISION)")
    put(database, 1.5)
    async with reading(database) as reader:
        with pytest.raises(ConfigError, match="option 'key'"):
            await reader.take()
    execute(database, "DROP TABLE numbers_postroad_job")
    execute(database, "DROP TABLE numbers")
    execute(database, "CREATE TABLE numbers (n BIGINT)")
    put(database, 7, 7)
    async with reading(database) as reader:
        with pytest.raises(ConfigError, match="7 is in two rows"):
            await reader.take()
    put(database, None)
    with pytest.raises(ConfigError, match="NULL"):
        async with reading(database):
            pytest.fail("it opened")


async def test_a_table_that_vanishes(database: str) -> None:
    make_numbers(database, 1)
    async with reading(database) as reader:
        (only,) = await reader.connector.plan_splits(None, 10)
        execute(database, "DROP TABLE numbers")
        with pytest.raises(ConfigError, match="'numbers'"):
            reader.rows(only.position)
        with pytest.raises(OSError, match="numbers"):
            await reader.connector.plan_splits(only.next_position, 10)


async def test_options_that_are_wrong() -> None:
    for options, named in (
        ({"database": ""}, "database"),
        ({"database": "postgresql://host/name?nonsense=1"}, "database"),
        ({"consumer": ""}, "consumer"),
        ({"consumer": "r" * 60}, "longer"),
        ({"table": "what?"}, "what"),
        ({"split_segments": 0}, "split_segments"),
        ({"database": 1}, "database"),
        ({"table": 1}, "table"),
        ({"key": None}, "column"),
        ({"columns": "n"}, "columns"),
        ({"columns": []}, "columns"),
        ({"follow": "yes"}, "continuous"),
        ({"late_s": "1"}, "rescan_interval_s"),
    ):
        facts: dict[str, Any] = {"database": "x.db", "table": "t", "key": "k", "consumer": "r"}
        with pytest.raises(ConfigError, match=named):
            await SqlInput(**(facts | options)).open([])


async def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no database"):
        await SqlInput(str(tmp_path / "nothing.db"), "t", "k", "r").open([])


async def test_a_server_that_is_down_comes_back() -> None:
    with postgres_server() as server, server.database() as dsn:
        make_numbers(dsn, 1, 2)
        async with reading(dsn) as reader:
            (first,) = await reader.connector.plan_splits(None, 1)
            server.stop()
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(OSError, match="postgresql://"):
                    await reader.connector.plan_splits(first.next_position, 1)
                with pytest.raises(ConnectionError, match="postgresql://"):
                    await reader.connector.plan_splits(first.next_position, 1)
                with pytest.raises(ConnectionError, match="postgresql://"):
                    await asyncio.to_thread(reader.rows, first.position)
            server.start()
            reader.position = first.next_position
            assert await reader.take() == [2]


async def test_a_server_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.pipeline.connectors.sql.postgres.SILENCE_S", 0.3)
    with postgres_server() as server, server.database() as dsn:
        make_numbers(dsn, 1, 2)
        async with reading(dsn) as reader:
            (first,) = await reader.connector.plan_splits(None, 1)
            server.pause()
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(TimeoutError):
                    await reader.connector.plan_splits(first.next_position, 1)
            server.resume()
            reader.position = first.next_position
            assert await reader.take() == [2]
