"""Postroad's membership in clusters of growing size, under virtual time.

Whole nodes run in the simulator, so the times are those of the protocol and not of this machine;
only the last section tells how long the simulation itself takes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.harness import BenchmarkFailed, Comparison, Contender, Section
from postroad.cluster import ClusterAgent, StaticDiscovery
from postroad.net import MessagingService
from postroad.testing import LivenessFailure, SimCluster, SimNode

if TYPE_CHECKING:
    from benchmarks.harness import Settings

SIZES = (50, 100, 200, 500)
SIZES_QUICK = (20, 50)
SEED = 1
PORT = 7000
SEEDS = 3
# Nodes start one after the other within this time.
START_S = 5.0
STEADY_S = 20.0
LONGEST_S = 120.0
LOOK_S = 0.05

LOSS = 0.02
CALM_NODES = 50
CALM_S = 600.0
CALM_S_QUICK = 60.0
PAUSE_S = 1.0
PAUSE_EVERY_S = 10.0

# A joining node is known, and a crashed one gone, after no more seconds in any cluster.
JOIN_BUDGET_S = 5.0
REMOVAL_BUDGET_S = 20.0
# What a node sends may not grow with the cluster by more than this factor.
GROWTH_MAX = 1.5


class Report(NamedTuple):
    """One cluster. Times are virtual seconds, but the last one."""

    join_s: float
    """Until all know of a node that joins."""
    suspicion_s: float
    """Until all suspect a node that was killed, or have removed it already."""
    removal_s: float
    """Until all have removed it."""
    packets_per_s: float
    """Of one node, when nothing happens."""
    bytes_per_s: float
    real_s: float


class Crowd:
    """Many nodes in a simulated cluster, and their agents by name."""

    def __init__(self, sim: SimCluster, size: int) -> None:
        self.sim = sim
        self.agents: dict[str, ClusterAgent] = {}
        self._seeds: list[str] = []
        for number in range(size):
            self.add(f"n{number}", delay_s=START_S * number / size)

    def add(self, name: str, *, delay_s: float = 0.0) -> SimNode:
        """A new node, started after a while."""
        node = self.sim.add(name, self._run)
        if len(self._seeds) < SEEDS:
            self._seeds.append(f"{node.host}:{PORT}")
        self.sim.loop.call_later(delay_s, node.start, context=self.sim.loop.own.context.copy())
        return node

    async def _run(self, node: SimNode) -> None:
        async with (
            MessagingService("crowd", node.name, f"{node.host}:{PORT}") as service,
            ClusterAgent(service, StaticDiscovery(self._seeds)) as agent,
        ):
            self.agents[node.name] = agent
            await agent.wait_closed()

    def settle(self) -> None:
        """Let all find each other, and all news of that be told."""
        size = len(self.sim.nodes)
        self._wait(
            lambda: (
                len(self.agents) == size
                and all(len(it.members) == size for it in self.agents.values())
            ),
            f"{size} nodes find each other",
            every=1.0,
        )
        self._wait(lambda: not any(map(_has_news, self.agents.values())), "all news are told")

    def time_join(self) -> float:
        """Seconds until all know a new node."""
        name = self.add("newcomer").name
        took_s = self._wait(
            lambda: all(it.member(name) is not None for it in self.agents.values()),
            f"all know {name}",
        )
        self.settle()
        return took_s

    def time_crash(self, name: str) -> tuple[float, float]:
        """Seconds until all suspect a node that is killed, and until all have removed it."""
        self.sim.nodes[name].kill()
        del self.agents[name]
        suspicion_s = self._wait(
            lambda: not any(_is_trusted(it, name) for it in self.agents.values()),
            f"all suspect {name}",
        )
        removal_s = suspicion_s + self._wait(
            lambda: all(it.member(name) is None for it in self.agents.values()),
            f"all have removed {name}",
        )
        return suspicion_s, removal_s

    def measure_load(self, seconds: float) -> tuple[float, float]:
        """Packets and bytes that one node sends in a second."""
        before = self._sent()
        self.sim.run_for(seconds)
        packets, size = (b - a for a, b in zip(before, self._sent(), strict=True))
        return packets / seconds / len(self.agents), size / seconds / len(self.agents)

    def suspicions(self) -> int:
        """How often any node suspected another."""
        return sum(it.statistics().counters.suspicions for it in self.agents.values())

    def _sent(self) -> tuple[int, int]:
        counters = [it.statistics().counters for it in self.agents.values()]
        return sum(it.packets_sent for it in counters), sum(it.bytes_sent for it in counters)

    def _wait(self, holds: Callable[[], object], claim: str, every: float = LOOK_S) -> float:
        return self.sim.run_until(holds, timeout=LONGEST_S, description=claim, poll_interval=every)


def _is_trusted(agent: ClusterAgent, name: str) -> bool:
    member = agent.member(name)
    return member is not None and member.is_reachable


def _has_news(agent: ClusterAgent) -> bool:
    machine = agent._machine
    return machine is not None and len(machine._context.gossip_queue) > 0


@cache
def simulate(size: int) -> Report:
    """Run one cluster through everything that is measured."""
    began = perf_counter()
    with SimCluster(SEED) as sim:
        crowd = Crowd(sim, size)
        crowd.settle()
        packets_per_s, bytes_per_s = crowd.measure_load(STEADY_S)
        join_s = crowd.time_join()
        suspicion_s, removal_s = crowd.time_crash(f"n{size // 2}")
    return Report(
        join_s, suspicion_s, removal_s, packets_per_s, bytes_per_s, perf_counter() - began
    )


@cache
def count_false_suspicions(size: int, seconds: float, *, pause_s: float = PAUSE_S) -> int:
    """Lose datagrams, and let now one node stand still and now another: all are alive."""
    with SimCluster(SEED) as sim:
        crowd = Crowd(sim, size)
        crowd.settle()
        sim.network.set_conditions(loss=LOSS)
        end = sim.now + seconds
        while sim.now < end:
            sim.run_for(PAUSE_EVERY_S - pause_s)
            sim.nodes[sim.rng.choice(list(sim.nodes))].pause(pause_s)
            sim.run_for(pause_s)
        return crowd.suspicions()


# The table.


def sections(settings: Settings) -> list[Section]:
    """Times of the protocol, load of a node, false suspicions, cost of the simulation."""
    is_quick = settings.rounds == 1
    sizes = SIZES_QUICK if is_quick else SIZES
    return [
        _bounded("a joining node is known to all", "join_s", sizes, JOIN_BUDGET_S),
        _section("a crashed node is suspected by all", "suspicion_s", "s", sizes),
        _bounded("a crashed node is removed by all", "removal_s", sizes, REMOVAL_BUDGET_S),
        _section("packets of one node", "packets_per_s", "1/s", sizes, goal=GROWTH_MAX),
        _section("bytes of one node", "bytes_per_s", "B/s", sizes, goal=GROWTH_MAX),
        _suspicion_section(CALM_S_QUICK if is_quick else CALM_S),
        _section("real time of the whole simulation", "real_s", "s", sizes),
    ]


def _section(
    title: str, field: str, unit: str, sizes: tuple[int, ...], goal: float | None = None
) -> Section:
    """Each size against the smallest."""
    smallest = _nodes(sizes[0])
    return Section(
        title=title,
        unit=unit,
        contenders=[Contender(_nodes(it), partial(_sample, field, it)) for it in sizes],
        comparisons=[
            Comparison(f"{title}, {_nodes(it)}", _nodes(it), smallest, goal=goal, at_most=True)
            for it in sizes
        ],
        rounds_max=1,
    )


def _bounded(title: str, field: str, sizes: tuple[int, ...], budget_s: float) -> Section:
    """Each size against a budget."""
    return Section(
        title=title,
        unit="s",
        contenders=[Contender(_nodes(it), partial(_sample, field, it)) for it in sizes],
        comparisons=[
            Comparison(
                f"{title}, {_nodes(it)}", _nodes(it), "budget", 1.0, at_most=True, budget=budget_s
            )
            for it in sizes
        ],
        rounds_max=1,
    )


def _suspicion_section(seconds: float) -> Section:
    title = f"false suspicions in {seconds / 60:g} min, {CALM_NODES} nodes, {LOSS:.0%} loss, pauses"
    name = _nodes(CALM_NODES)
    return Section(
        title=title,
        unit="suspicions",
        contenders=[
            Contender(name, lambda: float(count_false_suspicions(CALM_NODES, seconds))),
        ],
        # None at all: any number divided by the budget of one is above the goal.
        comparisons=[Comparison(title, name, "budget", goal=0.0, at_most=True, budget=1.0)],
        rounds_max=1,
    )


def _sample(field: str, size: int) -> float:
    try:
        return float(getattr(simulate(size), field))
    except LivenessFailure as failure:
        raise BenchmarkFailed(str(failure)) from failure


def _nodes(size: int) -> str:
    return f"{size} nodes"
