"""Puts a run together: nodes, a quiet time, trouble, healing, and another quiet time."""

from __future__ import annotations

from typing import Any

from postroad.testing import SimCluster, Simulation
from tests.simulation.plans import shortened
from tests.simulation.services.packet_world import PacketWorld
from tests.simulation.services.plan import draw_plan
from tests.simulation.services.quiet import await_steadiness, check_quiet
from tests.simulation.services.world import World

_STOP_S = 15.0


def run_services(simulation: Simulation) -> None:
    """Trouble in between, and all is right before and after it."""
    plan = shortened(simulation, draw_plan(simulation.rng), "trouble_s", "events")
    with SimCluster(simulation) as sim:
        sim.log.add("plan", "seed", f"{sim.seed}: {plan.name}")
        world = PacketWorld(sim, plan)
        world.start_first()
        await_steadiness(world)
        check_quiet(world)
        world.run_trouble()
        world.heal()
        await_steadiness(world)
        check_quiet(world)
        stop_all(world)


def stop_all(world: World[Any]) -> None:
    for process in world.running():
        world.sim.after(world.sim.rng.random(), process.stop)
    world.sim.run_until(
        lambda: not world.running(), within=_STOP_S, claim="all processes have stopped"
    )
