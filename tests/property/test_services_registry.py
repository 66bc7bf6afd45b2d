"""What holds for registries, strategies, patterns, keys and pending calls, whatever happens."""

import math
from collections import Counter
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import MalformedPayloadError
from postroad.services.balancing import StrategyMaker
from postroad.services.bulkheads import Bulkhead, BulkheadConfig, Entry
from postroad.services.calls import Added, PendingCalls
from postroad.services.endpoints import EndpointList
from postroad.services.info_form import ReadInfo, read_info, write_info
from postroad.services.keys import exact_key
from postroad.services.nodes import Change, NodeRecord, SendDiscover
from postroad.services.patterns import matches
from postroad.services.registry import Registry
from postroad.services.registry_config import RegistryConfig
from postroad.services.ring import Layout, lay_out
from postroad.services.schema import ActionInfo, EventInfo, NodeInfo, ServiceInfo
from postroad.services.validation import compile_params

BEAT_S = 10.0
CONFIG = RegistryConfig(heartbeat_timeout_s=30, clean_offline_s=600, verify_interval_s=60)

scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-2, 2) | st.text(max_size=4)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def make_service(name: str) -> ServiceInfo:
    return ServiceInfo(
        name=name,
        full_name=name,
        actions=(ActionInfo(name=f"{name}.run", raw_name="run"),),
        events=(EventInfo(name=f"{name}.*"),),
    )


class Life:
    """A process that uses the name of a node until it stops, is killed, or the test is over."""

    def __init__(self, node_id: str, instance_id: str, *, tells_state: bool) -> None:
        self.node_id = node_id
        self.tells_state = tells_state
        self.is_alive = True
        self.info = NodeInfo(instance_id=instance_id)

    def offer(self, names: set[str]) -> None:
        services = tuple(map(make_service, sorted(names)))
        self.info = NodeInfo(
            instance_id=self.info.instance_id, seq=self.info.seq + 1, services=services
        )

    def deliver(self, kind: str, info: NodeInfo, registry: Registry, now: float) -> list[Change]:
        if kind == "info":
            return registry.receive_info(self.node_id, ReadInfo(info, ()), now)
        if kind == "goodbye":
            return registry.receive_disconnect(self.node_id, now)
        if self.tells_state:
            return registry.receive_heartbeat(
                self.node_id, now, seq=info.seq, instance_id=info.instance_id
            )
        return registry.receive_heartbeat(self.node_id, now, cpu=1)


Packet = tuple[str, Life, NodeInfo]
SERVICES = ("posts", "users", "mail")


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[str, Life], list[Packet]]:
    """What some nodes did and sent, life after life."""
    last: dict[str, Life] = {}
    sent: list[Packet] = []
    for number in range(draw(st.integers(1, 8))):
        node_id = draw(st.sampled_from(["n1", "n2"]))
        if node_id in last:
            last[node_id].is_alive = False
        life = last[node_id] = Life(node_id, f"life-{number}", tells_state=draw(st.booleans()))
        for _ in range(draw(st.integers(0, 3))):
            life.offer(draw(st.sets(st.sampled_from(SERVICES))))
            sent += [("info", life, life.info), ("beat", life, life.info)]
        if draw(st.booleans()):
            life.offer(set())
            life.is_alive = False
            sent += [("info", life, life.info), ("goodbye", life, life.info)]
    return last, sent


def offered(registry: Registry) -> set[tuple[str, str]]:
    of_actions = {(it.node_id, it.info.name) for found in registry.actions for it in found}
    return of_actions | {(it.node_id, it.info.name) for found in registry.events for it in found}


def said(node_id: str, info: NodeInfo) -> set[tuple[str, str]]:
    names = [name for it in info.services for name in (f"{it.name}.run", f"{it.name}.*")]
    return {(node_id, name) for name in names}


def make_registry() -> Registry:
    strategies = StrategyMaker(Random(1))
    return Registry("me", NodeInfo(instance_id="i"), strategies=strategies, config=CONFIG, now=0)


def assert_consistent(registry: Registry) -> None:
    """Endpoints are those of the nodes that are available, neither more nor fewer."""
    known = (said(it.id, it.info) for it in registry.nodes(only_available=True))
    assert offered(registry) == set().union(*known)


def run_quietly(registry: Registry, lives: dict[str, Life], now: float) -> None:
    """Every heartbeat and every answer arrives, for some minutes."""
    for _ in range(20):
        now += BEAT_S
        changes = registry.tick(now)
        for life in lives.values():
            if life.is_alive:
                changes += life.deliver("beat", life.info, registry, now)
        asked = {change.node_id for change in changes if isinstance(change, SendDiscover)}
        for node_id in sorted(asked):
            if lives[node_id].is_alive:
                lives[node_id].deliver("info", lives[node_id].info, registry, now)


@given(histories(), st.data())
def test_any_loss_order_and_doubling_ends_in_the_last_lives(
    history: tuple[dict[str, Life], list[Packet]], data: st.DataObject
) -> None:
    lives, sent = history
    registry, now = make_registry(), 0.0
    arriving = st.lists(st.sampled_from(sent), max_size=30) if sent else st.just([])
    for kind, life, info in data.draw(arriving):
        now += data.draw(st.sampled_from([0.0, 0.1, 5.0, 20.0]))
        registry.tick(now)
        life.deliver(kind, info, registry, now)
        assert_consistent(registry)
    run_quietly(registry, lives, now)
    assert_consistent(registry)
    for node_id, life in lives.items():
        node = registry.node(node_id)
        assert (node is not None and node.is_available) == life.is_alive
        if node is not None and node.is_available:
            assert node.info == life.info


@given(values)
def test_any_info_is_read_or_malformed(body: Any) -> None:
    for attempt in ({"services": body}, {"services": [body]}, {"services": [], "seq": body}):
        try:
            info = read_info(attempt).info
        except MalformedPayloadError:
            continue
        assert read_info(write_info(info)).info == info


@given(st.lists(values, max_size=4), values)
def test_bad_entry_harms_only_itself(others: list[Any], actions: Any) -> None:
    good = write_info(NodeInfo(instance_id="i", services=(make_service("posts"),)))["services"]
    odd = {"name": "odd", "actions": actions, "events": actions}
    info = read_info({"services": [*others, odd, *good], "instanceID": "i"}).info
    assert make_service("posts") in info.services
    make_registry().receive_info("n1", ReadInfo(info, ()), 0)


STRATEGIES = ("RoundRobin", "Random", "CpuUsage", "Latency", "Shard")
NODES = [
    NodeRecord(f"n{number}", NodeInfo(instance_id="i", hostname=f"h{number % 2}"), 0)
    for number in range(4)
] + [NodeRecord("me", NodeInfo(instance_id="i"), 0, is_local=True)]
steps = st.tuples(
    st.sampled_from(["put", "remove", "break", "mend"]), st.integers(0, len(NODES) - 1)
)


@given(
    st.sampled_from(STRATEGIES),
    st.booleans(),
    st.lists(steps, max_size=25),
    st.lists(st.none() | st.integers(0, 100), min_size=len(NODES), max_size=len(NODES)),
    st.integers(0, 9),
)
def test_only_available_endpoints_are_chosen(
    name: str,
    prefers_local: bool,
    changes: list[tuple[str, int]],
    loads: list[int | None],
    seed: int,
) -> None:
    maker = StrategyMaker(Random(seed), options={"shardKey": "key"})
    maker.latencies.record("h1", 20)
    for node, load in zip(NODES, loads, strict=True):
        node.cpu = load
    found: EndpointList[ActionInfo]
    found = EndpointList("posts.find", "", maker.make(name), prefers_local=prefers_local)
    broken: dict[str, bool] = {}
    for kind, number in changes:
        node = NODES[number]
        if kind == "put":
            found.put(node, "posts", ActionInfo(name="posts.find"))
            broken.setdefault(node.id, False)
        elif kind == "remove":
            found.remove(node.id, "posts")
            broken.pop(node.id, None)
        elif node.id in broken:
            found.set_accepting(node.id, kind == "mend")
            broken[node.id] = kind == "break"
        usable = {node_id for node_id in broken if not broken[node_id]}
        chosen = found.choose({"key": number})
        assert {it.node_id for it in found.available} == usable
        assert (chosen is None) == (not usable)
        if chosen is not None:
            assert chosen.node_id in usable
            assert chosen.is_local or not prefers_local or "me" not in usable


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 7))
def test_turns_are_fair(size: int, rounds: int, before: int) -> None:
    found: EndpointList[ActionInfo]
    maker = StrategyMaker(Random(1))
    found = EndpointList("posts.find", "", maker.default(), prefers_local=True)
    for node in NODES[:size]:
        found.put(node, "posts", ActionInfo(name="posts.find"))
    for _ in range(before):
        found.choose()
    counts = Counter(endpoint.node_id for _ in range(size * rounds) if (endpoint := found.choose()))
    assert counts == {node.id: rounds for node in NODES[:size]}


node_names = st.lists(
    st.text("abc-0123", min_size=1, max_size=6), min_size=2, max_size=6, unique=True
)
shard_keys = st.lists(st.text(max_size=8), min_size=1, max_size=20)


@given(node_names, shard_keys)
def test_node_that_comes_takes_its_share_and_moves_nothing_else(
    names: list[str], keys: list[str]
) -> None:
    new, *others = names
    before = lay_out(sorted(others), layout=Layout.CONSISTENT)
    after = lay_out(sorted(names), layout=Layout.CONSISTENT)
    for key in keys:
        assert after.owner(key) in (before.owner(key), new)
        assert [it for it in after.owners(key) if it != new] == list(before.owners(key))


@given(node_names, shard_keys, st.sampled_from(Layout), st.none() | st.integers(1, 5_000))
def test_every_key_has_every_node_once_in_its_order(
    names: list[str], keys: list[str], layout: Layout, ring_size: int | None
) -> None:
    ring = lay_out(sorted(names), vnodes=3, layout=layout, ring_size=ring_size)
    for key in keys:
        assert sorted(ring.owners(key)) == sorted(names)


def fits(name: str, pattern: str) -> bool:
    """The rules of patterns, tried out one by one."""
    if pattern.endswith("**") and not set("*?") & set(pattern[:-2]):
        return name.startswith(pattern[:-2])
    if pattern.endswith("*") and pattern != "*" and not set("*?") & set(pattern[:-1]):
        return name.startswith(pattern[:-1]) and "." not in name[len(pattern) :]
    if not set("*?") & set(pattern):
        return name == pattern
    return fits_loosely(name, pattern)


def fits_loosely(name: str, pattern: str) -> bool:
    if not pattern:
        return not name
    if pattern.startswith("**"):
        return any(fits_loosely(name[cut:], pattern[2:]) for cut in range(len(name) + 1))
    if pattern.startswith("*"):
        cuts = [cut for cut in range(len(name) + 1) if "." not in name[:cut]]
        return any(fits_loosely(name[cut:], pattern[1:]) for cut in cuts)
    is_same = bool(name) and (pattern[0] in "?." or name[0] == pattern[0])
    return is_same and fits_loosely(name[1:], pattern[1:])


@given(st.text("ab.*?", max_size=7), st.text("ab.", max_size=7))
def test_patterns_match_as_their_rules_say(pattern: str, name: str) -> None:
    assert matches(name, pattern) == fits(name, pattern)


@given(st.text("ab.", max_size=7))
def test_name_matches_itself(name: str) -> None:
    assert matches(name, name)
    assert matches(name, "**")


def canonical(value: Any) -> Any:
    """Values of JSON so that only equal ones are equal: true is not 1, but 1.0 is."""
    if isinstance(value, dict):
        return ("object", frozenset((key, canonical(value[key])) for key in value))
    if isinstance(value, list):
        return ("list", *map(canonical, value))
    return (type(value).__name__ if isinstance(value, bool | str | None) else "number", value)


@given(values, values)
def test_exact_keys_are_equal_for_equal_values_only(one: Any, other: Any) -> None:
    is_equal = exact_key("a", one) == exact_key("a", other)
    assert is_equal == (canonical(one) == canonical(other))


CHECK = compile_params(
    {
        "id": "number|convert|min:1",
        "tags": {"type": "array", "items": "string|trim", "unique": True, "optional": True},
        "who": {"$$type": "object|optional", "name": "string", "mail": "email|optional"},
        "how": ["boolean|convert", "string|min:2"],
        "$$strict": "remove",
    }
)
fields = st.sampled_from(["id", "tags", "who", "how", "more"])


@given(st.dictionaries(fields, values | st.dictionaries(st.sampled_from(["name", "mail"]), values)))
def test_params_are_refused_or_hold_what_the_schema_says(params: dict[str, Any]) -> None:
    before = repr(params)
    value, problems = CHECK(params)
    assert repr(params) == before
    if not problems:
        assert value["id"] >= 1
        assert set(value) <= {"id", "tags", "who", "how"}
        assert CHECK(value) == (value, ())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "take", "lose", "expire"]),
            st.integers(0, 9),
            st.sampled_from([math.inf, 1.0, 5.0]),
        ),
        max_size=40,
    )
)
def test_call_ends_once(steps: list[tuple[str, int, float]]) -> None:
    calls: PendingCalls[int] = PendingCalls(pending_max=5)
    model: dict[int, tuple[str, float]] = {}
    for now, (kind, number, wait_s) in enumerate(steps):
        id, node_id = str(number), f"n{number % 2}"
        if kind == "add":
            state = calls.add(id, number, node_id=node_id, deadline=now + wait_s)
            assert (state is Added.ADDED) == (number not in model and len(model) < 5)
            if state is Added.ADDED:
                model[number] = (node_id, now + wait_s)
            ended = []
        elif kind == "take":
            taken = calls.take(id)
            ended = [number] if number in model else []
            assert ([] if taken is None else [taken]) == ended
        elif kind == "lose":
            ended = calls.lose_node(node_id)
            assert sorted(ended) == sorted(it for it in model if model[it][0] == node_id)
        else:
            ended = calls.expire(now)
            assert sorted(ended) == sorted(it for it in model if model[it][1] <= now)
        for it in ended:
            del model[it]
        assert len(calls) == len(model)
        assert calls.deadline() == min((due for _, due in model.values()), default=math.inf)


@given(st.integers(1, 3), st.integers(0, 3), st.lists(st.booleans(), max_size=40))
def test_bulkhead_runs_all_it_takes_in_order(
    concurrency: int, queue_max: int, steps: list[bool]
) -> None:
    bulkhead: Bulkhead[int] = Bulkhead(BulkheadConfig(concurrency=concurrency, queue_max=queue_max))
    taken: list[int] = []
    started: list[int] = []
    for number, comes in enumerate(steps):
        if comes:
            entry = bulkhead.enter(number)
            if entry is not Entry.REFUSED:
                taken.append(number)
            if entry is Entry.RUNS:
                started.append(number)
        elif bulkhead.running and (following := bulkhead.leave()) is not None:
            started.append(following)
        assert bulkhead.running <= concurrency
        assert bulkhead.waiting <= queue_max
        assert bulkhead.running == concurrency or not bulkhead.waiting
    assert started == taken[: len(started)]
    assert len(taken) - len(started) == bulkhead.waiting
