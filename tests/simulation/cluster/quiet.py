"""Since when nothing has kept two processes apart: only then may one rely on the other."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from typing import TypeVar

from postroad.testing import SimCluster
from tests.simulation.cluster.process import Process

NEVER = float("inf")

K = TypeVar("K")


class Quiet:
    """Remembers since when each host is awake, and each way between two hosts is open.

    `look` must be called whenever a fault begins or ends.
    """

    def __init__(self, sim: SimCluster) -> None:
        self._sim = sim
        # Absent while a host sleeps or a way is closed.
        self._awake_since: dict[str, float] = {}
        self._open_since: dict[tuple[str, str], float] = {}
        # Hosts that are so slow that nobody can rely on them.
        self.slow: set[str] = set()

    def look(self) -> None:
        now, nodes = self._sim.now, self._sim.nodes
        for name, node in nodes.items():
            is_awake = node.is_running and not node.is_paused and name not in self.slow
            _keep(self._awake_since, name, now, holds=is_awake)
        for pair in permutations(nodes, 2):
            _keep(self._open_since, pair, now, holds=self._sim.network.ways.is_open(*pair))

    def between(self, first: Process, second: Process) -> float:
        """Seconds for which both could talk to each other; 0 if they cannot now."""
        a, b = first.node.name, second.node.name
        since = max(
            first.started,
            second.started,
            self._awake_since.get(a, NEVER),
            self._awake_since.get(b, NEVER),
            self._open_since.get((a, b), NEVER) if a != b else 0.0,
            self._open_since.get((b, a), NEVER) if a != b else 0.0,
        )
        return max(0.0, self._sim.now - since)

    def around(self, process: Process, others: Iterable[Process]) -> float:
        """Seconds for which it could talk to all others that were awake; 0 if it cannot now."""
        name = process.node.name
        since = [process.started, self._awake_since.get(name, NEVER)]
        for other in others:
            if other is not process:
                pair = (name, other.node.name)
                since += [self._open_since.get(it, NEVER) for it in (pair, pair[::-1])]
        return max(0.0, self._sim.now - max(since))


def _keep(since: dict[K, float], key: K, now: float, *, holds: bool) -> None:
    if not holds:
        since.pop(key, None)
    elif key not in since:
        since[key] = now
