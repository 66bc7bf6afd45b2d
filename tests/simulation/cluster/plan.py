"""Everything that is random about a run, drawn before it starts."""

from __future__ import annotations

import enum
from random import Random

import msgspec

from postroad.core.limits import KIB
from tests.simulation.plans import Trouble

NODES_MIN = 3
NODES_MAX = 9
# Nobody disturbs the first seconds, so that most nodes have found each other by then.
FIRST_FAULT_S = 4.0
# Many faults begin within so many seconds before the end, and find the cluster busy with others.
LATE_S = 12.0
PAUSE_S_MAX = 15.0
HOUR_S = 3_600.0

PROPERTY_NAMES = ("role", "zone", "load", "topics")
# Too much for a datagram: such properties are asked for over the stream.
LARGE_BYTES = 3 * KIB


class Fault(enum.Enum):
    PARTITION = "partition"
    """Nothing passes between some nodes and the others."""
    ONE_WAY = "one way"
    """Nothing passes from some nodes to some others."""
    KILL = "kill"
    POWER = "power"
    LEAVE = "leave"
    PAUSE = "pause"
    CLOCK = "clock"
    """A wall clock jumps; whoever starts later is thought elder, or far younger."""
    DATAGRAMS = "datagrams"
    """Datagrams are lost, arrive twice or late."""
    DELAY = "delay"
    RESET = "reset"
    SLOW_READER = "slow reader"
    PROPERTIES = "properties"
    TWIN = "twin"
    """A second process of a name is started on another host."""


# What nodes have to find out about each other happens more often than the rest.
_WEIGHTS = {Fault.PARTITION: 3, Fault.KILL: 3, Fault.POWER: 2, Fault.PAUSE: 2, Fault.PROPERTIES: 3}


class PlannedFault(Trouble, frozen=True):
    clock_s: float
    changes: dict[str, str | None]
    """Of properties."""


class PlannedNode(msgspec.Struct, frozen=True):
    name: str
    start_s: float
    properties: dict[str, str]


class Plan(msgspec.Struct, frozen=True):
    names: list[str]
    nodes: list[PlannedNode]
    """Who takes part: those of all names, unless a shorter run does without some."""
    seeds: tuple[str, ...]
    """Names of the nodes that all are told of; the first one has no twin, and is up at the end."""
    faults: list[PlannedFault]
    healed_s: float
    """When all faults end and agreement begins."""
    uses_datagrams: bool
    restarted: tuple[str, ...]
    """Who is started at the end if it does not run."""

    @property
    def name(self) -> str:
        faults = ", ".join(sorted({fault.kind.value for fault in self.faults})) or "no fault"
        way = "datagrams" if self.uses_datagrams else "streams alone"
        return f"{len(self.nodes)} nodes, {len(self.seeds)} seeds, {way}, {faults}"


def draw_plan(rng: Random) -> Plan:
    names = [f"n{number}" for number in range(rng.randint(NODES_MIN, NODES_MAX))]
    healed_s = rng.choice((30.0, 45.0, 75.0)) * rng.uniform(0.8, 1.2)
    has_faults = rng.random() < 0.9
    seeds = tuple(rng.sample(names, rng.randint(1, 3)))
    return Plan(
        names=names,
        nodes=[_draw_node(rng, name, healed_s) for name in names],
        seeds=seeds,
        faults=_draw_faults(rng, names, seeds[0], healed_s) if has_faults else [],
        healed_s=healed_s,
        uses_datagrams=rng.random() < 0.85,
        restarted=(seeds[0], *(name for name in names if rng.random() < 0.3)),
    )


def _draw_node(rng: Random, name: str, healed_s: float) -> PlannedNode:
    start_s = rng.uniform(0, healed_s) if rng.random() < 0.2 else rng.choice((0.0, rng.random()))
    return PlannedNode(name, start_s, _draw_properties(rng))


def _draw_properties(rng: Random) -> dict[str, str]:
    chosen = rng.sample(PROPERTY_NAMES, rng.randint(0, 3))
    return {name: _draw_value(rng) for name in chosen}


def _draw_value(rng: Random) -> str:
    text = f"{rng.getrandbits(32):08x}"
    return text * (LARGE_BYTES // len(text)) if rng.random() < 0.1 else text


def _draw_faults(
    rng: Random, names: list[str], without_twin: str, healed_s: float
) -> list[PlannedFault]:
    weights = [_WEIGHTS.get(kind, 1) for kind in Fault]
    kinds = rng.choices(tuple(Fault), weights=weights, k=rng.randint(1, 14))
    faults = [_draw_fault(rng, kind, names, without_twin, healed_s) for kind in kinds]
    if rng.random() < 0.3:
        faults += _draw_divided_name(rng, names, without_twin, healed_s)
    return sorted(faults, key=lambda fault: fault.time)


def _draw_divided_name(
    rng: Random, names: list[str], without_twin: str, healed_s: float
) -> list[PlannedFault]:
    twin = _draw_fault(rng, Fault.TWIN, names, without_twin, healed_s)
    partition = msgspec.structs.replace(
        twin,
        kind=Fault.PARTITION,
        time=max(FIRST_FAULT_S, twin.time - rng.uniform(0, 5)),
        lasting_s=rng.uniform(5, 30),
    )
    return [partition, twin]


def _draw_fault(
    rng: Random, kind: Fault, names: list[str], without_twin: str, healed_s: float
) -> PlannedFault:
    mixed = rng.sample(names, len(names))
    if kind is Fault.TWIN:
        mixed.sort(key=lambda name: name == without_twin)
    size = rng.randint(1, len(names) - 1)
    others = mixed[size:]
    if kind is Fault.ONE_WAY:
        others = others[: rng.randint(1, len(others))]
    return PlannedFault(
        kind=kind,
        time=rng.uniform(FIRST_FAULT_S if rng.random() < 0.7 else healed_s - LATE_S, healed_s),
        lasting_s=rng.choice((0.2, 2.0, 8.0, 20.0, 40.0)) * rng.uniform(0.5, 1.0),
        victim=mixed[0],
        group=tuple(mixed[:size]),
        others=tuple(others),
        comes_back=rng.random() < 0.5,
        strength=rng.random(),
        clock_s=rng.choice((-24, -1, -0.01, 0.01, 1, 24)) * HOUR_S * rng.random(),
        changes=_draw_changes(rng),
    )


def _draw_changes(rng: Random) -> dict[str, str | None]:
    chosen = rng.sample(PROPERTY_NAMES, rng.randint(1, 3))
    return {name: _draw_value(rng) if rng.random() < 0.6 else None for name in chosen}
