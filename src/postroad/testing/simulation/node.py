"""A simulated node: a host with a disk, and the process that runs on it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from postroad.core.errors import UsageError
from postroad.testing.simulation.network import SimHost
from postroad.testing.simulation.process import SimProcess

if TYPE_CHECKING:
    from postroad.testing.simulation.cluster import SimCluster


class SimDisk:
    """Small files of one node; a crash may lose changes that were not synced.

    A crash keeps a random number of the first unsynced changes and drops the others: changes reach
    the disk in their order.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        # The files that the node sees, and those that survive a crash.
        self._files: dict[str, bytes] = {}
        self._synced: dict[str, bytes] = {}
        # Changes since the last sync, in order; None deletes.
        self._unsynced: list[tuple[str, bytes | None]] = []

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a file."""
        if not isinstance(data, bytes):
            raise UsageError(f"cannot write {type(data).__name__} to a disk; write bytes")
        self._change(name, data)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        return self._files.get(name)

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        if name in self._files:
            self._change(name, None)

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        return sorted(self._files)

    def sync(self) -> None:
        """Make all changes so far survive a crash."""
        self._synced = dict(self._files)
        self._unsynced.clear()

    def crash(self) -> int:
        """Drop a random part of the unsynced changes; return how many were dropped."""
        surviving = self._rng.randint(0, len(self._unsynced)) if self._unsynced else 0
        dropped = len(self._unsynced) - surviving
        for name, data in self._unsynced[:surviving]:
            _apply(self._synced, name, data)
        self._files = dict(self._synced)
        self._unsynced.clear()
        return dropped

    def _change(self, name: str, data: bytes | None) -> None:
        _apply(self._files, name, data)
        self._unsynced.append((name, data))

    def __repr__(self) -> str:
        return f"<SimDisk {len(self._files)} files, {len(self._unsynced)} changes not synced>"


def _apply(files: dict[str, bytes], name: str, data: bytes | None) -> None:
    if data is None:
        files.pop(name, None)
    else:
        files[name] = data


NodeProgram: TypeAlias = "Callable[[SimNode], Awaitable[object]]"
"""The main coroutine of a node's process; when it returns, the process exits."""


class SimNode:
    """A simulated node, created by `SimCluster.add`.

    Attributes:
        disk: files that survive restarts.
        starts: how often the node was started.
        failure: the exception of its program when it last exited by itself.
    """

    def __init__(
        self, cluster: SimCluster, host: SimHost, program: NodeProgram, disk: SimDisk
    ) -> None:
        self._cluster = cluster
        self._machine = host
        self._program = program
        self.name = host.name
        self.host = host.address
        self.disk = disk
        self.starts = 0
        self.failure: BaseException | None = None
        self.clock_offset_s = 0.0
        self._may_fail = False
        # Set while the process runs.
        self._process: SimProcess | None = None
        self._main: asyncio.Task[None] | None = None
        self._wake_up: asyncio.TimerHandle | None = None

    # State.

    @property
    def is_running(self) -> bool:
        """Whether its process exists; a paused one does."""
        return self._process is not None

    @property
    def is_paused(self) -> bool:
        """Whether its process exists and is paused."""
        return self._process is not None and self._process.is_paused

    @property
    def process(self) -> SimProcess:
        """The current process of the node."""
        if self._process is None:
            raise UsageError(f"node {self.name!r} is not running: start() it first")
        return self._process

    # Lifecycle.

    def start(self, *, may_fail: bool = False) -> None:
        """Turn the host on if it is off, and run the program in a new process.

        Args:
            may_fail: whether the program may raise; otherwise an exception fails the run.
        """
        if self._process is not None:
            raise UsageError(f"cannot start node {self.name!r}: it is running")
        loop = self._cluster.loop
        loop.network.restore_power(self.name)
        self.starts += 1
        self.failure = None
        self._may_fail = may_fail
        self._process = SimProcess(self.name, self._machine, loop.fail)
        self._process.clock_offset_s = self.clock_offset_s
        self._log("started", f"start {self.starts}, {self.host}")
        self._main = loop.create_task(
            self._run(self._process), name=f"{self.name} main", context=self._process.context.copy()
        )

    async def _run(self, process: SimProcess) -> None:
        """Run the program, then clean up as `asyncio.run` does."""
        try:
            await self._program(self)
        except asyncio.CancelledError:
            self._log("cancelled")
        except (KeyboardInterrupt, SystemExit) as error:
            self.failure = RuntimeError(f"node {self.name!r} ended the process: {error!r}")
        except BaseException as error:
            self.failure = error
        await _cancel_others(process)
        self._exit()

    def _exit(self) -> None:
        self._log("exited", "" if self.failure is None else f"with {self.failure!r}")
        self._end_process()
        if self.failure is not None and not self._may_fail:
            self.failure.add_note(f"raised by the program of node {self.name!r}")
            self._cluster.loop.fail(self.failure)

    def stop(self) -> None:
        """Send SIGTERM: call the handler of that signal, or cancel the program."""
        process = self.process
        self._log("stopping")
        if signal.SIGTERM in process.signal_handlers:
            self.send_signal(signal.SIGTERM)
        elif self._main is not None:
            process.context.copy().run(self._main.cancel)

    def send_signal(self, number: int) -> None:
        """Call the handler of a signal that the process set with `loop.add_signal_handler`."""
        if number not in self.process.signal_handlers:
            raise UsageError(f"node {self.name!r} has no handler of signal {number}")
        callback, args = self.process.signal_handlers[number]
        self._cluster.loop.call_soon(callback, *args, context=self.process.context.copy())

    def kill(self) -> None:
        """Kill its process at once, like SIGKILL: the kernel closes its sockets."""
        self._cluster.kill_process(self.process)
        self._log("killed", self._crash_disk())
        self._end_process()

    def lose_power(self) -> None:
        """Turn its host off: peers receive nothing."""
        if self._process is not None:
            self._cluster.kill_process(self._process)
        self._log("power lost", self._crash_disk())
        self._cluster.loop.network.lose_power(self.name)
        self._end_process()

    def pause(self, seconds: float | None = None) -> None:
        """Pause its process, like SIGSTOP, for so many seconds or until `resume`."""
        loop, process = self._cluster.loop, self.process
        loop.pause(process)
        self._log("paused", "" if seconds is None else f"for {seconds:.3f} s")
        self._cancel_wake_up()
        if seconds is not None:
            self._wake_up = loop.call_later(seconds, self.resume, context=loop.own.context.copy())

    def resume(self) -> None:
        """Resume a paused process, like SIGCONT."""
        self._cancel_wake_up()
        if self._process is not None and self._process.is_paused:
            self._log("resumed")
            self._cluster.loop.resume(self._process)

    def jump_clock(self, seconds: float) -> None:
        """Move its wall clock; its monotonic clock does not change."""
        self.clock_offset_s += seconds
        if self._process is not None:
            self._process.clock_offset_s = self.clock_offset_s
        self._log("clock", f"jumps by {seconds:+g} s")

    # Internals.

    def _crash_disk(self) -> str:
        dropped = self.disk.crash()
        return f"{dropped} unsynced changes are gone" if dropped else ""

    def _end_process(self) -> None:
        if self._process is not None:
            self._cluster.kill_process(self._process)
            self._machine.end_processes()
        self._process = self._main = None
        self._cancel_wake_up()

    def _cancel_wake_up(self) -> None:
        if self._wake_up is not None:
            self._wake_up.cancel()
            self._wake_up = None

    def _log(self, verb: str, details: str = "") -> None:
        self._cluster.log.add(self.name, verb, details)

    def __repr__(self) -> str:
        state = "paused" if self.is_paused else "running" if self.is_running else "not running"
        return f"<SimNode {self.name} {self.host} {state}>"


async def _cancel_others(process: SimProcess) -> None:
    this = asyncio.current_task()
    others = [task for task in process.tasks if task is not this and not task.done()]
    for task in others:
        task.cancel()
    for result in await asyncio.gather(*others, return_exceptions=True):
        if isinstance(result, Exception):
            asyncio.get_running_loop().call_exception_handler(
                {"message": "unhandled exception while the process ended", "exception": result}
            )
