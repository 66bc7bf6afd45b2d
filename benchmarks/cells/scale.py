"""Postroad's cells in many domains: how soon all know all routes again, under virtual time.

Whole nodes run in the simulator, so the times are those of the protocol and not of this machine;
only the last section tells how long the simulation itself takes. A restart is a stop, a second of
absence, and a start; its time ends when every table of every domain is right.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.harness import BenchmarkFailed, Comparison, Contender, Section
from postroad.cells import CellDomain, CellMessage, Role, RouteType, StaticCoreDiscovery
from postroad.net import MessagingService
from postroad.testing import LivenessFailure, SimCluster, SimNode

if TYPE_CHECKING:
    from benchmarks.harness import Settings

SEED = 1
PORT = 7000
# Domains start one after the other within this time.
START_S = 2.0
ABSENCE_S = 1.0
IDLE_S = 60.0
LONGEST_S = 120.0
LOOK_S = 0.1
# In how many domains each queue has a consumer, and each topic a subscriber.
HOMES = 2

CONVERGENCE_BUDGET_S = 15.0
"""Until all tables are right, after any restart."""
GROWTH_MAX = 1.5
"""What a satellite sends in idle times may not grow with the cluster by more than this factor."""


class Size(NamedTuple):
    """How much there is of everything."""

    cores: int
    satellites: int
    names: int
    """Queues and topics, as many of these as of those."""

    def __str__(self) -> str:
        return f"{self.cores} x {self.satellites}, {self.names:,} names"


SIZES = (Size(4, 20, 500), Size(4, 100, 2_500), Size(4, 200, 5_000))
SIZES_QUICK = (Size(3, 5, 75), Size(3, 20, 300))


class Phase(NamedTuple):
    """Something that all domains had to learn."""

    seconds: float
    """Virtual time until all tables were right."""
    control_bytes: int
    """News of routes that all domains sent meanwhile."""
    busiest_bytes: int
    """The most that one of them sent."""


class Report(NamedTuple):
    """One simulation."""

    start: Phase
    satellite: Phase
    """The restart of a satellite."""
    core: Phase
    """The restart of a core."""
    rolling: Phase
    """The restart of all cores, one after the other: the slowest one, and the news of all."""
    idle_bytes_per_s: float
    """News of routes that a satellite sends while nothing happens."""
    real_s: float


class Mesh:
    """Cores and satellites with queues and topics, dealt out evenly."""

    def __init__(self, sim: SimCluster, size: Size) -> None:
        self.sim = sim
        self.cores = [f"core{number}" for number in range(size.cores)]
        self.satellites = [f"sat{number:03}" for number in range(size.satellites)]
        self.names = [*self.cores, *self.satellites]
        self.domains: dict[str, CellDomain] = {}
        # Bytes of news that processes sent which are no more, by domain.
        self._sent_before: Counter[str] = Counter()
        self._queues: dict[str, list[str]] = {name: [] for name in self.names}
        self._topics: dict[str, list[str]] = {name: [] for name in self.names}
        apart = len(self.names) // HOMES
        for number in range(size.names):
            offered = self._topics if number % 2 else self._queues
            for home in range(HOMES):
                place = self.names[(number + home * apart) % len(self.names)]
                offered[place].append(f"{'topic' if number % 2 else 'queue'}{number:05}")
        for number, name in enumerate(self.names):
            node = sim.add(name, self._run)
            sim.call_later(START_S * number / len(self.names), node.start)

    async def _run(self, node: SimNode) -> None:
        role = Role.CORE if node.name in self.cores else Role.SATELLITE
        where = StaticCoreDiscovery({core: [f"{core}:{PORT}"] for core in self.cores})
        async with (
            MessagingService("mesh", node.name, f"{node.host}:{PORT}") as service,
            CellDomain(service, role=role, core_discovery=where) as domain,
        ):
            queues, topics = self._queues[node.name], self._topics[node.name]
            domain.add_function("worker", _answer, consume=queues, subscribe=topics)
            self.domains[node.name] = domain
            await asyncio.get_running_loop().create_future()

    # What happens.

    def start(self) -> Phase:
        """Let time pass until every table is right for the first time."""
        return self._measure(self._settle)

    def restart(self, *names: str) -> Phase:
        """Stop domains and start them again, one by one; the time is that of the slowest."""
        phases = [self._measure(partial(self._restart, name)) for name in names]
        return Phase(
            max(it.seconds for it in phases),
            sum(it.control_bytes for it in phases),
            max(it.busiest_bytes for it in phases),
        )

    def _restart(self, name: str) -> None:
        node = self.sim.nodes[name]
        node.stop()
        self.sim.run_until(
            lambda: not node.is_running, timeout=LONGEST_S, description=f"{name} ends"
        )
        self._sent_before[name] += self.domains.pop(name).propagator.bytes_sent
        self.sim.run_for(ABSENCE_S)
        node.start()
        self._settle()

    def _settle(self) -> None:
        self.sim.run_until(
            self.is_right,
            timeout=LONGEST_S,
            description="all tables are right",
            poll_interval=LOOK_S,
        )

    def _measure(self, act: Callable[[], None]) -> Phase:
        began, before = self.sim.now, self._sent()
        act()
        sent = self._sent() - before
        return Phase(self.sim.now - began, sent.total(), max(sent.values()))

    def _sent(self) -> Counter[str]:
        """The bytes of news that each domain has sent so far."""
        now = Counter({name: it.propagator.bytes_sent for name, it in self.domains.items()})
        return self._sent_before + now

    def measure_idle(self, seconds: float) -> float:
        """The bytes of news that a satellite sends in a second, on average."""
        before = self._sent()
        self.sim.run_for(seconds)
        sent = self._sent() - before
        return sum(sent[name] for name in self.satellites) / seconds / len(self.satellites)

    # What there should be.

    def is_right(self) -> bool:
        """Whether all tables are right; a wrong number of routes is seen at once."""
        if len(self.domains) < len(self.names):
            return False
        domains = self.domains.values()
        return all(len(it.table) == self._count(it) for it in domains) and all(
            map(self._has_right_routes, domains)
        )

    def _count(self, domain: CellDomain) -> int:
        return sum(1 for _ in self._routes(domain))

    def _has_right_routes(self, domain: CellDomain) -> bool:
        found = {(it.type, it.cell, it.domain, str(it.target)) for it in domain.table}
        return found == set(self._routes(domain))

    def _routes(self, domain: CellDomain) -> Iterator[tuple[RouteType, str, str, str]]:
        """The routes of a domain: its own, and what others offer that it has a tunnel to."""
        name, is_core = domain.name, domain.identity.role is Role.CORE
        yield from self._offered(name, f"worker@{name}", with_topics=True)
        for peer in self.names if is_core else self.cores:
            if peer == name:
                continue
            yield from self._offered(peer, f"*@{peer}", with_topics=is_core)
            yield RouteType.DOMAIN, "*", peer, f"tunnel-{peer}@{name}"
            if not is_core:
                yield RouteType.DEFAULT, "*", "*", f"*@{peer}"

    def _offered(
        self, name: str, target: str, *, with_topics: bool
    ) -> Iterator[tuple[RouteType, str, str, str]]:
        for queue in self._queues[name]:
            yield RouteType.QUEUE, queue, "*", target
        for topic in self._topics[name] if with_topics else ():
            yield RouteType.TOPIC, topic, "*", target


def _answer(message: CellMessage) -> bytes:
    return message.payload


@cache
def simulate(size: Size) -> Report:
    """Run one mesh through everything that is measured."""
    began = perf_counter()
    with SimCluster(SEED) as sim:
        mesh = Mesh(sim, size)
        start = mesh.start()
        idle = mesh.measure_idle(IDLE_S)
        satellite = mesh.restart(mesh.satellites[len(mesh.satellites) // 2])
        core = mesh.restart(mesh.cores[0])
        rolling = mesh.restart(*mesh.cores)
    return Report(start, satellite, core, rolling, idle, perf_counter() - began)


# The table.

PHASES = {
    "start": "all domains start",
    "satellite": "a satellite restarts",
    "core": "a core restarts",
    "rolling": "all cores restart one by one",
}


def sections(settings: Settings) -> list[Section]:
    """Times until all is known, news sent for it, news in idle times, cost of the simulation."""
    sizes = SIZES_QUICK if settings.rounds == 1 else SIZES
    return [
        *(_times(title, phase, sizes) for phase, title in PHASES.items()),
        *(_bytes(title, phase, sizes, "control_bytes", "") for phase, title in PHASES.items()),
        *(
            _bytes(title, phase, sizes, "busiest_bytes", " of the busiest domain")
            for phase, title in PHASES.items()
        ),
        _compared("news of an idle satellite", "B/s", sizes, _idle_bytes, GROWTH_MAX),
        _compared("real time of the whole simulation", "s", sizes, _real_seconds, None),
    ]


def _times(title: str, phase: str, sizes: tuple[Size, ...]) -> Section:
    """Each size against a budget."""
    return Section(
        title=f"{title}: until all tables are right",
        unit="s",
        contenders=[Contender(str(it), partial(_sample, phase, "seconds", it)) for it in sizes],
        comparisons=[
            Comparison(
                f"{title}, {it}", str(it), "budget", 1.0, at_most=True, budget=CONVERGENCE_BUDGET_S
            )
            for it in sizes
        ],
        rounds_max=1,
    )


def _bytes(title: str, phase: str, sizes: tuple[Size, ...], field: str, whose: str) -> Section:
    sample = partial(_sample, phase, field)
    return _compared(f"{title}: news of routes{whose}", "B", sizes, sample, None)


def _compared(
    title: str,
    unit: str,
    sizes: tuple[Size, ...],
    sample: Callable[[Size], float],
    goal: float | None,
) -> Section:
    """Each size against the smallest."""
    return Section(
        title=title,
        unit=unit,
        contenders=[Contender(str(it), partial(sample, it)) for it in sizes],
        comparisons=[
            Comparison(f"{title}, {it}", str(it), str(sizes[0]), goal=goal, at_most=True)
            for it in sizes
        ],
        rounds_max=1,
    )


def _sample(phase: str, field: str, size: Size) -> float:
    return float(getattr(getattr(_report(size), phase), field))


def _idle_bytes(size: Size) -> float:
    return _report(size).idle_bytes_per_s


def _real_seconds(size: Size) -> float:
    return _report(size).real_s


def _report(size: Size) -> Report:
    try:
        return simulate(size)
    except LivenessFailure as failure:
        raise BenchmarkFailed(str(failure)) from failure
