"""Jobs: what they do, and segments that could not be done."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import msgspec

from postroad.admin.jobs import JobView, find_job, jobs_of, jobs_on
from postroad.admin.pipeline import (
    DeadSegment,
    WaitingSegment,
    WindowView,
    count_dead,
    dead_segments,
    drop_dead,
    explain_mermaid,
    load_job,
    retry_dead,
    waiting_segments,
    window_contents,
)
from postroad.durable import Store

from .limits import CountView, Limit
from .office import Office
from .table import Effect, operation


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a job."""

    name: str
    type: str
    """`input`, `function` or `output`."""
    description: str
    connector: str | None
    """Of inputs and outputs: what kind of place it is."""
    function: str | None


class EdgeView(msgspec.Struct, frozen=True, kw_only=True):
    """Segments go from one task to another."""

    source: str
    target: str


class GraphView(msgspec.Struct, frozen=True, kw_only=True):
    """What flows where in a job."""

    name: str
    description: str
    mermaid: str
    """As a flowchart of Mermaid."""
    tasks: list[TaskView]
    edges: list[EdgeView]


@operation("job.ls")
async def list_jobs(office: Office) -> list[JobView]:
    """Jobs that this node knows of, and how each is doing."""
    return await jobs_of(office.node)


@operation("job.show")
async def show_job(office: Office, job: str) -> JobView:
    """One job: its state, progress, rates and latency of each task, late segments."""
    return await find_job(office.node, job)


@operation("job.explain")
async def explain(office: Office, job: str) -> GraphView:
    """What flows where in a job."""
    read = await asyncio.to_thread(load_job, await _path(office, job))
    return GraphView(
        name=read.name,
        description=read.doc,
        mermaid=explain_mermaid(read),
        tasks=[
            TaskView(
                name=it.name,
                type=it.type.value,
                description=it.doc,
                connector=it.connector,
                function=it.fn,
            )
            for it in read.catalog
        ],
        edges=[EdgeView(source=source, target=target) for source, target in read.workflow],
    )


@operation("job.dead-letters")
async def list_dead(office: Office, job: str, limit: Limit = 100) -> list[DeadSegment]:
    """Dead letters of a job: segments that could not be done, with the reason."""
    return await dead_segments(*await _account(office, job), limit)


@operation("job.waiting")
async def list_waiting(office: Office, job: str, limit: Limit = 100) -> list[WaitingSegment]:
    """The holding pen of a job: segments that failed and are tried again, the next ones first."""
    return await waiting_segments(*await _account(office, job), limit)


@operation("job.windows")
async def list_windows(office: Office, job: str, limit: Limit = 100) -> list[WindowView]:
    """What the windows of a job hold, and how many segments came too late for each."""
    return await window_contents(*await _account(office, job), limit)


@operation("job.count")
async def count(office: Office, job: str, id: str | None = None) -> CountView:
    """How many segments of a job are dead, or whether one is."""
    return CountView(count=await count_dead(*await _account(office, job), id))


@operation("job.retry", Effect.CHANGE, scope="job.count")
async def retry(office: Office, job: str, id: str | None = None) -> CountView:
    """Retry a dead letter, or all: now if the job runs, else the next time it does."""
    return CountView(count=await retry_dead(*await _account(office, job), id))


@operation("job.drop", Effect.DANGER, scope="job.count")
async def drop(office: Office, job: str, id: str | None = None) -> CountView:
    """Drop a dead letter, or all."""
    return CountView(count=await drop_dead(*await _account(office, job), id))


@operation("job.submit", Effect.CHANGE)
async def submit(
    office: Office,
    job: str,
    on: Literal["local", "spark"] | None = None,
    restart: bool = True,
) -> JobView:
    """Have the node run a job, and start it again when it fails.

    A job is named as `job.ls` names it, or by a file below the node's working or data directory.
    One that has queues runs in the process of the node, any other in a process of its own.

    Args:
        on: `local` or `spark`; as the configuration says by default.
        restart: whether it is started again when it fails.
    """
    path = await jobs_on(office.node).submit(job, on, restart)
    return await find_job(office.node, str(path), now=True)


@operation("job.stop", Effect.DANGER, scope="job.show")
async def stop(office: Office, job: str) -> JobView:
    """Stop a running job; when it is started again, it goes on where it was."""
    path = await jobs_on(office.node).stop(job)
    return await find_job(office.node, str(path), now=True)


async def _path(office: Office, job: str) -> Path:
    return await jobs_on(office.node).find_path(job)


async def _account(office: Office, job: str) -> tuple[Path, Store | None]:
    """The file of a job, and the store with its account if that is the node's own."""
    path = await _path(office, job)
    return path, await jobs_on(office.node).store_of(path)
