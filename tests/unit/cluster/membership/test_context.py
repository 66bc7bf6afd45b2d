"""Gossip records of a packet, random members, counters."""

from postroad.cluster.membership import MembershipConfig, MemberState
from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import GossipPacket, ProbeNackPacket, encode_packet
from tests.support.cluster.membership import address_of, make_context, make_record, pop_sent

NOW = 100.0


def names(context: MembershipContext, *, in_stream: bool = False) -> list[str]:
    return [record.name for record in context.gossip_records(in_stream=in_stream)]


def test_context_send_queues_and_counts_the_packet() -> None:
    context = make_context()
    context.send(address_of("b"), ProbeNackPacket(nonce=1))
    context.send(address_of("b"), GossipPacket(), to="b", in_stream=True)
    sends = context.outgoing
    assert [(send.is_stream, send.peer) for send in sends] == [(False, None), (True, "b")]
    assert sends[0].payload == encode_packet(ProbeNackPacket(nonce=1))
    assert context.counters.packets_sent == 2
    assert context.counters.bytes_sent == sum(len(send.payload) for send in sends)
    assert [packet.packet for packet in pop_sent(context)] == [
        ProbeNackPacket(nonce=1),
        GossipPacket(),
    ]


def test_gossip_records_start_with_the_given_ones_without_duplicates() -> None:
    context = make_context()
    record = make_record("b")
    assert context.gossip_records() == []
    assert context.gossip_records(record) == [record]

    context = make_context()
    for name in "bc":
        context.gossip_queue.add(make_record(name))
    suspected = make_record("b", MemberState.SUSPECT)
    assert context.gossip_records(suspected) == [suspected, make_record("c")]

    context = make_context(config=MembershipConfig(retransmit_factor=2))
    context.gossip_queue.add(make_record("b"))
    assert [names(context) for _ in range(3)] == [["b"], ["b"], []]


def test_gossip_records_of_a_datagram_are_fewer_than_over_tcp() -> None:
    context = make_context()
    for number in range(100):
        context.gossip_queue.add(make_record(f"node-{number}"))
    datagram = context.gossip_records()
    assert 0 < len(datagram) < 100
    assert (
        len(encode_packet(GossipPacket(records=datagram))) <= context.config.packet_bytes_max + 16
    )
    assert len(context.gossip_records(in_stream=True)) == 100

    context = make_context()
    large = make_record("b", properties={"key": "x" * 700})
    context.gossip_queue.add(large)
    assert context.gossip_records() == [large.without_properties()]
    assert context.gossip_records(in_stream=True) == [large]
    assert context.gossip_records(large) == [large.without_properties()]


def test_context_counts_rejections_and_draws_unguessable_nonces() -> None:
    context = make_context()
    for reason in ("odd", "odd", "even"):
        context.count_rejection(reason)
    assert context.counters.rejected == {"odd": 2, "even": 1}
    assert make_context().counters.rejected == {}, "each node counts for itself"

    context = make_context()
    numbers = {context.new_nonce() for _ in range(100)}
    assert len(numbers) == 100
    assert max(numbers) > 2**50


def test_sample_members_returns_random_others() -> None:
    context = make_context()
    for name in "bcdef":
        context.member_table.add(make_record(name), NOW)
    context.member_table.add(make_record("s", MemberState.SUSPECT), NOW)
    context.member_table.add(make_record("x", MemberState.DEAD), NOW)

    all_names = {entry.record.name for entry in context.sample_members(99)}
    assert all_names == set("bcdef")
    assert {member.record.name for member in context.sample_members(99, exclude="b")} == set("cdef")
    assert {member.record.name for member in context.sample_members(99, with_suspects=True)} == set(
        "bcdefs"
    )
    assert (
        len({tuple(member.record.name for member in context.sample_members(2)) for _ in range(50)})
        > 5
    )
