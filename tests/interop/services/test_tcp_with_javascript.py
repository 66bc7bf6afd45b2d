"""Nodes of the original system that speak TCP, and ours, in one cluster."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from postroad.core.limits import MIB
from postroad.services.kinds import VERSION, Kind
from postroad.services.packets import Packet, Request, Response
from postroad.services.serializers import Serializer
from postroad.services.transporters.tcp import TcpTransporter
from postroad.services.transporters.udp_discovery import UdpConfig
from tests.support.deadlines import DEADLINE_S
from tests.support.servers.process import free_port
from tests.support.services.gossip_child import child
from tests.support.services.gossip_nodes import LOCAL, GossipNode, running
from tests.support.services.javascript import HERE, find_program

pytestmark = pytest.mark.timeout(600)

PERIOD_S = 1
"""The shortest between two rounds of gossip there."""


class Broker:
    """A node of the original system."""

    def __init__(self, process: Process, node_id: str) -> None:
        self._process = process
        self.node_id = node_id

    async def ask(self, command: str, **arguments: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"command": command, **arguments}).encode() + b"\n")
        answered = json.loads(await asyncio.wait_for(stdout.readline(), DEADLINE_S))
        assert "failure" not in answered, answered["failure"]
        return answered.get("answer")

    async def node(self, node_id: str) -> dict[str, Any]:
        """What it knows of a node."""
        nodes = {it["id"]: it for it in await self.ask("nodes")}
        found: dict[str, Any] = nodes.get(node_id, {"available": False, "services": []})
        return found

    async def until_online(self, node_id: str, *services: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                node = await self.node(node_id)
                if node["available"] and set(services) <= set(node["services"]):
                    return
                await asyncio.sleep(0.02)

    async def until_offline(self, node_id: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                if not (await self.node(node_id))["available"]:
                    return
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def broker(
    modules: Path,
    node_id: str,
    serializer: str = "JSON",
    *,
    namespace: str = "",
    **options: Any,
) -> AsyncIterator[Broker]:
    chosen = {"udpDiscovery": False, "gossipPeriod": PERIOD_S, "useHostname": False, **options}
    process = await asyncio.create_subprocess_exec(
        find_program("node"),
        str(HERE / "tcp_broker.js"),
        *(node_id, serializer, namespace, json.dumps(chosen)),
        env={**os.environ, "NODE_PATH": str(modules)},
        stdin=PIPE,
        stdout=PIPE,
        limit=4 * MIB,
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), DEADLINE_S) == b"{}\n"
        yield Broker(process, node_id)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


def make_urls(*names: str) -> dict[str, str]:
    return {name: f"{LOCAL}:{free_port()}" for name in names}


def make_node(urls: dict[str, str], *services: str, **options: Any) -> GossipNode:
    transporter = TcpTransporter(urls, host=LOCAL, udp_discovery=False)
    return GossipNode("py-1", transporter, services=services, **options)


async def test_both_know_each_other_with_their_services(
    modules: Path, serializer: Serializer
) -> None:
    urls = make_urls("py-1", "js-1")
    node = make_node(urls, "posts", serializer=serializer)
    async with broker(modules, "js-1", serializer.name, urls=urls) as other, running(node):
        await node.until_online("js-1", "watcher")
        await other.until_online("py-1", "posts")
        node.offer("mails")
        await other.until_online("py-1", "posts", "mails")
        await other.ask("offer", name="users")
        await node.until_online("js-1", "watcher", "users")

        known = node.registry.node("js-1")
        assert known is not None
        assert known.info.client.type == "nodejs"
        assert known.info.port == await other.ask("port")
        assert (await other.node("py-1"))["cpu"] == 10
        assert (await other.node("py-1"))["port"] == node.transporter.port


@pytest.mark.parametrize("who", ["py-1", "js-1"])
async def test_one_address_is_enough(modules: Path, who: str) -> None:
    """Either side may be the one that knows where the other is."""
    urls = make_urls("py-1", "js-1")
    node = make_node(urls if who == "py-1" else {"py-1": urls["py-1"]}, "posts")
    known = urls if who == "js-1" else {"js-1": urls["js-1"]}
    async with broker(modules, "js-1", urls=known) as other, running(node):
        await node.until_online("js-1", "watcher")
        await other.until_online("py-1", "posts")


class Answering(GossipNode):
    """A node that answers requests with what they ask."""

    def received(self, kind: Kind, data: bytes, done: Any = None) -> None:
        super().received(kind, data, done)
        if kind is Kind.REQUEST:
            request = self.packets[-1]
            assert isinstance(request, Request)
            answer = Response(
                id=request.id, success=True, data=request.params, ver=VERSION, sender="py-1"
            )
            self.send(answer, request.sender)


async def test_calls_go_both_ways(modules: Path) -> None:
    urls = make_urls("py-1", "js-1")
    transporter = TcpTransporter(urls, host=LOCAL, udp_discovery=False)
    node = Answering("py-1", transporter, services=["posts"])
    async with broker(modules, "js-1", urls=urls) as other, running(node):
        await node.until_online("js-1", "watcher")
        await other.until_online("py-1", "posts")
        for size in (0, 10, 50_000, transporter.packet_bytes_max - 2_000):
            params = {"text": "x" * size}
            asked = {"action": "posts.run", "params": params, "nodeID": "py-1"}
            assert await other.ask("call", **asked) == params
            request = Request(
                id=f"call-{size}",
                action="watcher.echo",
                params=params,
                request_id=f"call-{size}",
                ver=VERSION,
                sender="py-1",
            )
            node.send(request, "js-1")
            response = await answer_to(node, request.id)
            assert (response.success, response.data) == (True, params)
        assert (await other.ask("ping", node="py-1")) is None


async def answer_to(node: GossipNode, id: str) -> Response:
    def found() -> list[Packet]:
        return [it for it in node.packets if isinstance(it, Response) and it.id == id]

    await node.until(found, f"{id} is answered")
    (response,) = found()
    assert isinstance(response, Response)
    return response


async def test_the_other_is_killed_and_comes_back(modules: Path) -> None:
    urls = make_urls("py-1", "js-1")
    node = make_node(urls, "posts")
    async with running(node):
        async with broker(modules, "js-1", urls=urls) as other:
            await node.until_online("js-1", "watcher")
            await other.until_online("py-1", "posts")
            await other.kill()
            await node.until_offline("js-1")
        async with broker(modules, "js-1", urls=urls) as other:
            await node.until_online("js-1", "watcher")
            await other.until_online("py-1", "posts")
            assert node.comings("js-1") == 2
            await other.ask("stop")
            await node.until_offline("js-1")


@pytest.mark.parametrize("is_at_another_port", [False, True])
async def test_ours_is_killed_and_comes_back(modules: Path, is_at_another_port: bool) -> None:
    urls = make_urls("py-1", "js-1")
    async with broker(modules, "js-1", urls=urls) as other:
        async with child("py-1", urls, "posts") as process:
            await other.until_online("py-1", "posts")
            process.kill()
            await other.until_offline("py-1")
        if is_at_another_port:
            urls.update(make_urls("py-1"))
        async with child("py-1", urls, "mails"):
            await other.until_online("py-1", "mails")
            assert "posts" not in (await other.node("py-1"))["services"]
        # A goodbye this time.
        await other.until_offline("py-1")
        told = [it for it in await other.ask("told") if it["event"] == "$node.disconnected"]
        assert [it["node"] for it in told] == ["py-1", "py-1"]
        assert told[-1]["unexpected"] is False


async def test_they_hear_of_each_other_from_a_third(modules: Path) -> None:
    urls = make_urls("py-1", "js-1", "js-2")
    node = make_node(urls, "posts")
    ways = [{it: urls[it] for it in (name, "py-1")} for name in ("js-1", "js-2")]
    async with (
        running(node),
        broker(modules, "js-1", urls=ways[0]) as first,
        broker(modules, "js-2", urls=ways[1]) as second,
    ):
        await first.until_online("js-2", "watcher")
        await second.until_online("js-1", "watcher")
        asked = {"action": "watcher.echo", "params": {"to": "js-2"}, "nodeID": "js-2"}
        assert await first.ask("call", **asked) == {"to": "js-2"}
        await second.kill()
        await first.until_offline("js-2")
        await node.until_offline("js-2")


async def test_they_find_each_other_by_multicast(modules: Path) -> None:
    port = free_port()
    config = UdpConfig(port=port, interface=LOCAL)
    transporter = TcpTransporter(host=LOCAL, udp_discovery=config)
    node = GossipNode("py-1", transporter, services=["posts"], namespace="multi")
    options: dict[str, Any] = {"udpPort": port, "udpBindAddress": LOCAL, "udpPeriod": 1}
    async with (
        broker(modules, "js-1", namespace="multi", udpDiscovery=True, **options) as other,
        running(node),
    ):
        await node.until_online("js-1", "watcher")
        await other.until_online("py-1", "posts")


async def test_a_connection_that_they_close_is_made_again(modules: Path) -> None:
    urls = make_urls("py-1", "js-1")
    transporter = TcpTransporter(urls, host=LOCAL, udp_discovery=False, packet_bytes_max=2 * MIB)
    node = GossipNode("py-1", transporter, services=["posts"])
    async with broker(modules, "js-1", urls=urls) as other, running(node):
        await node.until_online("js-1", "watcher")
        # More than they take.
        transporter.publish(Kind.EVENT, "js-1", bytes(MIB))
        await node.until(lambda: node.losses("js-1"), "the connection is closed")
        await node.until_online("js-1", "watcher")
        await other.until_online("py-1", "posts")
        assert node.comings("js-1") == 2
