"""Probes: direct, over TCP, indirect, and relayed for others."""

import pytest

from postroad.cluster.membership import MembershipConfig, MemberState
from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import (
    ProbeAckPacket,
    ProbeNackPacket,
    ProbePacket,
    ProbeRequestPacket,
    padding_for,
)
from postroad.cluster.membership.members import leave_digest
from postroad.cluster.membership.prober import Prober
from tests.support.cluster.membership import (
    INCARNATION,
    SentPacket,
    address_of,
    instance_of,
    make_context,
    make_record,
    pop_sent,
    secret_of,
)

NOW = 100.0
CONFIG = MembershipConfig(
    probe_interval_s=1.0, probe_timeout_s=2.0, indirect_probe_delay_s=0.5, indirect_probes=3
)


def make_prober(*names: str) -> tuple[Prober, MembershipContext]:
    """A prober among members that have nothing to gossip about, with no turn to come."""
    context = make_context(config=CONFIG)
    for name in names:
        context.member_table.add(make_record(name), NOW)
        context.gossip_queue.drop(name)
    prober = Prober(context)
    prober._next_probe_at = float("inf")
    return prober, context


def begin(prober: Prober, context: MembershipContext, name: str = "b", now: float = NOW) -> int:
    """Ask a member directly; the number of the request."""
    prober.probe(context.member_table.active[name], now)
    (sent,) = pop_sent(context)
    assert isinstance(sent.packet, ProbePacket)
    assert (sent.address, sent.is_stream) == (address_of(name), False)
    return sent.packet.nonce


def ack(number: int, name: str = "b", *, start: int = 0) -> ProbeAckPacket:
    leave_record = leave_digest(secret_of(name))
    instance = instance_of(name, start=start)
    return ProbeAckPacket(
        nonce=number,
        name=name,
        instance=instance,
        leave_digest=leave_record,
        incarnation=0,
        is_member=True,
    )


def only(sent: list[SentPacket]) -> SentPacket:
    (packet,) = sent
    return packet


def test_prober_starts_at_a_random_offset() -> None:
    starts = []
    for seed in range(5):
        prober = Prober(make_context(config=CONFIG, seed=seed))
        prober.start(NOW)
        starts.append(prober.deadline())
    assert all(NOW <= start <= NOW + 1.0 for start in starts)
    assert len(set(starts)) == 5


def test_prober_alone_sends_nothing_and_slows_with_health_score() -> None:
    prober, context = make_prober()
    prober.start(NOW)
    prober.tick(NOW + 1)
    assert pop_sent(context) == []
    assert prober.deadline() == NOW + 2

    prober, context = make_prober("b")
    prober.start(NOW)
    context.health.worsen()
    prober.tick(NOW + 1)
    prober._probes.clear()
    assert prober.deadline() == NOW + 3


def test_prober_probes_each_member_once_per_round() -> None:
    prober, context = make_prober(*"bcdef")
    prober.start(NOW)
    probed = []
    for turn in range(10):
        prober.tick(NOW + 1 + turn)
        sent = only(pop_sent(context))
        assert isinstance(sent.packet, ProbePacket)
        prober.on_ack(ack(sent.packet.nonce, sent.peer or ""), NOW + 1 + turn, in_stream=False)
        probed.append(sent.address)
    all_names = sorted(map(address_of, "bcdef"))
    assert sorted(probed[:5]) == all_names
    assert sorted(probed[5:]) == all_names

    prober, context = make_prober("b", "c")
    prober.start(NOW)
    prober.tick(NOW + 1)
    first = only(pop_sent(context)).address.host[0]
    other = "c" if first == "b" else "b"
    context.member_table.add(make_record(other, MemberState.LEFT), NOW)
    prober._probes.clear()
    prober.tick(NOW + 2)
    pings = [packet for packet in pop_sent(context) if isinstance(packet.packet, ProbePacket)]
    assert [packet.address for packet in pings] == [address_of(first)]


def test_ack_ends_the_probe_and_measures_the_round_trip() -> None:
    prober, context = make_prober("b")
    context.health.worsen()
    number = begin(prober, context)
    assert prober.on_ack(ack(number), NOW + 0.1, in_stream=False)
    assert context.member_table.entries["b"].round_trip.smoothed_s == pytest.approx(0.1)
    assert context.health.score == 0
    assert prober.deadline() == float("inf")
    assert (context.counters.probes, context.counters.probes_failed) == (1, 0)
    assert not prober.on_ack(ack(number), NOW + 0.2, in_stream=False), "a duplicate"
    prober.on_nack(ProbeNackPacket(nonce=number))

    prober, context = make_prober("b")
    number = begin(prober, context)
    context.member_table.add(make_record("b", MemberState.LEFT), NOW)
    assert prober.on_ack(ack(number), NOW + 0.1, in_stream=False)


@pytest.mark.parametrize(("name", "start"), [("c", 0), ("b", 1)])
def test_ack_of_another_process_suspects_the_member(name: str, start: int) -> None:
    prober, context = make_prober("b")
    context.health.worsen()
    number = begin(prober, context)
    assert prober.on_ack(ack(number, name, start=start), NOW + 0.1, in_stream=False)
    assert context.member_table.entries["b"].state is MemberState.SUSPECT
    assert context.health.score == 1, "no reason for confidence"


def test_probe_of_a_suspected_member_carries_its_record() -> None:
    prober, context = make_prober("b")
    suspected = make_record("b", MemberState.SUSPECT, reported_by="c")
    context.member_table.add(suspected, NOW)
    context.gossip_queue.drop("b")
    prober.probe(context.member_table.active["b"], NOW)
    assert only(pop_sent(context)).packet.records == [suspected]

    prober, context = make_prober("b")
    context.member_table.add(make_record("b", MemberState.SUSPECT, reported_by="c"), NOW)
    context.gossip_queue.drop("b")
    prober.probe(context.member_table.active["b"], NOW)
    prober.tick(NOW + 2.0)
    assert context.health.score == 0


def test_probe_without_ack_uses_tcp_and_relays() -> None:
    prober, context = make_prober(*"bcdefg")
    number = begin(prober, context)
    assert prober.deadline() == NOW + 0.5
    prober.tick(NOW + 0.5)
    stream, *requests = pop_sent(context)
    assert isinstance(stream.packet, ProbePacket)
    assert (stream.address, stream.is_stream, stream.packet.nonce) == (
        address_of("b"),
        True,
        number,
    )
    assert stream.peer == "b", "another node at the address must not acknowledge"
    assert [packet.packet for packet in requests] == [
        ProbeRequestPacket(nonce=number, target="b", padding=padding_for("b"))
    ] * 3
    assert address_of("b") not in [packet.address for packet in requests]
    assert prober.deadline() == NOW + 2.0


def test_ack_over_tcp_is_counted_only_after_the_direct_timeout() -> None:
    prober, context = make_prober("b")
    number = begin(prober, context)
    prober.tick(NOW + 0.5)
    prober.on_ack(ack(number), NOW + 0.6, in_stream=True)
    assert context.counters.probes_by_stream == 1
    assert context.member_table.entries["b"].round_trip.smoothed_s is None
    assert context.member_table.suspects == {}

    prober, context = make_prober("b")
    number = begin(prober, context)
    prober.on_ack(ack(number), NOW + 0.1, in_stream=True)
    assert context.counters.probes_by_stream == 0
    assert context.member_table.entries["b"].round_trip.smoothed_s == pytest.approx(0.1)

    prober, context = make_prober("b")
    number = begin(prober, context)
    prober.tick(NOW + 0.5)
    assert prober.on_ack(ack(number), NOW + 1.9, in_stream=False)
    assert context.counters.probes_by_stream == 0
    prober.tick(NOW + 2.0)
    assert context.member_table.suspects == {}


def test_failed_probe_of_a_left_or_newer_member_suspects_none() -> None:
    prober, context = make_prober("b", "c")
    begin(prober, context)
    context.member_table.add(make_record("b", MemberState.LEFT), NOW)
    context.gossip_queue.drop("b")
    prober.tick(NOW + 0.5)
    assert pop_sent(context) == []
    prober.tick(NOW + 2.0)
    assert context.member_table.suspects == {}
    assert context.health.score == 0

    prober, context = make_prober("b", "c")
    begin(prober, context)
    context.member_table.add(make_record("b", incarnation=INCARNATION + 1), NOW + 1)
    prober.tick(NOW + 2.0)
    assert context.member_table.suspects == {}
    assert (context.counters.probes_failed, context.counters.suspicions) == (1, 0)


def test_probe_timeout_suspects_the_member_and_raises_the_score() -> None:
    prober, context = make_prober("b", "c")
    begin(prober, context)
    prober.tick(NOW + 0.5)
    prober.tick(NOW + 1.99)
    assert context.member_table.suspects == {}
    prober.tick(NOW + 2.0)
    assert list(context.member_table.suspects) == ["b"]
    assert context.member_table.deadline() == NOW + CONFIG.failure_timeout_s, "from the probe on"
    assert (context.counters.probes_failed, context.counters.suspicions) == (1, 1)

    prober, context = make_prober("b", "c")
    context.health.score = 8
    prober.probe(context.member_table.active["b"], NOW)
    end = NOW + 9 * CONFIG.probe_timeout_s
    prober.tick(end)
    assert (
        context.member_table.deadline() == end - CONFIG.probe_timeout_s + CONFIG.failure_timeout_s
    )


def test_suspect_is_notified_once_more_and_only_once() -> None:
    """The way by others may have failed, and its objection may have got lost."""
    prober, context = make_prober("b", "c")
    context.member_table.add(make_record("b", MemberState.SUSPECT, reported_by="c"), NOW)
    halfway = NOW + CONFIG.confirmed_failure_timeout_s / 2
    prober.tick(halfway - 0.01)
    pop_sent(context)
    assert prober.deadline() == halfway
    prober.tick(halfway)
    sent = only([packet for packet in pop_sent(context) if packet.address == address_of("b")])
    assert isinstance(sent.packet, ProbePacket)
    assert [record.state for record in sent.packet.records] == [MemberState.SUSPECT]
    prober.tick(halfway + 0.1)
    assert [packet for packet in pop_sent(context) if packet.address == address_of("b")] == []


@pytest.mark.parametrize(("names", "nacks", "score"), [("bcde", 2, 1), ("bcde", 5, 0), ("b", 0, 1)])
def test_failed_probe_raises_the_score_unless_all_relays_reply(
    names: str, nacks: int, score: int
) -> None:
    prober, context = make_prober(*names)
    number = begin(prober, context)
    prober.tick(NOW + 0.5)
    for _ in range(nacks):
        prober.on_nack(ProbeNackPacket(nonce=number))
    prober.tick(NOW + 2.0)
    assert context.health.score == score
    assert list(context.member_table.suspects) == ["b"]


@pytest.mark.parametrize(
    ("is_far", "first", "moments", "end"),
    [(False, 1.0, (1.0, 3.0, 3.99), 4.0), (True, 1.2, (1.21, 3.3, 4.79), 4.81)],
)
def test_probe_timeouts_grow_with_health_score_and_round_trip(
    is_far: bool, first: float, moments: tuple[float, ...], end: float
) -> None:
    prober, context = make_prober("b")
    if is_far:
        context.member_table.entries["b"].round_trip.add(0.4)
    else:
        context.health.worsen()
    begin(prober, context)
    assert prober.deadline() == pytest.approx(NOW + first)
    for moment in moments:
        prober.tick(NOW + moment)
        assert context.member_table.suspects == {}
    prober.tick(NOW + end)
    assert list(context.member_table.suspects) == ["b"]


def test_stall_counts_neither_as_round_trip_nor_as_silence() -> None:
    prober, context = make_prober("b", "c")
    number = begin(prober, context)
    prober.extend_deadlines(3.0)
    assert prober.deadline() == NOW + 3.5
    prober.tick(NOW + 3.5)
    prober.extend_deadlines(10.0)
    assert prober.deadline() == NOW + 15.0
    prober.on_request(ProbeRequestPacket(nonce=1, target="c"), address_of("x"), NOW, bytes_max=200)
    before = prober.deadline()
    prober.extend_deadlines(1.0)
    assert prober.deadline() == before + 1.0
    prober.on_ack(ack(number), NOW + 14.1, in_stream=False)

    prober, context = make_prober("b", "c")
    number = begin(prober, context)
    begin(prober, context, "c")
    prober.extend_deadlines(3.0)
    prober.on_ack(ack(number), NOW + 3.1, in_stream=False)
    assert context.member_table.entries["b"].round_trip.smoothed_s == pytest.approx(0.1)
    prober.tick(NOW + 5.0)
    assert context.member_table.deadline() == NOW + 3.0 + CONFIG.failure_timeout_s


def test_probe_request_relays_the_probe_and_its_ack() -> None:
    prober, context = make_prober("b")
    prober.on_request(
        ProbeRequestPacket(nonce=7, target="b"), address_of("asker"), NOW, bytes_max=200
    )
    ping = only(pop_sent(context))
    assert isinstance(ping.packet, ProbePacket)
    assert ping.address == address_of("b")
    assert ping.packet.nonce != 7
    assert prober.on_ack(ack(ping.packet.nonce), NOW + 0.1, in_stream=False)
    passed_on = only(pop_sent(context))
    assert passed_on == SentPacket(address_of("asker"), ack(7), is_stream=False)
    prober.tick(NOW + 10)
    assert pop_sent(context) == []

    # An reply that is too long for its request is kept back.
    prober.on_request(
        ProbeRequestPacket(nonce=7, target="b"), address_of("asker"), NOW, bytes_max=20
    )
    ping = only(pop_sent(context))
    assert isinstance(ping.packet, ProbePacket)
    assert prober.on_ack(ack(ping.packet.nonce), NOW + 0.1, in_stream=False)
    assert pop_sent(context) == []


def test_probe_request_is_nacked_before_the_requester_times_out() -> None:
    prober, context = make_prober("b")
    prober.on_request(
        ProbeRequestPacket(nonce=7, target="b"), address_of("asker"), NOW, bytes_max=200
    )
    pop_sent(context)
    assert NOW < prober.deadline() < NOW + CONFIG.probe_timeout_s - CONFIG.indirect_probe_delay_s
    prober.tick(prober.deadline())
    assert only(pop_sent(context)) == SentPacket(
        address_of("asker"), ProbeNackPacket(nonce=7), is_stream=False
    )
    assert context.member_table.suspects == {}, "only the requester suspects it"

    prober, context = make_prober()
    prober.on_request(
        ProbeRequestPacket(nonce=7, target="b"), address_of("asker"), NOW, bytes_max=200
    )
    assert only(pop_sent(context)) == SentPacket(
        address_of("asker"), ProbeNackPacket(nonce=7), is_stream=False
    )

    prober, context = make_prober("b")
    for number in range(257):
        request = ProbeRequestPacket(nonce=number, target="b")
        prober.on_request(request, address_of("asker"), NOW, bytes_max=200)
    packets = [packet.packet for packet in pop_sent(context)]
    assert all(isinstance(packet, ProbePacket) for packet in packets[:256])
    assert packets[256:] == [ProbeNackPacket(nonce=256)]


def test_member_is_probed_once_at_a_time_and_again_with_a_long_timeout() -> None:
    prober, context = make_prober("b")
    number = begin(prober, context)
    prober.probe(context.member_table.active["b"], NOW + 0.1)
    assert pop_sent(context) == []
    prober.on_ack(ack(number), NOW + 0.2, in_stream=False)
    begin(prober, context, "b", NOW + 0.3)

    prober, context = make_prober("b", "c")
    context.health.score = 2
    prober.probe(context.member_table.active["b"], NOW)
    prober.tick(NOW + 1.5)
    pop_sent(context)
    assert prober.deadline() == NOW + 3.5
    prober.tick(NOW + 3.5)
    probes = [packet for packet in pop_sent(context) if packet.address == address_of("b")]
    assert [packet.is_stream for packet in probes] == [False, True]
    prober.tick(NOW + 5.5)
    assert [packet for packet in pop_sent(context) if packet.address == address_of("b")] != []
    prober.tick(NOW + 6.0)
    assert list(context.member_table.suspects) == ["b"]
