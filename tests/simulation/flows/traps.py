"""Traps at the fault points of flows and of the mail below them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from postroad.core import faults
from tests.simulation.durable.traps import Traps
from tests.simulation.flows.plan import POINTS


class FlowTraps(Traps):
    @contextmanager
    def armed(self) -> Iterator[None]:
        """Watch all fault points of flows and of the durable layer."""
        with super().armed(), ExitStack() as stack:
            for name in POINTS:
                stack.enter_context(faults.armed(name, partial(self._reach, name)))
            yield

    def _reach(self, point: str, **details: object) -> None:
        # The callback in which a process was killed may go on for a while.
        if not self._sim.loop.lane.is_dead:
            super()._reach(point, **details)
