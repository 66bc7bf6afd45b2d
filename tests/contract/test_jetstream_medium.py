"""Streams of NATS JetStream do what every input does, whatever their retention."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import nats
import pytest
from nats.js.api import ConsumerInfo

from postroad.pipeline import InputConnector, Segment
from postroad.pipeline.connectors.jetstream import client as jetstream_client
from postroad.pipeline.connectors.jetstream.input import JetStreamInput
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
from tests.support.servers.nats import NatsServer, fresh_stream_name, nats_server, shared_nats
from tests.support.tiers import by_tier


@asynccontextmanager
async def client_of(server: NatsServer) -> AsyncIterator[Any]:
    """JetStream, as other programs see it."""
    connection = await nats.connect(server.url)
    try:
        yield connection.jetstream()
    finally:
        await connection.close()


class Messages(ServerSource):
    """A stream with messages, and others between them if the job wants only some."""

    kind = "jetstream"

    def __init__(self, server: NatsServer, *, is_mixed: bool = False) -> None:
        super().__init__()
        self.server = server
        self.name = fresh_stream_name()
        self.is_mixed = is_mixed

    async def create(self, **config: Any) -> None:
        async with client_of(self.server) as client:
            await client.add_stream(name=self.name, subjects=[f"{self.name}.>"], **config)

    async def put(self, segments: Sequence[Segment]) -> None:
        await self.publish(*map(msgspec.json.encode, segments))

    async def put_undecodable(self) -> None:
        await self.publish(b"no json")

    async def publish(self, *payloads: bytes) -> None:
        async with client_of(self.server) as client:
            for payload in payloads:
                if self.is_mixed:
                    await client.publish(f"{self.name}.other", b"for somebody else")
                await client.publish(f"{self.name}.wanted", payload)

    async def consumer(self) -> ConsumerInfo:
        async with client_of(self.server) as client:
            return await client.consumer_info(self.name, "postroad")

    async def unacknowledged(self) -> int:
        return int((await self.consumer()).num_ack_pending or 0)

    async def left(self) -> int:
        async with client_of(self.server) as client:
            return int((await client.stream_info(self.name)).state.messages)

    async def delete(self) -> None:
        async with client_of(self.server) as client:
            await client.delete_stream(self.name)

    def options(self) -> dict[str, Any]:
        options = {"servers": self.server.url, "stream": self.name, "split_segments": 3}
        return options | ({"subject": f"{self.name}.wanted"} if self.is_mixed else {})

    def connector(self, **more: Any) -> InputConnector:
        return JetStreamInput(**(self.options() | more))


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_client, "_REQUEST_S", 0.5)
    monkeypatch.setattr(jetstream_client, "_CONNECT_S", 0.5)


class TestJetStreamInput(
    InputBehaviour,
    PortableInputBehaviour,
    UnboundedBehaviour,
    UndecodableBehaviour,
    ServerInputBehaviour,
    LonelyServerBehaviour,
):
    @pytest.fixture
    async def lonely(self) -> AsyncIterator[ServerSource]:
        with nats_server() as server:
            messages = Messages(server)
            await messages.create()
            yield messages

    @pytest.fixture(
        params=by_tier(test=["limits", "interest"], nightly=["limits", "interest", "workqueue"])
    )
    async def source(self, request: pytest.FixtureRequest) -> ServerSource:
        messages = Messages(shared_nats())
        await messages.create(retention=request.param)
        if request.param == "interest":
            # What comes before its first reader is nobody's.
            connector = messages.connector()
            await connector.open([])
            await connector.close()
        return messages


class TestJetStreamInputOfSomeSubjects(
    InputBehaviour, PortableInputBehaviour, ServerInputBehaviour
):
    @pytest.fixture(params=by_tier(test=["workqueue"], nightly=["workqueue", "limits"]))
    async def source(self, request: pytest.FixtureRequest) -> ServerSource:
        messages = Messages(shared_nats(), is_mixed=True)
        await messages.create(retention=request.param)
        return messages
