"""For tests that tell a story of a few orders step by step."""

from __future__ import annotations

from random import Random

import msgspec

from postroad.flows import FlowsConfig
from postroad.testing import SimCluster
from tests.simulation.flows.orders import Job, Kind, Order, Timetable
from tests.simulation.flows.plan import Plan, draw_plan
from tests.simulation.flows.scenario import finish
from tests.simulation.flows.world import World

ORDER = Order(name="order", kind=Kind.PAY, payer="n0", payee="n1", third="n2", amount=100)
RELOADED = FlowsConfig(replay_every_time=True, retry_initial_delay_s=0.05)


def plan_of(
    *orders: Order,
    config: FlowsConfig | None = None,
    schedules: tuple[Timetable, ...] = (),
    minute_s: float = 5.0,
) -> Plan:
    drawn = draw_plan(Random(0), has_faults=False)
    jobs = [Job(order=order, time=0.0, is_named=True, repeats=1) for order in orders]
    return msgspec.structs.replace(
        drawn,
        config=config or FlowsConfig(),
        jobs={name: [job for job in jobs if job.order.payer == name] for name in drawn.mail.nodes},
        schedules={
            name: [schedule for schedule in schedules if schedule.order.payer == name]
            for name in drawn.mail.nodes
        },
        minute_s=minute_s,
    )


def run_orders(seed: int, plan: Plan, sync_s: float = 0.0) -> World:
    """Let them all come to their end; commits of the first node take so long."""
    with SimCluster(seed) as sim:
        world = World(sim, plan)
        world.machines["n0"].disk.sync_s = sync_s
        world.start_all()
        finish(world)
    return world
