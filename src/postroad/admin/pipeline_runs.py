"""Jobs that run, here or in the background: started, looked at, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from postroad.core.errors import ConfigError
from postroad.node.jobs import EXIT_DEAD
from postroad.pipeline import Job, JobProgress, JobResult, Local, Spark, load_job, run
from postroad.pipeline.run import PROGRESS_S, OnProgress

from .pipeline import look
from .pipeline_metrics import to_metrics

__all__ = [
    "EXIT_DEAD",
    "PROGRESS_S",
    "PROGRESS_SUFFIX",
    "JobProgress",
    "JobResult",
    "Local",
    "Spark",
    "find_progress",
    "run_job",
    "stop_job",
    "submit_job",
    "tell_metrics",
    "was_killed",
]

PROGRESS_SUFFIX = ".progress.json"
_STALE_S = 10.0
_STOP_S = 60.0
_POLL_S = 0.1

# Processes that were started here and may run.
_started: dict[int, None] = {}


async def run_job(
    path: Path,
    on: Local | Spark,
    on_progress: OnProgress,
    *,
    store: str | None = None,
    config: Path | None = None,
    ends: asyncio.Event | None = None,
) -> JobResult | None:
    """Run a job until its inputs are drained; returns None if it was told to stop before.

    SIGTERM tells it so, and so does `ends`.

    Args:
        path: the job's file.
        on: where it runs.
        on_progress: told about once a second how it is doing.
        store: where its account is kept, if not where that of the job is by default.
        config: of the node whose queues it names.
    """
    file = _progress_path(path, load_job(path))

    def note(progress: JobProgress) -> None:
        # A job that a node runs is not this process's to stop.
        if progress.pid == os.getpid():
            temporary = file.with_suffix(".new")
            temporary.write_bytes(msgspec.json.encode(progress))
            temporary.replace(file)
        on_progress(progress)

    running = asyncio.ensure_future(run(path, on=on, store=store, config=config, on_progress=note))
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event() if ends is None else ends
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    waiting = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        return await running if running.done() else None
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        waiting.cancel()
        running.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        file.unlink(missing_ok=True)


def _progress_path(path: Path, job: Job) -> Path:
    return path.with_name(job.name + PROGRESS_SUFFIX)


# In the background.


def submit_job(path: Path, arguments: Sequence[str]) -> tuple[int, Path]:
    """Run a job in a process of its own that goes on when this one ends.

    Args:
        path: the job's file.
        arguments: what `postroad job run` gets besides.

    Returns:
        The number of the process, and the file that it writes its messages to.

    Raises:
        ConfigError: the job runs already, has mistakes, or cannot be started; with its last words.
    """
    job = load_job(path)
    if (progress := find_progress(path)) is not None:
        raise ConfigError(f"job {job.name!r} runs already, as process {progress.pid}")
    log = path.with_name(f"{job.name}.log")
    pid = _spawn([sys.executable, "-m", "postroad", "job", "run", str(path), *arguments], log)
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
