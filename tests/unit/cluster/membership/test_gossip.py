"""Membership packets and the gossip queue."""

import msgspec
import pytest

from postroad.cluster.membership import MemberRecord, MemberState, gossip
from postroad.core.errors import MalformedPayloadError
from tests.support.cluster.membership import make_record

NEWS = [
    make_record("a"),
    make_record(
        "größe", MemberState.SUSPECT, reported_by="b", version=3, properties={"role": "leader"}
    ),
    make_record("c", MemberState.LEFT).without_properties(),
]
PACKETS: list[gossip.MembershipPacket] = [
    gossip.ProbePacket(nonce=1, name="a", instance=7, is_joining=True),
    gossip.ProbeAckPacket(
        nonce=2**62, name="b", instance=0, leave_digest=b"f" * 16, incarnation=0, is_member=True
    ),
    gossip.ProbeRequestPacket(nonce=3, target="c"),
    gossip.ProbeNackPacket(nonce=4),
    gossip.GossipPacket(),
    gossip.SyncRequestPacket(nonce=5, digest=b"12345678"),
    gossip.SyncReplyPacket(nonce=6, agrees=True, name="a", instance=1, is_member=True),
    gossip.PropertiesRequestPacket(version=0, instance=1),
]


def test_packet_encoded_and_decoded_is_equal(subtests: pytest.Subtests) -> None:
    assert {type(packet) for packet in PACKETS} == set(gossip.MembershipPacket.__args__)

    for packet in PACKETS:
        with subtests.test(packet=packet):
            for variant in (packet, msgspec.structs.replace(packet, records=NEWS)):
                assert (
                    gossip.decode_packet(gossip.encode_packet(variant), records_max=10) == variant
                )

    fields = [*msgspec.structs.astuple(make_record("a")), "more"]
    packet = gossip.decode_packet(msgspec.msgpack.encode([5, [fields], "more"]), records_max=10)
    assert packet == gossip.GossipPacket(records=[make_record("a")])


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
        gossip.encode_packet(PACKETS[0])[:-1],
        gossip.encode_packet(gossip.GossipPacket()) + b"\x00",
    ]:
        with subtests.test(data=data), pytest.raises(MalformedPayloadError):
            gossip.decode_packet(data, records_max=10)

    fields = list(msgspec.structs.astuple(make_record("a")))
    fields[5] = 4
    with pytest.raises(MalformedPayloadError):
        gossip.decode_packet(msgspec.msgpack.encode([5, [fields]]), records_max=10)

    full = gossip.GossipPacket(records=[make_record(name) for name in "abcd"])
    assert gossip.decode_packet(gossip.encode_packet(full), records_max=3) == full
    with pytest.raises(MalformedPayloadError, match="4 records"):
        gossip.decode_packet(gossip.encode_packet(full), records_max=2)

    for packet in PACKETS:
        with subtests.test(packet=packet):
            twice = [make_record("a"), make_record("b"), make_record("a", MemberState.SUSPECT)]
            with pytest.raises(MalformedPayloadError, match="two records of one member"):
                gossip.decode_packet(
                    gossip.encode_packet(msgspec.structs.replace(packet, records=twice)),
                    records_max=10,
                )


def test_fit_records_keeps_order_and_drops_long_properties() -> None:
    for record in NEWS:
        alone = len(gossip.encode_packet(gossip.GossipPacket(records=[record])))
        assert alone - len(gossip.encode_packet(gossip.GossipPacket())) == gossip.record_size(
            record
        )

    sizes = [gossip.record_size(record) for record in NEWS]
    assert gossip.fit_records(NEWS, sum(sizes), full_bytes_max=1_000) == NEWS
    assert gossip.fit_records(NEWS, sum(sizes) - 1, full_bytes_max=1_000) == NEWS[:2]
    assert gossip.fit_records(NEWS, sizes[0] - 1, full_bytes_max=1_000) == []

    record = make_record("a", properties={"key": "x" * 300})
    bare = record.without_properties()
    size = gossip.record_size(record)
    assert gossip.fit_records([record], 1_000, full_bytes_max=size) == [record]
    assert gossip.fit_records([record], 1_000, full_bytes_max=size - 1) == [bare]
    assert gossip.fit_records([record], gossip.record_size(bare) - 1, full_bytes_max=10) == []


ROOM = 100_000


def take(
    gossip_queue: gossip.GossipQueue, room: int = ROOM, *, transmits_max: int = 100
) -> list[MemberRecord]:
    return gossip_queue.pop_batch(room, transmits_max=transmits_max, full_bytes_max=room)


def names(records: list[MemberRecord]) -> list[str]:
    return [record.name for record in records]


def test_gossip_queue_drops_a_record_after_the_retransmit_limit() -> None:
    gossip_queue = gossip.GossipQueue()
    assert len(gossip_queue) == 0
    assert take(gossip_queue) == []
    gossip_queue.add(make_record("a"))
    reported = [names(take(gossip_queue, transmits_max=3)) for _ in range(4)]
    assert reported == [["a"], ["a"], ["a"], []]
    assert len(gossip_queue) == 0

    gossip_queue = gossip.GossipQueue()
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
        assert gossip.retransmit_limit(size, factor) == times, size


def test_gossip_queue_pops_least_transmitted_records_first() -> None:
    gossip_queue = gossip.GossipQueue()
    for name in ("a", "b"):
        gossip_queue.add(make_record(name))
    take(gossip_queue)
    gossip_queue.add(make_record("c"))
    room_for_one = gossip.record_size(make_record("c"))
    assert names(take(gossip_queue, room_for_one)) == ["c"]
    assert names(take(gossip_queue, room_for_one)) == ["a"]
    assert names(take(gossip_queue, room_for_one)) == ["b"]

    gossip_queue = gossip.GossipQueue()
    for name in "abcde":
        gossip_queue.add(make_record(name))
    room_for_two = 2 * gossip.record_size(make_record("a"))
    reported = [name for _ in range(5) for name in names(take(gossip_queue, room_for_two))]
    assert sorted(reported) == sorted("abcde" * 2)


def test_gossip_queue_newer_record_replaces_older_and_dropped_is_gone() -> None:
    gossip_queue = gossip.GossipQueue()
    gossip_queue.add(make_record("a"))
    take(gossip_queue, transmits_max=2)
    newer = make_record("a", MemberState.SUSPECT)
    gossip_queue.add(newer)
    assert len(gossip_queue) == 1
    assert take(gossip_queue, transmits_max=2) == [newer]
    assert take(gossip_queue, transmits_max=2) == [newer]
    assert take(gossip_queue, transmits_max=2) == []

    gossip_queue = gossip.GossipQueue()
    gossip_queue.add(make_record("a"))
    gossip_queue.add(make_record("b"))
    gossip_queue.drop("a")
    gossip_queue.drop("absent")
    assert names(take(gossip_queue)) == ["b"]


def test_gossip_queue_pops_no_more_than_fits() -> None:
    gossip_queue = gossip.GossipQueue()
    for name in "abc":
        gossip_queue.add(make_record(name))
    size = gossip.record_size(make_record("a"))
    assert take(gossip_queue, size - 1) == []
    assert len(take(gossip_queue, 3 * size - 1)) == 2

    gossip_queue = gossip.GossipQueue()
    large = make_record("a", properties={"key": "x" * 1_000})
    gossip_queue.add(large)
    assert gossip_queue.pop_batch(1_200, transmits_max=9, full_bytes_max=600) == [
        large.without_properties()
    ]
    assert gossip_queue.pop_batch(2_400, transmits_max=9, full_bytes_max=1_200) == [large]
