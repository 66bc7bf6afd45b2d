"""Jobs of pipelines: looked at, and what became of segments that could not be done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from postroad.core.errors import ConfigError, StoreLockedError
from postroad.durable import SqliteStore, Store, store_from_url
from postroad.node.reading import load_config
from postroad.node.settings import NodeConfig
from postroad.pipeline import Job, JobStatus, explain_mermaid, explain_text, load_job
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.progress import read_job_status
from postroad.pipeline.coordinator.records import RootState, StoredRoot
from postroad.pipeline.coordinator.schema import has_tables
from postroad.pipeline.coordinator.window_store import WindowView, read_windows
from postroad.pipeline.run import account_path, has_queues

__all__ = [
    "DeadSegment",
    "Job",
    "WaitingSegment",
    "WindowView",
    "account_of",
    "count_dead",
    "dead_segments",
    "drop_dead",
    "explain_mermaid",
    "explain_text",
    "find_config",
    "has_queues",
    "load_job",
    "look",
    "retry_dead",
    "waiting_segments",
    "window_contents",
]

T = TypeVar("T")
Where: TypeAlias = Store | str | None
"""Where the account of a job is: an open store, a path or URL, or where it is by default."""

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


class WaitingSegment(msgspec.Struct, frozen=True):
    """A segment that failed and comes again, as people look at it."""

    id: str
    task: str
    """The task it comes in by."""
    segment: Any
    attempts: int
    failed_task: str
    """Empty if it did not fail since it was retried, or if a window has emitted it."""
    error: str
    due_ms: int
    """When it comes again."""


def find_config(config: object = None) -> NodeConfig:
    """The configuration of the node whose queues a job names.

    Args:
        config: a configuration, or its file; that of the current directory by default.

    Raises:
        ConfigError: there is none, or it is wrong.
    """
    if isinstance(config, NodeConfig):
        return config
    if config is not None and not isinstance(config, str | Path):
        raise ConfigError(f"config is {config!r}; expected the path of a file, or a NodeConfig")
    loaded = load_config(None if config is None else Path(config))
    location = loaded.config.store
    if loaded.path is None and "://" not in location and not Path(location).exists():
        raise ConfigError(
            "a job that has queues needs to know their node: run it where its postroad.toml is, or "
            "give that file (--config), or a running node (node=)"
        )
    return loaded.config


def account_of(path: Path) -> Path | None:
    """The file that the account of a job is kept in by default; None if that is a node's store."""
    job = load_job(path)
    return None if has_queues(job) else account_path(path, job)


def _find_store(path: Path, job: Job, location: str | None) -> Store:
    if location is not None:
        return store_from_url(location)
    return (
        store_from_url(find_config().store)
        if has_queues(job)
        else SqliteStore(account_path(path, job))
    )


@asynccontextmanager
async def _opened(path: Path, where: Where) -> AsyncIterator[tuple[Store, Job]]:
    job = await asyncio.to_thread(load_job, path)
    if isinstance(where, Store):
        yield where, job
        return
    store = _find_store(path, job, where)
    # Beside the process that runs the job, if one does; but one operator after the other.
    deadline_s = time.monotonic() + _OPERATOR_S
    while True:
        try:
            await store.open(role="operator")
            break
        except StoreLockedError:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(_POLL_S)
    try:
        yield store, job
    finally:
        await store.close()


async def _read(path: Path, where: Where, read: Callable[[JobStore, Job], T], nothing: T) -> T:
    """What the account of a job says; `nothing` if no job ever ran with that store."""
    async with _opened(path, where) as (store, job):
        return await store.read(
            lambda it: read(JobStore(it, job.name), job) if has_tables(it) else nothing
        )


async def _change(path: Path, where: Where, change: Callable[[JobStore], int]) -> int:
    async with _opened(path, where) as (store, job):
        return await store.write(
            lambda it: change(JobStore(it.database, job.name)) if has_tables(it.database) else 0
        )


async def dead_segments(path: Path, store: Where, limit: int) -> list[DeadSegment]:
    """What died, some of it."""
    none: list[StoredRoot] = []
    roots = await _read(path, store, lambda it, _: it.list_dead(limit), none)
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


async def waiting_segments(path: Path, store: Where, limit: int) -> list[WaitingSegment]:
    """The holding pen: what failed and comes again, the next ones first."""
    none: list[StoredRoot] = []
    roots = await _read(path, store, lambda it, _: it.list_waiting(limit), none)
    return [_to_waiting(root) for root in roots]


def _to_waiting(root: StoredRoot) -> WaitingSegment:
    last = root.history[-1] if root.history else None
    return WaitingSegment(
        f"{root.root:016x}",
        root.task,
        msgspec.msgpack.decode(root.segment),
        len(root.history),
        "" if last is None else last.task,
        "" if last is None else last.error,
        root.due_ms,
    )


async def window_contents(path: Path, store: Where, limit: int) -> list[WindowView]:
    """What the windows of a job hold, some of it."""
    return await _read(path, store, lambda it, job: read_windows(it, job, limit), [])


async def look(path: Path, store: Where) -> JobStatus:
    """How a job stands, whether it runs or not."""
    now_ms = _now_ms()
    return await _read(
        path, store, lambda it, _: read_job_status(it, now_ms), JobStatus(0, 0, 0, 0, 0.0)
    )


async def count_dead(path: Path, store: Where, id: str | None = None) -> int:
    """How many died, or whether one did."""
    root = _to_root(id)

    def count(pen: JobStore, job: Job) -> int:
        if root is None:
            return pen.count(RootState.DEAD)
        stored = pen.find(root)
        return int(stored is not None and stored.state is RootState.DEAD)

    return await _read(path, store, count, 0)


async def retry_dead(path: Path, store: Where, id: str | None) -> int:
    """Have a dead segment, or all, come again: at once, or the next time the job runs."""
    root, now_ms = _to_root(id), _now_ms()
    return await _change(path, store, lambda it: it.retry_dead(root, now_ms))


async def drop_dead(path: Path, store: Where, id: str | None) -> int:
    """Forget a dead segment, or all."""
    root = _to_root(id)
    return await _change(path, store, lambda it: it.drop_dead(root))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _to_root(id: str | None) -> int | None:
    try:
        return None if id is None else int(id, 16)
    except ValueError:
        raise ConfigError(
            f"{id!r} is not the id of a segment, which has 16 hexadecimal digits"
        ) from None
