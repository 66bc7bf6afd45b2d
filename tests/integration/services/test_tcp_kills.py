"""Nodes whose processes are killed and started again."""

from __future__ import annotations

from postroad.services.transporters.tcp import TcpTransporter
from tests.support.servers.process import free_port
from tests.support.services.gossip_child import child
from tests.support.services.gossip_nodes import LOCAL, GossipNode, running


async def test_a_node_that_is_killed_comes_back_at_the_same_or_another_port() -> None:
    urls = {name: f"{LOCAL}:{free_port()}" for name in ("a", "b")}
    node = GossipNode(
        "a", TcpTransporter(urls, host=LOCAL, udp_discovery=False), services=["posts"]
    )
    async with running(node):
        for number, service in enumerate(("users", "mails")):
            async with child("b", urls, service) as process:
                await node.until_online("b", service)
                assert node.services_of("b") == {service}
                assert (node.comings("b"), node.losses("b")) == (number + 1, number)
                process.kill()
                await node.until_offline("b")
        urls["b"] = f"{LOCAL}:{free_port()}"
        async with child("b", urls, "notes"):
            await node.until_online("b", "notes")
            assert node.services_of("b") == {"notes"}
            assert (node.comings("b"), node.losses("b")) == (3, 2)
        await node.until_offline("b")
