"""What is particular to TCP between nodes of the original system and ours: who knows of whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from postroad.core.limits import MIB
from postroad.services.kinds import Kind
from postroad.services.transporters.tcp import TcpTransporter
from postroad.services.transporters.udp_discovery import UdpConfig
from tests.interop.services.javascript_node import JavascriptNode
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.servers.process import free_port
from tests.support.services.gossip_child import child
from tests.support.services.gossip_nodes import LOCAL, GossipNode, running

pytestmark = pytest.mark.timeout(600)


class Other(JavascriptNode):
    """A node of the original system."""

    async def node(self, node_id: str) -> dict[str, Any]:
        """What it knows of a node."""
        unknown = {"available": False, "services": []}
        nodes: list[dict[str, Any]] = await self.ask("nodes")
        return next((node for node in nodes if node["id"] == node_id), unknown)

    async def until_online(self, node_id: str, service: str) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                node = await self.node(node_id)
                if node["available"] and service in {it["fullName"] for it in node["services"]}:
                    return node
                await asyncio.sleep(0.02)

    async def until_offline(self, node_id: str) -> None:
        async def is_offline() -> bool:
            return not (await self.node(node_id))["available"]

        await eventually(is_offline, f"{node_id} is offline")


@asynccontextmanager
async def other_node(
    modules: Path, node_id: str, *, namespace: str = "", **options: Any
) -> AsyncIterator[Other]:
    # The shortest period of gossip there is a second.
    chosen = {"udpDiscovery": False, "gossipPeriod": 1, "useHostname": False, **options}
    transporter = {"type": "TCP", "options": chosen}
    settings = {"nodeID": node_id, "namespace": namespace, "transporter": transporter}
    node = await Other.spawn(modules, {**settings, "registry": {"stopDelay": 0}})
    try:
        await node.ask("start")
        yield node
    finally:
        await node.close()


def make_urls(*names: str) -> dict[str, str]:
    return {name: f"{LOCAL}:{free_port()}" for name in names}


def make_node(urls: dict[str, str], **options: Any) -> GossipNode:
    transporter = TcpTransporter(urls, host=LOCAL, udp_discovery=False, **options)
    return GossipNode("py-1", transporter, services=["posts"])


@pytest.mark.parametrize("who", ["py-1", "js-1"])
async def test_one_address_is_enough_for_both_to_meet(modules: Path, who: str) -> None:
    """Either side may be the one that knows where the other is."""
    urls = make_urls("py-1", "js-1")
    node = make_node(urls if who == "py-1" else {"py-1": urls["py-1"]}, packet_bytes_max=2 * MIB)
    known = urls if who == "js-1" else {"js-1": urls["js-1"]}
    async with other_node(modules, "js-1", urls=known) as other, running(node):
        await node.until_online("js-1", "js")
        ours = await other.until_online("py-1", "posts")
        theirs = node.registry.node("js-1")
        assert theirs is not None
        assert theirs.info.client.type == "nodejs"
        assert theirs.info.port == int(urls["js-1"].rpartition(":")[2])
        assert (ours["cpu"], ours["port"]) == (10, node.transporter.port)
        if who == "py-1":
            # More than they take, whereupon they close the connection, and we make it again.
            node.transporter.publish(Kind.EVENT, "js-1", bytes(MIB))
            await node.until(lambda: node.losses("js-1"), "the connection is closed")
            await node.until_online("js-1", "js")
            await other.until_online("py-1", "posts")
            assert node.comings("js-1") == 2


async def test_our_node_that_was_killed_comes_back_at_another_port(modules: Path) -> None:
    urls = make_urls("py-1", "js-1")
    async with other_node(modules, "js-1", urls=urls) as other:
        async with child("py-1", urls, "posts") as process:
            await other.until_online("py-1", "posts")
            process.kill()
            await other.until_offline("py-1")
        urls.update(make_urls("py-1"))
        async with child("py-1", urls, "mails"):
            node = await other.until_online("py-1", "mails")
            assert "posts" not in {it["fullName"] for it in node["services"]}
        # A goodbye this time.
        await other.until_offline("py-1")
        news = await other.ask("news", event="$node.disconnected", node="py-1")
        ends = [it["unexpected"] for it in news if it["event"] == "$node.disconnected"]
        assert len(ends) == 2
        assert ends[-1] is False


async def test_nodes_hear_of_each_other_from_a_third(modules: Path) -> None:
    urls = make_urls("py-1", "js-1", "js-2")
    node = make_node(urls)
    ways = [{it: urls[it] for it in (name, "py-1")} for name in ("js-1", "js-2")]
    async with (
        running(node),
        other_node(modules, "js-1", urls=ways[0]) as first,
        other_node(modules, "js-2", urls=ways[1]) as second,
    ):
        await first.until_online("js-2", "js")
        await second.until_online("js-1", "js")
        assert await first.call("js.echo", {"to": "js-2"}, nodeID="js-2") == {"to": "js-2"}
        await second.kill()
        await first.until_offline("js-2")
        await node.until_offline("js-2")


async def test_nodes_find_each_other_by_multicast(modules: Path) -> None:
    port = free_port()
    config = UdpConfig(port=port, interface=LOCAL)
    transporter = TcpTransporter(host=LOCAL, udp_discovery=config)
    node = GossipNode("py-1", transporter, services=["posts"], namespace="multi")
    options: dict[str, Any] = {"udpPort": port, "udpBindAddress": LOCAL, "udpPeriod": 1}
    async with (
        other_node(modules, "js-1", namespace="multi", udpDiscovery=True, **options) as other,
        running(node),
    ):
        await node.until_online("js-1", "js")
        await other.until_online("py-1", "posts")
