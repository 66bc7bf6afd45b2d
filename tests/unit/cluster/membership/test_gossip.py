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


def test_packet_encoded_and_decoded_is_equal(subtests: pytest.Subtests) -> None:
    assert {type(packet) for packet in PACKETS} == set(MembershipPacket.__args__)

    for packet in PACKETS:
        with subtests.test(packet=packet):
            for variant in (packet, msgspec.structs.replace(packet, records=NEWS)):
                assert decode_packet(encode_packet(variant), records_max=10) == variant

    fields = [*msgspec.structs.astuple(make_record("a")), "more"]
    packet = decode_packet(msgspec.msgpack.encode([5, [fields], "more"]), records_max=10)
    assert packet == GossipPacket(records=[make_record("a")])


def test_decode_packet_of_garbage_raises_malformed_payload(subtests: pytest.Subtests) -> None:
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
            decode_packet(data, records_max=10)

    fields = list(msgspec.structs.astuple(make_record("a")))
    fields[5] = 4
    with pytest.raises(MalformedPayloadError):
        decode_packet(msgspec.msgpack.encode([5, [fields]]), records_max=10)

    full = GossipPacket(records=[make_record(name) for name in "abcd"])
    assert decode_packet(encode_packet(full), records_max=3) == full
    with pytest.raises(MalformedPayloadError, match="4 records"):
        decode_packet(encode_packet(full), records_max=2)

    for packet in PACKETS:
        with subtests.test(packet=packet):
            twice = [make_record("a"), make_record("b"), make_record("a", MemberState.SUSPECT)]
            with pytest.raises(MalformedPayloadError, match="two records of one member"):
                decode_packet(
                    encode_packet(msgspec.structs.replace(packet, records=twice)), records_max=10
                )


def test_fit_records_keeps_order_and_drops_long_properties() -> None:
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


def take(
    gossip_queue: GossipQueue, room: int = ROOM, *, transmits_max: int = 100
) -> list[MemberRecord]:
    return gossip_queue.pop_batch(room, transmits_max=transmits_max, full_bytes_max=room)


def names(records: list[MemberRecord]) -> list[str]:
    return [record.name for record in records]


def test_gossip_queue_drops_a_record_after_the_retransmit_limit() -> None:
    gossip_queue = GossipQueue()
    assert len(gossip_queue) == 0
    assert take(gossip_queue) == []
    gossip_queue.add(make_record("a"))
    reported = [names(take(gossip_queue, transmits_max=3)) for _ in range(4)]
    assert reported == [["a"], ["a"], ["a"], []]
    assert len(gossip_queue) == 0

    gossip_queue = GossipQueue()
    gossip_queue.add(make_record("a"))
    for _ in range(5):
        take(gossip_queue)
    assert names(take(gossip_queue, transmits_max=3)) == ["a"]
    assert len(gossip_queue) == 0

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


def test_gossip_queue_pops_least_transmitted_records_first() -> None:
    gossip_queue = GossipQueue()
    for name in ("a", "b"):
        gossip_queue.add(make_record(name))
    take(gossip_queue)
    gossip_queue.add(make_record("c"))
    room_for_one = record_size(make_record("c"))
    assert names(take(gossip_queue, room_for_one)) == ["c"]
    assert names(take(gossip_queue, room_for_one)) == ["a"]
    assert names(take(gossip_queue, room_for_one)) == ["b"]

    gossip_queue = GossipQueue()
    for name in "abcde":
        gossip_queue.add(make_record(name))
    room_for_two = 2 * record_size(make_record("a"))
    reported = [name for _ in range(5) for name in names(take(gossip_queue, room_for_two))]
    assert sorted(reported) == sorted("abcde" * 2)


def test_gossip_queue_newer_record_replaces_older_and_dropped_is_gone() -> None:
    gossip_queue = GossipQueue()
    gossip_queue.add(make_record("a"))
    take(gossip_queue, transmits_max=2)
    newer = make_record("a", MemberState.SUSPECT)
    gossip_queue.add(newer)
    assert len(gossip_queue) == 1
    assert take(gossip_queue, transmits_max=2) == [newer]
    assert take(gossip_queue, transmits_max=2) == [newer]
    assert take(gossip_queue, transmits_max=2) == []

    gossip_queue = GossipQueue()
    gossip_queue.add(make_record("a"))
    gossip_queue.add(make_record("b"))
    gossip_queue.drop("a")
    gossip_queue.drop("absent")
    assert names(take(gossip_queue)) == ["b"]


def test_gossip_queue_pops_no_more_than_fits() -> None:
    gossip_queue = GossipQueue()
    for name in "abc":
        gossip_queue.add(make_record(name))
    size = record_size(make_record("a"))
    assert take(gossip_queue, size - 1) == []
    assert len(take(gossip_queue, 3 * size - 1)) == 2

    gossip_queue = GossipQueue()
    large = make_record("a", properties={"key": "x" * 1_000})
    gossip_queue.add(large)
    assert gossip_queue.pop_batch(1_200, transmits_max=9, full_bytes_max=600) == [
        large.without_properties()
    ]
    assert gossip_queue.pop_batch(2_400, transmits_max=9, full_bytes_max=1_200) == [large]
