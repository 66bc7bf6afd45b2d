"""One simulated node: a machine with a disk, and the process that runs on it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from postroad.core.errors import UsageError
from postroad.testing.simulation.disk import SimDisk
from postroad.testing.simulation.network import SimHost
from postroad.testing.simulation.process import SimProcess

if TYPE_CHECKING:
    from postroad.testing.simulation.cluster import SimCluster

NodeProgram: TypeAlias = "Callable[[SimNode], Awaitable[object]]"
"""The main program of a node's process. When it returns, the process is over."""


class SimNode:
    """Made by `SimCluster.add`.

    Attributes:
        name: its name, which is also its host's.
        host: its address.
        disk: what it keeps over restarts.
        starts: how often it was started.
        failure: what its program raised, the last time it ended by itself.
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
        # Set while the process lives.
        self._process: SimProcess | None = None
        self._main: asyncio.Task[None] | None = None
        self._wake_up: asyncio.TimerHandle | None = None

    # What it is.

    @property
    def is_running(self) -> bool:
        """Whether its process lives; a paused one does."""
        return self._process is not None

    @property
    def is_paused(self) -> bool:
        """Whether its process lives and does not get to run."""
        return self._process is not None and self._process.is_paused

    @property
    def process(self) -> SimProcess:
        """Its process, as the loop sees it."""
        if self._process is None:
            raise UsageError(f"node {self.name!r} does not run: start() it first")
        return self._process

    # Its life.

    def start(self, *, may_fail: bool = False) -> None:
        """Turn the machine on if it is off, and run the program in a new process.

        Args:
            may_fail: whether the program may raise; otherwise that fails the whole run.
        """
        if self._process is not None:
            raise UsageError(f"node {self.name!r} runs already")
        loop = self._cluster.loop
        loop.network.restore_power(self.name)
        self.starts += 1
        self.failure = None
        self._may_fail = may_fail
        self._process = SimProcess(self.name, self._machine, loop.fail)
        self._process.clock_offset_s = self.clock_offset_s
        self._tell("started", f"{_ordinal(self.starts)} time, {self.host}")
        self._main = loop.create_task(
            self._run(self._process), name=f"{self.name} main", context=self._process.context.copy()
        )

    async def _run(self, process: SimProcess) -> None:
        """The process: the program, then what `asyncio.run` does after it."""
        try:
            await self._program(self)
        except asyncio.CancelledError:
            self._tell("cancelled")
        except (KeyboardInterrupt, SystemExit) as error:
            self.failure = RuntimeError(f"node {self.name!r} ended the process: {error!r}")
        except BaseException as error:
            self.failure = error
        await _cancel_others(process)
        self._exit()

    def _exit(self) -> None:
        self._tell("exited", "" if self.failure is None else f"with {self.failure!r}")
        self._end_process()
        if self.failure is not None and not self._may_fail:
            self.failure.add_note(f"raised by the program of node {self.name!r}")
            self._cluster.loop.fail(self.failure)

    def stop(self) -> None:
        """Ask it to end, like SIGTERM: calls its handler of that signal, or cancels its program."""
        process = self.process
        self._tell("stopping")
        if signal.SIGTERM in process.signal_handlers:
            self.send_signal(signal.SIGTERM)
        elif self._main is not None:
            process.context.copy().run(self._main.cancel)

    def send_signal(self, number: int) -> None:
        """Have it handle a signal, as set by `loop.add_signal_handler`."""
        if number not in self.process.signal_handlers:
            raise UsageError(f"node {self.name!r} has no handler of signal {number}")
        callback, args = self.process.signal_handlers[number]
        self._cluster.loop.call_soon(callback, *args, context=self.process.context.copy())

    def kill(self) -> None:
        """End its process at once, like SIGKILL: its kernel closes what it had open."""
        self._cluster.kill_process(self.process)
        self._tell("killed", self._crash_disk())
        self._end_process()

    def lose_power(self) -> None:
        """Turn its machine off: nobody is told of it."""
        if self._process is not None:
            self._cluster.kill_process(self._process)
        self._tell("power lost", self._crash_disk())
        self._cluster.loop.network.lose_power(self.name)
        self._end_process()

    def pause(self, seconds: float | None = None) -> None:
        """Let its process not run, like SIGSTOP, for a time or until `resume`."""
        loop, process = self._cluster.loop, self.process
        loop.pause(process)
        self._tell("paused", "" if seconds is None else f"for {seconds:.3f} s")
        self._forget_wake_up()
        if seconds is not None:
            self._wake_up = loop.call_later(seconds, self.resume, context=loop.own.context.copy())

    def resume(self) -> None:
        """Let a paused process run again, like SIGCONT."""
        self._forget_wake_up()
        if self._process is not None and self._process.is_paused:
            self._tell("resumed")
            self._cluster.loop.resume(self._process)

    def jump_clock(self, seconds: float) -> None:
        """Move its wall clock; its monotonic clock goes on as before."""
        self.clock_offset_s += seconds
        if self._process is not None:
            self._process.clock_offset_s = self.clock_offset_s
        self._tell("clock", f"jumps by {seconds:+g} s")

    # Inside.

    def _crash_disk(self) -> str:
        dropped = self.disk.crash()
        return f"{dropped} unsynced changes are gone" if dropped else ""

    def _end_process(self) -> None:
        if self._process is not None:
            self._cluster.kill_process(self._process)
            self._machine.end_processes()
        self._process = self._main = None
        self._forget_wake_up()

    def _forget_wake_up(self) -> None:
        if self._wake_up is not None:
            self._wake_up.cancel()
            self._wake_up = None

    def _tell(self, verb: str, details: str = "") -> None:
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


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
