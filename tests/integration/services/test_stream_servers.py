"""Streams over servers that cut off nodes which are too far behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from postroad.core.limits import KIB
from postroad.services.broker import Broker
from postroad.services.transporters import MemoryHub, make_transporter
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.servers.nats import shared_nats
from tests.support.servers.redis import shared_redis
from tests.support.services.stream_nodes import Files, Pair, Tape, joined
from tests.support.tiers import by_tier

pytestmark = pytest.mark.slow

STREAMS = by_tier(test=10, nightly=20)
PARTS = 20
# As text four times as much: all of it at once is more than a server keeps for one node.
CHUNK = bytes([255]) * (100 * KIB)


@pytest.mark.parametrize("server", [shared_nats, shared_redis], ids=["nats", "redis"])
async def test_many_streams_at_once(server: Callable[[], Any]) -> None:
    url = server().url
    settings: dict[str, Any] = {"namespace": "streams", "stop_timeout_s": 0.5}
    near = Broker("near", transporter=make_transporter(url), **settings)
    far = Broker("far", transporter=make_transporter(url), **settings)
    files = Files()
    far.add(files)
    async with near, far:
        await near.wait_for_services("files", timeout_s=DEADLINE_S)
        await eventually(lambda: far.registry.node("near"), "they know each other", DEADLINE_S)

        async def echo() -> int:
            stream = await near.call("files.echo", stream=Tape(PARTS, CHUNK).play())
            return len(await joined(stream))

        given = await asyncio.gather(*(echo() for _ in range(STREAMS)))
        assert given == [PARTS * len(CHUNK)] * STREAMS
        await Pair(MemoryHub(), near, far, files).until_idle()
