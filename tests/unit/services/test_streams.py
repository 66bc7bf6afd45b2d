"""Streams: parts in any order, once each; and packets small enough to be carried."""

from itertools import product
from typing import Any

import pytest

from postroad.core.errors import ConfigError, MessageTooLargeError, UsageError
from postroad.services.kinds import VERSION
from postroad.services.packets import Request, Response
from postroad.services.serializers import Serializer, make_serializer
from postroad.services.stream_writer import CHUNK_BYTES_MAX, StreamWriter
from postroad.services.streams import (
    OBJECT_MODE,
    STREAM_ERROR,
    Chunk,
    Ended,
    Failed,
    Opened,
    Part,
    StreamReader,
    StreamState,
    is_stream,
    part_of,
)
from tests.support.cases import each, naming

NAMES: dict[str, Any] = {"ver": VERSION, "sender": "node-1"}
REQUEST = Request(
    id="1", action="up", params={"name": "f"}, meta={"m": 1}, headers={"h": 1}, **NAMES
)
RESPONSE = Response(id="1", success=True, meta={"m": 1}, headers={"h": 1}, **NAMES)
ONE, TWO = Chunk(b"1"), Chunk(b"2")


@pytest.fixture(params=["JSON", "MsgPack", "CBOR"])
def serializer(request: pytest.FixtureRequest) -> Serializer:
    return make_serializer(request.param)


def failure(parts: list[Part]) -> Failed:
    (part,) = parts
    assert isinstance(part, Failed)
    return part


def test_reader_orders_parts_until_the_end_or_an_error() -> None:
    reader = StreamReader()
    states = [reader.state]
    parts: list[Part] = [Opened(), ONE, Ended()]
    for seq, part in enumerate(parts):
        assert reader.receive(seq, part) == [part]
        states.append(reader.state)
    assert states == [StreamState.WAITING, StreamState.OPEN, StreamState.OPEN, StreamState.OVER]
    reader = StreamReader()
    assert reader.receive(3, Ended(), 1) == []
    assert reader.receive(1, ONE, 5) == []
    assert (reader.missing, reader.pooled_bytes) == (0, 6)
    assert reader.receive(0, Opened()) == [Opened(), ONE]
    assert (reader.missing, reader.pooled_bytes) == (2, 1)
    assert reader.receive(2, TWO) == [TWO, Ended()]
    assert (reader.missing, reader.pooled_bytes) == (None, 0)
    reader = StreamReader()
    reader.receive(0, Opened())
    assert reader.receive(1, Failed({"name": "E"})) == [Failed({"name": "E"})]
    assert reader.state is StreamState.OVER


def test_reader_drops_parts_that_repeat_or_come_after_the_end() -> None:
    reader = StreamReader()
    reader.receive(0, Opened())
    reader.receive(2, TWO)
    assert reader.receive(0, Opened()) == []
    assert reader.receive(2, TWO) == []
    assert reader.receive(1, ONE) == [ONE, TWO]
    assert reader.receive(1, ONE) == []
    assert reader.dropped == 3
    reader = StreamReader()
    reader.receive(0, Opened())
    reader.receive(5, TWO, 9)
    assert reader.receive(1, Ended()) == [Ended()]
    assert reader.receive(2, TWO) == []
    assert reader.fail({}) == []
    assert (reader.dropped, reader.pooled_bytes, reader.missing) == (2, 0, None)
    reader = StreamReader()
    assert failure(reader.fail({"message": "node lost"})).error == {"message": "node lost"}
    assert reader.receive(0, Opened()) == []


def test_pool_holds_some_parts_and_ends_a_stream_that_overflows() -> None:
    for limits, size in (({"pooled_max": 2}, 0), ({"pooled_bytes_max": 9}, 4)):
        reader = StreamReader(**limits)
        assert reader.receive(2, ONE, size) == [], (limits, size)
        assert reader.receive(3, ONE, size) == [], (limits, size)
        assert failure(reader.receive(4, ONE, size)).error["type"] == "STREAM_OVERFLOW", (
            limits,
            size,
        )
        assert reader.state is StreamState.OVER, (limits, size)
        assert reader.receive(0, Opened()) == [], (limits, size)
    reader = StreamReader(pooled_max=2, pooled_bytes_max=2)
    reader.receive(1, ONE, 1)
    reader.receive(2, TWO, 1)
    assert reader.receive(0, Opened(), 1_000) == [Opened(), ONE, TWO]
    for limits in ({"pooled_max": 0}, {"pooled_bytes_max": 0}):
        with naming(limits), pytest.raises(ConfigError):
            StreamReader(**limits)


def request(**fields: Any) -> Request:
    return Request(id="1", action="a", **{**NAMES, **fields})


def response(**fields: Any) -> Response:
    return Response(id="1", **{"success": True, **NAMES, **fields})


@each(
    (request(stream=True, seq=0, params={"name": "f"}), Opened()),
    (request(stream=True, seq=1, params=b"x"), Chunk(b"x")),
    (request(stream=True, seq=1, params="é"), Chunk("é".encode())),
    (request(stream=True, seq=1, params=7, headers={OBJECT_MODE: True}), Chunk(7)),
    (request(stream=True, seq=1, params="é", headers={OBJECT_MODE: True}), Chunk("é")),
    (request(stream=False, seq=2, params=b"ignored"), Ended()),
    (request(stream=False, seq=2, headers={STREAM_ERROR: {"name": "E"}}), Failed({"name": "E"})),
    (request(stream=False, seq=2, headers={STREAM_ERROR: "text"}), Failed({})),
    (response(stream=True, seq=0), Opened()),
    (response(stream=True, seq=1, data=b"x"), Chunk(b"x")),
    (response(stream=True, seq=1, data=[1], headers={OBJECT_MODE: True}), Chunk([1])),
    (response(stream=False, seq=2), Ended()),
    (response(stream=False, seq=2, success=False, error={"name": "E"}), Failed({"name": "E"})),
    (response(stream=False, seq=2, success=False), Failed({})),
    (response(stream=True, seq=1, data=b"x", headers=None), Chunk(b"x")),
)
def test_parts_of_packets(packet: Request | Response, part: Part) -> None:
    assert is_stream(packet)
    assert part_of(packet) == part


def test_chunks_are_bytes_and_ordinary_packets_are_no_streams() -> None:
    for value in (None, 7, {"a": 1}, [b"x"]):
        part = part_of(request(stream=True, seq=1, params=value))
        assert failure([part]).error["type"] == "STREAM_BAD_CHUNK", value
    for packet in (REQUEST, RESPONSE, response(stream=False)):
        assert not is_stream(packet), packet


def test_request_with_a_stream(serializer: Serializer) -> None:
    writer = StreamWriter(REQUEST, serializer)
    opening, (chunk,) = writer.opening, writer.chunks(b"x")
    end = writer.end()
    assert isinstance(opening, Request)
    assert isinstance(chunk, Request)
    assert (opening.params, opening.meta, opening.seq) == ({"name": "f"}, {"m": 1}, 0)
    assert (chunk.params, chunk.meta, chunk.headers, chunk.seq) == (b"x", {}, {"h": 1}, 1)
    assert [part_of(it) for it in (opening, chunk, end)] == [Opened(), Chunk(b"x"), Ended()]
    assert (end.stream, end.seq) == (False, 2)
    assert writer.is_over


def test_response_that_is_a_stream(serializer: Serializer) -> None:
    writer = StreamWriter(RESPONSE, serializer, has_objects=True)
    opening, (chunk,) = writer.opening, writer.chunks({"a": 1})
    end = writer.end()
    for packet in (opening, chunk, end):
        assert isinstance(packet, Response)
        assert packet.success
        assert (packet.meta, packet.headers) == ({"m": 1}, {"h": 1, OBJECT_MODE: True})
    assert [part_of(it) for it in (opening, chunk, end)] == [Opened(), Chunk({"a": 1}), Ended()]


@each(REQUEST, RESPONSE)
def test_stream_that_breaks_off(opening: Request | Response) -> None:
    writer = StreamWriter(opening, make_serializer("JSON"))
    last = writer.fail({"name": "E"})
    assert part_of(last) == Failed({"name": "E"})
    assert STREAM_ERROR not in (opening.headers or {})
    for more in (lambda: list(writer.chunks(b"x")), writer.end, lambda: writer.fail({})):
        with pytest.raises(UsageError):
            more()


def test_chunks_are_cut_to_fit(serializer: Serializer) -> None:
    writer = StreamWriter(REQUEST, serializer)
    data = bytes(range(256)) * 2_100
    packets = list(writer.chunks(data))
    assert len(packets) == 3
    assert [packet.seq for packet in packets] == [1, 2, 3]
    parts = [part_of(packet) for packet in packets]
    assert b"".join(part.value for part in parts if isinstance(part, Chunk)) == data
    assert list(StreamWriter(REQUEST, serializer).chunks(b"")) == []
    with pytest.raises(MessageTooLargeError):
        StreamWriter(REQUEST, serializer, packet_bytes_max=100)


@each(*product([1_000, 65_536, 1_048_576], [REQUEST, RESPONSE]))
def test_packets_are_small_enough(
    limit: int, opening: Request | Response, serializer: Serializer
) -> None:
    writer = StreamWriter(opening, serializer, packet_bytes_max=limit)
    sizes = [len(serializer.serialize(packet)) for packet in writer.chunks(b"\xff" * 2_000_000)]
    assert max(sizes) <= limit
    # Nothing is wasted either, unless the chunk has its greatest size.
    assert max(sizes) > limit * 0.9 or writer.chunk_bytes_max == CHUNK_BYTES_MAX


def test_json_needs_smaller_chunks_for_a_limit() -> None:
    of_json, of_others = (
        StreamWriter(REQUEST, make_serializer(name), packet_bytes_max=1 << 20).chunk_bytes_max
        for name in ("JSON", "CBOR")
    )
    assert of_json < 262_144 == of_others
