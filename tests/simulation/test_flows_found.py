"""What scenario `flows` has found once, as small as it can be told."""

from random import Random

import msgspec
import pytest

from postroad.flows import FlowsConfig
from postroad.testing import SimCluster
from tests.simulation.flows.orders import Job, Kind, Order
from tests.simulation.flows.plan import Plan, draw_plan
from tests.simulation.flows.scenario import finish
from tests.simulation.flows.world import World

ORDER = Order(name="order", kind=Kind.PAY, payer="n0", payee="n1", third="n2", amount=100)
RELOADED = FlowsConfig(reload=True, retry_first_s=0.05)


def plan_of(*orders: Order, config: FlowsConfig | None = None) -> Plan:
    """A quiet world with these orders, all given at once."""
    drawn = draw_plan(Random(0), has_faults=False)
    jobs = [Job(order=it, time=0.0, is_named=True, repeats=1) for it in orders]
    return msgspec.structs.replace(
        drawn,
        config=config or FlowsConfig(),
        jobs={name: [it for it in jobs if it.order.payer == name] for name in drawn.mail.nodes},
    )


def run_orders(seed: int, plan: Plan, sync_s: float = 0.0) -> World:
    """Let them all come to their end; commits of the first node take so long."""
    with SimCluster(seed) as sim:
        world = World(sim, plan)
        world.machines["n0"].disk.sync_s = sync_s
        world.start_all()
        finish(world)
    return world


def test_what_is_heard_together_with_the_end_does_not_outlive_a_flow_that_begins_anew() -> None:
    order = msgspec.structs.replace(ORDER, kind=Kind.STANDING, left=3, is_forgiving=True)
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
    config = msgspec.structs.replace(RELOADED, recoveries_max=1)
    order = msgspec.structs.replace(ORDER, is_odd=True)
    with SimCluster(4) as sim:
        world = World(sim, plan_of(order, config=config))
        machine = world.machines["n0"]
        with world.traps.armed():
            for _ in range(3):
                trap = world.traps.kill(machine, "flows.step.done")
                world.start_all()
                sim.run_for(1.0)
                assert trap.has_fired
            finish(world)
