"""Nodes that find each other by multicast, on the loopback interface."""

from __future__ import annotations

import asyncio
import socket

import pytest

from postroad.core import Address
from postroad.services.topics import Topics
from postroad.services.transporters.tcp import TcpTransporter
from postroad.services.transporters.udp_discovery import UdpConfig, UdpDiscovery
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import holds_for
from tests.support.servers.process import free_port
from tests.support.services.gossip_nodes import LOCAL, GossipNode, running
from tests.support.services.transporter_nodes import Recorder


@pytest.fixture
def config() -> UdpConfig:
    """A port that no other test uses."""
    return UdpConfig(port=free_port(), interface=LOCAL, ttl=0)


def make_node(name: str, config: UdpConfig, namespace: str = "") -> GossipNode:
    transporter = TcpTransporter(host=LOCAL, udp_discovery=config)
    return GossipNode(name, transporter, services=[f"of-{name}"], namespace=namespace)


async def test_nodes_of_one_namespace_find_each_other(config: UdpConfig) -> None:
    a, b = make_node("a", config), make_node("b", config)
    other = make_node("other", config, namespace="elsewhere")
    async with running(other, a, b):
        await a.until_online("b", "of-b")
        await b.until_online("a", "of-a")
        assert len(other.transporter.book) == 0
        assert "other" not in a.transporter.book


async def test_garbage_is_nothing(config: UdpConfig) -> None:
    found: list[tuple[str, Address]] = []
    discovery = UdpDiscovery("ns", "me", lambda *it: found.append(it), config)
    discovery.open(4000)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in (b"", b"\xff", b"ns|me|1", b"other|a|1", b"ns|a|0", b"x" * 4_000, b"ns|a|1"):
            sender.sendto(data, (LOCAL, config.port))
        await eventually(lambda: found, "the last is heard")
    assert found == [("a", Address(LOCAL, 1))]
    discovery.close()
    discovery.close()


async def test_it_is_said_again_and_again(config: UdpConfig) -> None:
    often = UdpConfig(port=config.port, interface=LOCAL, ttl=0, period_s=0.05)
    found: list[str] = []
    hearing = UdpDiscovery("", "a", lambda node_id, _: found.append(node_id), config)
    saying = UdpDiscovery("", "b", lambda *_: None, often)
    hearing.open(4000)
    saying.open(5000)
    await eventually(lambda: len(found) > 4, "it is heard")
    saying.close()
    await asyncio.sleep(0.1)
    number = len(found)
    await holds_for(lambda: len(found) == number, "it is silent", 0.2)
    hearing.close()


async def test_there_is_no_such_interface(config: UdpConfig) -> None:
    nowhere = UdpConfig(port=config.port, interface="203.0.113.7")
    transporter = TcpTransporter(host=LOCAL, udp_discovery=nowhere)
    transporter.bind(Topics("me"), Recorder())
    with pytest.raises(OSError, match="multicast group"):
        await transporter.connect()
    assert not transporter.is_connected


async def test_without_gossip_addresses_are_taken_as_they_are(config: UdpConfig) -> None:
    nodes = [TcpTransporter(host=LOCAL, udp_discovery=config) for _ in range(2)]
    for name, transporter in zip("ab", nodes, strict=True):
        transporter.bind(Topics(name), Recorder())
        await transporter.connect()
    a, b = nodes
    await eventually(lambda: "a" in b.book and "b" in a.book, "they know each other")
    assert a.book.addresses("b") == [Address(LOCAL, b.port)]
    for transporter in nodes:
        await transporter.disconnect()
