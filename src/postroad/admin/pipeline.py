"""Jobs of pipelines: looked at, and what became of segments that could not be done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from postroad.core.errors import ConfigError, StoreLocked
from postroad.durable import SqliteStore, Store, store_at
from postroad.durable.store.database import Database
from postroad.pipeline import (
    Job,
    JobStatus,
    JobStore,
    RootState,
    StoredRoot,
    explain_mermaid,
    explain_text,
    load_job,
    read_job_status,
)

__all__ = [
    "DeadSegment",
    "Job",
    "account_of",
    "count_dead",
    "dead_segments",
    "drop_dead",
    "explain_mermaid",
    "explain_text",
    "load_job",
    "look",
    "replay_dead",
    "store_of",
]

# Time for another operator to be done.
_OPERATOR_S = 5.0
_POLL_S = 0.05


class DeadSegment(msgspec.Struct, frozen=True):
    """A segment that could not be done, as people look at it."""

    id: str
    task: str
    """The task it came in by."""
    segment: Any
    attempts: int
    failed_task: str
    error: str
    died_ms: int


def store_of(path: Path, job: Job, location: str | None) -> Store:
    """Where the account of a job is kept."""
    if location is None:
        return SqliteStore(_account(path, job))
    return store_at(location)


def account_of(path: Path) -> Path:
    """The file that the account of a job is kept in, unless another place is named."""
    return _account(path, load_job(path))


def _account(path: Path, job: Job) -> Path:
    return path.with_name(f"{job.name}.db")


@asynccontextmanager
async def _opened(path: Path, location: str | None) -> AsyncIterator[tuple[Store, Job]]:
    job = load_job(path)
    store = store_of(path, job, location)
    # Beside the process that runs the job, if one does; but one operator after the other.
    deadline_s = time.monotonic() + _OPERATOR_S
    while True:
        try:
            await store.open(role="operator")
            break
        except StoreLocked:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(_POLL_S)
    try:
        yield store, job
    finally:
        await store.close()


async def dead_segments(path: Path, store: str | None, limit: int) -> list[DeadSegment]:
    """What died, some of it."""
    async with _opened(path, store) as (opened, job):
        roots = await opened.read(lambda database: JobStore(database, job.name).list_dead(limit))
    return [_to_dead(root) for root in roots]


def _to_dead(root: StoredRoot) -> DeadSegment:
    last = root.history[-1]
    return DeadSegment(
        f"{root.root:016x}",
        root.task,
        msgspec.msgpack.decode(root.segment),
        len(root.history),
        last.task,
        last.error,
        last.at_ms,
    )


async def look(path: Path, store: str | None) -> JobStatus:
    """How a job stands, whether it runs or not."""
    now_ms = time.time_ns() // 1_000_000
    async with _opened(path, store) as (opened, job):
        windows = [window.name for window in job.windows]
        return await opened.read(
            lambda it: read_job_status(JobStore(it, job.name), now_ms, windows)
        )


async def count_dead(path: Path, store: str | None, id: str | None = None) -> int:
    """How many died, or whether one did."""
    root = _to_root(id)

    def count(database: Database) -> int:
        pen = JobStore(database, job.name)
        if root is None:
            return pen.count(RootState.DEAD)
        found = pen.find(root)
        return int(found is not None and found.state is RootState.DEAD)

    async with _opened(path, store) as (opened, job):
        return await opened.read(count)


async def replay_dead(path: Path, store: str | None, id: str | None) -> int:
    """Have a dead segment, or all, come again the next time the job runs."""
    root, now_ms = _to_root(id), time.time_ns() // 1_000_000
    async with _opened(path, store) as (opened, job):
        return await opened.write(
            lambda it: JobStore(it.database, job.name).retry_dead(root, now_ms)
        )


async def drop_dead(path: Path, store: str | None, id: str | None) -> int:
    """Forget a dead segment, or all."""
    root = _to_root(id)
    async with _opened(path, store) as (opened, job):
        return await opened.write(lambda it: JobStore(it.database, job.name).drop_dead(root))


def _to_root(id: str | None) -> int | None:
    try:
        return None if id is None else int(id, 16)
    except ValueError:
        raise ConfigError(
            f"{id!r} is not the id of a segment, which has 16 hexadecimal digits"
        ) from None
