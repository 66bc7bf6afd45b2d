"""Two nodes that know each other: ours, `py`, and one of the original system, `js`."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.middleware import Handler, Middleware
from postroad.services.schema import ActionInfo
from tests.interop.services.javascript_node import JavascriptNode
from tests.interop.services.python_node import start_child, transporter_at
from tests.interop.services.python_services import NAMES, THEIR_NAMES, Heard, services_of
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.servers.mosquitto import shared_mosquitto
from tests.support.servers.nats import shared_nats
from tests.support.servers.process import free_port
from tests.support.servers.rabbitmq import shared_rabbitmq
from tests.support.servers.redis import shared_redis
from tests.support.tiers import by_tier

OURS, THEIRS = "py", "js"

_namespaces = count(1)
_SERVERS: dict[str, Callable[[], Any]] = {
    "AMQP": shared_rabbitmq,
    "MQTT": shared_mosquitto,
    "NATS": shared_nats,
    "Redis": shared_redis,
}


class Wiring(NamedTuple):
    """How two nodes talk."""

    transporter: str
    """As the original system calls it."""
    serializer: str = "JSON"
    uses_balancer: bool = True

    def __str__(self) -> str:
        names = [self.transporter, self.serializer, *(() if self.uses_balancer else ("balanced",))]
        return "-".join(names)


TRANSPORTERS = ("TCP", "NATS", "Redis", "MQTT", "AMQP")
SERIALIZERS = ("JSON", "MsgPack", "CBOR")
BALANCED = (Wiring("NATS", uses_balancer=False), Wiring("AMQP", "CBOR", uses_balancer=False))
"""Where the server chooses who gets a call."""
ALL = tuple(
    Wiring(transporter, serializer, uses_balancer)
    for transporter in TRANSPORTERS
    for serializer in SERIALIZERS
    for uses_balancer in (True, False)
    if uses_balancer or transporter in ("NATS", "AMQP")
)
PAIRWISE = (
    Wiring("TCP", "MsgPack"),
    Wiring("NATS", "CBOR"),
    Wiring("Redis", "JSON"),
    Wiring("MQTT", "CBOR"),
    Wiring("AMQP", "MsgPack"),
    *BALANCED,
)
"""Each transporter, each serializer, and each way to balance where there is a choice."""


def over(*everyday: Wiring) -> list[pytest.MarkDecorator]:
    """The marks of a module whose tests share a pair of nodes for each of these wirings.

    At night all is also tried over TCP and NATS with JSON.
    """
    at_night = (*everyday, Wiring("TCP"), Wiring("NATS"))
    return _sharing_pairs(by_tier(test=everyday, nightly=tuple(dict.fromkeys(at_night))))


def over_all() -> list[pytest.MarkDecorator]:
    """As `over`: pairwise by day, and everything there is at night."""
    return _sharing_pairs(by_tier(test=PAIRWISE, nightly=ALL))


def _sharing_pairs(wirings: tuple[Wiring, ...]) -> list[pytest.MarkDecorator]:
    return [
        pytest.mark.timeout(600),
        pytest.mark.asyncio(loop_scope="module"),
        pytest.mark.parametrize("pair", wirings, ids=str, indirect=True, scope="module"),
    ]


class ReplyWatch(Middleware):
    """Remembers the headers of all responses."""

    def __init__(self, replies: list[dict[str, Any]]) -> None:
        self._replies = replies

    def remote_action(self, next: Handler, action: ActionInfo) -> Handler:
        async def watched(ctx: Context) -> Any:
            result = await next(ctx)
            self._replies.append(ctx.response_headers)
            return result

        return watched


class Pair:
    """The two nodes, each of which can be ended and started again.

    Attributes:
        broker: our node.
        js: the other one.
        heard: what handlers of events got here.
        replies: the headers of responses that came here.
    """

    broker: Broker
    js: JavascriptNode

    def __init__(
        self, modules: Path, wiring: Wiring, *, url: str | None = None, **settings: Any
    ) -> None:
        """Make them, and start nothing.

        Args:
            modules: the packages of the other system.
            wiring: how they talk.
            url: of a server that is not the one that all tests share.
            settings: of our broker; what both have is the same for the other.
        """
        self.wiring = wiring
        self.heard: Heard = []
        self.replies: list[dict[str, Any]] = []
        self.namespace = f"pair{next(_namespaces)}"
        self._modules = modules
        self._settings = settings
        self._url = url
        self._urls: dict[str, str] = {}
        if wiring.transporter == "TCP":
            self._urls = {it: f"127.0.0.1:{free_port()}" for it in (OURS, THEIRS)}

    # Our node.

    def make_broker(self, node_id: str = OURS) -> Broker:
        return Broker(
            node_id,
            transporter=transporter_at(self._place()),
            middlewares=[ReplyWatch(self.replies)],
            **self._broker_settings(),
        )

    def _broker_settings(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "serializer": self.wiring.serializer,
            "uses_balancer": self.wiring.uses_balancer,
            "metadata": {"region": "here"},
            **self._settings,
        }

    def _place(self) -> str | dict[str, str]:
        """The server, or where each node is."""
        if self._urls:
            return self._urls
        url: str = self._url or _SERVERS[self.wiring.transporter]().url
        return url

    async def start_child(self) -> Process:
        """Our node in a process of its own, which can be killed; gives it when it is started."""
        said = {"node_id": OURS, "place": self._place(), **self._broker_settings()}
        return await start_child(said)

    async def start_python(self) -> None:
        self.broker = self.make_broker()
        self.broker.add(*services_of(self.heard))
        await self.broker.start()

    # The other one.

    def javascript_options(self, node_id: str = THEIRS) -> dict[str, Any]:
        times = {
            "heartbeatInterval": self._settings.get("heartbeat_interval_s", 10),
            "heartbeatTimeout": self._settings.get("heartbeat_timeout_s", 30),
        }
        return {
            "nodeID": node_id,
            "namespace": self.namespace,
            "serializer": self.wiring.serializer,
            "transporter": {"type": self.wiring.transporter, "options": self._options()},
            "disableBalancer": not self.wiring.uses_balancer,
            "metadata": {"region": "there"},
            "transit": {"serviceChangedDebounceTime": 50},
            **times,
        }

    def _options(self) -> Any:
        if self._urls:
            told = {"urls": self._urls, "udpDiscovery": False, "gossipPeriod": 1}
            return {**told, "useHostname": False}
        url = self._place()
        match self.wiring.transporter:
            case "AMQP":
                return {"url": url, "prefetch": 10}
            case "NATS":
                return {"servers": [url]}
        return url

    async def start_javascript(self) -> None:
        self.js = await JavascriptNode.spawn(self._modules, self.javascript_options())
        await self.js.ask("start")

    async def restart_javascript(self) -> None:
        """Kill it and start it again; returns when our node knows of its new life."""
        before = self.life_there()
        await self.js.kill()
        await self.start_javascript()
        await eventually(lambda: self.life_there() not in (None, before), "it is back", DEADLINE_S)
        await self.acquainted()

    def life_there(self) -> str | None:
        """The id of the other node's life, as far as ours knows; None if it is not there."""
        node = self.broker.registry.node(THEIRS)
        return node.instance_id if node is not None and node.is_available else None

    # Both.

    async def start(self) -> None:
        await asyncio.gather(self.start_python(), self.start_javascript())
        await self.acquainted()

    async def acquainted(self) -> None:
        """Wait until each knows the services of the other."""
        await asyncio.gather(
            self.broker.wait_for_services(THEIR_NAMES, timeout_s=DEADLINE_S),
            self.js.has_services(*NAMES),
        )

    async def close(self) -> None:
        try:
            if hasattr(self, "broker"):
                await self.broker.stop()
        finally:
            if hasattr(self, "js"):
                await self.js.close()

    # What is heard.

    async def hear(self, number: int = 1) -> Heard:
        """Take what our handlers of events got, once there is so much."""
        await eventually(lambda: len(self.heard) >= number, f"{number} events", DEADLINE_S)
        heard = [*self.heard]
        self.heard.clear()
        return heard


@asynccontextmanager
async def open_pair(modules: Path, wiring: Wiring, **settings: Any) -> AsyncIterator[Pair]:
    pair = Pair(modules, wiring, **settings)
    try:
        await pair.start()
        yield pair
    finally:
        await pair.close()
