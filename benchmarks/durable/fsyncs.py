"""How often all processes of a contender call fsync or fdatasync for one message.

The contender runs in a program of its own under strace, which a filter in the kernel calls for
these two only. Attached to running processes, strace would stop them at every system call; they
would be several times slower, and those that keep many messages with one fsync would keep fewer.
Writes to files opened with O_SYNC are not counted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.durable.contenders import CONTENDERS
from benchmarks.durable.job import Job
from benchmarks.durable.processes import open_line
from benchmarks.harness import BenchmarkFailed
from benchmarks.servers import last_words, server_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WATCH_TIMEOUT_S = 300.0
# No file: the failing fsync of this number marks begin and end in the trace.
MARK = 2**31 - 1
_OPTIONS = ("-f", "--seccomp-bpf", "-qq", "-e", "trace=fsync,fdatasync", "-e", "signal=none")


def find_strace() -> str | None:
    """Where it is; None if it is not installed."""
    return shutil.which("strace")


def fsyncs_per_message(name: str, job: Job, seconds: float) -> float:
    """Run the contender of that name and watch it for about that duration."""
    trace, log = job.scratch / "fsyncs.trace", job.scratch / "fsyncs.log"
    program = [sys.executable, "-m", __name__, name, job.loop, str(job.scratch), str(seconds)]
    command = [find_strace() or "strace", *_OPTIONS, "-o", str(trace), *program]
    with server_process(command, log) as process:
        try:
            status = process.wait(WATCH_TIMEOUT_S)
        except subprocess.TimeoutExpired as expired:
            raise BenchmarkFailed(f"not counted within {WATCH_TIMEOUT_S:g} s") from expired
    if status != 0:
        raise BenchmarkFailed(f"not counted, status {status}: {last_words(log)}")
    with trace.open() as lines:
        return sum(1 for _ in _between_marks(lines)) / int(log.read_text().split()[-1])


def watch(name: str, job: Job, seconds: float) -> int:
    """Transfer messages between two marks: how many."""
    with open_line(CONTENDERS[name], job) as line:
        count = line.warm_up(seconds)
        _mark()
        line.transfer(count)
        _mark()
    return count


def _mark() -> None:
    try:
        os.fsync(MARK)
    except OSError:
        return


def _between_marks(lines: Iterable[str]) -> Iterator[str]:
    """The calls in a trace that belong to the transfer, each once."""
    is_inside = False
    for line in lines:
        if f"fsync({MARK})" in line:
            is_inside = not is_inside
        # A call that takes its time ends on a line of its own.
        elif is_inside and "sync(" in line and "resumed>" not in line:
            yield line


if __name__ == "__main__":
    _, name, loop, scratch, seconds = sys.argv
    print(watch(name, Job(loop, Path(scratch)), float(seconds)))
