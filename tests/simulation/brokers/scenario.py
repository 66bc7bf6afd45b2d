"""Puts a run together: brokers, a quiet time, trouble, healing, and another quiet time."""

from __future__ import annotations

from random import Random

from postroad.services import BrokerConfig
from postroad.testing import SimCluster, Simulation
from tests.simulation.brokers.offers import OFFERS
from tests.simulation.brokers.quiet import HEARTBEAT_S, SILENCE_S, STREAM_IDLE_S, check_quiet
from tests.simulation.brokers.world import BrokerWorld
from tests.simulation.plans import shortened
from tests.simulation.services.plan import Scope, draw_plan
from tests.simulation.services.scenario import stop_all

SCOPE = Scope(
    node_ids=("alpha", "b.e-t_a", "gamma@1", "delta/1"),
    actions=tuple(OFFERS),
    cores_max=2,
    satellites_max=3,
    trouble_s=(6.0, 15.0),
    events_max=16,
)


def run_brokers(simulation: Simulation) -> None:
    """Trouble in between, and all is right before and after it."""
    plan = shortened(simulation, draw_plan(simulation.rng, SCOPE), "trouble_s", "events")
    config = draw_config(simulation.rng)
    with SimCluster(simulation) as sim:
        sim.log.add("plan", "seed", f"{sim.seed}: {plan.name}")
        world = BrokerWorld(sim, plan, config)
        world.start_first()
        check_quiet(world)
        world.run_trouble()
        world.heal()
        check_quiet(world)
        stop_all(world)


def draw_config(rng: Random) -> BrokerConfig:
    return BrokerConfig(
        namespace=rng.choice(("", "sim")),
        serializer=rng.choice(("JSON", "MsgPack", "CBOR")),
        heartbeat_interval_s=HEARTBEAT_S,
        heartbeat_timeout_s=SILENCE_S,
        stream_idle_s=STREAM_IDLE_S,
        uses_balancer=rng.random() < 0.8,
        prefers_local=rng.random() < 0.5,
        strategy=rng.choice(("RoundRobin", "Random")),
    )
