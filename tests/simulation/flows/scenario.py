"""Puts a run together: orders, faults, healing, and the books at the end."""

from __future__ import annotations

import msgspec

from postroad.testing import SimCluster, Simulation
from tests.simulation.flows.plan import Plan, draw_plan
from tests.simulation.flows.verdict import (
    await_quiet,
    check_all,
    check_in_between,
    check_memory,
    check_stays_quiet,
)
from tests.simulation.flows.world import World
from tests.simulation.plans import shortened

LOOK_S = 0.9
"""How often a process is compared with its store."""


def run_flows(simulation: Simulation) -> None:
    """Faults, then healing, then every flow must have ended as if there had been none."""
    plan = draw_plan(simulation.rng)
    shorter = msgspec.structs.replace(
        plan,
        mail=shortened(simulation, plan.mail, "healed_s", "faults"),
        acts=simulation.optional("acts", plan.acts),
        jobs={name: simulation.optional("jobs", jobs) for name, jobs in plan.jobs.items()},
    )
    run_plan(simulation, shorter)


def run_plan(simulation: Simulation, plan: Plan) -> None:
    with SimCluster(simulation) as sim:
        sim.log.add("plan", "seed", f"{sim.seed}: {plan.name}")
        world = World(sim, plan)
        sim.call_every(LOOK_S, lambda: check_memory(world))
        with world.traps.armed():
            world.run()
            world.heal()
            finish(world)


def finish(world: World) -> None:
    count = check_in_between(world)
    took_s = await_quiet(world)
    check_all(world)
    check_stays_quiet(world)
    world.sim.log.add("test", "complete", f"{took_s:.1f} s after healing, {count} flows were left")
