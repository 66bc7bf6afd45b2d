"""Puts a run together: brokers, a quiet time, trouble, healing, and another quiet time."""

from __future__ import annotations

from collections import defaultdict
from random import Random

from postroad.cells import CellDomain
from postroad.services import BrokerConfig, Service
from postroad.services.service import actions_of, events_of
from postroad.testing import SimCluster, SimNode, Simulation, require
from tests.simulation.brokers.books import Books
from tests.simulation.brokers.branch import Branch
from tests.simulation.brokers.clerk import ACTS, Act
from tests.simulation.brokers.offers import OFFERS
from tests.simulation.plans import shortened
from tests.simulation.services.plan import Plan, Scope, draw_plan
from tests.simulation.services.scenario import await_steadiness, stop_all
from tests.simulation.services.world import World

_CHECK_INTERVAL_S = 0.1
_SLACK_S = 0.05
# How likely it is that somebody does not come through the trouble.
_GONE = 0.5
# A process that was paused has much to do at once when it goes on.
_WAKING_S = 0.5


class BrokerWorld(World[Branch]):
    """A run in which calls are made, and events and streams are sent."""

    def __init__(self, sim: SimCluster, plan: Plan, config: BrokerConfig) -> None:
        super().__init__(sim, plan)
        self.books = Books()
        self._config = config
        # By processes, when they were last seen paused.
        self._paused_at: dict[str, float] = {}
        sim.call_every(_CHECK_INTERVAL_S, self._check_deadlines)
        sim.call_every(_CHECK_INTERVAL_S, self._check_packets)

    def make_station(self, node_id: str, domain: CellDomain, rng: Random) -> Branch:
        return Branch(self.sim, node_id, domain, self.books, self._config, rng)

    def heal(self) -> None:
        """Often somebody is gone for good when all else is well again."""
        super().heal()
        victims = [
            process.name
            for process in self.running()
            if process.stations and process.name != self.plan.hosts[0]
        ]
        if victims and self.sim.rng.random() < _GONE:
            end = self.sim.rng.choice((SimNode.kill, SimNode.lose_power))
            end(self.sim.nodes[self.sim.rng.choice(victims)])

    def _check_deadlines(self) -> None:
        for process in self.running():
            if process.node.is_paused:
                self._paused_at[process.label] = self.sim.now
                for branch in process.stations.values():
                    branch.clerk.postpone(_CHECK_INTERVAL_S)
            if self.sim.now - self._paused_at.get(process.label, -_WAKING_S) >= _WAKING_S:
                for branch in process.stations.values():
                    self._check_limits(branch)

    def _check_limits(self, branch: Branch) -> None:
        for what, deadline, _ in branch.clerk.limits.values():
            late_s = self.sim.now - deadline
            require(late_s <= _SLACK_S, f"{what} of {branch} is late by {late_s:.2f} s")

    def _check_packets(self) -> None:
        for branch in self.stations():
            branch.check_packets()


HEARTBEAT_S = 1.0
SILENCE_S = 3.5
STREAM_IDLE_S = 3.0
"""Settings of the brokers: in proportion to the defaults, but shorter."""

# The silent are given up, and whoever missed something asks for it.
_AGREEMENT_S = SILENCE_S + 4 * HEARTBEAT_S
# Whoever writes or reads a stream gives up after a while.
_ENDING_S = 4 * STREAM_IDLE_S
_ACT_S = 3.0
# A node that leaves lets its calls end.
_MOVING_S = 15.0

View = dict[str, list[str]]
"""What there is, and the nodes that have it."""


def check_quiet(world: BrokerWorld) -> None:
    """Have everybody do everything, and see what becomes of it."""
    world.sim.run_until(
        lambda: not world.missing(), timeout=_MOVING_S, description="all nodes are in their places"
    )
    await_steadiness(world)
    branches = [*world.stations()]
    for branch in branches:
        branch.is_talkative = False
    world.sim.run_until(
        lambda: not any(branch.acts for branch in branches),
        timeout=_ENDING_S,
        description="all that was begun in times of trouble has ended",
    )
    await_agreement(world, branches)
    _check_acts(world, branches)
    _check_leftovers(world, branches)
    for branch in branches:
        require(not differences(branch, branches), f"{branch} does not agree any more")
        branch.is_talkative = True


# Who offers what.


def await_agreement(world: BrokerWorld, branches: list[Branch]) -> None:
    def is_agreed() -> bool:
        return not any(differences(branch, branches) for branch in branches)

    began = world.sim.now
    while not is_agreed() and world.sim.now < began + _AGREEMENT_S:
        world.sim.run_for(0.1)
    disagreements = [f"{branch} sees {differences(branch, branches)}" for branch in branches]
    world.sim.run_until(
        is_agreed, timeout=0.0, description=f"all agree; {'; '.join(disagreements)}"
    )


def differences(branch: Branch, branches: list[Branch]) -> list[str]:
    seen, real = view_of(branch), real_view(branches)
    return [
        f"{what} at {seen.get(what)}, not {real.get(what)}"
        for what in sorted(seen.keys() | real.keys())
        if seen.get(what) != real.get(what)
    ]


def view_of(branch: Branch) -> View:
    registry = branch.broker.registry
    view: dict[str, list[str]] = defaultdict(list)
    for node in registry.nodes(only_available=True):
        view["node"].append(node.id)
    for node, service in registry.services():
        if not service.is_internal:
            view[f"service {service.full_name}"].append(node.id)
    for action in registry.actions:
        if not action.name.startswith("$"):
            view[f"action {action.name}"] += [endpoint.node_id for endpoint in action.available]
    for event in registry.events:
        view[f"event {event.group} {event.name}"] += [
            endpoint.node_id for endpoint in event.available
        ]
    return {what: sorted(nodes) for what, nodes in view.items() if nodes}


def real_view(branches: list[Branch]) -> View:
    view: dict[str, list[str]] = defaultdict(list)
    for branch in branches:
        view["node"].append(branch.node_id)
        for name in branch.offers:
            for what in _parts_of(name, OFFERS[name](branch)):
                view[what].append(branch.node_id)
    return {what: sorted(nodes) for what, nodes in view.items()}


def _parts_of(name: str, service: Service) -> list[str]:
    actions = [f"action {name}.{action}" for action, _, _ in actions_of(service)]
    events = [f"event {info.group or name} {pattern}" for pattern, _, info in events_of(service)]
    return [f"service {name}", *actions, *events]


# What they do.


def _check_acts(world: BrokerWorld, branches: list[Branch]) -> None:
    offered = {name for branch in branches for name in branch.offers}
    for branch in branches:
        for act in ACTS:
            if act.needs <= offered:
                branch.do(act.name, _succeed(branch, act))
    world.sim.run_until(
        lambda: not any(branch.acts for branch in branches),
        timeout=_ENDING_S,
        description="all acts have ended",
    )


async def _succeed(branch: Branch, act: Act) -> None:
    try:
        await act.act(branch.clerk, _ACT_S)
    except Exception as error:
        require(False, f"{branch} could not {act.name}: {error!r}")


def _check_leftovers(world: BrokerWorld, branches: list[Branch]) -> None:
    began = world.sim.now
    while any(branch.leftovers() for branch in branches) and world.sim.now < began + _ENDING_S:
        world.sim.run_for(0.5)
    for branch in branches:
        leftovers = branch.leftovers()
        require(not leftovers, f"{branch} has {', '.join(leftovers)}")


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
