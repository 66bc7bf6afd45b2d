"""A bank is killed or stopped at every fault point of flows and of the mail; the books agree.

What must happen at each of them is a table in tests.support.flows.kill_scenarios, where processes
are killed for real. Here all banks of a run are killed there, each after so many visits.
"""

from functools import partial
from random import Random

import pytest

from postroad.testing import SimCluster, Simulation, require
from tests.simulation.durable.plan import POINTS as MAIL_POINTS
from tests.simulation.flows.coverage import LOST
from tests.simulation.flows.plan import POINTS, draw_plan
from tests.simulation.flows.scenario import finish
from tests.simulation.flows.world import World
from tests.simulation.scenarios import run_seed
from tests.support.tiers import by_tier

RESTART_S = 1.0
VISITS = (0, 2, 7)
# Nobody comes there often.
RARE = {
    "flows.result.resolved",
    "flows.commit.lost",
    "flows.loaded",
    "flows.recovery.claimed",
    "flows.recovery.counted",
    "flows.schedule.started",
    "flows.schedule.due",
    "flows.session.rejected",
}
# All points in every run, each after one of the numbers of visits; after all of them at night.
CASES = [
    (point, visits)
    for number, point in enumerate(sorted({*POINTS, *MAIL_POINTS}))
    for visits in by_tier(test=VISITS[number % 3 :][:1], nightly=VISITS)
    if point not in RARE
] + [(point, VISITS[0]) for point in sorted(RARE)]


def run_with_traps(point: str, visits: int, is_soft: bool, simulation: Simulation) -> None:
    """Have a trap for each node and no other fault, then check everything."""
    plan = draw_plan(Random(f"{point} {visits}"), has_faults=False)
    with SimCluster(simulation) as sim:
        world = World(sim, plan)
        with world.traps.armed():
            trap = world.traps.stop if is_soft else world.traps.kill
            traps = [trap(machine, point, visits) for machine in world.machines.values()]
            while sim.now < plan.mail.healed_s:
                if point == LOST:
                    # Every other second nothing can be committed.
                    for machine in world.machines.values():
                        machine.disk.is_full = not machine.disk.is_full
                world.start_all()
                sim.run_for(RESTART_S)
            world.heal()
            finish(world)
    require(any(trap.has_fired for trap in traps), f"nobody came to {point} {visits + 1} times")


@pytest.mark.parametrize(("point", "visits"), CASES)
def test_killed_at(point: str, visits: int) -> None:
    outcome = run_seed(point, partial(run_with_traps, point, visits, False), seed=visits)
    assert outcome.exit_code == 0, f"{outcome.log}\n\n{outcome.reason}"


@pytest.mark.parametrize("point", POINTS)
def test_stopped_at(point: str) -> None:
    outcome = run_seed(point, partial(run_with_traps, point, 0, True), seed=1)
    assert outcome.exit_code == 0, f"{outcome.log}\n\n{outcome.reason}"
