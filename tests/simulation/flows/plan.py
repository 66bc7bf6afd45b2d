"""Everything that chance decides about a run before it starts."""

from __future__ import annotations

import enum
from random import Random

import msgspec

# For the names of its fault points.
import postroad.flows  # noqa: F401
from postroad.core import fault_points as faults
from postroad.flows import CatchUpPolicy, FlowsConfig
from postroad.flows.sessions.messages import QUEUE
from tests.simulation.durable import plan as mail
from tests.simulation.flows.orders import Job, Kind, Order, Timetable

POINTS = tuple(name for name in faults.fault_point_names() if name.startswith("flows."))
ORDERS_MIN = 6
ORDERS_MAX = 18
SCHEDULES_MAX = 3
ACTS_MAX = 6
# Faults that wait for somebody, and how long before a full minute they do.
_TRAPS = (mail.Fault.CRASH, mail.Fault.FAILED_COMMIT)
_BEFORE_S = 0.001


class Act(enum.Enum):
    REST = "rest"
    """Pause one, and have it go on later."""
    END = "end"
    """Kill one."""
    DRAIN = "drain"
    """Begin no new ones for a while."""
    OLD_CODE = "old code"
    """Run a node for a while with a program that does not know all flows."""
    STRIKE = "strike"
    """Kill a node the moment it has told a client something."""
    LOOK = "look"
    """Ask everything that can be asked."""
    LITTER = "litter"
    """Post what is no letter of a flow to where letters of flows go."""


_ACT_WEIGHTS = {
    Act.REST: 4,
    Act.END: 2,
    Act.DRAIN: 1,
    Act.OLD_CODE: 1,
    Act.STRIKE: 4,
    Act.LOOK: 2,
    Act.LITTER: 3,
}
_KIND_WEIGHTS = {
    Kind.PAY: 5,
    Kind.CLEAR: 4,
    Kind.SPLIT: 3,
    Kind.QUOTE: 3,
    Kind.APPROVE: 2,
    Kind.STANDING: 2,
    Kind.LEASE: 2,
}


class PlannedAct(msgspec.Struct, frozen=True):
    kind: Act
    time: float
    lasting_s: float
    node: str
    other: str
    """Another one, or the same."""
    number: int
    """No other act has it."""


class Plan(msgspec.Struct, frozen=True):
    mail: mail.Plan
    """The nodes, and all that befalls them."""
    config: FlowsConfig
    jobs: dict[str, list[Job]]
    """For each node, what it is asked to do."""
    schedules: dict[str, list[Timetable]]
    """For each node, what it does without being asked."""
    minute_s: float
    """When the clocks come to a full minute."""
    acts: list[PlannedAct]

    @property
    def name(self) -> str:
        count = sum(map(len, self.jobs.values()))
        kinds = {fault.kind.value for fault in self.mail.faults} | {
            act.kind.value for act in self.acts
        }
        config = self.config
        memory = "reloaded" if config.replay_every_time else f"{config.loaded_flows_max} in memory"
        listed = ", ".join(sorted(kinds)) or "no fault"
        return f"{len(self.mail.nodes)} nodes, {count} orders, flows {memory}, {listed}"


def draw_plan(rng: Random, *, has_faults: bool = True) -> Plan:
    drawn = mail.draw_plan(rng, has_faults=has_faults)
    nodes = drawn.nodes
    flaky = rng.choice((0.0, 0.1, 0.3))
    jobs: dict[str, list[Job]] = {name: [] for name in nodes}
    for number in range(rng.randint(ORDERS_MIN, ORDERS_MAX)):
        job = _draw_job(rng, f"order-{number}", drawn, flaky)
        jobs[job.order.payer].append(job)
    schedules: dict[str, list[Timetable]] = {name: [] for name in nodes}
    for number in range(rng.randint(1, SCHEDULES_MAX)):
        timetable = _draw_timetable(rng, f"salary-{number}", drawn, flaky)
        schedules[timetable.order.payer].append(timetable)
    minute_s = rng.uniform(0.1, 0.9) * drawn.healed_s
    acts = rng.randint(0, ACTS_MAX) if has_faults else 0
    return Plan(
        mail=msgspec.structs.replace(
            drawn,
            clerks={name: [] for name in nodes},
            faults=[_aim(rng, fault, schedules, minute_s) for fault in drawn.faults],
        ),
        config=_draw_config(rng),
        jobs=jobs,
        schedules=schedules,
        minute_s=minute_s,
        acts=[_draw_act(rng, drawn, number) for number in range(acts)],
    )


def _draw_config(rng: Random) -> FlowsConfig:
    return FlowsConfig(
        loaded_flows_max=rng.choice((1, 3, 10_000, 10_000)),
        replay_every_time=rng.random() < 0.25,
        max_attempts=1_000,
        retry_initial_delay_s=0.05,
        retry_max_delay_s=1.0,
        crash_recoveries_max=rng.choice((2, 5, 1_000)),
    )


def _draw_job(rng: Random, name: str, drawn: mail.Plan, flaky: float) -> Job:
    (kind,) = rng.choices(tuple(_KIND_WEIGHTS), weights=tuple(_KIND_WEIGHTS.values()))
    order = _draw_order(rng, name, kind, drawn, flaky)
    # A client that dies before it is told the id of its flow can send it no signal.
    needs_name = kind is Kind.APPROVE and order.patience_s is None
    return Job(
        order=order,
        time=rng.uniform(0.0, 0.9 * drawn.healed_s),
        is_named=rng.random() < 0.8 or needs_name,
        repeats=rng.choice((1, 1, 3)),
        pause_s=rng.choice((0.0, order.rest_s + rng.uniform(0.0, 0.5))),
    )


def _draw_timetable(rng: Random, name: str, drawn: mail.Plan, flaky: float) -> Timetable:
    return Timetable(
        order=_draw_order(rng, name, Kind.SALARY, drawn, flaky),
        minutes=rng.choice((1, 1, 2)),
        catch_up=rng.choice(
            (CatchUpPolicy.ALL, CatchUpPolicy.ALL, CatchUpPolicy.LAST, CatchUpPolicy.NONE)
        ),
    )


def _draw_order(rng: Random, name: str, kind: Kind, drawn: mail.Plan, flaky: float) -> Order:
    payer, payee, third = rng.sample(drawn.nodes, 3)
    if rng.random() < 0.1:
        # Whoever talks to itself.
        payee = payer
    is_single = kind in (Kind.PAY, Kind.CLEAR, Kind.APPROVE, Kind.SALARY)
    is_refused = (is_single or kind is Kind.SPLIT) and rng.random() < 0.2
    has_limit = kind is Kind.QUOTE or (kind is Kind.APPROVE and rng.random() < 0.3)
    return Order(
        name=name,
        kind=kind,
        payer=payer,
        payee=payee,
        third=third,
        amount=rng.randint(2, 1_000),
        lines=rng.choice((0, 0, 2, 5)),
        is_chatty=rng.random() < 0.5,
        is_refused=is_refused,
        # Of two payments that are made at the same time each must end by itself.
        is_forgiving=not is_single or rng.random() < 0.5,
        is_odd=rng.random() < 0.4,
        is_approved=rng.random() < 0.8,
        renewals=rng.randint(1, 3) if kind is Kind.STANDING else 0,
        rest_s=rng.choice((0.0, 0.0, 0.1, 3.0)),
        payee_rest_s=rng.choice((0.0, 0.0, 0.1, 3.0)),
        patience_s=rng.choice((1.0, 5.0)) if has_limit else None,
        flaky=flaky,
    )


def _draw_act(rng: Random, drawn: mail.Plan, number: int) -> PlannedAct:
    (kind,) = rng.choices(tuple(_ACT_WEIGHTS), weights=tuple(_ACT_WEIGHTS.values()))
    return PlannedAct(
        kind=kind,
        time=rng.uniform(mail.FIRST_FAULT_S, drawn.healed_s),
        lasting_s=rng.choice((0.1, 1.0, 5.0)),
        node=rng.choice(drawn.nodes),
        other=rng.choice(drawn.nodes),
        number=ACTS_MAX * rng.randrange(100) + number,
    )


def _aim(
    rng: Random,
    fault: mail.PlannedFault,
    schedules: dict[str, list[Timetable]],
    minute_s: float,
) -> mail.PlannedFault:
    """Have a fault hit flows, and some of them what happens at the full minute."""
    point = rng.choice(POINTS) if rng.random() < 0.6 else fault.point
    aimed = msgspec.structs.replace(fault, point=point, queue=QUEUE)
    if fault.kind not in _TRAPS or rng.random() < 0.8:
        return aimed
    victim = rng.choice([name for name, timetables in schedules.items() if timetables])
    return msgspec.structs.replace(aimed, victim=victim, time=minute_s - _BEFORE_S)
