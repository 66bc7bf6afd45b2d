"""Jobs that a node runs: started with it, started again when they fail, stopped before it stops.

A job that reads or sends to queues runs in the process of the node, in whose store its account is.
Any other job runs in a process of its own, so that its functions cannot harm the node.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from postroad.core import Lifecycle
from postroad.core.errors import ConfigError
from postroad.core.timing import backoff

from .settings import JobSettings, Layer

if TYPE_CHECKING:
    from postroad.pipeline import Job, JobProgress, JobResult, Local, Spark

    from .node import Node

logger = logging.getLogger(__name__)

JobState = Literal["stopped", "running", "finished", "failed"]

EXIT_DEAD = 4
"""What a process ends with that ran a job to its end, and has dead letters."""
_PAUSE_FIRST_S = 0.5
_PAUSE_MAX_S = 60.0
# A run that lasted so long was well.
_STABLE_AFTER_S = 60.0
# How long a process may take to stop before it is killed.
STOP_S = 10.0


class NodeJob:
    """One job of a node, and how it is doing.

    Args:
        settings: which, and how it is run.
    """

    def __init__(self, settings: JobSettings) -> None:
        self.settings = settings
        self.path = Path(settings.path)
        self.state: JobState = "stopped"
        self.problem: str | None = None
        """Why it failed the last time."""
        self.restarts = 0
        """How often it was started again after a failure."""
        self.next_start_at: float | None = None
        """When it is started again, in seconds since 1970; None if it need not be."""
        self.progress: JobProgress | None = None
        """Of a job that runs in this process."""
        self.result: JobResult | None = None
        """Of a job that ran to its end in this process."""
        self.task: asyncio.Task[None] | None = None

    @property
    def is_active(self) -> bool:
        """Whether it runs, or is started again after a pause."""
        return self.task is not None and not self.task.done()

    def on_progress(self, progress: JobProgress) -> None:
        """It has come this far."""
        self.progress = progress


class JobSupervisor(Lifecycle):
    """Runs the jobs of a node.

    Args:
        node: its layers run.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.jobs: dict[Path, NodeJob] = {
            Path(it.path).resolve(): NodeJob(it) for it in node.config.pipeline.job_settings
        }

    async def start(self) -> None:
        """Start the jobs that the configuration says are to run."""
        for job in self.jobs.values():
            if job.settings.start:
                self._begin(job, restart=True)

    async def stop(self) -> None:
        """Stop all jobs; with the next start they go on where they were."""
        active = [it for it in self.jobs.values() if it.is_active]
        await asyncio.gather(*(self._end(it) for it in active))

    def find(self, path: Path) -> NodeJob | None:
        """The job of a file, if it is one of this node's."""
        return self.jobs.get(path.resolve())

    def submit(self, path: Path, *, on: str | None = None, restart: bool = True) -> NodeJob:
        """Run a job.

        Args:
            path: its file: one that the configuration names, or one below the node's working or
                data directory.
            on: `local` or `spark`; as the configuration says by default.
            restart: whether it is started again when it fails.

        Raises:
            ConfigError: it runs already, or the node may not run this file.
        """
        job = self.find(path)
        if job is None:
            self.check_place(path)
            job = self.jobs[path.resolve()] = NodeJob(JobSettings(path=str(path)))
        if job.is_active:
            raise ConfigError(f"job {path} runs already in node {self._node.name!r}")
        if on is not None:
            job.settings = _replace_on(job.settings, on)
        self._begin(job, restart=restart)
        return job

    def check_place(self, path: Path) -> None:
        """Raise ConfigError for files from anywhere: submitting jobs reads no other files."""
        allowed = (Path.cwd(), self._node.config.data)
        if not any(path.resolve().is_relative_to(it.resolve()) for it in allowed):
            raise ConfigError(
                f"node {self._node.name!r} runs job files below {Path.cwd()} and "
                f"{self._node.config.data}, and {path} is elsewhere; name it in pipeline.jobs"
            )

    async def stop_job(self, path: Path) -> None:
        """Stop a job, until it is submitted or the node is started again.

        Raises:
            ConfigError: it does not run in this node.
        """
        job = self.find(path)
        if job is None or not job.is_active:
            raise ConfigError(f"job {path} does not run in node {self._node.name!r}")
        await self._end(job)

    # One job.

    def _begin(self, job: NodeJob, *, restart: bool) -> None:
        job.state, job.problem, job.restarts = "running", None, 0
        job.progress = job.result = None
        job.task = asyncio.create_task(self._supervise(job, restart), name=f"job {job.path}")

    async def _end(self, job: NodeJob) -> None:
        task = job.task
        if task is None:
            return
        task.cancel()
        await asyncio.wait((task,))
        job.state, job.progress, job.next_start_at = "stopped", None, None

    async def _supervise(self, job: NodeJob, restart: bool) -> None:
        failures = 0
        while True:
            started_s = time.monotonic()
            job.state, job.next_start_at = "running", None
            try:
                job.result = await self._run(job)
                job.state, job.problem = "finished", None
                return
            except (Exception, SystemExit) as error:
                job.state, job.problem = "failed", str(error) or repr(error)
                logger.debug("job %s failed", job.path, exc_info=True)
            finally:
                job.progress = None
            failures = 1 if time.monotonic() - started_s > _STABLE_AFTER_S else failures + 1
            pause_s = backoff(
                failures,
                initial_delay_s=_PAUSE_FIRST_S,
                max_delay_s=_PAUSE_MAX_S,
                jitter=random.random(),
            )
            if not restart:
                logger.warning("job %s failed: %s", job.path, job.problem)
                return
            logger.warning(
                "job %s failed and starts again in %.1f s: %s", job.path, pause_s, job.problem
            )
            job.next_start_at = time.time() + pause_s
            await asyncio.sleep(pause_s)
            job.restarts += 1

    async def _run(self, job: NodeJob) -> JobResult | None:
        from postroad.pipeline import load_job, run
        from postroad.pipeline.run import has_queues

        loaded = await asyncio.to_thread(load_job, job.path)
        if not has_queues(loaded):
            await self._run_process(job, loaded)
            return None
        if not self._node.config.has(Layer.QUEUES):
            raise ConfigError(
                f"job {loaded.name!r} has queues, but node.layers does not list 'queues'"
            )
        _import_from_here()
        return await run(
            job.path, on=_place(job.settings), node=self._node, on_progress=job.on_progress
        )

    async def _run_process(self, job: NodeJob, loaded: Job) -> None:
        log = job.path.with_name(f"{loaded.name}.log")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        output = await asyncio.to_thread(os.open, log, flags, 0o644)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "postroad", "job", "run", str(job.path)),
                *_to_arguments(job.settings),
                # It ends with the node, even if that is killed.
                "--until-eof",
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
            )
        finally:
            os.close(output)
        try:
            status = await process.wait()
        except asyncio.CancelledError:
            await _stop_process(process)
            raise
        if status < 0:
            raise ConfigError(f"its process was ended by signal {-status}")
        if status not in (0, EXIT_DEAD):
            raise ConfigError(await asyncio.to_thread(_last_line, log) or f"exit status {status}")


async def _stop_process(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _import_from_here() -> None:
    """Functions are found in the current directory, as by `postroad job run`."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def _replace_on(settings: JobSettings, on: str) -> JobSettings:
    changed = msgspec.convert({**msgspec.to_builtins(settings), "on": on}, JobSettings)
    return changed if on == "spark" else msgspec.structs.replace(changed, master=None)


def _place(settings: JobSettings) -> Local | Spark:
    from postroad.pipeline import Local, Spark

    if not settings.is_on_spark:
        return Local()
    return Spark(
        settings.master,
        conf=settings.conf or None,
        partitions=settings.partitions,
        bind=settings.bind,
    )


def _to_arguments(settings: JobSettings) -> list[str]:
    if not settings.is_on_spark:
        return []
    arguments = ["--spark"]
    for name in ("master", "partitions", "bind"):
        if (value := getattr(settings, name)) is not None:
            arguments += [f"--{name}", str(value)]
    for key, value in settings.conf.items():
        arguments += ["--conf", f"{key}={value}"]
    return arguments
