"""Redis streams do what every input does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from postroad.pipeline import InputConnector, Segment
from postroad.pipeline.connectors.redis import client as redis_client
from postroad.pipeline.connectors.redis.input import RedisStreamInput
from tests.contract.pipeline_media_behaviour import (
    InputBehaviour,
    PortableInputBehaviour,
    UnboundedBehaviour,
    UndecodableBehaviour,
)
from tests.contract.server_input_behaviour import (
    LonelyServerBehaviour,
    ServerInputBehaviour,
    ServerSource,
)
from tests.support.servers.redis import RedisServer, fresh_key, redis_server, shared_redis


class Entries(ServerSource):
    """A stream."""

    kind = "redis_stream"

    def __init__(self, server: RedisServer) -> None:
        super().__init__()
        self.server = server
        self.key = fresh_key()
        self.more: dict[str, Any] = {}

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        """Redis, as other programs see it."""
        client = Redis.from_url(self.server.url, protocol=2)
        try:
            yield client
        finally:
            await client.aclose()

    async def create(self) -> None:
        async with self.client() as client:
            await client.xgroup_create(self.key, "others", mkstream=True)

    async def put(self, segments: Sequence[Segment]) -> None:
        await self.add(*({"data": msgspec.json.encode(it)} for it in segments))

    async def put_undecodable(self) -> None:
        await self.add({"data": b"no json"})

    async def add(self, *entries: Mapping[str, bytes]) -> None:
        async with self.client() as client:
            for entry in entries:
                await client.xadd(self.key, entry)

    async def unacknowledged(self) -> int:
        async with self.client() as client:
            return int((await client.xpending(self.key, "postroad"))["pending"])

    async def delete(self) -> None:
        async with self.client() as client:
            await client.delete(self.key)

    def options(self) -> dict[str, Any]:
        return {"url": self.server.url, "stream": self.key, "split_segments": 3} | self.more

    def connector(self, **more: Any) -> InputConnector:
        return RedisStreamInput(**(self.options() | more))


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "REQUEST_S", 0.5)
    monkeypatch.setattr(redis_client, "CONNECT_S", 0.5)


class TestRedisStreamInput(
    InputBehaviour,
    PortableInputBehaviour,
    UnboundedBehaviour,
    UndecodableBehaviour,
    ServerInputBehaviour,
    LonelyServerBehaviour,
):
    @pytest.fixture
    async def lonely(self) -> AsyncIterator[ServerSource]:
        with redis_server() as server:
            entries = Entries(server)
            await entries.create()
            yield entries

    @pytest.fixture
    async def source(self) -> ServerSource:
        entries = Entries(shared_redis())
        await entries.create()
        return entries
