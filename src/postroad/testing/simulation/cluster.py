"""Whole nodes in one process, under virtual time: what a test drives."""

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
from postroad.testing.simulation.disk import SimDisk
from postroad.testing.simulation.environment import simulated_environment
from postroad.testing.simulation.failures import LivenessFailure, SimulationFailure
from postroad.testing.simulation.loop import SimLoop
from postroad.testing.simulation.loop_scheduler import CALLBACKS_PER_MOMENT_MAX
from postroad.testing.simulation.network import MemoryNetwork
from postroad.testing.simulation.node import NodeProgram, SimNode
from postroad.testing.simulation.process import SimProcess, close_tasks
from postroad.testing.simulation.simulation import EventLog, Simulation

T = TypeVar("T")


class PeriodicCheck:
    """Something called again and again beside the cluster, until it is cancelled."""

    def __init__(self, loop: SimLoop, interval_s: float, check: Callable[[], object]) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._check = check
        self._timer = self._schedule()

    def cancel(self) -> None:
        """Call it no more."""
        self._timer.cancel()

    def _schedule(self) -> asyncio.TimerHandle:
        context = self._loop.own.context.copy()
        return self._loop.call_later(self._interval_s, self._run, context=context)

    def _run(self) -> None:
        self._timer = self._schedule()
        self._check()


class SimCluster:
    """A cluster that runs in no time and the same way for the same seed.

        with SimCluster(seed=7) as sim:
            sim.add("alpha", serve).start()
            sim.run_until(lambda: is_ready(), timeout=30.0, description="alpha is ready")

    Inside of `with`, clocks and chance of this Python process are the simulation's. All nodes share
    one loop, so `asyncio.all_tasks()` returns the tasks of all of them.

    Args:
        seed: decides everything; or the simulation of a scenario, whose log and time it shares.
        log_level: records of `logging` from this level on go to the log.
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
        # Processes that are no more; what they left must not be closed before the end.
        self._killed: list[SimProcess] = []
        self._stack = ExitStack()
        self._is_open = False

    # Life.

    def __enter__(self) -> Self:
        if asyncio._get_running_loop() is not None:
            raise UsageError("an event loop runs here already: use SimCluster in plain functions")
        surroundings = simulated_environment(self.loop, self.simulation.rng_for("surroundings"))
        self._stack.enter_context(surroundings)
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
        """Tasks that failed and that nobody asked tell so when they are forgotten."""
        for process in [
            *(node.process for node in self.nodes.values() if node.is_running),
            self.loop.own,
        ]:
            process.forget_finished()
        gc.collect()

    def _dispose(self) -> None:
        """Forget everything that still runs; nothing of it has any effect."""
        running = [node.process for node in self.nodes.values() if node.is_running]
        processes = [*self._killed, *running, self.loop.own]
        for process in processes:
            self.loop.kill(process)
        # What the ends of coroutines begin belongs to this loop, and is disposed of with them.
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop)
        try:
            for process in processes:
                process.context.copy().run(close_tasks, process.tasks)
        finally:
            asyncio._set_running_loop(outer)
        self.loop.close()

    def kill_process(self, process: SimProcess) -> None:
        """Let nothing of a process run any more."""
        if not process.is_dead:
            self.loop.kill(process)
            self._killed.append(process)

    # Nodes.

    @property
    def network(self) -> MemoryNetwork:
        """The network between the nodes, and its faults."""
        return self.loop.network

    def add(self, name: str, program: NodeProgram) -> SimNode:
        """A node with a machine of its own; it does nothing before it is started."""
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
        """Let time pass."""
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
        """Have the test do something in so many seconds, beside the cluster."""
        return self.loop.call_later(seconds, act, context=self.loop.own.context.copy())

    def call_every(self, seconds: float, check: Callable[[], object]) -> PeriodicCheck:
        """Call something again and again beside the cluster; what it raises fails the run."""
        return PeriodicCheck(self.loop, seconds, check)

    # Tasks of the test.

    def spawn(
        self, coroutine: Coroutine[Any, Any, T], node: SimNode | None = None
    ) -> asyncio.Task[T]:
        """Run a coroutine beside the cluster, or in the process of a node.

        If it raises, the run fails.
        """
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
        """Run a coroutine to its end and return its result; everything else runs meanwhile."""
        self._check_open()
        task = self._create_task(coroutine, node)
        task.add_done_callback(lambda _: self.loop.stop(), context=self.loop.own.context.copy())
        deadline = self.now + timeout
        try:
            while not task.done() and self.now < deadline:
                self.loop.run_until_time(deadline)
        except BaseException:
            if task.done() and not task.cancelled():
                task.exception()  # It counts as seen: the run has failed already.
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
        """An exception that nobody handled: the run has crashed."""
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
            raise UsageError("use `with SimCluster(...) as sim:` and drive it inside")

    def __repr__(self) -> str:
        return f"<SimCluster seed {self.seed}, {len(self.nodes)} nodes, {self.now:.6f} s>"


class _LogHandler(logging.Handler):
    """Writes records of `logging` to the log of the run, with the node they come from."""

    def __init__(self, loop: SimLoop, level: int) -> None:
        super().__init__(level)
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        process = self._loop.current_process.name
        self._loop.log.add(process, record.levelname.lower(), f"{record.name}: {text}")
