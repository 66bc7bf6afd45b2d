"""What scenario `flows` has found once, as small as it can be told."""

import msgspec
import pytest

from postroad.flows import FlowStatus
from postroad.flows.machine.failure_policy import CRASHES_ALONE_MAX
from postroad.testing import SimCluster
from tests.simulation.flows.bank import INITIATORS
from tests.simulation.flows.findings import heads_of
from tests.simulation.flows.orders import Kind
from tests.simulation.flows.scenario import finish
from tests.simulation.flows.stories import ORDER, RELOADED, plan_of, run_orders
from tests.simulation.flows.world import World


def test_what_is_heard_together_with_the_end_does_not_outlive_a_flow_that_begins_anew() -> None:
    order = msgspec.structs.replace(ORDER, kind=Kind.STANDING, renewals=3, is_forgiving=True)
    world = run_orders(1, plan_of(order))
    assert world.orders.endings["order"].startswith("paid all")


def test_a_flow_that_was_held_begins_although_the_commit_of_that_fails() -> None:
    with SimCluster(2) as sim:
        world = World(sim, plan_of(ORDER))
        with world.traps.armed():
            world.desks["n1"].is_draining = True
            sim.run_for(0.1)
            world.start_all()
            sim.run_for(3.0)
            assert not world.orders.is_done
            trap = world.traps.fail(world.machines["n1"], "durable.commit.before")
            world.desks["n1"].is_draining = False
            sim.run_for(2.0)
            assert trap.has_fired
            finish(world)


@pytest.mark.parametrize("seed", range(8))
def test_a_step_that_ends_while_its_flow_is_read_again_is_not_run_twice(seed: int) -> None:
    orders = [
        msgspec.structs.replace(
            ORDER, name=f"order-{number}", kind=Kind.SPLIT, is_odd=True, is_forgiving=True
        )
        for number in range(6)
    ]
    run_orders(seed, plan_of(*orders, config=RELOADED), sync_s=0.03)


def test_a_flow_that_an_operator_tries_again_is_not_parked_when_it_is_read_again() -> None:
    config = msgspec.structs.replace(RELOADED, crash_recoveries_max=1, trial_s=0.1)
    order = msgspec.structs.replace(ORDER, is_odd=True)
    with SimCluster(4) as sim:
        world = World(sim, plan_of(order, config=config))
        machine = world.machines["n0"]
        with world.traps.armed():
            for _ in range(2 + CRASHES_ALONE_MAX):
                trap = world.traps.kill(machine, "flows.step.completed")
                world.start_all()
                sim.run_for(3.0)
                assert trap.has_fired
            finish(world)


def test_a_session_that_was_kept_for_code_to_come_is_rejected_if_the_code_is_not_for_it() -> None:
    order = msgspec.structs.replace(ORDER, kind=Kind.LEASE, lines=2)
    with SimCluster(5) as sim:
        world = World(sim, plan_of(order))
        world.code["n1"] = tuple(INITIATORS.values())
        world.start_all()
        sim.run_for(3.0)
        (head,) = heads_of(world.machines["n1"])
        assert head.status is FlowStatus.HELD
        del world.code["n1"]
        world.machines["n1"].kill()
        finish(world)
        (rejected,) = heads_of(world.machines["n1"])
    assert world.orders.endings["order"].startswith("rejected")
    assert rejected.failure is not None
    assert rejected.failure.error.text == "let talks to versions 1 of lease, not to 2"


def test_a_process_that_ends_while_it_waits_for_a_flow_leaves_nothing_behind() -> None:
    with SimCluster(6) as sim:
        world = World(sim, plan_of(ORDER, config=RELOADED))
        with world.traps.armed():
            trap = world.traps.stop(world.machines["n0"], "flows.commit.durable")
            world.start_all()
            sim.run_for(3.0)
            assert trap.has_fired
            finish(world)
