"""Packets, serializers and streams with whatever hypothesis thinks of."""

import math
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import MalformedPayloadError
from postroad.services.error_form import error_from_wire, error_to_wire
from postroad.services.errors import MoleculerError
from postroad.services.gossip import GossipRequest, GossipResponse, read_gone, read_known, read_news
from postroad.services.kinds import VERSION, Kind
from postroad.services.packet_form import from_wire, to_wire
from postroad.services.packets import Event, Request, Response
from postroad.services.serializers import JsonSerializer, Serializer, make_serializer
from postroad.services.serializers.cbor_reader import read_cbor
from postroad.services.serializers.cbor_writer import write_cbor
from postroad.services.stream_writer import StreamWriter
from postroad.services.streams import Chunk, Ended, Opened, Part, StreamReader, part_of
from tests.support.tiers import by_tier

NAMES: dict[str, Any] = {"ver": VERSION, "sender": "node-1"}
SERIALIZERS = [make_serializer(name) for name in ("JSON", "MsgPack", "CBOR")]

serializers = st.sampled_from(SERIALIZERS)
kinds = st.sampled_from(Kind)
texts = st.text(max_size=by_tier(test=12, nightly=40))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)


def containers(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=by_tier(test=6, nightly=20),
    )


values = containers(scalars)
values_with_bytes = containers(scalars | st.binary(max_size=300))
objects = st.dictionaries(texts, values, max_size=3)
wholes = st.integers(0, 2**53 - 1)
names = texts.filter(bool)
optional_texts = st.none() | texts

requests = st.builds(
    Request,
    id=texts,
    action=names,
    params=values,
    meta=objects,
    headers=objects,
    timeout=st.none() | wholes,
    level=wholes,
    tracing=st.none() | st.booleans(),
    parent_id=optional_texts,
    request_id=optional_texts,
    caller=optional_texts,
    ver=st.just(VERSION),
    sender=names.filter(str.isprintable),
)
responses = st.builds(
    Response,
    id=texts,
    meta=objects,
    headers=st.none() | objects,
    success=st.booleans(),
    data=values,
    error=objects,
    ver=st.just(VERSION),
    sender=names.filter(str.isprintable),
)
events = st.builds(
    Event,
    event=names,
    data=values,
    groups=st.lists(names, max_size=5),
    broadcast=st.booleans(),
    need_ack=st.none() | st.booleans(),
    ver=st.just(VERSION),
    sender=names.filter(str.isprintable),
)
# What others may send: right names with anything in them.
field_names = st.sampled_from([
    "id", "action", "event", "params", "data", "meta", "headers", "timeout", "level", "tracing",
    "parentID", "stream", "seq", "success", "error", "groups", "broadcast", "services", "cpu",
    "time", "arrived", "host", "port", "online", "offline", "ver", "sender",
])  # fmt: skip
error_fields = st.sampled_from(["name", "message", "nodeID", "code", "type", "data"])
wires = st.dictionaries(field_names, values, max_size=10)


def same(read: Any, written: Any) -> bool:
    """Equal, where numbers may have changed between integers and floats."""
    return bool(read == written)


@given(requests | responses | events)
def test_packets_come_back_and_json_is_what_everybody_reads(packet: Any) -> None:
    for serializer in SERIALIZERS:
        data = serializer.serialize(packet)
        again = serializer.deserialize(packet.KIND, data)
        assert type(again) is type(packet)
        assert same(again, packet)
        if isinstance(serializer, JsonSerializer):
            assert same(msgspec.json.decode(data), to_wire(packet))


@given(values_with_bytes, containers(st.none() | texts | st.binary(max_size=300)))
def test_bytes_come_back(value: Any, without_numbers: Any) -> None:
    packet = Event(event="e", data=value, **NAMES)
    for serializer in SERIALIZERS[1:]:
        assert same(serializer.deserialize(Kind.EVENT, serializer.serialize(packet)), packet)
    assert same(read_cbor(write_cbor(value)), value)
    reviving = JsonSerializer(revives_buffers=True)
    packet = Event(event="e", data=without_numbers, **NAMES)
    assert reviving.deserialize(Kind.EVENT, reviving.serialize(packet)) == packet


@given(st.floats())
def test_cbor_keeps_floats(number: float) -> None:
    read = read_cbor(write_cbor(number))
    assert read == number or (math.isnan(read) and math.isnan(number))


@given(serializers, kinds, st.binary(max_size=200))
def test_any_bytes_are_a_packet_or_refused(serializer: Serializer, kind: Kind, data: bytes) -> None:
    try:
        serializer.deserialize(kind, data)
    except MalformedPayloadError:
        return


@given(serializers, requests, st.data())
def test_damaged_bytes_are_a_packet_or_refused(
    serializer: Serializer, packet: Request, data: st.DataObject
) -> None:
    damaged = bytearray(serializer.serialize(packet))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = serializer.deserialize(Kind.REQUEST, damaged)
    except MalformedPayloadError:
        return
    assert isinstance(read, Request)


@given(kinds, wires | values, st.booleans())
def test_any_object_is_a_packet_or_refused(kind: Kind, wire: Any, checks_version: bool) -> None:
    try:
        packet = from_wire(kind, wire, checks_version=checks_version)
    except MalformedPayloadError:
        return
    assert from_wire(kind, to_wire(packet), checks_version=checks_version) == packet


@given(objects, objects)
def test_gossip_of_any_sort_is_read(online: dict[str, Any], offline: dict[str, Any]) -> None:
    request = GossipRequest(online=online, offline=offline, **NAMES)
    response = GossipResponse(online=online, offline=offline, **NAMES)
    told: list[Any] = [*read_known(request), *read_news(response), *read_gone(request)]
    assert all(row.node_id in {*online, *offline} for row in told)


@given(st.dictionaries(error_fields, values))
def test_errors_of_any_sort_are_read_and_sent_on(wire: dict[str, Any]) -> None:
    error = error_from_wire(wire, sender="n")
    again = error_from_wire(error_to_wire(error, node_id="here"), sender="n")
    assert isinstance(error, MoleculerError)
    assert (again.name, again.detail, again.status) == (error.name, error.detail, error.status)


@given(
    serializers,
    st.lists(st.binary(max_size=2_000), max_size=8),
    st.integers(500, 3_000),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_streams_arrive_whole_in_any_order_and_number(
    serializer: Serializer, pieces: list[bytes], limit: int, random: Any, is_request: bool
) -> None:
    opening = (
        Request(id="1", action="a", **NAMES)
        if is_request
        else Response(id="1", success=True, **NAMES)
    )
    writer = StreamWriter(opening, serializer, packet_bytes_max=limit)
    packets = [writer.opening, *(it for piece in pieces for it in writer.chunks(piece))]
    packets.append(writer.end())
    sent = [serializer.serialize(packet) for packet in packets]
    assert max(map(len, sent)) <= limit
    sent += random.choices(sent, k=3)
    random.shuffle(sent)
    reader = StreamReader()
    parts: list[Part] = []
    for data in sent:
        packet: Any = serializer.deserialize(opening.KIND, data)
        parts += reader.receive(packet.seq, part_of(packet), len(data))
    assert (parts[0], parts[-1]) == (Opened(), Ended())
    chunks = [part.value for part in parts if isinstance(part, Chunk)]
    assert b"".join(chunks) == b"".join(pieces)
    assert len(chunks) == len(parts) - 2
    assert reader.dropped == 3


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 40)), max_size=40))
def test_pool_never_grows_beyond_its_limits(arrivals: list[tuple[int, int]]) -> None:
    reader = StreamReader(pooled_max=3, pooled_bytes_max=60)
    given_out: list[Part] = []
    for seq, size in arrivals:
        given_out += reader.receive(seq, Chunk(seq), size)
        assert reader.pooled_bytes <= 60
    numbers = [part.value for part in given_out if isinstance(part, Chunk)]
    assert numbers == list(range(len(numbers)))
