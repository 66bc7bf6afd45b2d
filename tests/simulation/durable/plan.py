"""Everything that chance decides about a run before it starts."""

from __future__ import annotations

import enum
from random import Random

import msgspec

from postroad.core import fault_points as faults
from postroad.durable import DurableQueuesConfig
from tests.simulation.durable.slips import (
    CLOSED,
    DESK,
    NOTES,
    OPEN_QUEUES,
    ORDERS,
    RELAY,
    WARD,
    Job,
    Parcel,
    Slip,
    Temper,
    Way,
)

NODES_MIN = 3
NODES_MAX = 5
CLERKS_MAX = 3
# Nobody disturbs the first moment, so that most runs begin with mail on its way.
FIRST_FAULT_S = 0.5
TRAFFIC_S = 20.0
KEYS = ("apples", "pears", "plums")
POINTS = tuple(name for name in faults.fault_point_names() if name.startswith("durable."))


class Fault(enum.Enum):
    KILL = "kill"
    POWER = "power"
    STOP = "stop"
    PAUSE = "pause"
    CRASH = "crash"
    """Killed at a fault point, and nowhere else."""
    FAILED_COMMIT = "failed commit"
    """The database fails just before or just after a commit."""
    PARTITION = "partition"
    ONE_WAY = "one way"
    DELAY = "delay"
    RESET = "reset"
    SLOW_DISK = "slow disk"
    FULL_DISK = "full disk"
    READ_ONLY = "read-only"
    CLOCK = "clock"
    REST = "rest"
    """Somebody has a queue rest for a while."""
    HOPE = "hope"
    """Somebody has all dead letters tried again."""
    READ_AGAIN = "read again"
    """All queues are read again, as after a lost connection."""


# What ends or breaks a commit finds more than the rest.
_WEIGHTS = {
    Fault.KILL: 2,
    Fault.CRASH: 8,
    Fault.FAILED_COMMIT: 4,
    Fault.PARTITION: 2,
    Fault.RESET: 2,
    Fault.SLOW_DISK: 2,
}
# Drawn after everything else, so that what a seed has found before it finds again.
_DRAWN = tuple(kind for kind in Fault if kind is not Fault.READ_AGAIN)
_READ_AGAIN_MAX = 4
_QUEUES = {ORDERS: 8, RELAY: 3, NOTES: 3, WARD: 2, DESK: 3, CLOSED: 1}


class PlannedFault(msgspec.Struct, frozen=True):
    """One fault. What it does not need is drawn all the same and ignored."""

    kind: Fault
    time: float
    lasting_s: float
    victim: str
    group: tuple[str, ...]
    """Some nodes, the victim among them."""
    others: tuple[str, ...]
    strength: float
    """From 0 to 1."""
    clock_s: float
    point: str
    """Where it is killed."""
    visits: int
    """How often it gets there before."""
    queue: str
    """Which one rests."""


class Habits(msgspec.Struct, frozen=True):
    concurrency: int
    failing: float
    """Chance that a handler fails for once."""
    slow: float
    """Chance that it takes its time."""
    refused: float = 0.0
    """Chance that it posts what cannot be posted."""


class Plan(msgspec.Struct, frozen=True):
    nodes: tuple[str, ...]
    uses_agents: bool
    """Whether nodes find each other as members of a cluster; otherwise they have a list."""
    config: DurableQueuesConfig
    habits: Habits
    clerks: dict[str, list[list[Job]]]
    """For each node the jobs of each of its clerks, who do one after the other."""
    faults: list[PlannedFault]
    healed_s: float

    @property
    def name(self) -> str:
        count = sum(len(jobs) for clerks in self.clerks.values() for jobs in clerks)
        kinds = ", ".join(sorted({fault.kind.value for fault in self.faults})) or "no fault"
        way = "agents" if self.uses_agents else "a list"
        return f"{len(self.nodes)} nodes with {way}, {count} jobs, {kinds}"


def draw_plan(rng: Random, *, has_faults: bool = True) -> Plan:
    nodes = tuple(f"n{number}" for number in range(rng.randint(NODES_MIN, NODES_MAX)))
    healed_s = TRAFFIC_S * rng.uniform(0.8, 1.5)
    count = rng.randint(1, 16) if has_faults else 0
    faults = [_draw_fault(rng, nodes, healed_s) for _ in range(count)]
    plan = Plan(
        nodes=nodes,
        uses_agents=rng.random() < 0.2,
        config=_draw_config(rng),
        habits=Habits(
            concurrency=rng.choice((1, 1, 4)),
            failing=rng.choice((0.0, 0.05, 0.2)),
            slow=rng.choice((0.0, 0.1, 0.5)),
        ),
        clerks={name: _draw_clerks(rng, name, nodes) for name in nodes},
        faults=sorted(faults, key=lambda fault: fault.time),
        healed_s=healed_s,
    )
    if not has_faults:
        return plan
    faults += [
        msgspec.structs.replace(_draw_fault(rng, nodes, healed_s), kind=Fault.READ_AGAIN)
        for _ in range(rng.randint(0, _READ_AGAIN_MAX))
    ]
    return msgspec.structs.replace(
        plan,
        habits=msgspec.structs.replace(plan.habits, refused=rng.choice((0.0, 0.05, 0.2))),
        faults=sorted(faults, key=lambda fault: fault.time),
    )


def _draw_config(rng: Random) -> DurableQueuesConfig:
    return DurableQueuesConfig(
        message_bytes_max=2_000,
        outbox_messages_max=rng.choice((20, 10_000)),
        inbox_bytes_max=rng.choice((1_500, 1_000_000)),
        sender_bytes_max=rng.choice((800, 1_000_000)),
        batch_messages_max=rng.choice((1, 3, 16)),
        batch_bytes_max=rng.choice((200, 2_000)),
        window_bytes=rng.choice((300, 4_000)),
        windows_max=rng.choice((1, 2, 4)),
        prefetch_messages=rng.choice((4, 16, 1_000)),
        uncommitted_acks_max=rng.choice((2, 1_000)),
        write_queue_bytes_max=rng.choice((500, 1_000_000)),
        open_timeout_s=2.0,
        window_timeout_s=3.0,
        bridge_max_delay_s=2.0,
        transaction_timeout_s=1.0,
        handler_timeout_s=4.0,
        ack_timeout_s=2.0,
    )


# Traffic.


def _draw_clerks(rng: Random, node: str, nodes: tuple[str, ...]) -> list[list[Job]]:
    count = rng.randint(1, CLERKS_MAX)
    return [_draw_jobs(rng, f"{node}.{number}", nodes) for number in range(count)]


def _draw_jobs(rng: Random, clerk: str, nodes: tuple[str, ...]) -> list[Job]:
    time = 0.0
    jobs = []
    pace_s = rng.choice((0.1, 0.5, 1.5))
    for number in range(rng.randint(5, 20)):
        # Bursts are what fills windows and pages.
        time += 0.0 if rng.random() < 0.5 else rng.expovariate(1 / pace_s)
        jobs.append(_draw_job(rng, f"{clerk}.{number}", min(time, TRAFFIC_S), nodes))
    return jobs


def _draw_job(rng: Random, name: str, time: float, nodes: tuple[str, ...]) -> Job:
    way = rng.choice(tuple(Way))
    count = 1 if way is Way.POST else rng.randint(1, 4)
    parcels = tuple(_draw_parcel(rng, f"{name}.{index}", nodes) for index in range(count))
    is_idempotent = rng.random() < 0.6
    return Job(
        name=name,
        time=time,
        way=way,
        parcels=parcels,
        is_idempotent=is_idempotent,
        is_doubted=is_idempotent and rng.random() < 0.1,
    )


def _draw_parcel(rng: Random, token: str, nodes: tuple[str, ...]) -> Parcel:
    (queue,) = rng.choices(tuple(_QUEUES), weights=tuple(_QUEUES.values()))
    copies = queue == RELAY or (queue == ORDERS and rng.random() < 0.3)
    temper = Temper.FINE
    if queue == WARD:
        temper = rng.choice(tuple(Temper))
    # Whoever posts to its own node may open any queue there.
    peers = [node for node in nodes if queue != CLOSED or not token.startswith(f"{node}.")]
    is_special = rng.random() < 0.15
    slip = Slip(
        token=token,
        copy_to=rng.choice(nodes) if copies else None,
        temper=temper,
        filler="." * rng.choice((0, 0, 20, 200)),
    )
    return Parcel(
        slip=slip,
        peer=rng.choice(peers),
        queue=queue,
        key=rng.choice((None, *KEYS)),
        delay=rng.choice((None, rng.uniform(0, 5))) if is_special else None,
        priority=rng.choice((-5, 0, 5)) if is_special else 0,
        ttl=rng.uniform(0.01, 5) if rng.random() < 0.05 else None,
    )


# Faults.


def _draw_fault(rng: Random, nodes: tuple[str, ...], healed_s: float) -> PlannedFault:
    weights = [_WEIGHTS.get(kind, 1) for kind in _DRAWN]
    (kind,) = rng.choices(_DRAWN, weights=weights)
    mixed = rng.sample(nodes, len(nodes))
    size = rng.randint(1, len(nodes) - 1)
    return PlannedFault(
        kind=kind,
        time=rng.uniform(FIRST_FAULT_S, healed_s),
        lasting_s=rng.choice((0.1, 1.0, 4.0, 10.0)) * rng.uniform(0.5, 1.0),
        victim=mixed[0],
        group=tuple(mixed[:size]),
        others=tuple(mixed[size:]),
        strength=rng.random(),
        clock_s=rng.choice((-60.0, -1.0, 1.0, 60.0)) * rng.random(),
        point=rng.choice(POINTS),
        visits=rng.choice((0, 0, 1, 3)),
        queue=rng.choice(OPEN_QUEUES),
    )
