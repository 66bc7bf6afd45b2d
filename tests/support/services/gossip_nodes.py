"""Nodes that speak TCP to each other, with all but a broker: registry, gossip, transporter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from uuid import uuid4

from postroad.services.balancing import StrategyMaker
from postroad.services.describing import describe_service
from postroad.services.gossip_presence import GossipPresence
from postroad.services.kinds import GOSSIP, Kind
from postroad.services.nodes import Change, NodeConnected, NodeDisconnected
from postroad.services.packets import Packet
from postroad.services.registry import Registry
from postroad.services.registry_config import RegistryConfig
from postroad.services.schema import NodeInfo
from postroad.services.serializers import JsonSerializer, Serializer
from postroad.services.topics import Topics
from postroad.services.transporters.tcp import TcpTransporter
from tests.support.deadlines import DEADLINE_S

LOCAL = "127.0.0.1"


class GossipNode:
    """A node that knows others and is known by them, and remembers what it is sent.

    Args:
        node_id: its name.
        transporter: not connected yet.
        services: what it offers from the beginning.
        serializer: as all others.
        options: of GossipPresence.
    """

    def __init__(
        self,
        node_id: str,
        transporter: TcpTransporter,
        *,
        services: Iterable[str] = (),
        serializer: Serializer | None = None,
        namespace: str = "",
        **options: Any,
    ) -> None:
        self.node_id = node_id
        self.transporter = transporter
        self.registry = Registry(
            node_id,
            NodeInfo(instance_id=str(uuid4()), hostname="of.no.use.invalid"),
            strategies=StrategyMaker(Random(1)),
            config=RegistryConfig(heartbeat_timeout_s=0),
            now=asyncio.get_running_loop().time(),
        )
        self.changes: list[Change] = []
        self.packets: list[Packet] = []
        self.sent: list[tuple[str | None, Packet]] = []
        """Gossip alone."""
        self._serializer = serializer or JsonSerializer()
        self._changed = asyncio.Event()
        for name in services:
            self.registry.add_service(describe_service(name, actions={"run": {}}))
        transporter.bind(Topics(node_id, namespace), self)
        chosen: dict[str, Any] = {"period_s": 0.05, "cpu": lambda: 10.0, "chance": Random(1)}
        self.presence = GossipPresence(
            self.registry,
            self.send,
            self.apply,
            transporter=transporter,
            node_id=node_id,
            **chosen | options,
        )

    async def start(self) -> None:
        await self.transporter.connect()
        await self.presence.start()

    async def stop(self) -> None:
        await self.presence.leave()
        await self.transporter.disconnect()

    def offer(self, name: str) -> None:
        self.apply(self.registry.add_service(describe_service(name, actions={"run": {}})))
        self.presence.services_changed()

    def send(self, packet: Packet, node_id: str | None) -> None:
        if packet.KIND in GOSSIP:
            self.sent.append((node_id, packet))
        self.transporter.publish(packet.KIND, node_id, self._serializer.serialize(packet))

    def apply(self, changes: list[Change]) -> None:
        self.changes += changes
        self._changed.set()

    # What transporters tell.

    def received(
        self,
        kind: Kind,
        data: bytes,
        done: Callable[[], None] | None = None,
        sender: str | None = None,
    ) -> None:
        packet = self._serializer.deserialize(kind, data)
        if kind in GOSSIP:
            self.presence.received(packet)
        else:
            self.packets.append(packet)
        self._changed.set()

    def connected(self, *, is_again: bool) -> None:
        assert not is_again

    def disconnected(self, reason: str) -> None:
        raise AssertionError(reason)

    def node_lost(self, node_id: str, *, is_unexpected: bool) -> None:
        now = asyncio.get_running_loop().time()
        self.apply(self.registry.lose_node(node_id, now, is_unexpected=is_unexpected))

    # What tests look at.

    def is_online(self, node_id: str) -> bool:
        node = self.registry.node(node_id)
        return node is not None and node.is_available

    def services_of(self, node_id: str) -> set[str]:
        """The services of a node as this one knows them, without internal ones."""
        node = self.registry.node(node_id)
        services = node.info.services if node is not None and node.is_available else ()
        return {service.name for service in services if not service.is_internal}

    def comings(self, node_id: str) -> int:
        """How often a node came online."""
        return sum(isinstance(it, NodeConnected) and it.node_id == node_id for it in self.changes)

    def losses(self, node_id: str) -> int:
        """How often a node went offline."""
        return sum(
            isinstance(it, NodeDisconnected) and it.node_id == node_id for it in self.changes
        )

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Return as soon as a condition, which depends on what is heard, holds."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            told = f"{self.registry!r}, {self.changes[-5:]}"
            raise AssertionError(f"not within {DEADLINE_S:g} s: {what}; {told}") from None

    async def until_online(self, node_id: str, *services: str) -> None:
        what = f"{self.node_id} knows {node_id} with {services}"
        await self.until(
            lambda: self.is_online(node_id) and set(services) <= self.services_of(node_id), what
        )

    async def until_offline(self, node_id: str) -> None:
        await self.until(
            lambda: not self.is_online(node_id), f"{self.node_id} knows that {node_id} is gone"
        )


@asynccontextmanager
async def running(*nodes: GossipNode) -> AsyncIterator[None]:
    """Start nodes one after the other, and stop them at the end."""
    started: list[GossipNode] = []
    try:
        for node in nodes:
            started.append(node)
            await node.start()
        yield
    finally:
        for node in started:
            await node.stop()
