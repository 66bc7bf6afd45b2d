"""Control of a node's flow execution: draining it, and pausing its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from postroad.flows.engine.engine import FlowEngine

_DRAIN_POLL_INTERVAL_S = 0.05


class FlowExecution:
    """Controls whether a node starts flows and runs their steps; `flows.execution`.

    Args:
        get_engine: returns the engine; raises UsageError while the flows do not run.
        on_undrained: called when flows may start again.
    """

    def __init__(
        self, get_engine: Callable[[], FlowEngine], on_undrained: Callable[[], None]
    ) -> None:
        self._get_engine = get_engine
        self._on_undrained = on_undrained
        # None while the flows do not run.
        self._engine: FlowEngine | None = None
        self._is_draining = False
        self._are_steps_paused = False

    def attach(self, engine: FlowEngine | None) -> None:
        """Apply what was requested before the start to an engine; None: the flows are stopped."""
        self._engine = engine
        if engine is not None:
            engine.admission.is_draining = self._is_draining
            if self._are_steps_paused:
                engine.step_executor.pause()

    @property
    def is_draining(self) -> bool:
        """Whether no new flows are started now."""
        return self._is_draining

    def _start_draining(self) -> FlowEngine:
        engine = self._get_engine()
        self._is_draining = engine.admission.is_draining = True
        return engine

    async def drain(self, timeout: float | None = None) -> int:
        """Start no new flows, for this node or for others; return how many still run at the end.

        Flows that others want to start here are held until `undrain`, or the next start.
        """
        engine = self._start_draining()
        await _wait_until(lambda: not engine.admission.slots.total, timeout)
        return engine.admission.slots.total

    async def undrain(self) -> None:
        """Start new flows again: those that were held, and those that schedules have missed."""
        engine = self._get_engine()
        self._is_draining = engine.admission.is_draining = False
        await engine.admission.start_held()
        self._on_undrained()

    def pause_steps(self) -> None:
        """Start no step functions and no transactions until `resume_steps`.

        Flows whose results this process awaits continue nevertheless. A node that must start more
        before step functions can use it calls this before it starts its flows.
        """
        self._are_steps_paused = True
        if self._engine is not None:
            self._engine.step_executor.pause()

    def resume_steps(self) -> None:
        """Start the steps that were paused."""
        self._are_steps_paused = False
        if self._engine is not None:
            self._engine.step_executor.resume()

    async def halt_steps(self) -> None:
        """Cancel the step functions that run, and start no more.

        Flows can still be started. All flows resume with the next start.
        """
        if self._engine is not None:
            await self._engine.step_executor.halt()

    async def drain_steps(self, timeout: float) -> int:
        """Start no new flows and no new steps; return how many steps still run at the end.

        For a node that is about to stop: flows resume when it is started again, and flows that
        sleep or wait need not be waited for.
        """
        executor = self._start_draining().step_executor
        executor.drain()
        await _wait_until(lambda: not executor.running, timeout)
        return executor.running


async def _wait_until(is_done: Callable[[], bool], timeout: float | None) -> None:
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    # Polled: many kinds of work may end, and milliseconds do not matter here.
    while not is_done() and (deadline is None or loop.time() < deadline):  # noqa: ASYNC110
        await asyncio.sleep(_DRAIN_POLL_INTERVAL_S)
