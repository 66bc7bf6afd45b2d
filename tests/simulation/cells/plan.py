"""Everything that chance decides about a run before it starts."""

from __future__ import annotations

import enum
from random import Random

import msgspec

from postroad.cells import CellsConfig, Role, RouteAdvertiserConfig, RouteLearnerConfig
from postroad.cells.addresses import DomainInfo
from postroad.core import Limits
from postroad.core.limits import KIB, MIB
from tests.simulation.plans import Trouble

CORES_MAX = 4
SATELLITES_MAX = 6
CELLS_MAX = 3
ZONES = (None, None, "east", "west")
QUEUES = ("q0", "q1", "q2", "q3", "q4")
TOPICS = ("t0", "t1", "t2")
CELL_NAMES = ("ant", "bee", "cat", "dog", "elk")
# Many faults begin within so many seconds before the end, and find the domains busy with others.
LATE_S = 6.0


class Work(enum.Enum):
    ECHO = "echo"
    """It answers at once."""
    SLOW = "slow"
    """It is a coroutine that takes a while."""
    FAILING = "failing"
    """It raises."""


class Event(enum.Enum):
    PARTITION = "partition"
    ONE_WAY = "one way"
    KILL = "kill"
    POWER = "power"
    LEAVE = "leave"
    PAUSE = "pause"
    DELAY = "delay"
    RESET = "reset"
    SLOW_READER = "slow reader"
    CLOCK = "clock"
    """A wall clock jumps: whoever starts later has another incarnation than one expects."""
    STALL = "stall"
    """Handlers that are slow do not end for a while, and messages pile up before them."""
    FLOOD = "flood"
    """A domain sends more at once than mailboxes and tunnels hold."""
    ADD = "add"
    REMOVE = "remove"
    DRAIN = "drain"
    CONSUME = "consume"
    UNCONSUME = "unconsume"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"


_WEIGHTS = {
    Event.PARTITION: 3,
    Event.KILL: 3,
    Event.POWER: 2,
    Event.LEAVE: 3,
    Event.PAUSE: 2,
    Event.STALL: 3,
    Event.FLOOD: 3,
    Event.ADD: 3,
    Event.REMOVE: 2,
    Event.CONSUME: 3,
    Event.UNCONSUME: 3,
    Event.SUBSCRIBE: 3,
    Event.UNSUBSCRIBE: 3,
}


class PlannedCell(msgspec.Struct, frozen=True):
    name: str
    work: Work
    queues: tuple[str, ...]
    topics: tuple[str, ...]
    concurrency: int


class PlannedDomain(msgspec.Struct, frozen=True):
    identity: DomainInfo
    is_late: bool
    """Whether it joins some time after trouble has begun."""
    cells: tuple[PlannedCell, ...]

    @property
    def name(self) -> str:
        return self.identity.name


class PlannedEvent(Trouble, frozen=True):
    cell: PlannedCell
    queue: str
    topic: str


class Plan(msgspec.Struct, frozen=True):
    domains: list[PlannedDomain]
    cuts: list[tuple[str, str]]
    """Pairs that never reach each other, a core in each; the others have to go round."""
    events: list[PlannedEvent]
    trouble_s: float
    restarted: tuple[str, ...]
    """Who is started at the end if it does not run."""
    config: CellsConfig
    limits: Limits

    @property
    def cores(self) -> list[str]:
        return [domain.name for domain in self.domains if domain.identity.role is Role.CORE]

    @property
    def name(self) -> str:
        satellites = len(self.domains) - len(self.cores)
        events = ", ".join(sorted({event.kind.value for event in self.events})) or "nothing happens"
        cuts = "".join(f", {a} without {b}" for a, b in self.cuts)
        return f"{len(self.cores)} cores, {satellites} satellites{cuts}: {events}"


def draw_plan(rng: Random) -> Plan:
    cores = [f"C{number + 1}" for number in range(rng.randint(1, CORES_MAX))]
    satellites = [f"S{number + 1}" for number in range(rng.randint(1, SATELLITES_MAX))]
    names = [*cores, *satellites]
    trouble_s = rng.uniform(10.0, 30.0)
    return Plan(
        domains=[
            *(_draw_domain(rng, name, Role.CORE) for name in cores),
            *(_draw_domain(rng, name, Role.SATELLITE) for name in satellites),
        ],
        cuts=_draw_cuts(rng, cores, satellites),
        events=_draw_events(rng, names, trouble_s) if rng.random() < 0.95 else [],
        trouble_s=trouble_s,
        restarted=(cores[0], *(name for name in names[1:] if rng.random() < 0.5)),
        config=_draw_config(rng),
        limits=_draw_limits(rng),
    )


def _draw_domain(rng: Random, name: str, role: Role) -> PlannedDomain:
    chosen = rng.sample(CELL_NAMES, rng.randint(0, CELLS_MAX))
    return PlannedDomain(
        DomainInfo(name, role, rng.choice(ZONES)),
        is_late=rng.random() < 0.15,
        cells=tuple(_draw_cell(rng, number) for number in chosen),
    )


def _draw_cell(rng: Random, name: str) -> PlannedCell:
    return PlannedCell(
        name,
        work=rng.choice((Work.ECHO, Work.ECHO, Work.SLOW, Work.SLOW, Work.FAILING)),
        queues=tuple(rng.sample(QUEUES, rng.choice((0, 0, 1, 2)))),
        topics=tuple(rng.sample(TOPICS, rng.choice((0, 1, 1, 2)))),
        concurrency=rng.choice((1, 1, 3)),
    )


def _draw_cuts(rng: Random, cores: list[str], satellites: list[str]) -> list[tuple[str, str]]:
    """Of two cores and more: everybody keeps a core, and cores stay connected."""
    if len(cores) < 2 or rng.random() < 0.7:
        return []
    cuts = [(rng.choice(cores), satellite) for satellite in satellites if rng.random() < 0.6]
    if len(cores) > 2 and rng.random() < 0.5:
        cuts.append((cores[0], cores[-1]))
    return cuts


def _draw_config(rng: Random) -> CellsConfig:
    """Times in proportion to those of the defaults, but shorter; small maximums now and then."""
    is_narrow = rng.random() < 0.4
    return CellsConfig(
        call_timeout_s=5.0,
        mailbox_messages_max=80 if is_narrow else 1_000,
        link_messages_max=300 if is_narrow else 10_000,
        link_bytes_max=64 * KIB if is_narrow else 32 * MIB,
        resend_messages_max=16 if is_narrow else 1_024,
        redial_initial_delay_s=0.1,
        redial_max_delay_s=2.0,
        stop_grace_s=rng.choice((0.5, 2.0)),
        advertiser=RouteAdvertiserConfig(
            resend_first_s=0.3, resend_max_s=3.0, check_interval_s=5.0
        ),
        route_learner=RouteLearnerConfig(default_delay_s=rng.choice((0.1, 1.0))),
    )


def _draw_limits(rng: Random) -> Limits:
    return Limits(
        write_buffer_bytes_max=rng.choice((2 * KIB, 64 * KIB, 1 * MIB)),
        connect_timeout_s=1.0,
        handshake_timeout_s=2.0,
        heartbeat_interval_s=1.0,
        heartbeat_timeout_s=3.0,
        stop_grace_s=1.0,
    )


def _draw_events(rng: Random, names: list[str], trouble_s: float) -> list[PlannedEvent]:
    weights = [_WEIGHTS.get(kind, 1) for kind in Event]
    kinds = rng.choices(tuple(Event), weights=weights, k=rng.randint(2, 24))
    events = [_draw_event(rng, kind, names, trouble_s) for kind in kinds]
    return sorted(events, key=lambda event: event.time)


def _draw_event(rng: Random, kind: Event, names: list[str], trouble_s: float) -> PlannedEvent:
    mixed = rng.sample(names, len(names))
    size = rng.randint(1, len(names) - 1)
    others = mixed[size:]
    if kind is Event.ONE_WAY:
        others = others[: rng.randint(1, len(others))]
    return PlannedEvent(
        kind=kind,
        time=rng.uniform(0.0 if rng.random() < 0.7 else trouble_s - LATE_S, trouble_s),
        lasting_s=rng.choice((0.2, 1.0, 4.0, 8.0)) * rng.uniform(0.5, 1.0),
        victim=mixed[0],
        group=tuple(mixed[:size]),
        others=tuple(others),
        comes_back=rng.random() < 0.6,
        strength=rng.random(),
        cell=_draw_cell(rng, rng.choice(CELL_NAMES)),
        queue=rng.choice(QUEUES),
        topic=rng.choice(TOPICS),
    )
