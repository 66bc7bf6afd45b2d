"""Jobs of pipelines that operators look at through a node: which there are, and how each is."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from postroad.core.errors import PostroadError
from postroad.node import Node
from postroad.pipeline import JobProgress, JobStatus

from .errors import NotFound, nearest
from .pipeline import account_of, load_job, look
from .pipeline_runs import PROGRESS_SUFFIX, find_progress, was_killed
from .readings import Reading

JobState = Literal["running", "stopped", "failed"]

_JOB_FILES = (".toml", ".json")


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a pipeline."""

    name: str
    path: str
    """Its file."""
    state: JobState
    """`failed` if its process is gone without having stopped."""
    progress: JobProgress | None
    """What it did since it was started; None if it does not run."""
    dead: int
    """Segments that could not be done."""
    waiting: int
    """Segments that come again later."""
    pending: int
    """Segments that are delivered and not settled."""
    oldest_s: float
    """Age of the oldest delivery that is not settled."""
    problem: str | None = None
    """Why no more is known of it."""


class Jobs:
    """The jobs of a node: those its configuration names, and those whose files lie by its store."""

    def __init__(self, node: Node) -> None:
        self._files = [Path(it) for it in node.config.pipeline.jobs]
        self._directory = node.config.data
        # What jobs that do not run have in their stores.
        self._standings: dict[Path, Reading[JobStatus]] = {}
        self.all = Reading(self._look_at_all)

    async def find(self, name: str, *, now: bool) -> JobView:
        """One of them, by its name or its file; with `now` not as it was a moment ago."""
        paths = await asyncio.to_thread(lambda: {_name_of(it): it for it in self._paths()})
        path = paths.get(name) or next((it for it in paths.values() if str(it) == name), None)
        if path is None:
            raise NotFound(f"there is no job {name!r}{nearest(name, map(str, paths))}")
        if now:
            self._standings.pop(path, None)
        return await self._look_at(path)

    async def _look_at_all(self) -> list[JobView]:
        paths = await asyncio.to_thread(lambda: [*self._paths()])
        return [await self._look_at(path) for path in paths]

    def _paths(self) -> Iterator[Path]:
        yield from self._files
        known = {it.resolve() for it in self._files}
        running = {
            it.name.removesuffix(PROGRESS_SUFFIX)
            for it in self._directory.glob(f"*{PROGRESS_SUFFIX}")
        }
        if not running:
            return
        for path in sorted(self._directory.iterdir()):
            is_new = path.suffix in _JOB_FILES and path.resolve() not in known
            if is_new and _name_of(path) in running:
                yield path

    async def _look_at(self, path: Path) -> JobView:
        try:
            job = await asyncio.to_thread(load_job, path)
            progress = await asyncio.to_thread(find_progress, path)
            if progress is not None:
                return _running(path, progress)
            killed = await asyncio.to_thread(was_killed, path)
            standing = await self._standing(path)
        except PostroadError as error:
            return _view(_name_of(path), path, "stopped", _NOTHING, problem=str(error))
        return _view(job.name, path, "failed" if killed else "stopped", standing)

    async def _standing(self, path: Path) -> JobStatus:
        account = await asyncio.to_thread(account_of, path)
        if not account.exists():
            # It never ran, and a look must not make it look otherwise.
            return _NOTHING
        reading = self._standings.get(path)
        if reading is None:
            reading = self._standings[path] = Reading(lambda: look(path, None))
        return await reading.take()


_NOTHING = JobStatus(0, 0, 0, 0, 0.0)


def _running(path: Path, it: JobProgress) -> JobView:
    standing = JobStatus(
        it.pending, it.waiting, it.dead, it.unpublished, it.oldest_s, it.dropped_late
    )
    return _view(it.job, path, "running", standing, progress=it)


def _view(
    name: str,
    path: Path,
    state: JobState,
    standing: JobStatus,
    *,
    progress: JobProgress | None = None,
    problem: str | None = None,
) -> JobView:
    return JobView(
        name=name,
        path=str(path),
        state=state,
        progress=progress,
        dead=standing.dead,
        waiting=standing.waiting,
        pending=standing.pending,
        oldest_s=standing.oldest_s,
        problem=problem,
    )


def _name_of(path: Path) -> str:
    """What the job in a file is called; the file, if that cannot be read."""
    try:
        return load_job(path).name
    except PostroadError:
        return path.stem


_jobs: weakref.WeakKeyDictionary[Node, Jobs] = weakref.WeakKeyDictionary()


def _of(node: Node) -> Jobs:
    found = _jobs.get(node)
    if found is None:
        found = _jobs[node] = Jobs(node)
    return found


async def jobs_of(node: Node) -> list[JobView]:
    """The jobs of a node, as they were a moment ago."""
    return await _of(node).all.take()


async def find_job(node: Node, name: str, *, now: bool = False) -> JobView:
    """One of them, as it was a moment ago, or is now; raises NotFound if there is none."""
    return await _of(node).find(name, now=now)
