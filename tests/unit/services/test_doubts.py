"""What somebody says in the name of a node, and what becomes of it when the node is asked."""

from random import Random
from typing import Any

import pytest

from postroad.services.balancing import StrategyMaker
from postroad.services.describing import describe_service
from postroad.services.doubts import RESTART_S
from postroad.services.info_form import ReadInfo
from postroad.services.nodes import (
    DoubtOver,
    NodeConnected,
    NodeDisconnected,
    NodeForgotten,
    NodeRecord,
    NodeRefused,
    NodeUpdated,
    ProveNode,
    SendDiscover,
    ServicesChanged,
    VerifyNode,
)
from postroad.services.registry import Registry
from postroad.services.registry_config import RegistryConfig
from postroad.services.schema import NodeInfo

CHANGED = ServicesChanged(is_local=False)


def make_registry(**config: Any) -> Registry:
    return Registry(
        "me",
        NodeInfo(instance_id="my-life"),
        strategies=StrategyMaker(Random(1)),
        config=RegistryConfig(**config),
        now=0,
    )


def make_info(*names: str, seq: int = 1, life: str = "life-1", host: str = "") -> ReadInfo:
    services = tuple(
        describe_service(name, actions={"run": {}}, events={f"{name}.*": {}}) for name in names
    )
    return ReadInfo(NodeInfo(instance_id=life, seq=seq, services=services, hostname=host), ())


def make_careful(**config: Any) -> tuple[Registry, NodeRecord]:
    """A registry that asks nodes, and a node with two services."""
    registry = make_registry(verify_timeout_s=1.0, **config)
    registry.receive_info("far", make_info("math", "text", seq=5), 0.0)
    node = registry.node("far")
    assert node is not None
    return registry, node


@pytest.mark.parametrize(
    "claim",
    [
        make_info("math", "text", seq=1, life="life-2"),
        make_info("math", seq=6),
        make_info(seq=6),
        make_info("math", "text", seq=4),
        make_info("math", "text", seq=5, host="elsewhere"),
        make_info("math", "text", "more", seq=6, host="elsewhere"),
    ],
)
def test_what_makes_a_node_another_is_asked_of_it_and_refuted_by_it(claim: ReadInfo) -> None:
    registry, node = make_careful()
    before = node.info
    assert registry.receive_info("far", claim, 1.0) == [VerifyNode("far")]
    assert node.is_doubtful
    # Whoever says it again is heard, but the node has the last word.
    registry.receive_info("far", claim, 1.01)
    assert node.info == before
    changes = registry.receive_info("far", make_info("math", "text", seq=5), 1.02)
    assert changes == [DoubtOver("far"), NodeUpdated("far", False)]
    assert (node.info, node.doubt, node.is_available) == (before, None, True)
    assert registry.prove_node("far", 1.1) == []


def test_what_only_adds_is_taken_at_once() -> None:
    registry, node = make_careful()
    changes = registry.receive_info("far", make_info("math", "text", "more", seq=6), 1.0)
    assert changes == [NodeUpdated("far", False), CHANGED]
    assert not node.is_doubtful


def test_node_that_says_it_again_and_answers_has_changed() -> None:
    registry, node = make_careful()
    registry.receive_info("far", make_info("math", seq=6), 1.0)
    assert registry.receive_info("far", make_info("math", seq=6), 1.01) == []
    assert registry.prove_node("far", 1.05) == [NodeUpdated("far", False), CHANGED]
    assert not registry.actions.get("text.run")
    assert not node.is_doubtful


def test_new_life_is_believed_a_while_after_it_was_claimed_first() -> None:
    registry, node = make_careful()
    reborn = make_info("math", "text", seq=1, life="life-2")
    registry.receive_info("far", reborn, 1.0)
    registry.receive_info("far", reborn, 1.01)
    assert registry.prove_node("far", 1.05) == []
    assert registry.deadline() == 1.0 + RESTART_S
    changes = registry.tick(1.0 + RESTART_S)
    # What was asked since the claim was asked of the new life.
    assert changes == [NodeUpdated("far", True, 1.0), CHANGED]
    assert node.instance_id == "life-2"


@pytest.mark.parametrize("is_same_life", [True, False])
def test_connection_to_the_life_that_is_known_refutes_another(is_same_life: bool) -> None:
    registry, node = make_careful()
    reborn = make_info("math", "text", seq=9, life="life-2")
    registry.receive_info("far", reborn, 1.0)
    registry.receive_info("far", reborn, 1.01)
    changes = registry.prove_node("far", 1.05, is_same_life=is_same_life)
    assert changes == ([DoubtOver("far")] if is_same_life else [])
    assert node.instance_id == "life-1"


def test_goodbye_counts_when_the_node_does_not_answer() -> None:
    registry, node = make_careful()
    assert registry.receive_disconnect("far", 1.0) == [VerifyNode("far")]
    assert registry.receive_disconnect("far", 1.5) == []
    assert registry.deadline() == 2.0
    assert registry.tick(1.9) == []
    assert registry.tick(2.0) == [NodeDisconnected("far", False), CHANGED]
    assert not node.is_available


def test_goodbye_is_forgotten_when_the_node_answers() -> None:
    registry, node = make_careful()
    registry.receive_disconnect("far", 1.0)
    assert registry.prove_node("far", 1.1) == [DoubtOver("far")]
    assert node.is_available
    assert registry.deadline() > 2.0


def test_goodbye_after_the_answer_is_asked_anew() -> None:
    registry, _ = make_careful()
    registry.receive_info("far", make_info(seq=6), 1.0)
    registry.prove_node("far", 1.05)
    assert registry.receive_disconnect("far", 1.5) == [VerifyNode("far")]
    assert registry.tick(2.0) == []
    assert registry.tick(2.5) == [NodeDisconnected("far", False), CHANGED]


def test_goodbye_of_a_life_that_is_not_believed_yet_counts() -> None:
    registry, node = make_careful()
    registry.receive_info("far", make_info("math", seq=1, life="life-2"), 1.0)
    assert registry.receive_disconnect("far", 1.1, instance_id="life-0") == []
    assert registry.tick(1.9) == registry.receive_disconnect("far", 1.9, instance_id="life-2")
    assert registry.tick(2.0) == [NodeDisconnected("far", False), CHANGED]
    assert not node.is_available


def test_claim_of_a_node_that_does_not_answer_is_believed() -> None:
    registry, node = make_careful()
    registry.receive_info("far", make_info("math", seq=1, life="life-2"), 1.0)
    assert registry.tick(2.0) == [NodeUpdated("far", True, 1.0), CHANGED]
    assert node.instance_id == "life-2"


def test_claim_that_the_node_does_not_repeat_is_forgotten() -> None:
    registry, node = make_careful()
    registry.receive_info("far", make_info("math", seq=6), 1.0)
    assert registry.prove_node("far", 1.05) == []
    assert registry.tick(2.0) == [DoubtOver("far")]
    assert node.seq == 5


def test_another_claim_is_asked_about_too() -> None:
    registry, node = make_careful()
    registry.receive_info("far", make_info("math", seq=1, life="life-2"), 1.0)
    other = make_info("math", seq=1, life="life-3")
    assert registry.receive_info("far", other, 1.1) == [SendDiscover("far")]
    # What is older than all that is known says nothing.
    assert registry.receive_info("far", make_info("math", seq=2), 1.2) == []
    assert node.doubt is not None
    assert node.doubt.claim == other


def test_nodes_that_never_answered_keep_nobody_out() -> None:
    registry = make_registry(verify_timeout_s=1.0, unproven_max=2, nodes_max=5)
    for name in ("a", "b"):
        assert registry.receive_info(name, make_info(), 0.0)[0] == NodeConnected(name, False)
    for number in range(9):
        (change,) = registry.receive_info(f"nobody-{number}", make_info(), 0.0)
        assert isinstance(change, ProveNode)
    for name in ("c", "d"):
        assert registry.prove_node(name, 1.0) == [SendDiscover(name)]
        registry.receive_info(name, make_info(), 1.0)
    # One that is offline makes room, then those that never answered; others stay.
    registry.lose_node("c", 2.0)
    for name, gone in (("e", "c"), ("f", "a"), ("g", "b")):
        registry.prove_node(name, 3.0)
        assert NodeForgotten(gone) in registry.receive_info(name, make_info(), 3.0)
    assert [it.id for it in registry.nodes()] == ["me", "d", "e", "f", "g"]
    registry.prove_node("h", 4.0)
    assert registry.receive_info("h", make_info(), 4.0) == [NodeRefused("h")]
