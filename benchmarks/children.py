"""Child processes that talk to their parent over a pipe and never outlive it.

Contenders call `running(target, ...)`: the target function runs in a fresh interpreter and sends
what it has to say through the `announce` function it gets as first argument.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.harness import BenchmarkFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

Announce = Callable[[object], None]
Target = Callable[..., None]

PR_SET_PDEATHSIG = 1
# Fresh interpreters instead of forks: no contender inherits the heap, threads or loop of another.
SPAWN = multiprocessing.get_context("spawn")


class Child:
    """A running child as its parent sees it."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe

    @property
    def pid(self) -> int | None:
        """Process id, to look at its memory."""
        return self._process.pid

    def receive(self, timeout_s: float = 60.0) -> Any:
        """The next value the child announces."""
        try:
            if self._pipe.poll(timeout_s):
                return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(timeout_s)
            status = self._process.exitcode
            raise BenchmarkFailed(f"{self._process.name} ended with status {status}") from None
        raise BenchmarkFailed(f"{self._process.name} said nothing for {timeout_s:g} s")

    def stop(self) -> None:
        """Kill it: nothing here is worth a graceful exit."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


@contextmanager
def running(target: Target, *args: object) -> Iterator[Child]:
    """Run `target(announce, *args)` in a child process until the block ends."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(
        target=_enter, args=(theirs, os.getpid(), target, args), name=_name(target), daemon=True
    )
    process.start()
    theirs.close()
    child = Child(process, ours)
    try:
        yield child
    finally:
        child.stop()


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, however that happens."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(1)


def _enter(pipe: Connection, parent_pid: int, target: Target, args: tuple[object, ...]) -> None:
    die_with_parent(parent_pid)
    # Ctrl-C reaches the whole process group; the parent alone decides and kills its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target(pipe.send, *args)


def _name(target: Target) -> str:
    """Module and function; for a partial, of the function it was given."""
    while isinstance(target, partial):
        target = target.args[0] if target.args else target.func
    return f"{target.__module__}.{target.__qualname__}"
