"""Clients that wait for the results of flows."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from postroad.core import fault_points as faults
from postroad.core.errors import NotRunningError
from postroad.flows.machine.events import FlowTransition
from postroad.flows.machine.state import FlowState, format_flow_id
from postroad.flows.machine.status import FlowStatus

logger = logging.getLogger("postroad.flows")

RESOLVED = faults.declare_fault_point("flows.result.resolved")

# The results of this many flows that ended last need not be read.
_CACHED_RESULTS = 1_024


class ResultWaiters:
    """Waiting clients by flow, and the flows that ended last."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[int, list[asyncio.Future[FlowState]]] = {}
        self._ended: OrderedDict[int, FlowState] = OrderedDict()

    def get(self, id: int) -> FlowState | None:
        """A flow that ended recently."""
        return self._ended.get(id)

    def add_waiter(self, id: int) -> asyncio.Future[FlowState]:
        """Return a future of the end of a flow; return it with `remove_waiter`."""
        waiter: asyncio.Future[FlowState] = self._loop.create_future()
        self._waiters.setdefault(id, []).append(waiter)
        return waiter

    def remove_waiter(self, id: int, waiter: asyncio.Future[FlowState]) -> None:
        """Remove a waiter, which may be resolved already."""
        waiters = self._waiters.get(id, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[id]

    def resolve(self, state: FlowState) -> None:
        """Resolve the waiters of a flow whose end is durable."""
        self._ended[state.id] = state
        if len(self._ended) > _CACHED_RESULTS:
            self._ended.popitem(last=False)
        RESOLVED.hit(flow=state.id)
        for waiter in self._waiters.pop(state.id, ()):
            if not waiter.done():
                waiter.set_result(state)

    def close(self) -> None:
        """Fail all waiters."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(NotRunningError("the flows of this node are stopped"))
        self._waiters.clear()


def log_failed(state: FlowState) -> None:
    """Log that a flow has failed, and where in its code."""
    failure = state.failure
    if state.status is not FlowStatus.FAILED or failure is None:
        return
    detail = failure.detail.strip()
    logger.info(
        "flow %s of %s has failed: %s: %s%s",
        format_flow_id(state.id), state.name, failure.error.kind.rpartition(":")[2],
        failure.error.text, "" if detail == failure.error.text else f"\n{detail}",
    )  # fmt: skip


def log_parked(state: FlowState, transition: FlowTransition) -> None:
    """Log that a flow waits for an operator, and what can be done."""
    failure = state.failure
    if failure is None:
        return
    place = transition.failed_step or f"step {transition.first + len(transition.entries)}"
    kind, (text, *more) = failure.error.kind, failure.error.text.splitlines() or [""]
    detail = failure.detail.strip()
    id = format_flow_id(state.id)
    logger.warning(
        "flow %s of %s is parked at %s: %s: %s. Correct the cause and restart the node, or retry "
        "it with `postroad flow retry %s`; `postroad flow kill %s` ends it%s",
        id, state.name, place, kind.rpartition(":")[2], text, id, id,
        f"\n{detail}" if more or detail != text else "",
    )  # fmt: skip
