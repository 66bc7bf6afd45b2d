"""Puts a run together: traffic, faults, healing, and the books at the end."""

from __future__ import annotations

from postroad.testing import SimCluster, Simulation
from tests.simulation.durable.plan import Plan, draw_plan
from tests.simulation.durable.verdict import Findings, await_quiet, check_machines
from tests.simulation.durable.world import World


def run_durable(simulation: Simulation) -> None:
    """Faults, then healing, then every message must have arrived, once."""
    run_plan(simulation, draw_plan(simulation.rng))


def run_plan(simulation: Simulation, plan: Plan) -> None:
    """One run."""
    with SimCluster(simulation) as sim:
        sim.log.add("plan", "seed", f"{sim.seed}: {plan.name}")
        world = World(sim, plan)
        with world.traps.armed():
            world.run()
            world.heal()
            finish(world)


def finish(world: World) -> None:
    """Wait for the end, and check everything."""
    took_s = await_quiet(world)
    Findings(world).check()
    check_machines(world)
    world.sim.log.add("test", "complete", f"{took_s:.1f} s after healing")
