"""A cluster of whole nodes in one process and in virtual time, driven by a test."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

from postroad.core.errors import UsageError
from postroad.testing.simulation.environment import simulated_environment
from postroad.testing.simulation.loop import SimLoop
from postroad.testing.simulation.loop_scheduler import CALLBACKS_PER_MOMENT_MAX
from postroad.testing.simulation.network import MemoryNetwork
from postroad.testing.simulation.node import NodeProgram, SimDisk, SimNode
from postroad.testing.simulation.process import SimProcess, close_tasks
from postroad.testing.simulation.simulation import (
    EventLog,
    LivenessFailure,
    Simulation,
    SimulationFailure,
)

T = TypeVar("T")


class PeriodicCheck:
    """A callback that runs every interval of virtual time, until it is cancelled."""

    def __init__(self, loop: SimLoop, interval_s: float, check: Callable[[], object]) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._check = check
        self._timer = self._schedule()

    def cancel(self) -> None:
        """Stop calling."""
        self._timer.cancel()

    def _schedule(self) -> asyncio.TimerHandle:
        context = self._loop.own.context.copy()
        return self._loop.call_later(self._interval_s, self._run, context=context)

    def _run(self) -> None:
        self._timer = self._schedule()
        self._check()


class SimCluster:
    """A simulated cluster in virtual time, deterministic for each seed.

        with SimCluster(seed=7) as sim:
            sim.add("alpha", serve).start()
            sim.run_until(lambda: is_ready(), timeout=30.0, description="alpha is ready")

    Inside `with`, the clocks and random sources of this Python process are simulated. All nodes
    share one loop, so `asyncio.all_tasks()` returns the tasks of all nodes.

    Args:
        seed: determines the run; or the simulation of a scenario, whose log and time it shares.
        log_level: records of `logging` from this level on are written to the log.
        callbacks_per_moment_max: more callbacks without time passing are a LivenessFailure.
    """

    def __init__(
        self,
        seed: int | Simulation = 0,
        *,
        log_level: int = logging.WARNING,
        callbacks_per_moment_max: int = CALLBACKS_PER_MOMENT_MAX,
    ) -> None:
        self.simulation = Simulation(seed) if isinstance(seed, int) else seed
        self.seed = self.simulation.seed
        self.log: EventLog = self.simulation.log
        self.rng: Random = self.simulation.rng
        self.loop = SimLoop(
            self.seed, log=self.log, callbacks_per_moment_max=callbacks_per_moment_max
        )
        self.loop.on_unhandled = self._on_unhandled
        self.loop.on_failure = self._on_failure
        self.simulation.use_clock(self.loop.time, lambda: self.loop.callbacks)
        self.nodes: dict[str, SimNode] = {}
        self._log_level = log_level
        # Killed processes; their coroutines are closed at the end of the run.
        self._killed: list[SimProcess] = []
        self._stack = ExitStack()
        self._is_open = False

    # Lifecycle.

    def __enter__(self) -> Self:
        if asyncio._get_running_loop() is not None:
            raise UsageError(
                "cannot use SimCluster inside a running event loop: use it in plain functions"
            )
        environment = simulated_environment(self.loop, self.simulation.rng_for("surroundings"))
        self._stack.enter_context(environment)
        handler = _LogHandler(self.loop, self._log_level)
        root, level = logging.getLogger(), logging.getLogger().level
        root.addHandler(handler)
        root.setLevel(min(level, self._log_level))
        self._stack.callback(root.setLevel, level)
        self._stack.callback(root.removeHandler, handler)
        self._is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._stack:
            if error is None:
                self._collect_unretrieved_errors()
            self._is_open = False
            self._dispose()
        if error is None:
            self.loop.raise_failure()

    def _collect_unretrieved_errors(self) -> None:
        """Collect failed tasks: asyncio reports errors that were never retrieved."""
        for process in [
            *(node.process for node in self.nodes.values() if node.is_running),
            self.loop.own,
        ]:
            process.release_finished()
        gc.collect()

    def _dispose(self) -> None:
        """Kill all processes and close their coroutines, without any effect."""
        running = [node.process for node in self.nodes.values() if node.is_running]
        processes = [*self._killed, *running, self.loop.own]
        for process in processes:
            self.loop.kill(process)
        # Tasks that closing coroutines create belong to this loop, and are closed with them.
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop)
        try:
            for process in processes:
                process.context.copy().run(close_tasks, process.tasks)
        finally:
            asyncio._set_running_loop(outer)
        self.loop.close()

    def kill_process(self, process: SimProcess) -> None:
        """Kill a process: none of its callbacks runs any more."""
        if not process.is_dead:
            self.loop.kill(process)
            self._killed.append(process)

    # Nodes.

    @property
    def network(self) -> MemoryNetwork:
        """The network between the nodes, and its faults."""
        return self.loop.network

    def add(self, name: str, program: NodeProgram) -> SimNode:
        """Add a node with its own host and disk; start() runs it."""
        host = self.network.add_host(name)
        disk = SimDisk(self.simulation.rng_for(f"disk of {name}"))
        node = self.nodes[name] = SimNode(self, host, program, disk)
        return node

    # Time.

    @property
    def now(self) -> float:
        """Seconds of virtual time since the start."""
        return self.loop.time()

    def run_for(self, seconds: float) -> None:
        """Let virtual time pass."""
        self._check_open()
        self.loop.advance(self.now + seconds)

    def run_until(
        self,
        condition: Callable[[], object],
        *,
        timeout: float,
        description: str = "the condition of the test",
        poll_interval: float = 0.01,
    ) -> float:
        """Let virtual time pass until the condition is true; return the seconds it took.

        Args:
            condition: called until its result is true.
            timeout: seconds of virtual time.
            description: what should become true, for the log and the failure.
            poll_interval: least seconds of virtual time between two calls of the condition.

        Raises:
            LivenessFailure: the condition is still false after `timeout` seconds.
        """
        self._check_open()
        started = self.now
        deadline = started + timeout
        while not condition():
            if self.now >= deadline:
                self.log.add("test", "failed", f"not within {timeout:g} s: {description}")
                raise LivenessFailure(f"not within {timeout:g} s: {description}")
            moment = self.loop.next_moment()
            next_poll = deadline if moment is None else max(self.now + poll_interval, moment)
            self.loop.advance(min(next_poll, deadline))
        self.log.add("test", "holds", description)
        return self.now - started

    def call_later(self, seconds: float, act: Callable[[], object]) -> asyncio.TimerHandle:
        """Call a function of the test after so many seconds of virtual time."""
        return self.loop.call_later(seconds, act, context=self.loop.own.context.copy())

    def call_every(self, seconds: float, check: Callable[[], object]) -> PeriodicCheck:
        """Call a function of the test every so many seconds; an exception of it fails the run."""
        return PeriodicCheck(self.loop, seconds, check)

    # Tasks of the test.

    def spawn(
        self, coroutine: Coroutine[Any, Any, T], node: SimNode | None = None
    ) -> asyncio.Task[T]:
        """Start a coroutine of the test or of a node's process; an exception fails the run."""
        task = self._create_task(coroutine, node)
        task.add_done_callback(self._on_spawned_done)
        return task

    def run(
        self,
        coroutine: Coroutine[Any, Any, T],
        node: SimNode | None = None,
        *,
        timeout: float = 600.0,
    ) -> T:
        """Run a coroutine and return its result; the cluster runs meanwhile.

        Raises:
            LivenessFailure: it did not finish within `timeout` seconds of virtual time.
        """
        self._check_open()
        task = self._create_task(coroutine, node)
        task.add_done_callback(lambda _: self.loop.stop(), context=self.loop.own.context.copy())
        deadline = self.now + timeout
        try:
            while not task.done() and self.now < deadline:
                self.loop.run_until_time(deadline)
        except BaseException:
            if task.done() and not task.cancelled():
                task.exception()  # Mark it as retrieved: the run has failed already.
            raise
        if not task.done():
            name = getattr(coroutine, "__qualname__", repr(coroutine))
            raise LivenessFailure(f"not done within {timeout:g} s: {name}")
        return task.result()

    def _create_task(
        self, coroutine: Coroutine[Any, Any, T], node: SimNode | None
    ) -> asyncio.Task[T]:
        process = self.loop.own if node is None else node.process
        return self.loop.create_task(coroutine, context=process.context.copy())

    def _on_spawned_done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.fail(error)

    # Errors.

    def _on_unhandled(self, context: dict[str, Any]) -> None:
        """Fail the run because of an unhandled exception."""
        process = self.loop.current_process
        error = context.get("exception")
        message = str(context.get("message", "unhandled exception"))
        if not isinstance(error, BaseException):
            error = RuntimeError(message)
        if process.is_dead or not self._is_open or self.loop.has_failed_with(error):
            return
        if not isinstance(error, SimulationFailure):
            error.add_note(f"{message}, in the process of {process.name!r}")
        self.loop.fail(error)

    def _on_failure(self, error: BaseException) -> None:
        if isinstance(error, SimulationFailure):
            self.log.add(self.loop.current_process.name, "failed", str(error))
        else:
            notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
            self.log.add(self.loop.current_process.name, "crashed", f"{error!r}{notes}")

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError(
                "the SimCluster is not open: use it inside `with SimCluster(...) as sim:`"
            )

    def __repr__(self) -> str:
        return f"<SimCluster seed {self.seed}, {len(self.nodes)} nodes, {self.now:.6f} s>"


class _LogHandler(logging.Handler):
    """Writes records of `logging` to the log of the run, with their node."""

    def __init__(self, loop: SimLoop, level: int) -> None:
        super().__init__(level)
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to the log."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        process = self._loop.current_process.name
        self._loop.log.add(process, record.levelname.lower(), f"{record.name}: {text}")
