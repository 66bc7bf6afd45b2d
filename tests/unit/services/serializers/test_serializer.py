"""All serializers: the same packets, limits and errors, whatever the bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from typing import Any

import msgspec
import pytest

from postroad.core.errors import ConfigError, MalformedPayloadError
from postroad.services.errors import UnsendablePacket, VersionRefused
from postroad.services.kinds import VERSION, Kind
from postroad.services.packets import Event, Info, Ping, Request, Response
from postroad.services.serializers import (
    CborSerializer,
    JsonSerializer,
    MsgPackSerializer,
    Serializer,
    make_serializer,
)
from postroad.services.serializers.cbor_writer import write_cbor
from postroad.services.serializers.depth import DEPTH_MAX
from tests.support.cases import each, naming

NAMES: dict[str, Any] = {"ver": VERSION, "sender": "node-1"}
RAW: dict[str, Callable[[Any], bytes]] = {
    "JSON": msgspec.json.encode,
    "MsgPack": msgspec.msgpack.encode,
    "CBOR": write_cbor,
}
REQUEST = Request(id="1", action="math.add", params={"a": 1, "b": [2.5, None]}, **NAMES)


def acquainted_json() -> JsonSerializer:
    """One that has heard of the sender, and so looks less closely at what is as usual."""
    serializer = JsonSerializer()
    serializer.deserialize(Kind.REQUEST, serializer.serialize(REQUEST))
    return serializer


@pytest.fixture(params=[JsonSerializer, acquainted_json, MsgPackSerializer, CborSerializer])
def serializer(request: pytest.FixtureRequest) -> Serializer:
    made: Serializer = request.param()
    return made


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


@dataclass
class Point:
    x: int
    y: bytes


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@each(
    REQUEST,
    Response(id="1", success=True, data={"deep": {"er": ["é", 2**40, -1]}}, **NAMES),
    Response(id="1", success=False, error={"name": "E"}, headers=None, **NAMES),
    Event(event="user.created", data="text", groups=["a", "b"], **NAMES),
    Ping(time=1_700_000_000_123, id="p", **NAMES),
    Info(services=[{"name": "x"}], instance_id="i", seq=2, **NAMES),
    Request(id="1", action="up", params=b"\x00\xff", stream=True, seq=1, **NAMES),
    Response(id="1", success=True, data=b"", stream=True, seq=1, **NAMES),
)
def test_packets_come_back(packet: Any, serializer: Serializer) -> None:
    data = serializer.serialize(packet)
    assert type(data) is bytes
    assert serializer.deserialize(packet.KIND, data) == packet


def test_bytes_are_read_whole_or_refused(serializer: Serializer) -> None:
    data = serializer.serialize(REQUEST)
    assert serializer.deserialize(Kind.REQUEST, bytearray(data)) == REQUEST
    assert serializer.deserialize(Kind.REQUEST, memoryview(data)) == REQUEST
    params = {"list": [b"a", {"b": b"c"}], "tuple": (b"d",)}
    serializer.serialize(Request(id="1", action="a", params=params, **NAMES))
    assert params == {"list": [b"a", {"b": b"c"}], "tuple": (b"d",)}
    data = serializer.serialize(REQUEST)
    for size in range(len(data)):
        with pytest.raises(MalformedPayloadError):
            serializer.deserialize(Kind.REQUEST, data[:size])
    with pytest.raises(MalformedPayloadError):
        serializer.deserialize(Kind.REQUEST, serializer.serialize(REQUEST) + b"x")
    wire = {"id": "1", "action": "a", "ver": "4", "sender": "node-1"}
    data = RAW[serializer.name](wire)
    with pytest.raises(VersionRefused):
        serializer.deserialize(Kind.REQUEST, data)
    assert make_serializer(serializer.name, checks_version=False).deserialize(
        Kind.REQUEST, data
    ) == Request(id="1", action="a", ver="4", sender="node-1")


def test_values_without_bytes_or_end_cannot_be_sent(serializer: Serializer) -> None:
    packet = Request(id="1", action="a", params={"point": Point(1, b"\x02")}, **NAMES)
    read: Any = serializer.deserialize(Kind.REQUEST, serializer.serialize(packet))
    is_json = isinstance(serializer, JsonSerializer)
    expected = {"type": "Buffer", "data": [2]} if is_json else b"\x02"
    assert read.params == {"point": {"x": 1, "y": expected}}
    for value in (object(), Broken(), "\ud800", {"a": {1, object()}}):
        with naming(value), pytest.raises(UnsendablePacket, match="REQ cannot be sent"):
            serializer.serialize(Request(id="1", action="a", params=value, **NAMES))
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UnsendablePacket):
        serializer.serialize(Event(event="e", data=endless, **NAMES))


@each(
    *product(
        [b"", b"\x00", b"\xff", b"{", b"[]", b"null", b"\x80", b"\xa0", b"{}" * 3, b"\xc1"], Kind
    )
)
def test_other_bytes_are_refused(data: bytes, kind: Kind, serializer: Serializer) -> None:
    with pytest.raises(MalformedPayloadError):
        serializer.deserialize(kind, data)


def test_serializers_have_names_limits_and_times() -> None:
    for name in RAW:
        serializer = make_serializer(name, packet_bytes_max=100)
        with pytest.raises(MalformedPayloadError, match="bytes"):
            serializer.deserialize(Kind.REQUEST, serializer.serialize(REQUEST).ljust(101))
    with pytest.raises(ConfigError):
        JsonSerializer(packet_bytes_max=0)
    assert isinstance(make_serializer("json"), JsonSerializer)
    assert isinstance(make_serializer("MSGPACK"), MsgPackSerializer)
    assert isinstance(make_serializer("CBOR"), CborSerializer)
    with pytest.raises(ConfigError, match="known are CBOR, JSON, MsgPack"):
        make_serializer("Avro")
    for name in ("MsgPack", "CBOR"):
        serializer = make_serializer(name)
        moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
        packet = Event(event="e", data={"at": moment}, **NAMES)
        assert serializer.deserialize(Kind.EVENT, serializer.serialize(packet)) == packet, name


def test_reading_is_lenient_where_it_does_no_harm(serializer: Serializer) -> None:
    wire = {"id": "1", "action": "a", "meta": None, "level": 2.0, "timeout": -5, **NAMES}
    read: Any = serializer.deserialize(Kind.REQUEST, RAW[serializer.name](wire))
    assert (read.meta, read.level, read.timeout) == ({}, 2, 0)
    for fields in ({"sender": "a\nb"}, {"stream": True}):
        wire = {"id": "1", "action": "a", **NAMES, **fields}
        with pytest.raises(MalformedPayloadError):
            serializer.deserialize(Kind.REQUEST, RAW[serializer.name](wire))


def test_depth_has_a_limit(serializer: Serializer) -> None:
    def request(depth: int) -> bytes:
        head = {"id": "1", "action": "a", **NAMES}
        if serializer.name != "CBOR":
            return RAW[serializer.name]({**head, "params": nested(depth)})
        # Our own writer does not write what our reader refuses.
        return write_cbor({**head, "params": 0})[:-1] + b"\x81" * (depth - 1) + b"\x80"

    deepest: Any = serializer.deserialize(Kind.REQUEST, request(DEPTH_MAX))
    assert deepest.params == nested(DEPTH_MAX)
    for depth in (DEPTH_MAX + 1, 500, 100_000 if serializer.name != "JSON" else 600):
        data = request(depth) if depth <= 600 else _very_deep(serializer)
        with pytest.raises(MalformedPayloadError):
            serializer.deserialize(Kind.REQUEST, data)


def _very_deep(serializer: Serializer) -> bytes:
    data = RAW[serializer.name]({"id": "1", "action": "a", **NAMES, "params": 0})
    byte = {"JSON": b"[", "MsgPack": b"\x91", "CBOR": b"\x81"}[serializer.name]
    return data[:-1] + byte * 100_000 + b"\x00"


def test_size_of_chunks_is_known(serializer: Serializer) -> None:
    for chunk in (b"", b"\x00" * 1_000, b"\xff" * 70_000):
        empty = Request(id="1", action="a", params=None, stream=True, seq=1, **NAMES)
        full = msgspec.structs.replace(empty, params=chunk)
        most = len(chunk) * serializer.chunk_factor + serializer.chunk_bytes_more
        assert len(serializer.serialize(full)) - len(serializer.serialize(empty)) <= most


def test_json_is_written_and_revived_as_moleculer_does() -> None:
    packet = Request(id="1", action="a", params={"b": b"\x01\xff", "n": float("nan")}, **NAMES)
    assert JsonSerializer().serialize(packet) == (
        b'{"id":"1","action":"a","params":{"b":{"type":"Buffer","data":[1,255]},"n":null},'
        b'"meta":{},"headers":{},"timeout":null,"level":1,"tracing":null,"parentID":null,'
        b'"requestID":null,"caller":null,"stream":false,"ver":"5","sender":"node-1"}'
    )
    for place in ("meta", "headers"):
        fields: dict[str, Any] = {place: {"b": bytearray(b"\x07")}}
        event = Event(event="e", **fields, **NAMES)
        read: Any = JsonSerializer().deserialize(Kind.EVENT, JsonSerializer().serialize(event))
        assert getattr(read, place) == {"b": {"type": "Buffer", "data": [7]}}, place
    buffer = {"type": "Buffer", "data": [1, 2]}
    packet = Request(id="1", action="a", params={"deep": [buffer]}, **NAMES)
    data = JsonSerializer().serialize(packet)
    revived: Any = JsonSerializer(revives_buffers=True).deserialize(Kind.REQUEST, data)
    assert JsonSerializer().deserialize(Kind.REQUEST, data) == packet
    assert revived.params == {"deep": [b"\x01\x02"]}
    for wrong in ([256], [-1], ["a"], [1.5]):
        chunk = {"type": "Buffer", "data": wrong}
        wire = {"id": "1", "success": True, "data": chunk, "stream": True, "seq": 1, **NAMES}
        with naming(wrong), pytest.raises(MalformedPayloadError):
            JsonSerializer().deserialize(Kind.RESPONSE, msgspec.json.encode(wire))


@each(
    ({"type": "Buffer", "data": [1]}, b"\x01"),
    ({"type": "Buffer", "data": "é"}, "é".encode()),
    ({"type": "Buffer"}, {"type": "Buffer"}),
    ({"type": "Other", "data": [1]}, {"type": "Other", "data": [1]}),
    ("text", "text"),
    (None, None),
)
def test_chunks_in_json(chunk: Any, value: Any) -> None:
    wire = {"id": "1", "success": True, "data": chunk, "stream": True, "seq": 1, **NAMES}
    read: Any = JsonSerializer().deserialize(Kind.RESPONSE, msgspec.json.encode(wire))
    assert read.data == value


@each(
    (r"\ud83d", "\ufffd"),
    (r"a\ude00b", "a\ufffdb"),
    (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
    (r"\\ud83d \ud83d", "\\ud83d \ufffd"),
    (r"\ud83d\n", "\ufffd\n"),
)
def test_halves_of_characters_are_replaced(text: str, value: str) -> None:
    data = f'{{"event":"e","data":"{text}","ver":"5","sender":"n"}}'.encode()
    read: Any = JsonSerializer().deserialize(Kind.EVENT, data)
    assert read.data == value
