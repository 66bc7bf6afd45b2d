"""The tables of jobs in a store, as numbered migrations."""

from __future__ import annotations

from collections.abc import Mapping

from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.tables.schema import Schema, read_meta

# A released migration is never changed.
_TABLES = (
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
)
_STATE_AND_WINDOWS = (
    """CREATE TABLE postroad_pipeline_input_state (
        job TEXT NOT NULL, task TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
        PRIMARY KEY (job, task, key))""",
    # When a run last committed: how many batches the job had settled then.
    "ALTER TABLE postroad_pipeline_batches ADD COLUMN settled BIGINT NOT NULL DEFAULT 0",
    "CREATE INDEX postroad_pipeline_delivered ON postroad_pipeline_roots (job, delivery)",
    # Windows whose contents Spark keeps. The batch is the last one of their query that was
    # taken in.
    """CREATE TABLE postroad_pipeline_spark_windows (
        job TEXT NOT NULL, name TEXT NOT NULL, run TEXT NOT NULL, definition TEXT NOT NULL,
        batch BIGINT NOT NULL, latest_s DOUBLE PRECISION, dropped BIGINT NOT NULL,
        PRIMARY KEY (job, name))""",
    """CREATE TABLE postroad_pipeline_window_deltas (
        job TEXT NOT NULL, name TEXT NOT NULL, number BIGINT NOT NULL, delta {blob} NOT NULL,
        PRIMARY KEY (job, name, number))""",
    """CREATE TABLE postroad_pipeline_window_results (
        id {serial}, job TEXT NOT NULL, task TEXT NOT NULL, path TEXT NOT NULL,
        segments BIGINT NOT NULL)""",
)
_SCHEMA = Schema("jobs", "pipeline.schema", (_TABLES, _STATE_AND_WINDOWS))


def has_tables(database: StoreConnection, version: int = 1) -> bool:
    """Whether a job ever ran with this store, of this version or a later one."""
    return int(read_meta(database, _SCHEMA.key) or 0) >= version


def create_tables(types: Mapping[str, str], database: StoreConnection) -> None:
    """Make the tables, or bring them up to date.

    Raises:
        StoreMismatchError: a newer version of Postroad made them.
    """
    _SCHEMA.migrate(types, database)
