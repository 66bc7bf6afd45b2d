"""What the scenarios have in common: plans that can be shortened, agendas, and usual faults."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from postroad.testing import SimCluster, SimNode, Simulation

_DELAY_S_MAX = 0.1
# Who is still about to end is started again so much later.
_RESTART_S = 0.5

PlanT = TypeVar("PlanT", bound=msgspec.Struct)


def shortened(simulation: Simulation, plan: PlanT, seconds: str, *lists: str) -> PlanT:
    """Leave out what a shorter run does without: items of some fields, and seconds of another."""
    changes: dict[str, Any] = {
        name: simulation.optional(name, getattr(plan, name)) for name in lists
    }
    changes[seconds] = simulation.optional_s("seconds", getattr(plan, seconds))
    return msgspec.structs.replace(plan, **changes)


class Agenda:
    """What is done to a cluster from outside, and when."""

    def __init__(self, sim: SimCluster) -> None:
        self._sim = sim
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    def at(self, time: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._due, (time, next(self._order), action))

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self.at(self._sim.now + seconds, action)

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            time, _, action = heapq.heappop(self._due)
            self._sim.run_for(max(0.0, time - self._sim.now))
            action()
        self._sim.run_for(until - self._sim.now)

    def clear(self) -> None:
        self._due.clear()


class Trouble(msgspec.Struct, frozen=True):
    """What happens to a host. What it does not need is drawn all the same and ignored."""

    kind: Any
    """Of an enumeration of the scenario."""
    time: float
    """Since trouble began."""
    lasting_s: float
    victim: str
    group: tuple[str, ...]
    """Some hosts, the victim among them."""
    others: tuple[str, ...]
    comes_back: bool
    """Whether a host that was ended is started again."""
    strength: float
    """From 0 to 1."""


class Inhabitant(Protocol):
    """A process of a host."""

    node: SimNode
    is_stopping: bool

    def stop(self) -> None: ...


InhabitantT = TypeVar("InhabitantT", bound=Inhabitant)


class TroubledHosts(ABC, Generic[InhabitantT]):
    """Hosts with a process each, and the faults that can befall any of them."""

    slowest_bytes_per_s: float

    def __init__(self, sim: SimCluster) -> None:
        self.sim = sim
        # The process on each host, also one that has ended.
        self._latest: dict[str, InhabitantT] = {}
        self._agenda = Agenda(sim)
        # What ends each fault; a second call does nothing.
        self._remedies: list[Callable[[], None]] = []

    @abstractmethod
    def _make_process(self, name: str) -> InhabitantT:
        """The next one of a host."""

    def running(self) -> list[InhabitantT]:
        return [process for process in self._latest.values() if process.node.is_running]

    def start(self, name: str) -> None:
        node = self.sim.nodes[name]
        if node.is_running:
            if self._latest[name].is_stopping:
                self._agenda.after(_RESTART_S, lambda: self.start(name))
            return
        self._latest[name] = self._make_process(name)
        node.start()

    def _lasting(self, trouble: Trouble, undo: Callable[[], None]) -> None:
        """Undo something when its time is over, or when all is healed if that comes first."""
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                undo()

        self._agenda.after(trouble.lasting_s, end)
        self._remedies.append(end)

    def _delaying(self, trouble: Trouble, undo: Callable[[], None]) -> None:
        """The same for what holds messages up on their way."""
        self._lasting(trouble, undo)

    def _kill(self, trouble: Trouble) -> None:
        self._end(trouble, SimNode.kill)

    def _cut_power(self, trouble: Trouble) -> None:
        self._end(trouble, SimNode.lose_power)

    def _leave(self, trouble: Trouble) -> None:
        self._end(trouble, lambda node: self._latest[trouble.victim].stop())

    def _end(self, trouble: Trouble, end: Callable[[SimNode], None]) -> None:
        node = self.sim.nodes[trouble.victim]
        if node.is_running:
            end(node)
            if trouble.comes_back:
                self._agenda.after(trouble.lasting_s, lambda: self.start(trouble.victim))

    def _delay(self, trouble: Trouble) -> None:
        most = _DELAY_S_MAX * trouble.strength
        self.sim.network.set_conditions(delay_s=(most / 4, most))
        self._lasting(trouble, self.sim.network.reset_conditions)

    def _reset(self, trouble: Trouble) -> None:
        for other in trouble.others:
            self.sim.network.reset_connections(trouble.victim, other)

    def _slow_down(self, trouble: Trouble) -> None:
        host = trouble.victim
        self.sim.network.slow_reader(host, self.slowest_bytes_per_s * 10 ** (2 * trouble.strength))
        self._delaying(trouble, lambda: self.sim.network.slow_reader(host, None))

    def _heal(self, restarted: Iterable[str]) -> None:
        """End all faults, and start some hosts; one that is still leaving is not waited for."""
        self._agenda.clear()
        for end in self._remedies:
            end()
        for name in restarted:
            process, node = self._latest.get(name), self.sim.nodes[name]
            if process is not None and process.is_stopping and node.is_running:
                node.kill()
            self.start(name)
