"""Membership packets and the gossip queue."""

import msgspec
import pytest

from postroad.cluster.membership import MemberRecord, MemberState
from postroad.cluster.membership.gossip import (
    GossipPacket,
    GossipQueue,
    MembershipPacket,
    ProbeAckPacket,
    ProbeNackPacket,
    ProbePacket,
    ProbeRequestPacket,
    PropertiesRequestPacket,
    SyncReplyPacket,
    SyncRequestPacket,
    decode_packet,
    encode_packet,
    fit_records,
    record_size,
    retransmit_limit,
)
from postroad.core.errors import MalformedPayloadError
from tests.support.cluster.membership import make_record

NEWS = [
    make_record("a"),
    make_record(
        "größe", MemberState.SUSPECT, reported_by="b", version=3, properties={"role": "leader"}
    ),
    make_record("c", MemberState.LEFT).without_properties(),
]
PACKETS: list[MembershipPacket] = [
    ProbePacket(nonce=1, name="a", instance=7, is_joining=True),
    ProbeAckPacket(
        nonce=2**62, name="b", instance=0, leave_digest=b"f" * 16, incarnation=0, is_member=True
    ),
    ProbeRequestPacket(nonce=3, target="c"),
    ProbeNackPacket(nonce=4),
    GossipPacket(),
    SyncRequestPacket(nonce=5, digest=b"12345678"),
    SyncReplyPacket(nonce=6, agrees=True, name="a", instance=1, is_member=True),
    PropertiesRequestPacket(version=0, instance=1),
]


def test_every_packet_survives_its_bytes(subtests: pytest.Subtests) -> None:
    assert {type(packet) for packet in PACKETS} == set(MembershipPacket.__args__)

    for packet in PACKETS:
        with subtests.test(packet=packet):
            for it in (packet, msgspec.structs.replace(packet, records=NEWS)):
                assert decode_packet(encode_packet(it), news_max=10) == it

    fields = [*msgspec.structs.astuple(make_record("a")), "more"]
    packet = decode_packet(msgspec.msgpack.encode([5, [fields], "more"]), news_max=10)
    assert packet == GossipPacket(records=[make_record("a")])


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
        encode_packet(GossipPacket()) + b"\x00",
    ]:
        with subtests.test(data=data), pytest.raises(MalformedPayloadError):
            decode_packet(data, news_max=10)

    fields = list(msgspec.structs.astuple(make_record("a")))
    fields[5] = 4
    with pytest.raises(MalformedPayloadError):
        decode_packet(msgspec.msgpack.encode([5, [fields]]), news_max=10)

    full = GossipPacket(records=[make_record(name) for name in "abcd"])
    assert decode_packet(encode_packet(full), news_max=3) == full
    with pytest.raises(MalformedPayloadError, match="4 records"):
        decode_packet(encode_packet(full), news_max=2)

    for packet in PACKETS:
        with subtests.test(packet=packet):
            twice = [make_record("a"), make_record("b"), make_record("a", MemberState.SUSPECT)]
            with pytest.raises(MalformedPayloadError, match="twice"):
                decode_packet(
                    encode_packet(msgspec.structs.replace(packet, records=twice)), news_max=10
                )


def test_what_fits_is_taken_in_order_without_long_properties() -> None:
    for record in NEWS:
        alone = len(encode_packet(GossipPacket(records=[record])))
        assert alone - len(encode_packet(GossipPacket())) == record_size(record)

    sizes = [record_size(record) for record in NEWS]
    assert fit_records(NEWS, sum(sizes), full_bytes_max=1_000) == NEWS
    assert fit_records(NEWS, sum(sizes) - 1, full_bytes_max=1_000) == NEWS[:2]
    assert fit_records(NEWS, sizes[0] - 1, full_bytes_max=1_000) == []

    record = make_record("a", properties={"key": "x" * 300})
    bare = record.without_properties()
    size = record_size(record)
    assert fit_records([record], 1_000, full_bytes_max=size) == [record]
    assert fit_records([record], 1_000, full_bytes_max=size - 1) == [bare]
    assert fit_records([record], record_size(bare) - 1, full_bytes_max=10) == []


ROOM = 100_000


def take(rumours: GossipQueue, room: int = ROOM, *, times_max: int = 100) -> list[MemberRecord]:
    return rumours.pop_batch(room, times_max=times_max, full_bytes_max=room)


def names(records: list[MemberRecord]) -> list[str]:
    return [record.name for record in records]


def test_news_are_told_so_often_and_then_dropped() -> None:
    rumours = GossipQueue()
    assert len(rumours) == 0
    assert take(rumours) == []
    rumours.add(make_record("a"))
    told = [names(take(rumours, times_max=3)) for _ in range(4)]
    assert told == [["a"], ["a"], ["a"], []]
    assert len(rumours) == 0

    rumours = GossipQueue()
    rumours.add(make_record("a"))
    for _ in range(5):
        take(rumours)
    assert names(take(rumours, times_max=3)) == ["a"]
    assert len(rumours) == 0

    for size, factor, times in [
        (1, 4, 4),
        (2, 4, 4),
        (9, 4, 4),
        (10, 4, 8),
        (99, 4, 8),
        (100, 4, 12),
        (999, 3, 9),
    ]:
        assert retransmit_limit(size, factor) == times, size


def test_the_least_told_come_first_and_every_news_gets_its_turn() -> None:
    rumours = GossipQueue()
    for name in ("a", "b"):
        rumours.add(make_record(name))
    take(rumours)
    rumours.add(make_record("c"))
    room_for_one = record_size(make_record("c"))
    assert names(take(rumours, room_for_one)) == ["c"]
    assert names(take(rumours, room_for_one)) == ["a"]
    assert names(take(rumours, room_for_one)) == ["b"]

    rumours = GossipQueue()
    for name in "abcde":
        rumours.add(make_record(name))
    room_for_two = 2 * record_size(make_record("a"))
    told = [name for _ in range(5) for name in names(take(rumours, room_for_two))]
    assert sorted(told) == sorted("abcde" * 2)


def test_newer_news_replace_older_ones_and_forgotten_ones_are_not_told() -> None:
    rumours = GossipQueue()
    rumours.add(make_record("a"))
    take(rumours, times_max=2)
    newer = make_record("a", MemberState.SUSPECT)
    rumours.add(newer)
    assert len(rumours) == 1
    assert take(rumours, times_max=2) == [newer]
    assert take(rumours, times_max=2) == [newer]
    assert take(rumours, times_max=2) == []

    rumours = GossipQueue()
    rumours.add(make_record("a"))
    rumours.add(make_record("b"))
    rumours.drop("a")
    rumours.drop("nobody")
    assert names(take(rumours)) == ["b"]


def test_no_more_is_told_than_fits() -> None:
    rumours = GossipQueue()
    for name in "abc":
        rumours.add(make_record(name))
    size = record_size(make_record("a"))
    assert take(rumours, size - 1) == []
    assert len(take(rumours, 3 * size - 1)) == 2

    rumours = GossipQueue()
    large = make_record("a", properties={"key": "x" * 1_000})
    rumours.add(large)
    assert rumours.pop_batch(1_200, times_max=9, full_bytes_max=600) == [large.without_properties()]
    assert rumours.pop_batch(2_400, times_max=9, full_bytes_max=1_200) == [large]
