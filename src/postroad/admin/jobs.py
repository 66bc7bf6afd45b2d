"""Jobs of pipelines that operators look at through a node: which there are, and how each is."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator
from pathlib import Path

import msgspec

from postroad.core.errors import ConfigError, PostroadError
from postroad.durable import Store
from postroad.node import Node
from postroad.node.jobs import JobState, NodeJob
from postroad.node.settings import Layer
from postroad.pipeline import Job, JobProgress, JobResult, JobStatus

from .errors import NotFound, nearest
from .pipeline import account_of, has_queues, load_job, look
from .pipeline_runs import PROGRESS_SUFFIX, find_progress, stop_job, was_killed
from .readings import Reading

_JOB_FILES = (".toml", ".json")


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a pipeline."""

    name: str
    path: str
    """Its file."""
    state: JobState
    """`finished` if its inputs had nothing more; `failed` if it ended without having stopped."""
    is_on_spark: bool = False
    """Whether the node runs it on Spark."""
    progress: JobProgress | None
    """What it did since it was started; None if it does not run."""
    result: JobResult | None = None
    """What it did until it had finished, if this node knows."""
    dead: int
    """Segments that could not be done."""
    waiting: int
    """Segments that come again later."""
    pending: int
    """Segments that are delivered and not settled."""
    oldest_s: float
    """Age of the oldest delivery that is not settled."""
    restarts: int = 0
    """How often the node has started it again after a failure."""
    next_start_at: float | None = None
    """When the node starts it again, in seconds since 1970."""
    problem: str | None = None
    """Why it failed, or why no more is known of it."""


class Jobs:
    """The jobs of a node: those its configuration names, those that were submitted to it, and those
    that run beside its store."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._directory = node.config.data
        # What jobs that do not run have in their stores.
        self._standings: dict[Path, Reading[JobStatus]] = {}
        self.all = Reading(self._look_at_all)

    async def find(self, name: str, *, now: bool) -> JobView:
        """One of them, by its name or its file; with `now` not as it was a moment ago."""
        path = await self.find_path(name)
        if now:
            self.forget(path)
        return await self._look_at(path)

    def forget(self, path: Path) -> None:
        """Something was done to it: what was known is wrong now."""
        self._standings.pop(path, None)
        self.all.forget()

    async def find_path(self, name: str) -> Path:
        """The file of one of them, by its name or its file; raises NotFound if there is none."""
        return await asyncio.to_thread(self._find_path, name)

    def _find_path(self, name: str) -> Path:
        paths = {_name_of(it): it for it in self._paths()}
        if name in paths:
            return paths[name]
        wanted = Path(name).resolve()
        path = next((it for it in paths.values() if it.resolve() == wanted), None)
        if path is None:
            raise NotFound(f"there is no job {name!r}{nearest(name, map(str, paths))}")
        return path

    async def submit(self, name: str, on: str | None, restart: bool) -> Path:
        """Run one of them, or that of another file."""
        try:
            path = await self.find_path(name)
        except NotFound:
            path = Path(name)
            if not await asyncio.to_thread(path.is_file):
                raise
            # Where it may not be read, nothing is said of what it holds.
            self._node.jobs.check_place(path)
            await asyncio.to_thread(load_job, path)
        if (progress := await asyncio.to_thread(find_progress, path)) is not None:
            raise ConfigError(f"job {name!r} runs already, as process {progress.pid}")
        self._node.jobs.submit(path, on=on, restart=restart)
        self.forget(path)
        return path

    async def stop(self, name: str) -> Path:
        """Stop one that runs, in the node or in a process that somebody else has started."""
        path = await self.find_path(name)
        known = self._node.jobs.find(path)
        if known is not None and known.is_active:
            await self._node.jobs.stop_job(path)
        else:
            await asyncio.to_thread(stop_job, path)
        self.forget(path)
        return path

    async def store_of(self, path: Path) -> Store | None:
        """The store with its account, if that is the node's own."""
        job = await asyncio.to_thread(load_job, path)
        return self._node.queues.store if self._is_in_node(job) else None

    def _is_in_node(self, job: Job) -> bool:
        return has_queues(job) and self._node.config.has(Layer.QUEUES) and self._node.is_running

    async def _look_at_all(self) -> list[JobView]:
        paths = await asyncio.to_thread(lambda: [*self._paths()])
        return [await self._look_at(path) for path in paths]

    def _known(self) -> dict[Path, NodeJob]:
        # They are there as soon as the node runs, and configured before.
        if self._node.is_running:
            return self._node.jobs.jobs
        return {
            Path(it.path).resolve(): NodeJob(it) for it in self._node.config.pipeline.job_settings
        }

    def _find_known(self, path: Path) -> NodeJob | None:
        return self._known().get(path.resolve())

    def _paths(self) -> Iterator[Path]:
        known = self._known()
        yield from (it.path for it in known.values())
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
        known = self._find_known(path)
        state: JobState = "stopped" if known is None else known.state
        try:
            job = await asyncio.to_thread(load_job, path)
            progress = known.progress if known is not None else None
            progress = progress or await asyncio.to_thread(find_progress, path)
            if progress is not None:
                return _view(job.name, path, "running", _standing_in(progress), progress, known)
            if not (known is not None and known.is_active):
                state = "failed" if await asyncio.to_thread(was_killed, path) else state
            standing = await self._standing(path, job)
        except PostroadError as error:
            return _view(_name_of(path), path, state, _NOTHING, None, known, problem=str(error))
        return _view(job.name, path, state, standing, None, known)

    async def _standing(self, path: Path, job: Job) -> JobStatus:
        where: Store | None = self._node.queues.store if self._is_in_node(job) else None
        if where is None:
            account = await asyncio.to_thread(account_of, path)
            if account is None or not account.exists():
                # It never ran, and a look must not make it look otherwise.
                return _NOTHING
        reading = self._standings.get(path)
        if reading is None:
            reading = self._standings[path] = Reading(lambda: look(path, where))
        return await reading.take()


_NOTHING = JobStatus(0, 0, 0, 0, 0.0)


def _standing_in(it: JobProgress) -> JobStatus:
    return JobStatus(it.pending, it.waiting, it.dead, it.unpublished, it.oldest_s)


def _view(
    name: str,
    path: Path,
    state: JobState,
    standing: JobStatus,
    progress: JobProgress | None,
    known: NodeJob | None,
    *,
    problem: str | None = None,
) -> JobView:
    return JobView(
        name=name,
        path=str(path),
        state=state,
        is_on_spark=known is not None and known.settings.is_on_spark,
        progress=progress,
        result=None if known is None else known.result,
        dead=standing.dead,
        waiting=standing.waiting,
        pending=standing.pending,
        oldest_s=standing.oldest_s,
        restarts=0 if known is None else known.restarts,
        next_start_at=None if known is None else known.next_start_at,
        problem=problem or (None if known is None else known.problem),
    )


def _name_of(path: Path) -> str:
    """What the job in a file is called; the file, if that cannot be read."""
    try:
        return load_job(path).name
    except PostroadError:
        return path.stem


_jobs: weakref.WeakKeyDictionary[Node, Jobs] = weakref.WeakKeyDictionary()


def jobs_on(node: Node) -> Jobs:
    """The jobs of a node."""
    known = _jobs.get(node)
    if known is None:
        known = _jobs[node] = Jobs(node)
    return known


async def jobs_of(node: Node) -> list[JobView]:
    """The jobs of a node, as they were a moment ago."""
    return await jobs_on(node).all.take()


async def find_job(node: Node, name: str, *, now: bool = False) -> JobView:
    """One of them, as it was a moment ago, or is now; raises NotFound if there is none."""
    return await jobs_on(node).find(name, now=now)
