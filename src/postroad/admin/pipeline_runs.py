"""Jobs that run, here or in the background: started, looked at, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from postroad.core.errors import ConfigError
from postroad.pipeline import (
    Job,
    JobCoordinator,
    JobCounters,
    JobProgress,
    LocalRunner,
    ProgressSampler,
    TaskType,
    load_job,
    make_input,
    make_output,
)

from .pipeline import look, store_of
from .pipeline_metrics import to_metrics

__all__ = [
    "EXIT_DEAD",
    "PROGRESS_S",
    "PROGRESS_SUFFIX",
    "JobProgress",
    "SparkChoice",
    "find_progress",
    "run_job",
    "stop_job",
    "submit_job",
    "tell_metrics",
    "was_killed",
]

PROGRESS_S = 1.0
PROGRESS_SUFFIX = ".progress.json"
EXIT_DEAD = 4
"""What a process ends with that ran a job of which segments died."""
_STALE_S = 10.0
_STOP_S = 60.0
_POLL_S = 0.1

# Processes that were started here and may run.
_started: dict[int, None] = {}

OnProgress = Callable[[JobProgress], None]


class SparkChoice(msgspec.Struct, frozen=True):
    """How to run a job on Spark."""

    master: str | None = None
    """All cores of this machine by default."""
    is_batch: bool = False
    """Whether all that there is makes one batch."""
    python_path: tuple[str, ...] = ()
    bind: str = ""
    """Where executors reach this machine; found out by default."""
    partitions: int | None = None
    """Parts of a batch; as many as this machine has cores by default."""
    conf: dict[str, str] = {}
    packages: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    py_files: tuple[str, ...] = ()


async def run_job(
    path: Path, store: str | None, spark: SparkChoice | None, on_progress: OnProgress
) -> JobCounters:
    """Run a job in this process until its inputs are drained.

    Args:
        path: the job's file.
        store: where its account is kept; `<job>.db` beside the file by default.
        spark: how to run it on Spark; in plain Python by default.
        on_progress: told about once a second how it is doing.
    """
    job = load_job(path)
    inputs = {it.name: make_input(it) for it in job.catalog if it.type is TaskType.INPUT}
    outputs = {it.name: make_output(it) for it in job.catalog if it.type is TaskType.OUTPUT}
    account = store_of(path, job, store)
    if spark is None:
        local = LocalRunner(job, inputs, outputs, account)
        await _run_measured(path, job, local, on_progress)
        return local.coordinator.counts
    from postroad.pipeline.spark import SparkConfig, SparkRunner

    wanted: dict[str, Any] = {"master": spark.master, "partitions": spark.partitions}
    settings = SparkConfig(
        app_name=job.name,
        python_path=spark.python_path,
        bind=spark.bind,
        conf=spark.conf,
        packages=spark.packages,
        jars=spark.jars,
        py_files=spark.py_files,
        **{name: value for name, value in wanted.items() if value is not None},
    )
    checkpoint = None if spark.is_batch else path.with_name(f"{job.name}.spark").absolute()
    runner = SparkRunner(job, inputs, outputs, account, checkpoint, settings)
    await _run_measured(path, job, runner, on_progress)
    return runner.coordinator.counts


class _Runner(Protocol):
    coordinator: JobCoordinator

    async def run(self) -> None:
        """Run until the job is drained."""


async def _run_measured(path: Path, job: Job, runner: _Runner, on_progress: OnProgress) -> None:
    """Run, and tell how it is doing; asked to end by SIGTERM, it stops and says nothing of it."""
    running = asyncio.ensure_future(runner.run())
    measuring = asyncio.ensure_future(_measure(path, job, runner, on_progress))
    loop = asyncio.get_running_loop()
    was_asked = False

    def stop() -> None:
        nonlocal was_asked
        was_asked = True
        running.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        await running
    except asyncio.CancelledError:
        if not was_asked:
            raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        measuring.cancel()
        await asyncio.gather(running, measuring, return_exceptions=True)
        _progress_path(path, job).unlink(missing_ok=True)


async def _measure(path: Path, job: Job, runner: _Runner, on_progress: OnProgress) -> None:
    meter = ProgressSampler(job.name, os.getpid(), runner.coordinator)
    while True:
        if runner.coordinator.is_open:
            progress = await meter.look(getattr(runner, "restarts", 0))
            file = _progress_path(path, job)
            temporary = file.with_suffix(".new")
            temporary.write_bytes(msgspec.json.encode(progress))
            temporary.replace(file)
            on_progress(progress)
        await asyncio.sleep(PROGRESS_S)


def _progress_path(path: Path, job: Job) -> Path:
    return path.with_name(job.name + PROGRESS_SUFFIX)


# In the background.


def submit_job(path: Path, arguments: Sequence[str]) -> tuple[int, Path]:
    """Run a job in a process of its own that goes on when this one ends.

    Args:
        path: the job's file.
        arguments: what `postroad pipeline run` gets besides.

    Returns:
        The number of the process, and the file that it writes its messages to.

    Raises:
        ConfigError: the job runs already, has mistakes, or cannot be started; with its last words.
    """
    job = load_job(path)
    if (progress := find_progress(path)) is not None:
        raise ConfigError(f"job {job.name!r} runs already, as process {progress.pid}")
    log = path.with_name(f"{job.name}.log")
    pid = _spawn([sys.executable, "-m", "postroad", "pipeline", "run", str(path), *arguments], log)
    deadline_s = time.monotonic() + _STOP_S
    while time.monotonic() < deadline_s:
        if find_progress(path) is not None:
            _started[pid] = None
            return pid, log
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended and os.waitstatus_to_exitcode(status) in (0, EXIT_DEAD):
            return pid, log
        if ended:
            break
        time.sleep(_POLL_S)
    words = log.read_text(errors="replace").strip().splitlines()
    raise ConfigError(f"job {job.name!r} did not start: {words[-1] if words else 'no word of it'}")


def _spawn(command: Sequence[str], log: Path) -> int:
    """Start a process that nobody here waits for, in a session of its own."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(command[0], [*command], os.environ, file_actions=actions, setsid=True)


def find_progress(path: Path) -> JobProgress | None:
    """How a running job is doing; None if it does not run."""
    progress = _read_progress(path)
    return progress if progress is not None and _is_alive(progress) else None


def was_killed(path: Path) -> bool:
    """Whether the process of a job is gone that did not stop, but was ended."""
    progress = _read_progress(path)
    return progress is not None and not _has_process(progress)


def _read_progress(path: Path) -> JobProgress | None:
    try:
        content = _progress_path(path, load_job(path)).read_bytes()
        return msgspec.json.decode(content, type=JobProgress)
    except (OSError, msgspec.DecodeError):
        return None


def _is_alive(progress: JobProgress) -> bool:
    # Numbers of processes are used again.
    return _has_process(progress) and time.time() - progress.at < _STALE_S


def _has_process(progress: JobProgress) -> bool:
    _forget_ended()
    try:
        os.kill(progress.pid, 0)
    except OSError:
        return False
    return True


def _forget_ended() -> None:
    """Have the system forget processes started here that have ended: until then they look alive."""
    for pid in [*_started]:
        try:
            has_ended = os.waitpid(pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            has_ended = True
        if has_ended:
            _started.pop(pid, None)


def tell_metrics(path: Path, store: str | None) -> str:
    """How a job is doing, or how it stands if it does not run, as Prometheus reads it."""
    found = find_progress(path) or asyncio.run(look(path, store))
    return to_metrics(load_job(path).name, found)


def stop_job(path: Path) -> int:
    """Have a running job stop, and wait for that; returns the number of its process.

    Raises:
        ConfigError: it does not run, or does not stop.
    """
    progress = find_progress(path)
    if progress is None:
        raise ConfigError(f"job {load_job(path).name!r} does not run")
    os.kill(progress.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + _STOP_S
    while find_progress(path) is not None:
        if time.monotonic() > deadline_s:
            raise ConfigError(f"process {progress.pid} does not stop within {_STOP_S:g} s")
        time.sleep(_POLL_S)
    return progress.pid
