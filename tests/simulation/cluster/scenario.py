"""Puts a run together: nodes, faults, healing, agreement."""

from __future__ import annotations

import msgspec

from postroad.testing import SimCluster, Simulation
from tests.simulation.cluster.agreement import await_agreement
from tests.simulation.cluster.plan import draw_plan
from tests.simulation.cluster.world import World
from tests.simulation.plans import shortened


def run_cluster(simulation: Simulation) -> None:
    """Faults, then healing, then everybody must know everybody."""
    plan = shortened(simulation, draw_plan(simulation.rng), "healed_s", "faults")
    # Without the seeds nobody could find anybody.
    seeds = [it for it in plan.nodes if it.name in plan.seeds]
    others = [it for it in plan.nodes if it.name not in plan.seeds]
    nodes = [*seeds, *simulation.optional("nodes", others)]
    plan = msgspec.structs.replace(plan, nodes=sorted(nodes, key=lambda it: it.name))
    with SimCluster(simulation) as sim:
        sim.log.add("plan", "seed", f"{sim.seed}: {plan.name}")
        world = World(sim, plan)
        world.run(until=plan.healed_s)
        world.act(world.heal)
        took_s = await_agreement(world)
        sim.log.add("test", "agreed", f"after {took_s:.2f} s")
