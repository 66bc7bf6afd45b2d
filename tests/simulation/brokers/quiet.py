"""What holds while nothing goes wrong: all agree on who offers what, and everything succeeds."""

from __future__ import annotations

from collections import defaultdict

from postroad.services import Service
from postroad.services.service import actions_of, events_of
from postroad.testing import require
from tests.simulation.brokers.branch import Branch
from tests.simulation.brokers.clerk import ACTS, Act
from tests.simulation.brokers.offers import OFFERS
from tests.simulation.brokers.world import BrokerWorld
from tests.simulation.services.quiet import await_steadiness

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
        lambda: not world.missing(), within=_MOVING_S, claim="all nodes are in their places"
    )
    await_steadiness(world)
    branches = [*world.stations()]
    for branch in branches:
        branch.is_talkative = False
    world.sim.run_until(
        lambda: not any(it.acts for it in branches),
        within=_ENDING_S,
        claim="all that was begun in times of trouble has ended",
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
        return not any(differences(it, branches) for it in branches)

    began = world.sim.now
    while not is_agreed() and world.sim.now < began + _AGREEMENT_S:
        world.sim.run_for(0.1)
    told = [f"{it} sees {differences(it, branches)}" for it in branches]
    world.sim.run_until(is_agreed, within=0.0, claim=f"all agree; {'; '.join(told)}")


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
            view[f"action {action.name}"] += [it.node_id for it in action.available]
    for event in registry.events:
        view[f"event {event.group} {event.name}"] += [it.node_id for it in event.available]
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
    actions = [f"action {name}.{it}" for it, _, _ in actions_of(service)]
    events = [f"event {it.group or name} {pattern}" for pattern, _, it in events_of(service)]
    return [f"service {name}", *actions, *events]


# What they do.


def _check_acts(world: BrokerWorld, branches: list[Branch]) -> None:
    offered = {name for branch in branches for name in branch.offers}
    for branch in branches:
        for act in ACTS:
            if act.needs <= offered:
                branch.do(act.name, _succeed(branch, act))
    world.sim.run_until(
        lambda: not any(it.acts for it in branches), within=_ENDING_S, claim="all acts have ended"
    )


async def _succeed(branch: Branch, act: Act) -> None:
    try:
        await act.act(branch.clerk, _ACT_S)
    except Exception as error:
        require(False, f"{branch} could not {act.name}: {error!r}")


def _check_leftovers(world: BrokerWorld, branches: list[Branch]) -> None:
    began = world.sim.now
    while any(it.leftovers() for it in branches) and world.sim.now < began + _ENDING_S:
        world.sim.run_for(0.5)
    for branch in branches:
        left = branch.leftovers()
        require(not left, f"{branch} has {', '.join(left)}")
