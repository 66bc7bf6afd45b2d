"""What gossip brings to a registry."""

from random import Random

from postroad.services.balancing import StrategyMaker
from postroad.services.info_form import ReadInfo
from postroad.services.nodes import NodeDisconnected, NodeForgotten, NodeRecord, ServicesChanged
from postroad.services.registry import Registry
from postroad.services.schema import NodeInfo


def make_registry() -> Registry:
    return Registry(
        "me", NodeInfo(instance_id="my-life"), strategies=StrategyMaker(Random(1)), now=0
    )


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
