"""Packets and their bytes."""

import msgspec
import pytest

from postroad.cluster.membership import State
from postroad.cluster.membership.packets import (
    Ack,
    Nack,
    News,
    Packet,
    Ping,
    PingRequest,
    Pull,
    Sync,
    SyncRequest,
    decode_packet,
    encode_packet,
    fit,
    record_size,
)
from postroad.core.errors import MalformedPayload
from tests.support.cluster.membership import make_record

NEWS = [
    make_record("a"),
    make_record("größe", State.SUSPECT, witness="b", version=3, properties={"role": "leader"}),
    make_record("c", State.LEFT).without_properties(),
]
PACKETS: list[Packet] = [
    Ping(number=1, name="a", instance=7, joins=True),
    Ack(number=2**62, name="b", instance=0, farewell=b"f" * 16, incarnation=0, is_member=True),
    PingRequest(number=3, target="c"),
    Nack(number=4),
    News(),
    SyncRequest(number=5, digest=b"12345678"),
    Sync(number=6, agrees=True, name="a", instance=1, is_member=True),
    Pull(version=0, instance=1),
]


def test_every_packet_survives_its_bytes(subtests: pytest.Subtests) -> None:
    assert {type(packet) for packet in PACKETS} == set(Packet.__args__)

    for packet in PACKETS:
        with subtests.test(packet=packet):
            for it in (packet, msgspec.structs.replace(packet, news=NEWS)):
                assert decode_packet(encode_packet(it), news_max=10) == it

    fields = [*msgspec.structs.astuple(make_record("a")), "more"]
    packet = decode_packet(msgspec.msgpack.encode([5, [fields], "more"]), news_max=10)
    assert packet == News(news=[make_record("a")])


def test_garbage_is_malformed(subtests: pytest.Subtests) -> None:
    for data in [
        b"",
        b"\xc1",
        b"hello",
        b"\x90",
        msgspec.msgpack.encode([99, []]),
        msgspec.msgpack.encode([1, 1, "b", "a"]),
        msgspec.msgpack.encode([2, "one", "b", 1, []]),
        msgspec.msgpack.encode([4, 2**64 - 1, [["name"]]]),
        msgspec.msgpack.encode({"type": 4, "number": 1}),
        b"\x92\x05\xa2\xff\xff",
        b"\x92\x05\x91\x9b\xa2\xff\xff",
        b"\x92\x05" + b"\x91" * 100_000,
        encode_packet(PACKETS[0])[:-1],
        encode_packet(News()) + b"\x00",
    ]:
        with subtests.test(data=data), pytest.raises(MalformedPayload):
            decode_packet(data, news_max=10)

    fields = list(msgspec.structs.astuple(make_record("a")))
    fields[5] = 4
    with pytest.raises(MalformedPayload):
        decode_packet(msgspec.msgpack.encode([5, [fields]]), news_max=10)

    full = News(news=[make_record(name) for name in "abcd"])
    assert decode_packet(encode_packet(full), news_max=3) == full
    with pytest.raises(MalformedPayload, match="4 records"):
        decode_packet(encode_packet(full), news_max=2)

    for packet in PACKETS:
        with subtests.test(packet=packet):
            twice = [make_record("a"), make_record("b"), make_record("a", State.SUSPECT)]
            with pytest.raises(MalformedPayload, match="twice"):
                decode_packet(
                    encode_packet(msgspec.structs.replace(packet, news=twice)), news_max=10
                )


def test_what_fits_is_taken_in_order_without_long_properties() -> None:
    for record in NEWS:
        alone = len(encode_packet(News(news=[record])))
        assert alone - len(encode_packet(News())) == record_size(record)

    sizes = [record_size(record) for record in NEWS]
    assert fit(NEWS, sum(sizes), full_bytes_max=1_000) == NEWS
    assert fit(NEWS, sum(sizes) - 1, full_bytes_max=1_000) == NEWS[:2]
    assert fit(NEWS, sizes[0] - 1, full_bytes_max=1_000) == []

    record = make_record("a", properties={"key": "x" * 300})
    bare = record.without_properties()
    size = record_size(record)
    assert fit([record], 1_000, full_bytes_max=size) == [record]
    assert fit([record], 1_000, full_bytes_max=size - 1) == [bare]
    assert fit([record], record_size(bare) - 1, full_bytes_max=10) == []
