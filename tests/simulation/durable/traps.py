"""What happens at fault points: a process is killed exactly there, or its database fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from postroad.core import fault_points as faults
from postroad.core.errors import StoreUnavailableError
from postroad.testing import SimCluster
from tests.simulation.durable.process import Machine


class ProcessEnded(BaseException):
    """Ends the callback that runs in a process that was just killed."""


class Trap:
    """Waits for a process at a fault point.

    Attributes:
        has_fired: whether it came there.
    """

    def __init__(self, point: str, visits: int, act: Callable[[], None]) -> None:
        self.point = point
        self.has_fired = False
        self._visits = visits
        self._act = act

    def visit(self) -> bool:
        """Somebody is there; whether it has come often enough."""
        self._visits -= 1
        return self._visits < 0

    def fire(self) -> None:
        self.has_fired = True
        self._act()


class Traps:
    """All traps of a run, by the name of the process they wait for."""

    def __init__(self, sim: SimCluster) -> None:
        self._sim = sim
        self._waiting: dict[str, list[Trap]] = {}

    @contextmanager
    def armed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name in faults.fault_point_names():
                if name.startswith("durable."):
                    stack.enter_context(faults.arm_fault_point(name, partial(self._reach, name)))
            yield

    def kill(self, machine: Machine, point: str, visits: int = 0) -> Trap:
        """Kill a process at a fault point, after so many visits there."""

        def act() -> None:
            machine.kill()
            raise ProcessEnded(point)

        return self._set(machine, Trap(point, visits, act))

    def fail(self, machine: Machine, point: str, visits: int = 0) -> Trap:
        def act() -> None:
            raise StoreUnavailableError(f"simulated failure at {point}")

        return self._set(machine, Trap(point, visits, act))

    def stop(self, machine: Machine, point: str, visits: int = 0) -> Trap:
        """Ask a process to end when it is at a fault point; it goes on from there until it has."""
        return self._set(machine, Trap(point, visits, machine.stop))

    def _set(self, machine: Machine, trap: Trap) -> Trap:
        self._waiting.setdefault(machine.name, []).append(trap)
        return trap

    def clear(self) -> None:
        self._waiting.clear()

    def _reach(self, point: str, **details: object) -> None:
        name = self._sim.loop.current_process.name
        for trap in self._waiting.get(name, ()):
            if trap.point == point and trap.visit():
                self._waiting[name].remove(trap)
                self._sim.log.add(name, "reached", point)
                trap.fire()
                return
