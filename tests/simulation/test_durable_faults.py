"""A node is killed at every fault point of the durable layer, and each message still arrives once.

What the fact sheets of comparable systems list as places where a crash hurts, and what stands for
it here. Acknowledging, handling and posting on are one commit, so several of them are one place:

    S1   the user's rows, not yet committed             durable.consumer.handled
         the same, with the message they belong to      durable.commit.before
    S2   committed, and not reported                    durable.commit.after (killed, or failing)
    S3   committed and reported, not acknowledged       durable.commit.reported
    S4   committed, nothing sent                        durable.bridge.before_send
    S5   some windows sent                              durable.bridge.before_send, later visits
    S6   sent, and nothing else happened                durable.bridge.after_send
    S8   end of the handler, not its commit             durable.consumer.handled
    S9   end committed, what follows not sent           durable.commit.after of a handler that posts
    S10  the first message for a peer, and no bridge    durable.commit.after, first visit
    B1   taken from the outbox, not written             durable.bridge.before_send
    B2   written, not stored by the peer                durable.receiver.before_accept
    B3   stored by the peer, answer not received        durable.receiver.after_accept
    B4   answer received, removal not durable           durable.bridge.accepted
    B5   one refused in the middle of a window          queue `closed` in every run
    B6   the bridge dies, the node lives                test_durable_bridges
    B7   the node dies, the bridge lives                test_durable_bridges
    B8   the peer moves                                 test_durable_bridges
    B9   two bridges                                    test_durable_bridges
    B10  too large, or no such queue                    queue `closed` in every run
    B12  the store's connection is lost                 durable.commit.before and after, failing
    B13  a link that is half open                       faults `power` and `one way` of the scenario
    B14  the disk is full                               faults `full disk` and `read-only`
    R1   stored, not seen by a consumer                 durable.receiver.after_accept
    R2   seen, not handled                              durable.consumer.dispatched
    R3   handled, not committed                         durable.consumer.handled
    R4   committed, not reported                        durable.commit.after
    R7   some in memory, some handled                   durable.consumer.dispatched, later visits
    R8   read again while handlers run                  durable.commit.before, failing
    R9   a dead letter, not yet reported                durable.commit.after of queue `ward`
    R12  a store restored from a backup                 test_durable_restored

S7, S11, R5, R6, R10, R13 and R14 are about flows and their sessions. B11 is about certificates,
which are not simulated. R11, a body nobody can read, needs no crash.
"""

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from postroad.testing import SimCluster, Simulation, require
from tests.simulation.durable.plan import POINTS, draw_plan
from tests.simulation.durable.process import Machine
from tests.simulation.durable.scenario import finish
from tests.simulation.durable.traps import Trap, Traps
from tests.simulation.durable.world import World
from tests.simulation.scenarios import run_seed
from tests.support.tiers import by_tier

RESTART_S = 1.0
# How often a node was at the point before it is killed there.
VISITS = (0, 1, 6)
# Each point in every run, after one of the numbers of visits; after all of them at night.
CASES = [
    (point, visits)
    for number, point in enumerate(POINTS)
    for visits in by_tier(test=VISITS[number % 3 :][:1], nightly=VISITS)
]

SetTrap = Callable[[Traps, Machine, str, int], Trap]


def run_with_traps(set_trap: SetTrap, point: str, visits: int, simulation: Simulation) -> None:
    """Have a trap for each node and no other fault, then check everything."""
    plan = draw_plan(Random(f"{point} {visits}"), has_faults=False)
    with SimCluster(simulation) as sim:
        world = World(sim, plan)
        with world.traps.armed():
            traps = [
                set_trap(world.traps, machine, point, visits) for machine in world.machines.values()
            ]
            while sim.now < plan.healed_s:
                world.start_all()
                sim.run_for(RESTART_S)
            world.heal()
            finish(world)
    fired = [trap for trap in traps if trap.has_fired]
    require(bool(fired), f"nobody came to {point} {visits + 1} times")


def check(set_trap: SetTrap, point: str, visits: int) -> None:
    outcome = run_seed(point, partial(run_with_traps, set_trap, point, visits), seed=visits)
    assert outcome.exit_code == 0, f"{outcome.log}\n\n{outcome.reason}"


def test_every_fault_point_is_in_the_table() -> None:
    assert [point for point in POINTS if point not in (__doc__ or "")] == []


@pytest.mark.parametrize(("point", "visits"), CASES)
def test_node_killed_at_a_fault_point_loses_nothing(point: str, visits: int) -> None:
    check(Traps.kill, point, visits)


@pytest.mark.parametrize("visits", VISITS)
@pytest.mark.parametrize("point", ["durable.commit.before", "durable.commit.after"])
def test_database_that_fails_at_a_commit_loses_nothing(point: str, visits: int) -> None:
    check(Traps.fail, point, visits)
