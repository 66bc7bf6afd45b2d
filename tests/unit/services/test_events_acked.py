"""Who gets an event whose sender waits for it."""

from random import Random

from postroad.services.balancing import StrategyMaker
from postroad.services.events import EventCatalog
from postroad.services.schema import EventInfo
from tests.unit.services.service_endpoints import make_node

ABLE = {"me", "a", "b"}


def can_ack(node_id: str) -> bool:
    return node_id in ABLE


def catalog(*subscriptions: tuple[str, str, str], prefers_local: bool = True) -> EventCatalog:
    """Subscriptions by node, group and pattern."""
    made = EventCatalog(StrategyMaker(Random(1)), prefers_local=prefers_local)
    nodes = {name: make_node(name) for name, _, _ in subscriptions}
    for name, group, pattern in subscriptions:
        made.put(nodes[name], f"{group}-service", group, EventInfo(name=pattern))
    return made


def plan(events: EventCatalog, *groups: str) -> dict[str, list[str]]:
    found = events.plan_acked("user.created", groups, None, {}, can_ack)
    return {group: [*nodes] for group, nodes in found.items()}


def test_nodes_of_each_group_are_planned() -> None:
    events = catalog(("a", "x", "user.*"), ("b", "x", "user.*"), ("b", "y", "user.created"))
    assert plan(events) == {"x": ["a"], "y": ["b"]}
    assert plan(events) == {"x": ["b"], "y": ["b"]}
    events = catalog(("a", "x", "user.*"), ("me", "x", "user.*"))
    assert plan(events) == plan(events) == {"x": ["me"]}
    events = catalog(("js", "x", "user.*"), ("a", "x", "user.*"), ("js", "y", "**"))
    assert plan(events) == plan(events) == {"x": ["a"], "y": ["js"]}
    events = catalog(("a", "x", "user.*"), ("a", "y", "user.*"), ("a", "z", "order.*"))
    assert plan(events, "y", "z", "none") == {"y": ["a"]}
    both = catalog(("a", "x", "user.*"), ("a", "x", "**"), ("b", "x", "**"))
    # The node that has both serves both.
    assert plan(both) == {"x": ["a"]}
    apart = catalog(("a", "x", "user.*"), ("b", "x", "**"))
    assert plan(apart) == {"x": ["a", "b"]}
    events = catalog(
        ("a", "x", "user.*"), ("b", "x", "**"), ("a", "x", "**"), ("js", "y", "user.created")
    )
    found = {group: {*nodes} for group, nodes in events.nodes_of("user.created").items()}
    assert found == {"x": {"a", "b"}, "y": {"js"}}
    assert [*events.nodes_of("user.created", ["y"])] == ["y"]
    assert events.nodes_of("order.created", ["y"]) == {}
