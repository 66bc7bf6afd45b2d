"""Everything that chance decides about a run before it starts."""

from __future__ import annotations

import enum
from random import Random

import msgspec

from postroad.cells import CellsConfig, RouteAdvertiserConfig, RouteLearnerConfig
from postroad.core import Limits
from postroad.core.limits import KIB, MIB
from tests.simulation.plans import Trouble

CORES_MAX = 3
SATELLITES_MAX = 4
NODE_IDS = ("alpha", "b.e-t_a", "gamma@1", "del ta", "eps/ilon", "zeta*")
"""Some that cells would refuse as names."""
ACTIONS = ("math.add", "math.sub", "mail.send")
LATE_S = 6.0
"""Many faults begin within so many seconds before the end, and find everybody busy with others."""


class Event(enum.Enum):
    """What happens to hosts, and to the nodes of services on them."""

    PARTITION = "partition"
    KILL = "kill"
    POWER = "power"
    LEAVE = "leave"
    PAUSE = "pause"
    DELAY = "delay"
    RESET = "reset"
    SLOW_READER = "slow reader"
    PART = "part"
    """A node leaves the domain it is in, and comes back there."""
    MOVE = "move"
    """A node leaves, and comes back in another domain."""
    LISTEN = "listen"
    """A node listens to other actions than before."""


_WEIGHTS = {Event.KILL: 3, Event.MOVE: 3, Event.LISTEN: 2, Event.PART: 2, Event.LEAVE: 2}


class PlannedNode(msgspec.Struct, frozen=True):
    node_id: str
    host: str
    """Where it is at first."""
    actions: tuple[str, ...]
    """What it listens to at first."""


class PlannedEvent(Trouble, frozen=True):
    node_id: str
    actions: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    cores: tuple[str, ...]
    satellites: tuple[str, ...]
    nodes: tuple[PlannedNode, ...]
    events: tuple[PlannedEvent, ...]
    trouble_s: float
    restarted: tuple[str, ...]
    """Who is started at the end if it does not run."""
    config: CellsConfig
    limits: Limits

    @property
    def hosts(self) -> tuple[str, ...]:
        return (*self.cores, *self.satellites)

    @property
    def name(self) -> str:
        events = ", ".join(sorted({event.kind.value for event in self.events})) or "nothing happens"
        sizes = f"{len(self.cores)} cores, {len(self.satellites)} satellites"
        return f"{sizes}, {len(self.nodes)} nodes: {events}"


class Scope(msgspec.Struct, frozen=True):
    node_ids: tuple[str, ...] = NODE_IDS
    actions: tuple[str, ...] = ACTIONS
    cores_max: int = CORES_MAX
    satellites_max: int = SATELLITES_MAX
    trouble_s: tuple[float, float] = (8.0, 25.0)
    events_max: int = 16


def draw_plan(rng: Random, scope: Scope | None = None) -> Plan:
    scope = scope or Scope()
    cores = tuple(f"C{number + 1}" for number in range(rng.randint(1, scope.cores_max)))
    satellites = tuple(f"S{number + 1}" for number in range(rng.randint(1, scope.satellites_max)))
    hosts = (*cores, *satellites)
    trouble_s = rng.uniform(*scope.trouble_s)
    node_ids = scope.node_ids[: rng.randint(2, len(scope.node_ids))]
    nodes = [
        PlannedNode(node_id, rng.choice(hosts), _draw_actions(rng, scope)) for node_id in node_ids
    ]
    return Plan(
        cores=cores,
        satellites=satellites,
        nodes=tuple(nodes),
        events=_draw_events(rng, scope, hosts, node_ids, trouble_s) if rng.random() < 0.95 else (),
        trouble_s=trouble_s,
        restarted=(cores[0], *(host for host in hosts[1:] if rng.random() < 0.6)),
        config=_draw_config(rng),
        limits=_draw_limits(rng),
    )


def _draw_actions(rng: Random, scope: Scope) -> tuple[str, ...]:
    return tuple(rng.sample(scope.actions, rng.randint(0, len(scope.actions))))


def _draw_config(rng: Random) -> CellsConfig:
    """Times in proportion to those of the defaults, but shorter; small maximums now and then."""
    is_narrow = rng.random() < 0.4
    return CellsConfig(
        mailbox_messages_max=80 if is_narrow else 1_000,
        link_messages_max=300 if is_narrow else 10_000,
        link_bytes_max=512 * KIB if is_narrow else 32 * MIB,
        resend_messages_max=16 if is_narrow else 1_024,
        redial_initial_delay_s=0.1,
        redial_max_delay_s=1.0,
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


def _draw_events(
    rng: Random, scope: Scope, hosts: tuple[str, ...], node_ids: tuple[str, ...], trouble_s: float
) -> tuple[PlannedEvent, ...]:
    weights = [_WEIGHTS.get(kind, 1) for kind in Event]
    kinds = rng.choices(tuple(Event), weights=weights, k=rng.randint(1, scope.events_max))
    events = [_draw_event(rng, scope, kind, hosts, node_ids, trouble_s) for kind in kinds]
    return tuple(sorted(events, key=lambda event: event.time))


def _draw_event(
    rng: Random,
    scope: Scope,
    kind: Event,
    hosts: tuple[str, ...],
    node_ids: tuple[str, ...],
    trouble_s: float,
) -> PlannedEvent:
    mixed = rng.sample(hosts, len(hosts))
    size = rng.randint(1, len(hosts) - 1)
    return PlannedEvent(
        kind=kind,
        time=rng.uniform(0.0 if rng.random() < 0.7 else trouble_s - LATE_S, trouble_s),
        lasting_s=rng.choice((0.2, 1.0, 4.0, 8.0)) * rng.uniform(0.5, 1.0),
        victim=mixed[0],
        group=tuple(mixed[:size]),
        others=tuple(mixed[size:]),
        comes_back=rng.random() < 0.6,
        strength=rng.random(),
        node_id=rng.choice(node_ids),
        actions=_draw_actions(rng, scope),
    )
