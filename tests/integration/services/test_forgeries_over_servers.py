"""Packets in the name of a live node, over real servers: its calls go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from postroad.services.broker import Broker
from postroad.services.kinds import Kind
from postroad.services.transporters import make_transporter
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.servers.mosquitto import shared_mosquitto
from tests.support.servers.nats import shared_nats
from tests.support.servers.rabbitmq import shared_rabbitmq
from tests.support.servers.redis import shared_redis
from tests.support.services.nodes import RawNode, Worker

CALLS = 50
NAMESPACE = "forgeries"

# The first test of a server starts it.
pytestmark = pytest.mark.slow


class Scene:
    """A node that calls, one that serves, and somebody else at the same server."""

    def __init__(self, url: str) -> None:
        settings: dict[str, Any] = {"namespace": NAMESPACE, "start_wait_s": 0.05}
        self.near = Broker(
            "near", transporter=make_transporter(url), verify_timeout_s=30.0, **settings
        )
        self.far = Broker("far", transporter=make_transporter(url), **settings)
        self.worker = Worker()
        self.far.add(self.worker)
        self.raw = RawNode(make_transporter(url), "raw", NAMESPACE)


@pytest.fixture(
    params=[shared_nats, shared_redis, shared_mosquitto, shared_rabbitmq],
    ids=["nats", "redis", "mqtt", "amqp"],
)
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    server: Callable[[], Any] = request.param
    scene = Scene(server().url)
    async with scene.near, scene.far:
        await scene.raw.connect()
        try:
            await scene.near.wait_for_services("worker", timeout_s=DEADLINE_S)
            yield scene
        finally:
            await scene.raw.disconnect()


async def test_calls_outlive_what_is_said_in_the_name_of_their_node(scene: Scene) -> None:
    near, raw, worker = scene.near, scene.raw, scene.worker
    calls = [asyncio.ensure_future(near.call("worker.wait")) for _ in range(CALLS)]
    await worker.gate.reached(CALLS)
    raw.send(Kind.DISCOVER, "far")
    info = await raw.next(Kind.INFO)
    for kind, fields in (
        (Kind.DISCONNECT, {"sender": "far"}),
        (Kind.INFO, {**info, "instanceID": "another life", "seq": 1}),
        (Kind.INFO, {**info, "seq": info["seq"] + 1, "services": []}),
    ):
        refuted = refutations(near)
        raw.send(kind, None, **fields)
        await eventually(partial(has_more, near, refuted), f"{kind} is refuted")
        assert await near.call("worker.act") == "far"
    worker.gate.open()
    assert await asyncio.gather(*calls) == ["done"] * CALLS


def has_more(broker: Broker, count: int) -> bool:
    return refutations(broker) > count


def refutations(broker: Broker) -> int:
    count: int = broker.statistics()["transit"]["refuted"]
    return count
