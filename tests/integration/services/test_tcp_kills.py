"""Nodes whose processes are killed and started again."""

from __future__ import annotations

import pytest

from postroad.services.transporters.tcp import TcpTransporter
from tests.support.servers.process import free_port
from tests.support.services.gossip_child import child
from tests.support.services.gossip_nodes import LOCAL, GossipNode, running


@pytest.mark.parametrize("is_at_another_port", [False, True])
async def test_a_node_is_killed_and_comes_back(is_at_another_port: bool) -> None:
    urls = {name: f"{LOCAL}:{free_port()}" for name in ("a", "b")}
    node = GossipNode(
        "a", TcpTransporter(urls, host=LOCAL, udp_discovery=False), services=["posts"]
    )
    async with running(node):
        async with child("b", urls, "users") as process:
            await node.until_online("b", "users")
            process.kill()
            await node.until_offline("b")
        if is_at_another_port:
            urls["b"] = f"{LOCAL}:{free_port()}"
        async with child("b", urls, "mails"):
            await node.until_online("b", "mails")
            assert node.services_of("b") == {"mails"}
            assert (node.comings("b"), node.losses("b")) == (2, 1)
        await node.until_offline("b")
