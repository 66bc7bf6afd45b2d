"""Streams to and from a real node of the original system."""

from __future__ import annotations

import random
from typing import Any

import pytest

from postroad.core.limits import MIB
from postroad.services.error_form import error_from_wire, error_to_wire
from postroad.services.errors import MoleculerError
from postroad.services.kinds import VERSION, Kind
from postroad.services.packets import Request, Response
from postroad.services.stream_writer import StreamWriter
from postroad.services.streams import (
    Chunk,
    Ended,
    Failed,
    Opened,
    Part,
    StreamReader,
    has_objects,
    is_stream,
    part_of,
)
from tests.interop.services.talk import US, Talk
from tests.support.services.javascript import marked

pytestmark = pytest.mark.timeout(600)

NAMES: dict[str, Any] = {"ver": VERSION, "sender": US}
SIZES = [0, 1, 1_000, 256 * 1_024, 600_000]
OBJECTS = [{"a": 1}, [1, 2], "text", 0, {"deep": {"er": [None]}}]


def some_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def read_all(packets: list[Request | Response], *, shuffled: int | None = None) -> list[Part]:
    """Read the packets of one stream, in another order if asked."""
    if shuffled is not None:
        random.Random(shuffled).shuffle(packets)
    reader = StreamReader()
    parts: list[Part] = []
    for packet in packets:
        assert is_stream(packet)
        assert isinstance(packet.seq, int)
        parts += reader.receive(packet.seq, part_of(packet))
    return parts


def hear_stream(talk: Talk, kind: Kind) -> list[Request | Response]:
    """All packets of the one stream that the other node sends."""
    packets: list[Request | Response] = []
    while not packets or packets[-1].stream is True:
        packets += talk.hear(kind)
    return packets


def joined(parts: list[Part]) -> bytes:
    return b"".join(part.value for part in parts if isinstance(part, Chunk))


@pytest.mark.parametrize("size", SIZES)
def test_our_bytes_go_there(talk: Talk, size: int) -> None:
    data = some_bytes(size)
    request = talk.request("v2.lab.upload", {"name": "file"}, meta={"user": "eve"})
    writer = StreamWriter(request, talk.serializer, packet_bytes_max=MIB)
    packets = [writer.opening, *writer.chunks(data), writer.end()]
    for packet in packets:
        assert len(talk.write(packet)) <= MIB
        talk.peer.ask("receive", kind="REQ", hex=talk.serializer.serialize(packet).hex())

    assert talk.hear_one(Kind.RESPONSE).data == data.hex()


def test_our_objects_go_there(talk: Talk) -> None:
    request = talk.request("v2.lab.upload", {})
    writer = StreamWriter(request, talk.serializer, has_objects=True)
    talk.tell(writer.opening)
    for value in OBJECTS:
        for packet in writer.chunks(value):
            talk.tell(packet)
    talk.tell(writer.end())

    assert talk.hear_one(Kind.RESPONSE).data == OBJECTS


def test_our_stream_breaks_off(talk: Talk) -> None:
    writer = StreamWriter(talk.request("v2.lab.upload", {}), talk.serializer)
    error = MoleculerError("torn", 507, "TORN")
    for packet in (writer.opening, *writer.chunks(b"some")):
        talk.tell(packet)
    talk.tell(writer.fail(error_to_wire(error, node_id=US)))
    response = talk.hear_one(Kind.RESPONSE)

    assert not response.success
    assert error_from_wire(response.error, sender="").type == "TORN"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shuffled", [None, 1])
def test_their_answer_comes(talk: Talk, size: int, shuffled: int | None) -> None:
    data = some_bytes(size)
    talk.tell(talk.request("v2.lab.download", {"hex": data.hex()}))
    packets = hear_stream(talk, Kind.RESPONSE)
    parts = read_all(packets, shuffled=shuffled)

    assert parts[0] == Opened()
    assert parts[-1] == Ended()
    assert joined(parts) == data


def test_their_objects_come(talk: Talk) -> None:
    talk.tell(talk.request("v2.lab.download", {"objects": OBJECTS}))
    packets = hear_stream(talk, Kind.RESPONSE)

    assert all(map(has_objects, packets))
    assert read_all(packets) == [Opened(), *map(Chunk, OBJECTS), Ended()]


def test_their_answer_breaks_off(talk: Talk) -> None:
    talk.tell(talk.request("v2.lab.download", {"hex": "00ff", "fails": True}))
    last = read_all(hear_stream(talk, Kind.RESPONSE))[-1]

    assert isinstance(last, Failed)
    assert error_from_wire(last.error, sender="").status == 507


@pytest.mark.parametrize("objects", [False, True])
def test_their_request_comes(talk: Talk, objects: bool) -> None:
    chunks: list[Any] = OBJECTS if objects else [some_bytes(100), some_bytes(300_000)]
    key = talk.peer.begin(
        "callWithStream",
        action="v1.desk.send",
        params={"name": "file"},
        chunks=marked(chunks),
        objects=objects,
    )
    packets = hear_stream(talk, Kind.REQUEST)
    parts = read_all(packets, shuffled=2)
    talk.tell(Response(id=packets[0].id, success=True, data="thanks", **NAMES))

    assert {packet.seq: packet for packet in packets}[0].params == {"name": "file"}  # type: ignore[union-attr]
    assert (parts[0], parts[-1]) == (Opened(), Ended())
    if objects:
        assert parts[1:-1] == list(map(Chunk, OBJECTS))
    else:
        assert joined(parts) == b"".join(chunks)
    assert talk.peer.ask("result", key=key) == {"answer": "thanks"}


def test_their_request_breaks_off(talk: Talk) -> None:
    key = talk.peer.begin("callWithStream", action="v1.desk.send", params={}, chunks=[], fails=True)
    packets = hear_stream(talk, Kind.REQUEST)
    last = read_all(packets)[-1]
    talk.tell(Response(id=packets[0].id, success=True, data="thanks", **NAMES))

    assert isinstance(last, Failed)
    assert error_from_wire(last.error, sender="").type == "TORN"
    assert "answer" in talk.peer.ask("result", key=key)


@pytest.mark.parametrize("objects", [False, True])
def test_our_answer_goes_there(talk: Talk, objects: bool) -> None:
    chunks: list[Any] = OBJECTS if objects else [some_bytes(100), some_bytes(300_000)]
    key = talk.peer.begin("call", action="v1.desk.ask", params={})
    request = talk.hear_one(Kind.REQUEST)
    opening = Response(id=request.id, success=True, meta={"m": 1}, **NAMES)
    writer = StreamWriter(opening, talk.serializer, has_objects=objects, packet_bytes_max=MIB)
    talk.tell(writer.opening)
    for chunk in chunks:
        for packet in writer.chunks(chunk):
            talk.tell(packet)
    talk.tell(writer.end())
    answer = talk.peer.ask("result", key=key)["answer"]

    assert answer == chunks if objects else b"".join(answer) == b"".join(chunks)
