"""What a node adds to whatever it says, whom it chooses, and what it counts."""

from postroad.cluster.membership import MembershipConfig, MemberState
from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import GossipPacket, ProbeNackPacket, encode_packet
from tests.support.cluster.membership import address_of, make_record, make_voice, take_said

NOW = 100.0


def names(voice: MembershipContext, *, in_stream: bool = False) -> list[str]:
    return [record.name for record in voice.gossip_records(in_stream=in_stream)]


def test_a_packet_is_queued_and_counted() -> None:
    voice = make_voice()
    voice.send(address_of("b"), ProbeNackPacket(nonce=1))
    voice.send(address_of("b"), GossipPacket(), to="b", in_stream=True)
    sends = voice.outgoing
    assert [(it.is_stream, it.peer) for it in sends] == [(False, None), (True, "b")]
    assert sends[0].payload == encode_packet(ProbeNackPacket(nonce=1))
    assert voice.counters.packets_sent == 2
    assert voice.counters.bytes_sent == sum(len(it.payload) for it in sends)
    assert [it.packet for it in take_said(voice)] == [ProbeNackPacket(nonce=1), GossipPacket()]


def test_what_was_asked_for_comes_first_and_once() -> None:
    voice = make_voice()
    record = make_record("b")
    assert voice.gossip_records() == []
    assert voice.gossip_records(record) == [record]

    voice = make_voice()
    for name in "bc":
        voice.rumours.add(make_record(name))
    suspected = make_record("b", MemberState.SUSPECT)
    assert voice.gossip_records(suspected) == [suspected, make_record("c")]

    voice = make_voice(config=MembershipConfig(retransmit_factor=2))
    voice.rumours.add(make_record("b"))
    assert [names(voice) for _ in range(3)] == [["b"], ["b"], []]


def test_a_datagram_has_less_room_than_a_stream() -> None:
    voice = make_voice()
    for number in range(100):
        voice.rumours.add(make_record(f"node-{number}"))
    datagram = voice.gossip_records()
    assert 0 < len(datagram) < 100
    assert len(encode_packet(GossipPacket(records=datagram))) <= voice.config.packet_bytes_max + 16
    assert len(voice.gossip_records(in_stream=True)) == 100

    voice = make_voice()
    large = make_record("b", properties={"key": "x" * 700})
    voice.rumours.add(large)
    assert voice.gossip_records() == [large.without_properties()]
    assert voice.gossip_records(in_stream=True) == [large]
    assert voice.gossip_records(large) == [large.without_properties()]


def test_refusals_are_counted_and_numbers_hard_to_guess() -> None:
    voice = make_voice()
    for reason in ("odd", "odd", "even"):
        voice.count_rejection(reason)
    assert voice.counters.refused == {"odd": 2, "even": 1}
    assert make_voice().counters.refused == {}, "each node counts for itself"

    voice = make_voice()
    numbers = {voice.new_nonce() for _ in range(100)}
    assert len(numbers) == 100
    assert max(numbers) > 2**50


def test_some_others_are_chosen_at_random() -> None:
    voice = make_voice()
    for name in "bcdef":
        voice.roster.add(make_record(name), NOW)
    voice.roster.add(make_record("s", MemberState.SUSPECT), NOW)
    voice.roster.add(make_record("x", MemberState.DEAD), NOW)

    everybody = {entry.record.name for entry in voice.sample_members(99)}
    assert everybody == set("bcdef")
    assert {it.record.name for it in voice.sample_members(99, but="b")} == set("cdef")
    assert {it.record.name for it in voice.sample_members(99, with_suspects=True)} == set("bcdefs")
    assert len({tuple(it.record.name for it in voice.sample_members(2)) for _ in range(50)}) > 5
