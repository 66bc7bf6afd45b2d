"""Puts a run together: nodes, faults, healing, agreement."""

from __future__ import annotations

from postroad.testing import SimCluster, Simulation
from tests.simulation.cluster.agreement import await_agreement
from tests.simulation.cluster.plan import draw_plan
from tests.simulation.cluster.world import World


def run_cluster(simulation: Simulation) -> None:
    """Faults, then healing, then everybody must know everybody."""
    plan = draw_plan(simulation.rng)
    with SimCluster(simulation) as sim:
        sim.log.add("plan", "seed", f"{sim.seed}: {plan.name}")
        world = World(sim, plan)
        world.run(until=plan.healed_s)
        world.act(world.heal)
        took_s = await_agreement(world)
        sim.log.add("test", "agreed", f"after {took_s:.2f} s")
