"""Pipelines: jobs, what they do, and segments that could not be done."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from postroad.admin.jobs import JobView, find_job, jobs_of
from postroad.admin.pipeline import (
    DeadSegment,
    count_dead,
    dead_segments,
    drop_dead,
    explain_mermaid,
    load_job,
    replay_dead,
)
from postroad.admin.pipeline_runs import stop_job, submit_job

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


@operation("pipeline.ls")
async def list_jobs(office: Office) -> list[JobView]:
    """Jobs of pipelines that this node knows of, and how each is doing."""
    return await jobs_of(office.node)


@operation("pipeline.show")
async def show_job(office: Office, job: str) -> JobView:
    """One job, and how it is doing."""
    return await find_job(office.node, job)


@operation("pipeline.graph")
async def show_graph(office: Office, job: str) -> GraphView:
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


@operation("pipeline.dead")
async def list_dead(office: Office, job: str, limit: Limit = 100) -> list[DeadSegment]:
    """Segments of a job that could not be done."""
    return await dead_segments(await _path(office, job), None, limit)


@operation("pipeline.count")
async def count(office: Office, job: str, id: str | None = None) -> CountView:
    """How many segments of a job are dead, or whether one is."""
    return CountView(count=await count_dead(await _path(office, job), None, id))


@operation("pipeline.replay", Effect.CHANGE, scope="pipeline.count")
async def replay(office: Office, job: str, id: str | None = None) -> CountView:
    """Have a dead segment, or all, come again the next time the job runs."""
    return CountView(count=await replay_dead(await _path(office, job), None, id))


@operation("pipeline.drop", Effect.DANGER, scope="pipeline.count")
async def drop(office: Office, job: str, id: str | None = None) -> CountView:
    """Forget a dead segment, or all."""
    return CountView(count=await drop_dead(await _path(office, job), None, id))


@operation("pipeline.submit", Effect.CHANGE)
async def submit(office: Office, job: str) -> JobView:
    """Run a job in a process of its own."""
    await asyncio.to_thread(submit_job, await _path(office, job), ())
    return await find_job(office.node, job, now=True)


@operation("pipeline.stop", Effect.DANGER, scope="pipeline.show")
async def stop(office: Office, job: str) -> JobView:
    """Have a running job stop; it goes on where it was when it is run again."""
    await asyncio.to_thread(stop_job, await _path(office, job))
    return await find_job(office.node, job, now=True)


async def _path(office: Office, job: str) -> Path:
    return Path((await find_job(office.node, job)).path)
