"""Which rows an output writes: each once, and a bad one harms no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad.core.errors import ConfigError
from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import LocalRunner, MemoryInput, Segment, new_job
from postroad.pipeline.connectors import Committable, SqlOutput, UnwritableSegmentsError
from postroad.pipeline.coordinator.batch_result import BatchResult
from postroad.pipeline.coordinator.committer import writer_id
from postroad.pipeline.coordinator.job_store import JobStore
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
    try:
        stager.write(ids or range(len(segments)), segments)
    except UnwritableSegmentsError:
        stager.abort()
        raise
    staged = stager.prepare_commit()
    assert staged is not None
    return staged


async def write(connector: SqlOutput, *segments: Segment) -> dict[int, str]:
    """Write what can be written, as runners do; returns why the rest cannot be."""
    stager, refused = connector.create_writer("job-1"), dict[int, str]()
    pending = dict(enumerate(segments))
    while pending:
        try:
            stager.write(list(pending), list(pending.values()))
            break
        except UnwritableSegmentsError as error:
            assert error.reasons.keys() <= pending.keys()
            refused |= error.reasons
            pending = {id: it for id, it in pending.items() if id not in error.reasons}
    staged = stager.prepare_commit()
    if staged is not None:
        assert not await connector.commit(staged)
    assert staging_rows(connector) == 0
    return refused


def staging_rows(connector: SqlOutput) -> int:
    """Rows that are still staged."""
    with connector.database.pooled() as connection:
        if (path := connector.database.path) is not None:
            return sum(file.stat().st_size > 20_000 for file in Path(path).parent.glob("*.staging"))
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE tablename LIKE 'numbers_postroad_staging%'"
        )
        counts = [connection.execute(f"SELECT COUNT(*) FROM {it}") for (it,) in tables]
    return sum(rows[0][0] for rows in counts)


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


async def test_a_row_that_is_refused_harms_no_other(database: str) -> None:
    execute(database, TABLE.replace("n BIGINT", "n BIGINT NOT NULL CHECK (n < 100)"))
    segments: list[Segment] = [{"n": n, "text": str(n)} for n in range(40)]
    segments[3] = {"n": None, "text": "null"}
    segments[17] = {"n": 100, "text": "too high"}
    segments[18] = {"n": 18, "text": "18", "unknown": 1}
    segments[39] = {"n": 1 << 63, "text": "too long"}
    async with writing(database) as connector:
        refused = await write(connector, *segments)
    good = [n for n in range(39) if n not in (3, 17, 18)]
    assert rows(database) == [(n, n, str(n)) for n in good]
    assert sorted(refused) == [3, 17, 18, 39]
    assert "CHECK" in refused[17].upper()


async def test_row_that_is_refused_only_at_the_commit_is_told_and_harms_no_other(
    database: str,
) -> None:
    """Two writers have rows that exclude one another, which none of them can know."""
    execute(database, TABLE.replace("n BIGINT", "n BIGINT UNIQUE"))
    async with writing(database) as connector:
        first, second = connector.create_writer("job-1"), connector.create_writer("job-2")
        first.write([1, 2], [{"n": 1}, {"n": 2}])
        second.write([3, 4, 5], [{"n": 3}, {"n": 2, "text": "again"}, {"n": 5}])
        staged = first.prepare_commit(), second.prepare_commit()
        assert staged[0] is not None
        assert staged[1] is not None
        assert not await connector.commit(staged[0])
        # Again, as after a crash before it was recorded.
        for _ in range(2):
            ((id, reason, segment),) = await connector.commit(staged[1]) or ()
            assert id == 4
            assert "unique" in reason.lower()
            assert msgspec.msgpack.decode(segment) == {"n": 2, "text": "again"}
        await connector.abort(staged[1])
        assert rows(database, "n") == [(1,), (2,), (3,), (5,)]
        if connector.database.path is None:
            assert staging_rows(connector) == 0


async def test_refused_row_is_tried_again_and_is_then_a_dead_letter(database: str) -> None:
    """By a whole job, with the reason of the database; the rest is written."""
    execute(database, TABLE.replace("n BIGINT", "n BIGINT CHECK (n <> 13)"))
    job = (
        new_job("job")
        .input("in", connector="memory", retry={"attempts": 2, "first_s": 0.01})
        .output("out", connector="sql")
        .build()
    )
    store = MemoryStore(disk := MemoryDisk())
    inputs = {"in": MemoryInput([{"n": n} for n in range(20)])}
    await LocalRunner(job, inputs, {"out": SqlOutput(database, "numbers")}, store).run()
    assert sorted(n for (n,) in rows(database, "n")) == [n for n in range(20) if n != 13]
    ((segment, reasons),) = await dead_letters(disk)
    assert segment == {"n": 13}
    assert len(reasons) == 2
    assert all("CHECK" in it.upper() for it in reasons)


async def test_row_refused_at_the_commit_is_retried_until_it_is_taken_or_dead(
    database: str,
) -> None:
    execute(database, TABLE.replace("n BIGINT", "n BIGINT UNIQUE"))
    job = (
        new_job("job")
        .input("in", connector="memory", retry={"attempts": 3, "first_s": 0.01})
        .output("out", connector="sql")
        .build()
    )
    disk = MemoryDisk()
    store, output = MemoryStore(disk), SqlOutput(database, "numbers")
    runner = LocalRunner(job, {"in": MemoryInput([])}, {"out": output}, store)
    await store.open("job")
    coordinator = runner.coordinator
    await coordinator.open()
    staged = []
    for number, n in enumerate((7, 7, 8)):
        writer = output.create_writer(writer_id("job", str(number), "out"))
        writer.write([number], [{"n": n}])
        staged.append(
            ("out", msgspec.msgpack.decode(msgspec.msgpack.encode(writer.prepare_commit())))
        )
    await coordinator.commit_batch("run", 1, BatchResult([], staged=staged))
    assert (await coordinator.status()).waiting == 1
    async with asyncio.timeout(DEADLINE_S):
        while (await coordinator.status()).dead == 0:
            await coordinator.next_deliveries()
            await asyncio.sleep(0)
    assert (await coordinator.status()).waiting == 0
    # Whoever has mended it says so.
    execute(database, "DELETE FROM numbers WHERE n = 7")
    await store.write(lambda it: JobStore(it.database, "job").retry_dead(None, 0))
    await coordinator.next_deliveries()
    assert sorted(n for (n,) in rows(database, "n")) == [7, 8]
    assert (await coordinator.status()).dead == 0
    await coordinator.close()
    await store.close()


async def dead_letters(disk: MemoryDisk) -> list[tuple[Any, list[str]]]:
    store = MemoryStore(disk)
    await store.open("job")
    try:
        dead = await store.read(lambda it: JobStore(it, "job").list_dead(10))
    finally:
        await store.close()
    return [
        (msgspec.msgpack.decode(it.segment), [attempt.error for attempt in it.history])
        for it in dead
    ]


async def test_rows_of_killed_writers_are_removed_while_the_job_runs(database: str) -> None:
    execute(database, TABLE)
    async with writing(database) as connector:
        left = stage(connector, [{"n": 1}])
        kept_writer = connector.create_writer("job-2")
        kept_writer.write([9], [{"n": 9}])
        kept = kept_writer.prepare_commit()
        assert kept is not None
        await connector.remove_abandoned("job", [kept], time.time() - 1000)
        assert staged_writers(connector) == {"job-1", "job-2"}
        await connector.remove_abandoned("other", [], time.time() + 1000)
        assert staged_writers(connector) == {"job-1", "job-2"}
        await connector.remove_abandoned("job", [kept], time.time() + 1000)
        assert staged_writers(connector) == {"job-2"}
        await connector.commit(kept)
    assert rows(database, "n") == [(9,)]
    assert left["writer"] == "job-1"


def staged_writers(connector: SqlOutput) -> set[str]:
    if (path := connector.database.path) is not None:
        start = f"{Path(path).name}."
        names = [it.name for it in Path(path).parent.glob("*.staging")]
        return {it.removeprefix(start).removesuffix(".staging") for it in names}
    with connector.database.pooled() as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE tablename LIKE 'numbers_postroad_staging%'"
        )
        found = [connection.execute(f"SELECT postroad_writer FROM {it}") for (it,) in tables]
    return {writer for them in found for (writer,) in them}


async def test_rows_with_the_same_key_leave_the_last(database: str) -> None:
    execute(database, "CREATE TABLE numbers (a BIGINT PRIMARY KEY, n BIGINT, text TEXT)")
    async with writing(database, key="a") as connector:
        await write(
            connector, {"a": 1, "n": 1}, {"a": 1, "n": 2}, {"a": 1, "text": "x"}, {"a": 1, "n": 3}
        )
    assert rows(database, "a, n, text") == [(1, 3, "x")]


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
        refused = await write(connector, *segments)
    assert rows(database, "n, text") == [(0, None), (6, "%s ?")]
    assert sorted(refused) == [1, 2, 3, 4, 5]


async def test_rows_that_are_all_refused(database: str) -> None:
    execute(database, TABLE.replace("n BIGINT", "n BIGINT CHECK (n < 0)"))
    async with writing(database) as connector:
        refused = await write(connector, *({"n": n} for n in range(20)))
    assert rows(database) == []
    assert len(refused) == 20


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
            refused = await write(connector, {"n": 1}, {"n": 2})
        assert rows(dsn, "n") == [(1,)]
        assert refused.keys() == {1}


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
            refused = await write(
                connector, segment, {"j": [1, "x"]}, {"d": "no number"}, {"day": "\0"}
            )
        found = execute(dsn, "SELECT d::text, at, day::text, j, b, f FROM numbers ORDER BY 1")
        assert found == [
            ("1.50", at, "2024-02-29", {"a": [1]}, b"\0", 1.0),
            (None, None, None, [1, "x"], None, None),
        ]
        assert refused.keys() == {2, 3}


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
