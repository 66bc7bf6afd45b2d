"""Puts a run together: traffic, faults, healing, and the books at the end."""

from __future__ import annotations

import msgspec

from postroad.testing import SimCluster, Simulation
from tests.simulation.durable.plan import Plan, draw_plan
from tests.simulation.durable.verdict import Findings, await_quiet, check_machines
from tests.simulation.durable.world import World
from tests.simulation.plans import shortened


def run_durable(simulation: Simulation) -> None:
    """Faults, then healing, then every message must have arrived, once."""
    plan = shortened(simulation, draw_plan(simulation.rng), "healed_s", "faults")
    clerks = {
        name: [simulation.optional("jobs", jobs) for jobs in clerks]
        for name, clerks in plan.clerks.items()
    }
    run_plan(simulation, msgspec.structs.replace(plan, clerks=clerks))


def run_plan(simulation: Simulation, plan: Plan) -> None:
    with SimCluster(simulation) as sim:
        sim.log.add("plan", "seed", f"{sim.seed}: {plan.name}")
        world = World(sim, plan)
        with world.traps.armed():
            world.run()
            world.heal()
            finish(world)


def finish(world: World) -> None:
    took_s = await_quiet(world)
    Findings(world).check()
    check_machines(world)
    world.sim.log.add("test", "complete", f"{took_s:.1f} s after healing")
