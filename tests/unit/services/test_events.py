"""Who gets an event."""

from random import Random

from postroad.services.balancing import StrategyMaker
from postroad.services.events import REMEMBERED_NAMES_MAX, EventCatalog, EventPlan
from postroad.services.schema import EventInfo
from tests.unit.services.service_endpoints import make_node

NODES = {id: make_node(id) for id in ("me", "n1", "n2", "a", "b", "js")}


def make_catalog(*subscriptions: str, prefers_local: bool = True) -> EventCatalog:
    """Each subscription is `node group pattern`; the service has the name of the group."""
    catalog = EventCatalog(StrategyMaker(Random(1)), prefers_local=prefers_local)
    for subscription in subscriptions:
        node_id, group, pattern = subscription.split()
        catalog.put(NODES[node_id], group, group, EventInfo(name=pattern))
    return catalog


def locals_of(plan: EventPlan) -> list[str]:
    return [f"{endpoint.service} {endpoint.info.name}" for endpoint in plan.local]


def test_each_group_gets_an_event_once() -> None:
    catalog = make_catalog("n1 mail user.*", "n2 mail user.*", "n1 log **", "n2 stats user.new")
    assert catalog.plan_emit("user.new").remote == {"n1": ("mail", "log"), "n2": ("stats",)}
    assert catalog.plan_emit("user.new").remote == {"n2": ("mail", "stats"), "n1": ("log",)}
    assert catalog.plan_emit("other").remote == {"n1": ("log",)}
    catalog = make_catalog("n1 mail user.*", "me mail user.*", "n1 log **")
    plan = catalog.plan_emit("user.new")
    assert locals_of(plan) == ["mail user.*"]
    assert plan.remote == {"n1": ("log",)}
    catalog = make_catalog("me mail user.*", "n1 mail user.*", "n1 mail **", "me mail **")
    plan = catalog.plan_emit("user.new")
    assert locals_of(plan) == ["mail user.*", "mail **"]
    assert plan.remote == {}
    catalog = make_catalog("n1 mail user.*", "me log **")
    assert catalog.plan_emit("user.new", ["mail"]) == EventPlan((), {"n1": ("mail",)})
    assert catalog.plan_emit("user.new", ["none"]) == EventPlan((), {})
    assert make_catalog("n1 mail user.*").plan_emit("post.new") == EventPlan((), {})
    catalog = make_catalog("n1 mail user.*", "n2 log **", "me mail **")
    assert catalog.groups_of("user.new") == ("mail", "log")
    assert catalog.groups_of("x.y") == ("log", "mail")


def test_subscriptions_of_a_group_share_a_node_where_possible() -> None:
    both = ["user.*", "user.new", "**"]
    catalog = make_catalog(*[f"{id} mail {it}" for id in ("n1", "n2") for it in both])
    for expected in ("n1", "n2", "n1"):
        assert catalog.plan_emit("user.new").remote == {expected: ("mail",)}
    catalog = make_catalog("n1 mail user.*", "n2 mail user.new")
    assert catalog.plan_emit("user.new").remote == {"n1": ("mail",), "n2": ("mail",)}


def test_broadcast_goes_to_every_node_once() -> None:
    catalog = make_catalog("n1 mail user.*", "n1 log **", "n2 mail user.*", "me mail user.*")
    plan = catalog.plan_broadcast("user.new")
    assert locals_of(plan) == ["mail user.*"]
    assert plan.remote == {"n1": (), "n2": ()}
    assert catalog.plan_broadcast("user.new", ["log", "log"]).remote == {"n1": ("log",)}
    catalog = make_catalog("n1 mail user.*")
    for number in range(REMEMBERED_NAMES_MAX + 10):
        catalog.groups_of(f"user.{number}")
    assert len(catalog._fitting) <= REMEMBERED_NAMES_MAX


def test_what_runs_here_for_events_that_come() -> None:
    catalog = make_catalog("me mail user.*", "me log **", "n1 stats **")
    catalog.put(NODES["me"], "v2.mail", "mail", EventInfo(name="user.*"))

    def run(broadcast: bool, *groups: str) -> list[str]:
        choose = catalog.local_broadcast if broadcast else catalog.local_emit
        return [endpoint.service for endpoint in choose("user.new", groups)]

    assert run(False) == ["mail", "log"]
    assert run(False, "mail", "stats") == ["v2.mail"]
    assert run(True) == ["mail", "v2.mail", "log"]
    assert run(True, "log") == ["log"]


def test_endpoints_that_are_gone_or_broken_get_nothing() -> None:
    catalog = make_catalog("n1 mail user.*", "n2 mail user.*")
    assert catalog.groups_of("user.new") == ("mail",)
    catalog.remove("n1", "mail", "mail", "user.*")
    assert catalog.plan_emit("user.new").remote == {"n2": ("mail",)}
    catalog.remove("n2", "mail", "mail", "user.*")
    catalog.remove("n2", "mail", "mail", "never")
    assert catalog.plan_emit("user.new").remote == {}
    assert list(catalog) == []
    catalog.put(NODES["n1"], "mail", "mail", EventInfo(name="user.*"))
    assert catalog.plan_emit("user.new").remote == {"n1": ("mail",)}
    catalog = make_catalog("n1 mail user.*", "n2 log user.*")
    next(iter(catalog)).set_accepting("n1", False)
    assert catalog.plan_emit("user.new").remote == {"n2": ("log",)}


ABLE = {"me", "a", "b"}


def can_ack(node_id: str) -> bool:
    return node_id in ABLE


def plan(events: EventCatalog, *groups: str) -> dict[str, list[str]]:
    found = events.plan_acked("user.created", groups, None, {}, can_ack)
    return {group: [*nodes] for group, nodes in found.items()}


def test_nodes_of_each_group_are_planned() -> None:
    events = make_catalog("a x user.*", "b x user.*", "b y user.created")
    assert plan(events) == {"x": ["a"], "y": ["b"]}
    assert plan(events) == {"x": ["b"], "y": ["b"]}
    events = make_catalog("a x user.*", "me x user.*")
    assert plan(events) == plan(events) == {"x": ["me"]}
    events = make_catalog("js x user.*", "a x user.*", "js y **")
    assert plan(events) == plan(events) == {"x": ["a"], "y": ["js"]}
    events = make_catalog("a x user.*", "a y user.*", "a z order.*")
    assert plan(events, "y", "z", "none") == {"y": ["a"]}
    both = make_catalog("a x user.*", "a x **", "b x **")
    # The node that has both serves both.
    assert plan(both) == {"x": ["a"]}
    apart = make_catalog("a x user.*", "b x **")
    assert plan(apart) == {"x": ["a", "b"]}
    events = make_catalog("a x user.*", "b x **", "a x **", "js y user.created")
    found = {group: {*nodes} for group, nodes in events.nodes_of("user.created").items()}
    assert found == {"x": {"a", "b"}, "y": {"js"}}
    assert [*events.nodes_of("user.created", ["y"])] == ["y"]
    assert events.nodes_of("order.created", ["y"]) == {}
