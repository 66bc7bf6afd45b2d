"""Tables of jobs that an earlier version made are brought up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.core.errors import StoreMismatchError
from postroad.durable import SqliteStore, Store, store_from_url
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.tables.schema import write_meta
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.pipeline.connectors import Split
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import (
    FailedRoot,
    RootState,
    SegmentAttempt,
)
from postroad.pipeline.coordinator.schema import create_tables
from postroad.pipeline.job import RetryPolicy
from tests.support.servers.postgres import fresh_database

# As version 0.1 made them.
OLD_TABLES = (
    """CREATE TABLE postroad_pipeline_inputs (
        job TEXT NOT NULL, task TEXT NOT NULL, position TEXT NOT NULL,
        PRIMARY KEY (job, task))""",
    """CREATE TABLE postroad_pipeline_jobs (
        job TEXT PRIMARY KEY, delivered BIGINT NOT NULL, settled BIGINT NOT NULL,
        panes BIGINT NOT NULL)""",
    """CREATE TABLE postroad_pipeline_batches (
        job TEXT NOT NULL, run TEXT NOT NULL, batch BIGINT NOT NULL, PRIMARY KEY (job, run))""",
    """CREATE TABLE postroad_pipeline_deliveries (
        job TEXT NOT NULL, number BIGINT NOT NULL, task TEXT NOT NULL, place TEXT,
        segments BIGINT NOT NULL, generation BIGINT NOT NULL, admitted_ms BIGINT NOT NULL,
        settled_then BIGINT NOT NULL, PRIMARY KEY (job, number))""",
    """CREATE TABLE postroad_pipeline_publications (
        id {serial}, job TEXT NOT NULL, task TEXT NOT NULL, staged {blob} NOT NULL)""",
    """CREATE TABLE postroad_pipeline_panes (
        job TEXT NOT NULL, pane {blob} NOT NULL, content {blob} NOT NULL,
        PRIMARY KEY (job, pane))""",
    """CREATE TABLE postroad_pipeline_roots (
        job TEXT NOT NULL, root BIGINT NOT NULL, task TEXT NOT NULL, state TEXT NOT NULL,
        generation BIGINT NOT NULL, due_ms BIGINT NOT NULL, delivery BIGINT,
        segment {blob} NOT NULL, history {blob} NOT NULL, published {blob} NOT NULL,
        PRIMARY KEY (job, root))""",
    "CREATE INDEX postroad_pipeline_due ON postroad_pipeline_roots (job, state, due_ms)",
    "INSERT INTO postroad_pipeline_jobs VALUES ('job', 3, 7, 0)",
    "INSERT INTO postroad_pipeline_batches VALUES ('job', 'old', 6)",
    """INSERT INTO postroad_pipeline_inputs VALUES ('job', 'in', '{{"file":"a","start":9}}')""",
)


async def make_old_store(store: Store) -> None:
    def make(ledger: StoreTables) -> None:
        for statement in OLD_TABLES:
            ledger.database.execute(statement.format_map(store.column_types))
        write_meta(ledger.database, "pipeline.schema", "1")

    await store.open("alpha")
    await store.write(make)


async def check_old_store(store: Store) -> None:
    def change(ledger: StoreTables) -> None:
        create_tables(store.column_types, ledger.database)
        create_tables(store.column_types, ledger.database)
        jobs = JobStore(ledger.database, "job")
        jobs.open()
        assert jobs.last_committed_batch("old") == 6
        assert jobs.position("in") == {"file": "a", "start": 9}
        jobs.add_split("in", Split({"a": 1}, 5, {"split": 1}, {"a": [9, 9, 9, True]}), 1)
        jobs.add_split("in", Split({"a": 2}, 5, {"split": 2}, {"a": [12, 12, 12, True]}), 1)
        attempt = SegmentAttempt(0, 1, "out", "refused")
        failed = FailedRoot(1 << 63, "in", 0, b"\x80", attempt, [])
        states = jobs.record_failures([failed], {"in": RetryPolicy(attempts=1)}, 1, lambda: 0.0)
        assert states == [RootState.DEAD]
        jobs.record_batch("old", 7)

    await store.write(change)
    assert await store.read(lambda it: JobStore(it, "job").input_state("in")) == {
        "a": [12, 12, 12, True]
    }
    await store.close()


async def test_store_of_version_one_is_brought_up_to_date_in_sqlite(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "old.db")
    await make_old_store(store)
    await check_old_store(store)


async def test_store_of_version_one_is_brought_up_to_date_in_postgres() -> None:
    with fresh_database() as dsn:
        store = store_from_url(dsn)
        await make_old_store(store)
        await check_old_store(store)


async def test_tables_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "new.db")
    await store.open("alpha")
    try:
        await store.write(lambda it: write_meta(it.database, "pipeline.schema", "99"))
        with pytest.raises(StoreMismatchError, match="schema 99"):
            await store.write(lambda it: create_tables(store.column_types, it.database))
    finally:
        await store.close()


async def test_runs_without_a_checkpoint_are_forgotten_after_a_while(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    await store.open("alpha")

    def run_often(ledger: StoreTables) -> int:
        create_tables(store.column_types, ledger.database)
        jobs = JobStore(ledger.database, "job")
        jobs.open()
        for number in range(1_000):
            jobs.record_batch(f"run-{number}", 1)
            jobs.record_batch("lasting", number)
        assert jobs.last_committed_batch("lasting") == 999
        assert jobs.last_committed_batch("run-999") == 1
        return _count(ledger.database)

    try:
        assert await store.write(run_often) <= 110
    finally:
        await store.close()


def _count(database: StoreConnection) -> int:
    return int(database.execute("SELECT COUNT(*) FROM postroad_pipeline_batches")[0][0])


async def test_roots_of_a_delivery_are_found_by_an_index(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "index.db")
    await store.open("alpha")
    try:
        await store.write(lambda it: create_tables(store.column_types, it.database))
        plan = await store.read(
            lambda it: it.execute(
                "EXPLAIN QUERY PLAN DELETE FROM postroad_pipeline_roots"
                " WHERE job = ? AND delivery = ? AND state = 'pending'",
                ("job", 1),
            )
        )
        assert "postroad_pipeline_delivered" in str(plan)
    finally:
        await store.close()
