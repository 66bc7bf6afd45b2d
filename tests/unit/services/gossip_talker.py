"""A node that hears gossip, packet by packet."""

from random import Random
from typing import Any

from msgspec import UNSET

from postroad.services.balancing import StrategyMaker
from postroad.services.describing import describe_service
from postroad.services.gossip import GossipRequest, GossipResponse
from postroad.services.gossiping import Gossiping, Heard
from postroad.services.info_form import ReadInfo
from postroad.services.kinds import VERSION
from postroad.services.nodes import NodeRecord, ServicesChanged
from postroad.services.registry import Registry
from postroad.services.schema import NodeInfo

CHANGED = ServicesChanged(is_local=False)
NOW = 100.0


def make_info(seq: int, *names: str, life: str = "life-1", port: int | None = 4000) -> NodeInfo:
    services = tuple(describe_service(name, actions={"run": {}}) for name in names)
    return NodeInfo(instance_id=life, seq=seq, services=services, port=port)


class Talker:
    """A node that hears gossip of `other`."""

    def __init__(self) -> None:
        self.registry = Registry(
            "me", NodeInfo(instance_id="my-life"), strategies=StrategyMaker(Random(1)), now=0
        )
        self.linked: set[str] = set()
        self.gossiping = Gossiping(self.registry, self.linked.__contains__)

    def know(self, node_id: str, seq: int, *names: str, cpu_seq: int = 0) -> NodeRecord:
        self.registry.receive_info(node_id, ReadInfo(make_info(seq, *names), ()), 0)
        self.registry.receive_cpu(node_id, 50, cpu_seq)
        return self.record(node_id)

    def know_gone(self, node_id: str, seq: int) -> NodeRecord:
        """`seq` is that of the node while it was there."""
        self.know(node_id, seq)
        self.registry.lose_node(node_id, 0)
        return self.record(node_id)

    def record(self, node_id: str) -> NodeRecord:
        node = self.registry.node(node_id)
        assert node is not None
        return node

    def ask(
        self,
        online: dict[str, Any] | None = None,
        offline: dict[str, Any] | None = None,
        *,
        sender: str = "other",
        now: float = NOW,
    ) -> Heard:
        packet = GossipRequest(
            online=online or UNSET, offline=offline or UNSET, ver=VERSION, sender=sender
        )
        return self.gossiping.receive_request(packet, now)

    def tell(
        self,
        online: dict[str, Any] | None = None,
        offline: dict[str, Any] | None = None,
        *,
        sender: str = "other",
    ) -> Heard:
        packet = GossipResponse(
            online=online or UNSET, offline=offline or UNSET, ver=VERSION, sender=sender
        )
        return self.gossiping.receive_response(packet, NOW)


def make_talker() -> Talker:
    """One that knows the other."""
    talker = Talker()
    talker.know("other", 1)
    return talker
