"""Nodes of one process, for tests and for programs that have no other nodes yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from weakref import WeakValueDictionary

from postroad.services.errors import BrokerDisconnectedError
from postroad.services.kinds import Kind
from postroad.services.patterns import matches
from postroad.services.topics import BalancedTopic

from .transporter import Transporter


class MemoryHub:
    """What the nodes of one process have in common. Those with the same hub see each other."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[MemoryTransporter, Kind]] = {}
        self._queues: dict[str, dict[tuple[str, MemoryTransporter], Kind]] = {}
        self._turns: dict[tuple[str, str], int] = {}

    def subscribe(self, topic: str, kind: Kind, who: MemoryTransporter) -> None:
        """Give a node every packet of a topic."""
        self._topics.setdefault(topic, {})[who] = kind

    def listen(self, topic: BalancedTopic, who: MemoryTransporter) -> None:
        """Give a node its share of a queue."""
        self._queues.setdefault(topic.name, {})[topic.queue, who] = topic.kind

    def stop_listening(self, who: MemoryTransporter) -> None:
        """Take a node out of all queues."""
        for name in [*self._queues]:
            left = {key: kind for key, kind in self._queues[name].items() if key[1] is not who}
            self._queues[name] = left
            if not left:
                del self._queues[name]

    def leave(self, who: MemoryTransporter) -> None:
        """Take a node out of everything."""
        self.stop_listening(who)
        for name in [*self._topics]:
            self._topics[name].pop(who, None)
            if not self._topics[name]:
                del self._topics[name]

    def publish(self, topic: str, data: bytes) -> None:
        """Give a packet to every node that subscribed to its topic."""
        for who, kind in self._topics.get(topic, {}).items():
            who.deliver(kind, data)

    def publish_balanced(self, topic: str, data: bytes) -> None:
        """Give a packet to one node of each queue of a topic, in turn."""
        queues: dict[str, dict[MemoryTransporter, Kind]] = {}
        for name, listeners in self._queues.items():
            if name == topic or _fits(topic, name):
                for (queue, who), kind in listeners.items():
                    queues.setdefault(queue, {})[who] = kind
        for queue, members in queues.items():
            turn = self._turns.get((topic, queue), 0) % len(members)
            self._turns[topic, queue] = turn + 1
            who, kind = [*members.items()][turn]
            who.deliver(kind, data)


def _fits(topic: str, name: str) -> bool:
    """Whether a topic of an event is one of those a name with a pattern stands for."""
    return ("*" in name or "?" in name) and matches(topic, name)


_hubs: WeakValueDictionary[str, MemoryHub] = WeakValueDictionary()


def memory_hub(name: str = "") -> MemoryHub:
    """The hub with a name, which lives as long as somebody uses it."""
    hub = _hubs.get(name)
    if hub is None:
        hub = _hubs[name] = MemoryHub()
    return hub


class MemoryTransporter(Transporter):
    """Carries packets within a process.

    Args:
        hub: what the nodes have in common; by default the one without a name.
    """

    name = "memory"
    balances = True

    def __init__(self, hub: MemoryHub | None = None) -> None:
        self._hub = memory_hub() if hub is None else hub
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_connected(self) -> bool:
        return self._loop is not None

    async def connect(self) -> None:
        self._loop = asyncio.get_running_loop()
        for topic in self.topics.subscriptions(has_acks=True):
            self._hub.subscribe(topic, self.topics.parse(topic).kind, self)
        self.listener.connected(is_again=False)

    async def disconnect(self) -> None:
        self._loop = None
        self._hub.leave(self)

    def publish(self, kind: Kind, node_id: str | None, data: bytes) -> None:
        self._check_connected()
        self._hub.publish(self.topics.name_of(kind, node_id), data)

    def publish_balanced(self, topic: str, kind: Kind, data: bytes) -> None:
        self._check_connected()
        self._hub.publish_balanced(topic, data)

    async def listen_balanced(self, topics: Iterable[BalancedTopic]) -> None:
        self._hub.stop_listening(self)
        for topic in topics:
            self._hub.listen(topic, self)

    def deliver(self, kind: Kind, data: bytes) -> None:
        """A packet is for this node; it comes with the next turn of its loop."""
        if self._loop is not None:
            self._loop.call_soon(self._receive, kind, data)

    def _receive(self, kind: Kind, data: bytes) -> None:
        if self._loop is not None:
            self.listener.received(kind, data)

    def _check_connected(self) -> None:
        if self._loop is None:
            raise BrokerDisconnectedError
