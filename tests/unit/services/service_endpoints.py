"""Nodes and lists of endpoints for tests of strategies and events."""

from random import Random
from typing import Any

from postroad.services.balancing import StrategyMaker
from postroad.services.endpoints import EndpointList
from postroad.services.nodes import NodeRecord
from postroad.services.schema import ActionInfo, NodeInfo


def make_node(id: str, *, cpu: float | None = None, host: str = "") -> NodeRecord:
    node = NodeRecord(id, NodeInfo(instance_id=id, hostname=host), 0, is_local=id == "me")
    node.cpu = cpu
    return node


def make_list(
    *nodes: str | NodeRecord,
    name: str = "posts.find",
    strategy: str = "RoundRobin",
    prefers_local: bool = True,
    maker: StrategyMaker | None = None,
    **options: Any,
) -> EndpointList[ActionInfo]:
    made = (maker or StrategyMaker(Random(1))).make(strategy, options)
    found: EndpointList[ActionInfo] = EndpointList(name, "", made, prefers_local=prefers_local)
    for node in nodes:
        known = make_node(node) if isinstance(node, str) else node
        found.put(known, "posts", ActionInfo(name=name))
    return found


def choices(found: EndpointList[ActionInfo], count: int, params: Any = None) -> list[str]:
    endpoints = [found.choose(params) for _ in range(count)]
    return ["-" if endpoint is None else endpoint.node_id for endpoint in endpoints]
