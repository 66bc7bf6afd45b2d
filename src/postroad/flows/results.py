"""Tells those who wait for flows what came of them."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from postroad.core import fault_points as faults
from postroad.core.errors import NotRunningError

from .events import Transition
from .head import Head, show_id

logger = logging.getLogger("postroad.flows")

TOLD = faults.declare_fault_point("flows.client.told")

# Of so many that ended last the result need not be read.
_ENDED_KEPT = 1_024


class Results:
    """Who waits for which flow, and what came of those that ended last."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[int, list[asyncio.Future[Head]]] = {}
        self._ended: OrderedDict[int, Head] = OrderedDict()

    def get(self, id: int) -> Head | None:
        """A flow that ended just now."""
        return self._ended.get(id)

    def expect(self, id: int) -> asyncio.Future[Head]:
        """Resolved when a flow has ended; give it back with `give_up`."""
        waiter: asyncio.Future[Head] = self._loop.create_future()
        self._waiters.setdefault(id, []).append(waiter)
        return waiter

    def give_up(self, id: int, waiter: asyncio.Future[Head]) -> None:
        """Nobody waits for this any more; it may have been told already."""
        waiters = self._waiters.get(id, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[id]

    def tell(self, head: Head) -> None:
        """A flow has ended, and that is durable."""
        self._ended[head.id] = head
        if len(self._ended) > _ENDED_KEPT:
            self._ended.popitem(last=False)
        TOLD.hit(flow=head.id)
        for waiter in self._waiters.pop(head.id, ()):
            if not waiter.done():
                waiter.set_result(head)

    def close(self) -> None:
        """Nobody will be told anything."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(NotRunningError("the flows of this node are stopped"))
        self._waiters.clear()


def report_parked(head: Head, transition: Transition) -> None:
    """Tell whoever looks at the log that a flow waits for an operator, and what can be done."""
    trouble = head.trouble
    if trouble is None:
        return
    place = transition.failed or f"step {transition.first + len(transition.records)}"
    kind, (text, *more) = trouble.failure.kind, trouble.failure.text.splitlines() or [""]
    detail = trouble.detail.strip()
    id = show_id(head.id)
    logger.warning(
        "flow %s of %s is parked at %s: %s: %s. Mend the cause and restart the node, or try it "
        "again with `postroad flow retry %s`; `postroad flow kill %s` ends it%s",
        id, head.name, place, kind.rpartition(":")[2], text, id, id,
        f"\n{detail}" if more or detail != text else "",
    )  # fmt: skip
