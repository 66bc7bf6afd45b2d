"""Brokers for tests: several nodes over memory, with short times, and nodes made of raw packets."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Self

import msgspec

from postroad.core import Lifecycle
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.kinds import VERSION, Kind
from postroad.services.service import Service, action, event
from postroad.services.topics import Topics
from postroad.services.transporters import MemoryHub, MemoryTransporter, Transporter
from tests.support.deadlines import DEADLINE_S, eventually

SHORT: dict[str, Any] = {
    "start_wait_s": 0.01,
    "announce_delay_s": 0.001,
    "stop_delay_s": 0.0,
    "stop_timeout_s": 1.0,
    "request_timeout_s": 10.0,
    # Raw nodes answer no ping, and those that stop here do so at once.
    "verify_timeout_s": 0.1,
}


class Nodes(Lifecycle):
    """Brokers of one cluster; all that run are stopped in the end."""

    def __init__(self) -> None:
        self.hub = MemoryHub()
        self.brokers: list[Broker] = []

    async def start(self) -> None:
        """Nothing is there before it is asked for."""

    async def stop(self) -> None:
        """Stop all, the last first."""
        for broker in reversed(self.brokers):
            await broker.stop()

    def make(self, node_id: str, *services: Service, **settings: Any) -> Broker:
        """A broker that is not started."""
        made = MemoryTransporter(self.hub)
        broker = Broker(node_id, transporter=made, **{**SHORT, **settings})
        broker.add(*services)
        self.brokers.append(broker)
        return broker

    async def add(self, node_id: str, *services: Service, **settings: Any) -> Broker:
        """A broker that runs, and that all others know."""
        broker = self.make(node_id, *services, **settings)
        await broker.start()
        await self.settle()
        return broker

    async def settle(self) -> None:
        """Wait until all that run know what the others offer."""
        await eventually(self._is_settled, "all nodes know each other", DEADLINE_S)

    def _is_settled(self) -> bool:
        running = [it for it in self.brokers if it.is_running]
        return all(
            one is other or _offered(other) == _offered(one, other.node_id)
            for one in running
            for other in running
        )

    async def raw(self, node_id: str) -> RawNode:
        """A node whose packets the test writes itself; it has heard of all that run."""
        raw = await RawNode(self.hub, node_id).connect()
        running = {it.node_id for it in self.brokers if it.is_running}
        raw.send(Kind.DISCOVER)
        await eventually(lambda: raw.senders(Kind.INFO) >= running, "all told what they offer")
        raw.received_packets.clear()
        return raw


def _offered(broker: Broker, node_id: str = "") -> set[str]:
    at = node_id or broker.node_id
    return {it.full_name for node, it in broker.registry.services() if node.id == at}


class RawNode:
    """A node of which a test writes every packet, and sees all that come."""

    def __init__(self, way: MemoryHub | Transporter, node_id: str, namespace: str = "") -> None:
        self.node_id = node_id
        self.received_packets: list[tuple[Kind, dict[str, Any]]] = []
        self._transporter = MemoryTransporter(way) if isinstance(way, MemoryHub) else way
        self._transporter.bind(Topics(node_id, namespace), self)

    async def connect(self) -> Self:
        await self._transporter.connect()
        return self

    async def disconnect(self) -> None:
        await self._transporter.disconnect()

    # What a listener of a transporter has.

    def received(
        self, kind: Kind, data: bytes, done: object = None, sender: str | None = None
    ) -> None:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):  # It hears its own garbage, too.
            self.received_packets.append((kind, msgspec.json.decode(data)))

    def connected(self, *, is_again: bool) -> None:
        return

    def disconnected(self, reason: str) -> None:
        return

    def node_lost(self, node_id: str, *, is_unexpected: bool) -> None:
        return

    # What a test does.

    def send(self, kind: Kind, to: str | None = None, **fields: Any) -> None:
        """Send a packet; `ver` and `sender` are right unless they are given."""
        packet = {"ver": VERSION, "sender": self.node_id, **fields}
        self.send_bytes(kind, to, msgspec.json.encode(packet))

    def send_bytes(self, kind: Kind, to: str | None, data: bytes) -> None:
        self._transporter.publish(kind, to, data)

    def introduce(self, *services: dict[str, Any], seq: int = 2, **fields: Any) -> None:
        """Say that this node offers services."""
        told = {"instanceID": f"life of {self.node_id}", "seq": seq, "services": [*services]}
        self.send(Kind.INFO, None, **told, **fields)

    def packets(self, kind: Kind) -> list[dict[str, Any]]:
        return [packet for it, packet in self.received_packets if it is kind]

    def senders(self, kind: Kind) -> set[str]:
        return {it["sender"] for it in self.packets(kind)}

    async def next(self, kind: Kind, number: int = 1) -> dict[str, Any]:
        """The packet of a kind with that number, waited for."""
        await eventually(lambda: len(self.packets(kind)) >= number, f"a {kind} comes", DEADLINE_S)
        return self.packets(kind)[number - 1]

    async def ask(self, to: str, action: str, params: Any = None, **fields: Any) -> dict[str, Any]:
        """Send a request, and wait for its response."""
        id = f"{self.node_id}-{len(self.received_packets)}-{action}"
        self.send(Kind.REQUEST, to, id=id, action=action, params=params, **fields)
        await eventually(lambda: self._answers(id), f"{action} is answered", DEADLINE_S)
        return self._answers(id)[0]

    def _answers(self, id: str) -> list[dict[str, Any]]:
        return [it for it in self.packets(Kind.RESPONSE) if it["id"] == id]


def raw_service(name: str, *actions: str, events: tuple[str, ...] = (), **fields: Any) -> Any:
    """A service as it is in an INFO."""
    return {
        "name": name,
        "fullName": name,
        "settings": {},
        "metadata": {},
        "actions": {f"{name}.{it}": {"name": f"{name}.{it}", "rawName": it} for it in actions},
        "events": {it: {"name": it} for it in events},
        **fields,
    }


class Gate:
    """Where handlers wait until the test lets them go on."""

    def __init__(self) -> None:
        self.waiting = 0
        self._is_open = asyncio.Event()

    async def passed(self) -> None:
        """Wait here."""
        self.waiting += 1
        try:
            await self._is_open.wait()
        finally:
            self.waiting -= 1

    async def reached(self, count: int = 1) -> None:
        """Wait until so many wait here."""
        await eventually(lambda: self.waiting >= count, f"{count} wait at the gate", DEADLINE_S)

    def open(self) -> None:
        self._is_open.set()


class Worker(Service):
    """Has an action and a handler that wait at a gate, and remembers what happened to it."""

    def __init__(self, name: str = "worker") -> None:
        self.name = name
        self.log: list[str] = []
        self.gate = Gate()
        self.start_gate: Gate | None = None

    async def started(self) -> None:
        if self.start_gate is not None:
            await self.start_gate.passed()
        self.log.append("started")

    async def stopped(self) -> None:
        self.log.append("stopped")

    @action
    def act(self, ctx: Context) -> str:
        return ctx.broker.node_id

    @action
    async def wait(self, ctx: Context) -> str:
        await self.gate.passed()
        self.log.append("call ended")
        return "done"

    @event("work")
    async def on_work(self, ctx: Context) -> None:
        await self.gate.passed()
        self.log.append("event ended")
