"""Puts a run together: domains, a quiet time, trouble, healing, agreement, another quiet time."""

from __future__ import annotations

from postroad.testing import SimCluster, Simulation, require
from tests.simulation.cells.agreement import (
    await_agreement,
    check_cores,
    check_leaks,
    differences,
)
from tests.simulation.cells.plan import draw_plan
from tests.simulation.cells.quiet import check_quiet
from tests.simulation.cells.world import World
from tests.simulation.plans import shortened

# Whatever was sent in times of trouble has come to its end by then.
_CALMING_S = 5.0


def run_cells(simulation: Simulation) -> None:
    """Trouble in between, and all is right before and after it."""
    plan = shortened(simulation, draw_plan(simulation.rng), "trouble_s", "events")
    with SimCluster(simulation) as sim:
        sim.log.add("plan", "seed", f"{sim.seed}: {plan.name}")
        world = World(sim, plan)
        world.start_first()
        _agree(world)
        check_quiet(world)
        world.run_trouble()
        world.heal()
        _agree(world)
        sim.run_for(_CALMING_S)
        check_quiet(world)
        check_cores(world)
        told = differences(world)
        require(not told, f"tables changed though nothing happened: {'; '.join(told)}")
        _end(world)


def _agree(world: World) -> None:
    took_s = await_agreement(world)
    world.sim.log.add("test", "agreed", f"after {took_s:.1f} s")


def _end(world: World) -> None:
    for process in world.running():
        if process.talker is not None:
            process.talker.is_talkative = False
    world.sim.run_for(_CALMING_S)
    check_leaks(world)
    for process in world.running():
        world.sim.after(world.sim.rng.random(), process.stop)
    world.sim.run_until(
        lambda: not world.running(), within=_CALMING_S + 1.0, claim="all domains have stopped"
    )
