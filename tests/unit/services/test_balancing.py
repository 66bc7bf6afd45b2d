"""Which of several endpoints gets a call."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.services.balancing import Latencies, StrategyMaker
from postroad.services.schema import ActionInfo
from tests.support.cases import each
from tests.unit.services.service_endpoints import choices, make_list, make_node


def test_endpoint_is_chosen_in_turn_while_it_accepts() -> None:
    assert choices(make_list("a", "b", "c"), 7) == ["a", "b", "c", "a", "b", "c", "a"]
    found = make_list("a")
    (endpoint,) = found
    found.put(endpoint.node, "posts", ActionInfo(name="posts.find", raw_name="find"))
    assert list(found) == [endpoint]
    assert endpoint.info.raw_name == "find"
    assert choices(make_list("a", "me", "b"), 3) == ["me", "me", "me"]
    assert choices(make_list("a", "me", "b", prefers_local=False), 3) == ["a", "me", "b"]
    found = make_list("a", "me")
    found.set_accepting("me", False)
    assert choices(found, 2) == ["a", "a"]
    found.set_accepting("me", True)
    assert choices(found, 2) == ["me", "me"]
    found = make_list("a", "me", name="$node.list", prefers_local=False)
    assert choices(found, 3) == ["me", "me", "me"]
    found.set_accepting("me", False)
    assert choices(found, 1) == ["-"]
    assert choices(make_list("a", "b", name="$node.list"), 2) == ["a", "b"]
    found = make_list("a")
    found.set_accepting("a", False)
    assert choices(found, 1) == ["-"]
    assert choices(make_list(), 1) == ["-"]
    assert repr(found) == "<EndpointList posts.find: 0 of 1 available>"


def test_endpoints_of_a_node_are_found_and_take_turns() -> None:
    found = make_list("a", "b")
    endpoint = found.at("b")
    assert endpoint is not None
    assert repr(endpoint) == "<Endpoint posts.find of posts at b>"
    found.set_accepting("b", False)
    assert found.at("b") is None
    assert found.has_node("b")
    assert not found.has_node("c")
    assert "broken" in repr(endpoint)
    found = make_list("me")
    found.put(next(iter(found)).node, "v2.posts", ActionInfo(name="posts.find"))
    assert found.has_local
    assert [it.service for _ in range(3) if (it := found.choose())] == [
        "posts",
        "v2.posts",
        "posts",
    ]
    found.remove("me", "posts")
    assert [it.service for it in found] == ["v2.posts"]
    found.remove("me", "never")
    assert len(found) == 1


def test_load_decides_or_chance_without_knowledge_of_it() -> None:
    counts = Counter(choices(make_list("a", "b", "c", strategy="Random"), 900))
    assert all(240 < counts[name] < 360 for name in "abc")
    assert set(choices(make_list("a", "b", strategy="CpuUsage"), 40)) == {"a", "b"}
    assert set(choices(make_list("a", "b", strategy="Latency"), 40)) == {"a", "b"}
    nodes = [make_node("a", cpu=90), make_node("b", cpu=20), make_node("c")]
    assert choices(make_list(*nodes, strategy="CpuUsage"), 5) == ["b"] * 5
    nodes = [make_node("a", cpu=3), make_node("b", cpu=9), make_node("c", cpu=10)]
    assert set(choices(make_list(*nodes, strategy="CpuUsage"), 40)) == {"a", "b"}
    nodes = [make_node(str(number), cpu=20 + number) for number in range(20)]
    found = make_list(*nodes, strategy="cpu-usage", sampleCount=2)
    assert len(set(choices(found, 60))) > 5
    everyone = make_list(*nodes, strategy="CpuUsage", sampleCount=0)
    assert set(choices(everyone, 20)) == {"0"}


def test_latency_of_the_last_pings_decides() -> None:
    maker = StrategyMaker(Random(1))
    nodes = [make_node("a", host="far"), make_node("b", host="near"), make_node("c")]
    found = make_list(*nodes, strategy="Latency", maker=maker)
    maker.latencies.record("far", 80)
    maker.latencies.record("near", 30)
    assert choices(found, 5) == ["b"] * 5
    maker.latencies.record("far", 2)
    assert maker.latencies.average("far") == 41
    maker.latencies.forget("near")
    assert choices(found, 5) == ["a"] * 5
    latencies = Latencies(collect_count=2)
    for elapsed_ms in (100, 10, 20):
        latencies.record("h", elapsed_ms)
    assert latencies.average("h") == 15
    assert latencies.average("other") is None


# Shards. The owners are those a node of the original system chooses.

KEYS = ["a", "b", "c", "user-1", "user-2", 42, 1.5, True]
OWNERS = ["node-2", "node-3", "node-3", "node-2", "node-2", "node-1", "node-3", "node-3"]


def test_shards_have_owners_and_few_keys_move() -> None:
    found = make_list("node-3", "node-1", "node-2", strategy="Shard", shardKey="user.id")
    chosen = [choices(found, 1, {"user": {"id": key}})[0] for key in KEYS]
    assert chosen == OWNERS
    found = make_list("node-1", "node-2", "node-3", strategy="shard", shardKey="#id")
    endpoints = [found.choose(None, {"id": key}) for key in KEYS]
    assert [it.node_id for it in endpoints if it] == OWNERS
    found = make_list("a", "b", strategy="Shard", shardKey="id")
    assert set(choices(found, 40, {"x": 1})) == {"a", "b"}
    assert set(choices(make_list("a", "b", strategy="Shard"), 40, {"id": 1})) == {"a", "b"}
    found = make_list("node-1", "node-2", "node-3", strategy="Shard", shardKey="id")
    found.set_accepting("node-2", False)
    chosen = [choices(found, 1, {"id": key})[0] for key in KEYS]
    assert all(
        now == before for now, before in zip(chosen, OWNERS, strict=True) if before != "node-2"
    )
    assert "node-2" not in chosen


def test_consistent_layout_moves_little() -> None:
    def owners(*nodes: str) -> list[str]:
        found = make_list(*nodes, strategy="Shard", shardKey="id", layout="consistent")
        return [choices(found, 1, {"id": key})[0] for key in range(400)]

    before, after = owners("a", "b", "c"), owners("a", "b", "c", "d")
    moved = [new for old, new in zip(before, after, strict=True) if new != old]
    assert set(moved) == {"d"}
    assert 50 < len(moved) < 150


@each(
    ("Best", {}, "RoundRobin, Random, CpuUsage, Latency, Shard"),
    ("CpuUsage", {"sampleCount": "3"}, "sampleCount='3'"),
    ("CpuUsage", {"lowCpuUsage": True}, "lowCpuUsage=True"),
    ("Latency", {"lowLatency": -1}, "lowLatency=-1"),
    ("Shard", {"shardKey": 3}, "shardKey"),
    ("Shard", {"layout": "round"}, "equal, consistent"),
    ("Shard", {"ringSize": float("nan")}, "ringSize"),
)
def test_mistakes_are_named(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        StrategyMaker(Random(1)).make(name, options)


def test_wrong_default_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="'Best'"):
        StrategyMaker(Random(1), default="Best")
