"""Without a recorder nothing is different: what is sent and kept is what it was before."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad.cells.delivery.domain_links import MESSAGE
from postroad.core import tracing
from postroad.durable import DurableQueuesConfig
from postroad.durable.producer import MessageEncoder, OutgoingMessage
from postroad.flows import FlowContext, FlowsConfig, flow
from postroad.flows.machine.state import FlowState
from postroad.flows.machine.status import FlowStatus
from postroad.net import MessagingService, Tunnel
from postroad.services.kinds import Kind
from tests.support.cells.nodes import Domains, Inbox
from tests.support.durable.nodes import encode
from tests.support.flows.nodes import FlowNodes
from tests.support.services.nodes import Nodes, raw_service

from .traces import begun, recording

HEADER = struct.Struct(">IBBHIQ")
HELLO, REQUEST = 3, 1
TRACES_TAG = 14


# Frames.


class Wiretap:
    """Stands between two services and keeps what the client says."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, server: MessagingService) -> str:
        async def pump(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: bytearray | None
        ) -> None:
            while data := await reader.read(65_536):
                if heard is not None:
                    heard += data
                writer.write(data)
            writer.close()

        async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            address = server.address
            other_reader, other_writer = await asyncio.open_connection(address.host, address.port)
            for task in (
                asyncio.create_task(pump(reader, other_writer, self.heard)),
                asyncio.create_task(pump(other_reader, writer, None)),
            ):
                self._tasks.add(task)

        self._server = await asyncio.start_server(on_client, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def stop(self) -> None:
        self._server.close()
        await asyncio.wait(self._tasks, timeout=10)

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Type, flags, short and body of the frames of version 3."""
        data, found = bytes(self.heard[6:]), []
        while data:
            length, kind, flags, short, _, _ = HEADER.unpack_from(data)
            found.append((kind, flags, short, data[HEADER.size : length + 4]))
            data = data[length + 4 :]
        return found


def hello_tags(body: bytes) -> list[int]:
    tags = []
    while body:
        tag, length = struct.unpack_from(">HH", body)
        tags.append(tag)
        body = body[4 + length :]
    return tags


async def overheard() -> list[tuple[int, int, int, bytes]]:
    tap = Wiretap()
    alpha, beta = MessagingService("test", "alpha"), MessagingService("test", "beta")
    async with alpha, beta:
        beta.serve("price", lambda message: b"7")
        address = await tap.start(beta)
        assert await alpha.request(address, "price", b"tea") == b"7"
        await alpha.send(address, "price", b"tea")
    await tap.stop()
    return [it for it in tap.frames() if it[0] in (HELLO, REQUEST)]


async def test_frames() -> None:
    hello, request, send = await overheard()
    assert request == (REQUEST, 0, 5, b"pricetea")
    assert send == (REQUEST, 1, 5, b"pricetea")
    assert TRACES_TAG not in hello_tags(hello[3])
    async with recording("alpha", "beta"):
        traced_hello, traced, _ = await overheard()
    assert traced_hello[3].endswith(struct.pack(">HHB", TRACES_TAG, 1, 1))
    assert traced[1:3] == (8, 5) and len(traced[3]) == len(request[3]) + 27


# Envelopes.


async def test_envelopes(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    post = Tunnel.send_nowait

    def overhear(tunnel: Tunnel, subject: str, payload: bytes) -> None:
        if subject == MESSAGE:
            sent.append(payload)
        post(tunnel, subject, payload)

    async with Domains(1, 1) as domains:
        domains["C1"].add_function("inbox", inbox := Inbox())
        monkeypatch.setattr(Tunnel, "send_nowait", overhear)
        await domains["S1"].call("inbox@C1", b"tea", timeout=5)
        (request, _) = sent
        route = b"inbox@C1\x000\x00System@S1:*@S1"
        fixed = struct.pack(">BQ16s", 0, 5_000, inbox.messages[0].id)
        rest = msgspec.msgpack.encode([None, None, False, True, None, "", b"tea"])
        assert request == struct.pack(">BH", 1, len(route)) + route + fixed + rest
        assert inbox.messages[0].headers is None
        assert b"traceparent" not in b"".join(sent)
        async with recording("S1", "C1"):
            await domains["S1"].call("inbox@C1", b"tea", timeout=5)
        assert b"traceparent" in b"".join(sent[2:])


# Packets.


async def packets() -> list[dict[str, Any]]:
    async with Nodes() as nodes:
        broker = await nodes.add("alpha")
        raw = await nodes.raw("raw")
        raw.introduce(raw_service("shop", "order", events=("ordered",)))
        await broker.wait_for_services("shop")
        asked = asyncio.ensure_future(broker.call("shop.order", {"a": 1}, headers={"h": 1}))
        request = await raw.next(Kind.REQUEST)
        raw.send(Kind.RESPONSE, "alpha", id=request["id"], success=True, data=None, meta={})
        await asked
        await broker.emit("ordered", 5)
        event = await raw.next(Kind.EVENT)
        await raw.disconnect()
        return [request, event]


async def test_packets() -> None:
    request, event = await packets()
    id = request["id"]
    assert request == {
        "id": id, "action": "shop.order", "params": {"a": 1}, "meta": {}, "headers": {"h": 1},
        "timeout": request["timeout"], "level": 1, "tracing": None, "parentID": None,
        "requestID": id, "caller": None, "stream": False, "ver": "5", "sender": "alpha",
    }  # fmt: skip
    assert event["headers"] == {}
    async with recording("alpha"):
        traced, traced_event = await packets()
    context = tracing.extract_context(traced["headers"])
    assert context is not None and traced["headers"] == {"h": 1, "traceparent": context.traceparent}
    # Those mean what they always did.
    assert (traced["requestID"], traced["parentID"]) == (traced["id"], None)
    assert traced["tracing"] is None and list(traced) == list(request)
    assert tracing.extract_context(traced_event["headers"]) is not None


# Letters.


def test_letters() -> None:
    clerk = MessageEncoder(DurableQueuesConfig(), "alpha")
    plain = clerk.encode_fast("beta", "orders", b"tea")
    told = clerk.encode_traced(
        OutgoingMessage(to="beta", queue="orders", body=b"tea", headers={"h": "1"})
    )
    posted = msgspec.msgpack.decode(plain.encoded)
    assert posted == [plain.id, "orders", b"tea", posted[3]]
    letter = msgspec.msgpack.decode(told.encoded)
    assert letter == [told.id, "orders", b"tea", letter[3], None, {"h": "1"}, 0, 0, 0, None, None]


async def test_letters_that_are_traced() -> None:
    clerk = MessageEncoder(DurableQueuesConfig(message_bytes_max=2_000), "alpha")
    async with recording("alpha"):
        told = clerk.encode_traced(
            OutgoingMessage(to="beta", queue="orders", body=b"tea", headers={"h": "1"})
        )
        headers = msgspec.msgpack.decode(told.encoded)[5]
        assert list(headers) == ["h", "traceparent"]
        full = OutgoingMessage(to="beta", queue="orders", body=bytes(1_970))
        assert len(msgspec.msgpack.decode(clerk.encode_traced(full).encoded)) == 4, "no room for it"
        keyed = OutgoingMessage(to="beta", queue="orders", body=bytes(1_960), priority=5)
        letter = msgspec.msgpack.decode(clerk.encode_traced(keyed).encoded)
        assert letter[4:] == [None, None, 5]


def test_what_is_posted_again_is_the_same_in_another_span() -> None:
    clerk = MessageEncoder(DurableQueuesConfig(), "alpha")

    def digest(headers: dict[str, str] | None) -> bytes:
        post = encode(clerk, "beta", "orders", b"tea", idempotency_key="k", headers=headers)
        assert post.idempotency is not None
        return post.idempotency.digest

    context = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "tracestate": "a=1"}
    assert digest(None) == digest(context) != digest({"h": "1"})
    assert digest({"h": "1"}) == digest({"h": "1", **context})


# Flows.


@flow
async def nothing(ctx: FlowContext) -> None:
    return None


async def test_heads_of_flows(tmp_path: Path) -> None:
    nodes = FlowNodes(tmp_path, FlowsConfig())
    try:
        alpha = await nodes.start("alpha", nothing)
        await alpha.run(nothing)
        async with recording("alpha"):
            with begun("alpha"):
                await alpha.run(nothing)
        heads = [
            msgspec.msgpack.decode(head)
            for (head,) in await alpha.rows("SELECT head FROM postroad_flows ORDER BY id")
        ]
    finally:
        await nodes.stop()
    assert "trace" not in heads[0] and list(heads[1]["trace"]) == ["traceparent"]
    assert [*heads[0], "trace"] == [*heads[1]]


def test_heads_of_older_versions_can_be_read() -> None:
    state = FlowState(id=1, name="x", version=1, status=FlowStatus.RUNNING, seed=b"", started_ms=1)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=FlowState) == state
    assert b"trace" not in msgspec.msgpack.encode(state)
