"""The lives of nodes: connect, update, restart, silence, goodbye."""

import math
from random import Random
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.services.actions import EMPTY_LISTS_MAX
from postroad.services.balancing import StrategyMaker
from postroad.services.describing import describe_service
from postroad.services.info_form import ReadInfo, read_info
from postroad.services.nodes import (
    Change,
    EntriesRefused,
    NodeConflict,
    NodeConnected,
    NodeDisconnected,
    NodeForgotten,
    NodeRecord,
    NodeRefused,
    NodeUpdated,
    SendDiscover,
    ServicesChanged,
)
from postroad.services.registry import Registry
from postroad.services.registry_config import RegistryConfig
from postroad.services.schema import NodeInfo
from tests.support.cases import each, naming

CHANGED = ServicesChanged(is_local=False)


def make_registry(**config: Any) -> Registry:
    return Registry(
        "me",
        NodeInfo(instance_id="my-life", hostname="here"),
        strategies=StrategyMaker(Random(1)),
        config=RegistryConfig(**config),
        now=0,
    )


def make_info(*names: str, seq: int = 1, life: str = "life-1", host: str = "") -> ReadInfo:
    services = tuple(
        describe_service(name, actions={"run": {}}, events={f"{name}.*": {}}) for name in names
    )
    return ReadInfo(NodeInfo(instance_id=life, seq=seq, services=services, hostname=host), ())


def nodes_of(registry: Registry, action: str) -> list[str] | None:
    found = registry.actions.get(action)
    return None if found is None else [endpoint.node_id for endpoint in found]


def test_new_node_connects_until_there_are_too_many() -> None:
    registry = make_registry()
    changes = registry.receive_info("n1", make_info("posts"), 5)
    assert changes == [NodeConnected("n1", False), CHANGED]
    assert nodes_of(registry, "posts.run") == ["n1"]
    assert [it.group for it in registry.events] == ["posts"]
    assert registry.has_service("posts")
    assert registry.has_service("posts", "n1")
    assert not registry.has_service("posts", "me")
    registry = make_registry(nodes_max=2)
    registry.receive_info("n1", make_info(), 0)
    assert registry.receive_info("n2", make_info("posts"), 0) == [NodeRefused("n2")]
    assert registry.receive_heartbeat("n2", 0) == []
    assert nodes_of(registry, "posts.run") is None
    for config in ({"heartbeat_timeout_s": -1}, {"clean_offline_s": math.nan}, {"nodes_max": 0}):
        with naming(config), pytest.raises(ConfigError, match=next(iter(config))):
            RegistryConfig(**config)


def test_larger_seq_or_new_life_replaces_the_services() -> None:
    registry = make_registry()
    registry.receive_info("n1", make_info("posts", "users"), 0)
    changes = registry.receive_info("n1", make_info("users", "mail", seq=2), 1)
    assert changes == [NodeUpdated("n1", False), CHANGED]
    assert nodes_of(registry, "posts.run") == []
    assert nodes_of(registry, "users.run") == ["n1"]
    assert nodes_of(registry, "mail.run") == ["n1"]
    assert sorted(it.name for it in registry.events) == ["mail.*", "users.*"]
    registry = make_registry()
    registry.receive_info("n1", make_info("posts", seq=9), 0)
    changes = registry.receive_info("n1", make_info("users", seq=2, life="life-2"), 1)
    assert changes == [NodeUpdated("n1", True), CHANGED]
    assert nodes_of(registry, "posts.run") == []
    assert nodes_of(registry, "users.run") == ["n1"]
    registry = make_registry()
    for node_id in ("n1", "n2"):
        registry.receive_info(node_id, make_info("posts"), 0)
    registry.lose_node("n1", 1)
    assert nodes_of(registry, "posts.run") == ["n2"]


def test_info_with_the_same_or_an_older_seq_brings_no_services() -> None:
    registry = make_registry()
    registry.receive_info("n1", make_info("posts", host="a"), 0)
    changes = registry.receive_info("n1", make_info("users", host="b"), 1)
    assert changes == [NodeUpdated("n1", False)]
    assert nodes_of(registry, "users.run") is None
    node = registry.node("n1")
    assert node is not None
    assert node.hostname == "b"
    assert [service.name for service in node.info.services] == ["posts"]
    registry = make_registry()
    registry.receive_info("n1", make_info("posts", seq=3, host="new"), 0)
    assert registry.receive_info("n1", make_info("users", seq=2, host="old"), 1) == []
    node = registry.node("n1")
    assert node is not None
    assert (node.hostname, node.seq, node.last_seen) == ("new", 3, 0)


def test_new_life_begins_when_a_node_asks_who_is_there() -> None:
    registry = make_registry()
    registry.receive_discover("nobody", 0)
    registry.receive_info("n1", make_info("posts"), 0)
    registry.receive_discover("n1", 5)
    changes = registry.receive_info("n1", make_info("posts", life="life-2"), 8)
    assert changes[0] == NodeUpdated("n1", True, 5)
    changes = registry.receive_info("n1", make_info("posts", life="life-3"), 9)
    assert changes[0] == NodeUpdated("n1", True)
    registry.receive_discover("n1", 10)
    changes = registry.receive_info("n1", make_info("posts", life="life-4"), 100)
    assert changes[0] == NodeUpdated("n1", True)


def test_endpoint_that_stays_keeps_its_state() -> None:
    registry = make_registry()
    registry.receive_info("n1", make_info("posts"), 0)
    found = registry.actions.get("posts.run")
    assert found is not None
    found.set_accepting("n1", False)
    registry.receive_info("n1", make_info("posts", "users", seq=2), 1)
    assert found.available == ()
    registry.lose_node("n1", 2)
    registry.receive_info("n1", make_info("posts", seq=2), 3)
    again = registry.actions.get("posts.run")
    assert again is not None
    assert len(again.available) == 1


def test_actions_that_are_not_for_others_are_left_alone() -> None:
    registry = make_registry()
    actions = {name: {"visibility": name} for name in ("public", "protected", "private")}
    services = (describe_service("x", actions=actions),)
    registry.receive_info("n1", ReadInfo(NodeInfo(instance_id="i", services=services), ()), 0)
    assert [found.name for found in registry.actions] == ["x.public"]
    hidden = (describe_service("x", actions={"public": {"visibility": "protected"}}),)
    info = NodeInfo(instance_id="i", services=hidden, seq=2)
    registry.receive_info("n1", ReadInfo(info, ()), 0)
    assert nodes_of(registry, "x.public") == []


def test_bad_entry_is_told_and_the_rest_is_taken() -> None:
    registry = make_registry()
    body = {
        "services": [
            {
                "name": "x",
                "actions": [
                    {"name": "x.a", "strategy": "Unknown"},
                    {"name": "x.b", "strategy": "Shard", "strategyOptions": {"vnodes": "many"}},
                    {"name": "x.c", "strategy": 7},
                    {"rawName": "d"},
                ],
            }
        ]
    }
    refused, *others = registry.receive_info("n1", read_info(body), 0)
    assert others == [NodeConnected("n1", False), CHANGED]
    assert isinstance(refused, EntriesRefused)
    assert [problem[:24] for problem in refused.problems] == [
        "actions of x: entry 3: a",
        "x.a: strategy 'Unknown' ",
        "x.b: strategy option vno",
        "x.c: a strategy is told ",
    ]
    assert nodes_of(registry, "x.a") == ["n1"]


def test_own_name_is_used_by_this_process_alone() -> None:
    registry = make_registry()
    (conflict,) = registry.receive_info("me", make_info("posts", host="there"), 0)
    assert conflict == NodeConflict("me", "life-1", "there")
    assert "there uses the node name 'me'" in str(conflict)
    assert nodes_of(registry, "posts.run") is None
    (heard,) = registry.receive_heartbeat("me", 0, instance_id="other")
    assert heard == NodeConflict("me", "other")
    assert "unknown host" in str(heard)
    registry = make_registry()
    assert registry.receive_info("me", make_info(life="my-life"), 0) == []
    assert registry.receive_heartbeat("me", 0) == []
    assert registry.receive_heartbeat("me", 0, instance_id="my-l") == []
    assert registry.receive_disconnect("me", 0) == []
    assert registry.local.is_available


def test_heartbeat_of_an_unknown_or_offline_node_asks_it() -> None:
    assert make_registry().receive_heartbeat("n1", 0) == [SendDiscover("n1")]
    registry = make_registry()
    registry.receive_info("n1", make_info("posts"), 0)
    registry.receive_disconnect("n1", 1)
    assert registry.receive_heartbeat("n1", 2) == [SendDiscover("n1")]
    assert registry.nodes(only_available=True) == [registry.local]
    changes = registry.receive_info("n1", make_info("posts"), 3)
    assert changes == [NodeConnected("n1", True), CHANGED]
    node = registry.node("n1")
    assert node is not None
    assert (node.seq, node.offline_since) == (1, None)


@each(
    ({"seq": 1, "instance_id": "life-1"}, []),
    ({"seq": 1, "instance_id": "lif"}, []),
    ({"seq": 2, "instance_id": "life-1"}, [SendDiscover("n1")]),
    ({"seq": 1, "instance_id": "life-2"}, [SendDiscover("n1")]),
    ({"seq": 2}, [SendDiscover("n1")]),
    ({"cpu": 5}, []),
)
def test_heartbeat_shows_what_is_out_of_date(told: dict[str, Any], changes: list[Change]) -> None:
    registry = make_registry()
    registry.receive_info("n1", make_info("posts"), 0)
    assert registry.receive_heartbeat("n1", 10, **told) == changes
    node = registry.node("n1")
    assert node is not None
    assert node.last_seen == (0 if changes else 10)
    assert node.cpu == told.get("cpu")


def test_node_that_does_not_tell_its_state_is_asked() -> None:
    registry = make_registry(verify_interval_s=100)
    registry.receive_info("n1", make_info("posts"), 0)
    assert registry.receive_heartbeat("n1", 99) == []
    assert registry.receive_heartbeat("n1", 100) == [SendDiscover("n1")]
    assert registry.receive_heartbeat("n1", 110) == [SendDiscover("n1")]
    registry.receive_info("n1", make_info("posts"), 111)
    assert registry.receive_heartbeat("n1", 120) == []
    assert registry.receive_heartbeat("n1", 300, seq=1, instance_id="life-1") == []
    registry = make_registry()
    registry.receive_info("n1", make_info("posts"), 0)
    registry.receive_info("n1", make_info("posts", life="life-2"), 1)
    assert registry.receive_heartbeat("n1", 2) == [SendDiscover("n1")]
    registry.receive_info("n1", make_info("posts", life="life-2"), 3)
    assert registry.receive_heartbeat("n1", 4) == []


def test_silent_node_is_lost_and_forgotten() -> None:
    registry = make_registry(heartbeat_timeout_s=30)
    registry.receive_info("n1", make_info("posts"), 0)
    registry.receive_heartbeat("n1", 10)
    assert registry.deadline() == 40
    assert registry.tick(39) == []
    assert registry.tick(40) == [NodeDisconnected("n1", True), CHANGED]
    assert nodes_of(registry, "posts.run") == []
    assert list(registry.events) == []
    node = registry.node("n1")
    assert node is not None
    assert (node.seq, node.offline_since) == (2, 40)
    assert registry.tick(41) == []
    registry = make_registry(heartbeat_timeout_s=30, clean_offline_s=600)
    registry.receive_info("n1", make_info("posts"), 0)
    registry.tick(30)
    assert registry.deadline() == 600
    assert registry.tick(600) == [NodeForgotten("n1")]
    assert registry.node("n1") is None
    assert registry.deadline() == math.inf
    for config in ({"heartbeat_timeout_s": 0}, {"clean_offline_s": 0}):
        registry = make_registry(**config)
        registry.receive_info("n1", make_info("posts"), 0)
        registry.receive_disconnect("n1", 1)
        assert registry.tick(1e9) == [], config
        assert registry.node("n1") is not None, config


def test_node_says_goodbye() -> None:
    registry = make_registry()
    registry.receive_info("n1", make_info("posts"), 0)
    assert registry.receive_disconnect("n1", 1, instance_id="life-0") == []
    changes = registry.receive_disconnect("n1", 1, instance_id="life-1")
    assert changes == [NodeDisconnected("n1", False), CHANGED]
    assert registry.receive_disconnect("n1", 2) == []
    assert registry.receive_disconnect("never", 2) == []
    assert registry.has_service("posts") is False
    registry = make_registry()
    registry.add_service(describe_service("posts", actions={"run": {}}))
    registry.local_info()
    info = registry.local_info(is_stopping=True)
    assert (info.seq, info.services) == (3, ())
    assert registry.local_info(is_stopping=True).seq == 3
    assert nodes_of(registry, "posts.run") == ["me"]
    registry.remove_service("posts")
    assert (registry.local_info().seq, registry.local_info().services) == (3, ())


def test_seq_grows_with_the_services_of_this_node() -> None:
    registry = make_registry()
    assert registry.local_info().seq == 1
    service = describe_service("posts", actions={"run": {}, "own": {"visibility": "private"}})
    assert registry.add_service(service) == [ServicesChanged(is_local=True)]
    registry.add_service(describe_service("users"))
    info = registry.local_info()
    assert (info.seq, registry.local.seq) == (2, 2)
    assert [it.name for it in info.services] == ["posts", "users"]
    assert [it.raw_name for it in info.services[0].actions] == ["run"]
    assert registry.local_info() is info
    assert registry.remove_service("users") == [ServicesChanged(is_local=True)]
    assert registry.local_info().seq == 3
    assert registry.remove_service("users") == []
    assert nodes_of(registry, "posts.run") == ["me"]
    assert nodes_of(registry, "posts.own") is None
    assert [(node.id, it.name) for node, it in registry.services()] == [("me", "posts")]


def test_service_is_added_once_and_its_faults_are_told() -> None:
    registry = make_registry()
    registry.add_service(describe_service("posts"))
    with pytest.raises(ConfigError, match="'posts' already"):
        registry.add_service(describe_service("posts"))
    refused, _ = make_registry().add_service(
        describe_service("x", events={"a": {"strategy": {"type": "Nope"}}})
    )
    assert isinstance(refused, EntriesRefused)
    assert "'Nope'" in refused.problems[0]
    assert describe_service("$node").is_internal
    assert not describe_service("node").is_internal


def test_seq_is_raised_for_gossip_and_shown() -> None:
    registry = make_registry()
    registry.set_port(4000)
    assert (registry.local_info().port, registry.local.seq) == (4000, 2)
    registry.outrun(1)
    assert registry.local.seq == 2
    registry.outrun(7)
    assert (registry.local.seq, registry.local_info().seq) == (8, 8)
    registry = make_registry()
    registry.receive_info("n1", make_info("posts"), 0)
    registry.receive_disconnect("n1", 0)
    assert repr(registry) == "<Registry of me: 1 of 2 nodes online>"
    assert repr(registry.node("n1")) == "<Node n1: offline, seq 2, 1 services>"


def test_names_that_nobody_offers_any_more_are_forgotten_when_there_are_many() -> None:
    registry = make_registry()
    actions: dict[str, dict[str, Any]] = {str(number): {} for number in range(EMPTY_LISTS_MAX + 1)}
    service = describe_service("x", actions=actions)
    registry.add_service(service)
    registry.remove_service("x")
    assert nodes_of(registry, "x.0") is None
    registry.actions.remove("n1", "x", "never")
    registry.receive_info("n1", make_info("posts"), 0)
    registry.lose_node("n1", 1)
    assert nodes_of(registry, "posts.run") == []


def add_node(registry: Registry, seq: int = 5, life: str = "life-1") -> NodeRecord:
    registry.receive_info("n1", ReadInfo(NodeInfo(instance_id=life, seq=seq), ()), 0)
    node = registry.node("n1")
    assert node is not None
    return node


def test_node_is_offline_by_a_newer_seq_alone() -> None:
    registry = make_registry()
    node = add_node(registry)
    assert registry.receive_offline("n1", 4, 1) == []
    assert node.is_available
    assert registry.receive_offline("n1", 8, 1) == [
        NodeDisconnected("n1", False),
        ServicesChanged(is_local=False),
    ]
    assert (node.seq, node.offline_since) == (8, 1)
    assert registry.receive_offline("n1", 9, 2) == []
    assert (node.seq, node.offline_since) == (9, 1)
    assert registry.receive_offline("n1", 7, 2) == []
    assert node.seq == 9
    registry = make_registry()
    assert registry.receive_offline("me", 9, 1) == []
    assert registry.receive_offline("n1", 9, 1) == []
    assert registry.local.is_available
    assert registry.node("n1") is None


def test_measurements_are_of_one_life() -> None:
    registry = make_registry()
    node = add_node(registry)
    registry.receive_cpu("n1", 30, 2)
    registry.receive_cpu("n1", 40, 2)
    registry.receive_cpu("nobody", 40, 2)
    registry.receive_cpu("me", 40, 2)
    assert (node.cpu, node.cpu_seq) == (30, 2)
    assert registry.local.cpu is None
    registry.lose_node("n1", 1)
    registry.receive_cpu("n1", 50, 3)
    assert node.cpu == 30
    assert not node.is_available
    registry = make_registry()
    node = add_node(registry)
    registry.receive_cpu("n1", 30, 2)
    add_node(registry, seq=6)
    assert (node.cpu, node.cpu_seq) == (30, 2)
    add_node(registry, seq=7, life="life-2")
    assert (node.cpu, node.cpu_seq) == (None, 0)
    registry = make_registry()
    for cpu, number in ((10, 1), (10, 1), (11, 2), (10, 3)):
        registry.set_cpu(cpu)
        assert (registry.local.cpu, registry.local.cpu_seq) == (cpu, number)


def test_node_is_forgotten_offline_and_found_by_its_addresses() -> None:
    registry = make_registry()
    add_node(registry)
    assert registry.forget_node("n1") == []
    assert registry.forget_node("me") == []
    registry.lose_node("n1", 1)
    assert registry.forget_node("n1") == [NodeForgotten("n1")]
    assert registry.node("n1") is None
    assert registry.forget_node("n1") == []
    info = NodeInfo(instance_id="my-life", hostname="here", ip_list=("10.0.0.1", "10.0.0.2"))
    registry = Registry("me", info, strategies=StrategyMaker(Random(1)), now=0)
    registry.set_port(4000)
    told = registry.local_info()
    assert (told.port, told.hostname, told.ip_list) == (4000, "here", ("10.0.0.1", "10.0.0.2"))
    registry.set_port(4001, "127.0.0.1")
    told = registry.local_info()
    assert (told.port, told.hostname, told.ip_list) == (4001, "127.0.0.1", ("127.0.0.1",))
    assert told.seq == 3
