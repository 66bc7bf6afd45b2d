"""What operators do with the flows of a running node: `FlowAdmin`, and draining it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from postroad.flows.admin import FlowAdmin
from postroad.flows.engine.engine import FlowEngine

if TYPE_CHECKING:
    from postroad.flows.service import FlowService

_DRAIN_POLL_INTERVAL_S = 0.05


class NodeFlowAdmin(FlowAdmin):
    """Operates the flows of a running node; every change is durable when its method returns."""

    def __init__(self, flows: FlowService) -> None:
        self._flows = flows
        self.config = flows.config
        # None while the flows do not run.
        self._engine: FlowEngine | None = None
        self._is_draining = False
        self._are_steps_paused = False

    @property
    def engine(self) -> FlowEngine:
        return self._flows.engine

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

    async def drain(self, timeout: float | None = None) -> int:
        """Start no new flows, for this node or for others; return how many still run at the end.

        Flows that others want to start here are held until `undrain`, or the next start.
        """
        self._is_draining = self.engine.admission.is_draining = True
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        while running := self.engine.admission.slots.total:
            if until is not None and loop.time() >= until:
                break
            await asyncio.sleep(_DRAIN_POLL_INTERVAL_S)
        return running

    async def undrain(self) -> None:
        """Start new flows again: those that were held, and those that schedules have missed."""
        self._is_draining = self.engine.admission.is_draining = False
        await self.engine.admission.start_held()
        self._flows.schedules.wake()

    def pause_steps(self) -> None:
        """Call no functions of steps, and begin no transactions, until `resume_steps`.

        Flows whose results this process awaits go on nevertheless. A node that has more to start
        before functions can use it calls this before it starts its flows.
        """
        self._are_steps_paused = True
        if self._engine is not None:
            self._engine.step_executor.pause()

    def resume_steps(self) -> None:
        """Call the functions that were held back."""
        self._are_steps_paused = False
        if self._engine is not None:
            self._engine.step_executor.resume()

    async def halt_steps(self) -> None:
        """Stop the functions that run, and call no more.

        Flows can still be started. They, and those that ran, go on with the next start.
        """
        if self._engine is not None:
            await self._engine.step_executor.halt()

    async def drain_steps(self, timeout: float) -> int:
        """Start no new flows and no new steps; return how many steps still run at the end.

        For a node that is about to stop: flows go on where they are when it is started again, and
        those that sleep or wait need not be waited for.
        """
        self._is_draining = self.engine.admission.is_draining = True
        executor = self.engine.step_executor
        executor.drain()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while executor.running and loop.time() < until:  # noqa: ASYNC110  # As `drain` does.
            await asyncio.sleep(_DRAIN_POLL_INTERVAL_S)
        return executor.running
