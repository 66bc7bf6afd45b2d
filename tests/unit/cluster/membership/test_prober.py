"""Asking members whether they live: directly, by stream, through others; and answering for them."""

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
    Said,
    address_of,
    instance_of,
    make_record,
    make_voice,
    secret_of,
    take_said,
)

NOW = 100.0
CONFIG = MembershipConfig(
    probe_interval_s=1.0, probe_timeout_s=2.0, indirect_after_s=0.5, indirect_probes=3
)


def make_prober(*names: str) -> tuple[Prober, MembershipContext]:
    """A prober among members that have nothing to gossip about, with no turn to come."""
    voice = make_voice(config=CONFIG)
    for name in names:
        voice.roster.add(make_record(name), NOW)
        voice.rumours.drop(name)
    prober = Prober(voice)
    prober._next_turn = float("inf")
    return prober, voice


def begin(prober: Prober, voice: MembershipContext, name: str = "b", now: float = NOW) -> int:
    """Ask a member directly; the number of the question."""
    prober.probe(voice.roster.active[name], now)
    (said,) = take_said(voice)
    assert isinstance(said.packet, ProbePacket)
    assert (said.address, said.is_stream) == (address_of(name), False)
    return said.packet.nonce


def ack(number: int, name: str = "b", *, start: int = 0) -> ProbeAckPacket:
    farewell = leave_digest(secret_of(name))
    instance = instance_of(name, start=start)
    return ProbeAckPacket(
        nonce=number,
        name=name,
        instance=instance,
        leave_digest=farewell,
        incarnation=0,
        is_member=True,
    )


def only(said: list[Said]) -> Said:
    (it,) = said
    return it


def test_nodes_that_start_together_do_not_ask_together() -> None:
    starts = []
    for seed in range(5):
        prober = Prober(make_voice(config=CONFIG, seed=seed))
        prober.start(NOW)
        starts.append(prober.deadline())
    assert all(NOW <= it <= NOW + 1.0 for it in starts)
    assert len(set(starts)) == 5


def test_a_prober_alone_asks_nobody_and_in_doubt_less_often() -> None:
    prober, voice = make_prober()
    prober.start(NOW)
    prober.tick(NOW + 1)
    assert take_said(voice) == []
    assert prober.deadline() == NOW + 2

    prober, voice = make_prober("b")
    prober.start(NOW)
    voice.health.worsen()
    prober.tick(NOW + 1)
    prober._probes.clear()
    assert prober.deadline() == NOW + 3


def test_everybody_comes_once_before_anybody_comes_twice() -> None:
    prober, voice = make_prober(*"bcdef")
    prober.start(NOW)
    asked = []
    for turn in range(10):
        prober.tick(NOW + 1 + turn)
        said = only(take_said(voice))
        assert isinstance(said.packet, ProbePacket)
        prober.on_ack(ack(said.packet.nonce, said.peer or ""), NOW + 1 + turn, in_stream=False)
        asked.append(said.address)
    everybody = sorted(map(address_of, "bcdef"))
    assert sorted(asked[:5]) == everybody
    assert sorted(asked[5:]) == everybody

    prober, voice = make_prober("b", "c")
    prober.start(NOW)
    prober.tick(NOW + 1)
    first = only(take_said(voice)).address.host[0]
    other = "c" if first == "b" else "b"
    voice.roster.add(make_record(other, MemberState.LEFT), NOW)
    prober._probes.clear()
    prober.tick(NOW + 2)
    pings = [it for it in take_said(voice) if isinstance(it.packet, ProbePacket)]
    assert [it.address for it in pings] == [address_of(first)]


def test_an_answer_ends_the_question_and_tells_the_distance() -> None:
    prober, voice = make_prober("b")
    voice.health.worsen()
    number = begin(prober, voice)
    assert prober.on_ack(ack(number), NOW + 0.1, in_stream=False)
    assert voice.roster.entries["b"].round_trip.smoothed_s == pytest.approx(0.1)
    assert voice.health.score == 0
    assert prober.deadline() == float("inf")
    assert (voice.counters.probes, voice.counters.probes_failed) == (1, 0)
    assert not prober.on_ack(ack(number), NOW + 0.2, in_stream=False), "a duplicate"
    prober.on_nack(ProbeNackPacket(nonce=number))

    prober, voice = make_prober("b")
    number = begin(prober, voice)
    voice.roster.add(make_record("b", MemberState.LEFT), NOW)
    assert prober.on_ack(ack(number), NOW + 0.1, in_stream=False)


@pytest.mark.parametrize(("name", "start"), [("c", 0), ("b", 1)])
def test_somebody_else_at_the_address_makes_the_member_suspected(name: str, start: int) -> None:
    prober, voice = make_prober("b")
    voice.health.worsen()
    number = begin(prober, voice)
    assert prober.on_ack(ack(number, name, start=start), NOW + 0.1, in_stream=False)
    assert voice.roster.entries["b"].state is MemberState.SUSPECT
    assert voice.health.score == 1, "no reason for confidence"


def test_a_suspected_member_is_told_so_and_says_nothing_of_this_node() -> None:
    prober, voice = make_prober("b")
    suspected = make_record("b", MemberState.SUSPECT, reported_by="c")
    voice.roster.add(suspected, NOW)
    voice.rumours.drop("b")
    prober.probe(voice.roster.active["b"], NOW)
    assert only(take_said(voice)).packet.records == [suspected]

    prober, voice = make_prober("b")
    voice.roster.add(make_record("b", MemberState.SUSPECT, reported_by="c"), NOW)
    voice.rumours.drop("b")
    prober.probe(voice.roster.active["b"], NOW)
    prober.tick(NOW + 2.0)
    assert voice.health.score == 0


def test_after_a_while_the_stream_and_others_are_tried() -> None:
    prober, voice = make_prober(*"bcdefg")
    number = begin(prober, voice)
    assert prober.deadline() == NOW + 0.5
    prober.tick(NOW + 0.5)
    stream, *requests = take_said(voice)
    assert isinstance(stream.packet, ProbePacket)
    assert (stream.address, stream.is_stream, stream.packet.nonce) == (
        address_of("b"),
        True,
        number,
    )
    assert stream.peer == "b", "whoever else is there by now must not answer for it"
    assert [it.packet for it in requests] == [
        ProbeRequestPacket(nonce=number, target="b", padding=padding_for("b"))
    ] * 3
    assert address_of("b") not in [it.address for it in requests]
    assert prober.deadline() == NOW + 2.0


def test_an_answer_by_stream_counts_as_such_only_if_it_was_tried() -> None:
    prober, voice = make_prober("b")
    number = begin(prober, voice)
    prober.tick(NOW + 0.5)
    prober.on_ack(ack(number), NOW + 0.6, in_stream=True)
    assert voice.counters.probes_by_stream == 1
    assert voice.roster.entries["b"].round_trip.smoothed_s is None
    assert voice.roster.suspects == {}

    prober, voice = make_prober("b")
    number = begin(prober, voice)
    prober.on_ack(ack(number), NOW + 0.1, in_stream=True)
    assert voice.counters.probes_by_stream == 0
    assert voice.roster.entries["b"].round_trip.smoothed_s == pytest.approx(0.1)

    prober, voice = make_prober("b")
    number = begin(prober, voice)
    prober.tick(NOW + 0.5)
    assert prober.on_ack(ack(number), NOW + 1.9, in_stream=False)
    assert voice.counters.probes_by_stream == 0
    prober.tick(NOW + 2.0)
    assert voice.roster.suspects == {}


def test_a_member_that_left_or_spoke_up_meanwhile_is_not_suspected() -> None:
    prober, voice = make_prober("b", "c")
    begin(prober, voice)
    voice.roster.add(make_record("b", MemberState.LEFT), NOW)
    voice.rumours.drop("b")
    prober.tick(NOW + 0.5)
    assert take_said(voice) == []
    prober.tick(NOW + 2.0)
    assert voice.roster.suspects == {}
    assert voice.health.score == 0

    prober, voice = make_prober("b", "c")
    begin(prober, voice)
    voice.roster.add(make_record("b", incarnation=INCARNATION + 1), NOW + 1)
    prober.tick(NOW + 2.0)
    assert voice.roster.suspects == {}
    assert (voice.counters.probes_failed, voice.counters.suspicions) == (1, 0)


def test_no_answer_in_time_makes_suspected_and_more_patience_later() -> None:
    prober, voice = make_prober("b", "c")
    begin(prober, voice)
    prober.tick(NOW + 0.5)
    prober.tick(NOW + 1.99)
    assert voice.roster.suspects == {}
    prober.tick(NOW + 2.0)
    assert list(voice.roster.suspects) == ["b"]
    assert voice.roster.deadline() == NOW + CONFIG.failure_timeout_s, "since it was asked"
    assert (voice.counters.probes_failed, voice.counters.suspicions) == (1, 1)

    prober, voice = make_prober("b", "c")
    voice.health.score = 8
    prober.probe(voice.roster.active["b"], NOW)
    end = NOW + 9 * CONFIG.probe_timeout_s
    prober.tick(end)
    assert voice.roster.deadline() == end - CONFIG.probe_timeout_s + CONFIG.failure_timeout_s


def test_a_suspect_is_told_once_more_and_only_once() -> None:
    """The way by others may have failed, and its objection may have got lost."""
    prober, voice = make_prober("b", "c")
    voice.roster.add(make_record("b", MemberState.SUSPECT, reported_by="c"), NOW)
    half_way = NOW + CONFIG.confirmed_failure_timeout_s / 2
    prober.tick(half_way - 0.01)
    take_said(voice)
    assert prober.deadline() == half_way
    prober.tick(half_way)
    said = only([it for it in take_said(voice) if it.address == address_of("b")])
    assert isinstance(said.packet, ProbePacket)
    assert [record.state for record in said.packet.records] == [MemberState.SUSPECT]
    prober.tick(half_way + 0.1)
    assert [it for it in take_said(voice) if it.address == address_of("b")] == []


@pytest.mark.parametrize(("names", "nacks", "score"), [("bcde", 2, 1), ("bcde", 5, 0), ("b", 0, 1)])
def test_a_node_doubts_itself_unless_all_its_helpers_answer(
    names: str, nacks: int, score: int
) -> None:
    prober, voice = make_prober(*names)
    number = begin(prober, voice)
    prober.tick(NOW + 0.5)
    for _ in range(nacks):
        prober.on_nack(ProbeNackPacket(nonce=number))
    prober.tick(NOW + 2.0)
    assert voice.health.score == score
    assert list(voice.roster.suspects) == ["b"]


@pytest.mark.parametrize(
    ("is_far", "first", "moments", "end"),
    [(False, 1.0, (1.0, 3.0, 3.99), 4.0), (True, 1.2, (1.21, 3.3, 4.79), 4.81)],
)
def test_patience_and_distance_lengthen_the_times(
    is_far: bool, first: float, moments: tuple[float, ...], end: float
) -> None:
    prober, voice = make_prober("b")
    if is_far:
        voice.roster.entries["b"].round_trip.add(0.4)
    else:
        voice.health.worsen()
    begin(prober, voice)
    assert prober.deadline() == pytest.approx(NOW + first)
    for moment in moments:
        prober.tick(NOW + moment)
        assert voice.roster.suspects == {}
    prober.tick(NOW + end)
    assert list(voice.roster.suspects) == ["b"]


def test_standing_still_counts_neither_as_distance_nor_as_silence() -> None:
    prober, voice = make_prober("b", "c")
    number = begin(prober, voice)
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

    prober, voice = make_prober("b", "c")
    number = begin(prober, voice)
    begin(prober, voice, "c")
    prober.extend_deadlines(3.0)
    prober.on_ack(ack(number), NOW + 3.1, in_stream=False)
    assert voice.roster.entries["b"].round_trip.smoothed_s == pytest.approx(0.1)
    prober.tick(NOW + 5.0)
    assert voice.roster.deadline() == NOW + 3.0 + CONFIG.failure_timeout_s


def test_a_member_is_asked_for_another_and_its_answer_passed_on() -> None:
    prober, voice = make_prober("b")
    prober.on_request(
        ProbeRequestPacket(nonce=7, target="b"), address_of("asker"), NOW, bytes_max=200
    )
    ping = only(take_said(voice))
    assert isinstance(ping.packet, ProbePacket)
    assert ping.address == address_of("b")
    assert ping.packet.nonce != 7
    assert prober.on_ack(ack(ping.packet.nonce), NOW + 0.1, in_stream=False)
    passed_on = only(take_said(voice))
    assert passed_on == Said(address_of("asker"), ack(7), is_stream=False)
    prober.tick(NOW + 10)
    assert take_said(voice) == []

    # An answer that is too long for its question is kept back.
    prober.on_request(
        ProbeRequestPacket(nonce=7, target="b"), address_of("asker"), NOW, bytes_max=20
    )
    ping = only(take_said(voice))
    assert isinstance(ping.packet, ProbePacket)
    assert prober.on_ack(ack(ping.packet.nonce), NOW + 0.1, in_stream=False)
    assert take_said(voice) == []


def test_a_request_for_a_favour_is_answered_before_the_asker_gives_up() -> None:
    prober, voice = make_prober("b")
    prober.on_request(
        ProbeRequestPacket(nonce=7, target="b"), address_of("asker"), NOW, bytes_max=200
    )
    take_said(voice)
    assert NOW < prober.deadline() < NOW + CONFIG.probe_timeout_s - CONFIG.indirect_after_s
    prober.tick(prober.deadline())
    assert only(take_said(voice)) == Said(
        address_of("asker"), ProbeNackPacket(nonce=7), is_stream=False
    )
    assert voice.roster.suspects == {}, "that is for the asker to say"

    prober, voice = make_prober()
    prober.on_request(
        ProbeRequestPacket(nonce=7, target="b"), address_of("asker"), NOW, bytes_max=200
    )
    assert only(take_said(voice)) == Said(
        address_of("asker"), ProbeNackPacket(nonce=7), is_stream=False
    )

    prober, voice = make_prober("b")
    for number in range(257):
        request = ProbeRequestPacket(nonce=number, target="b")
        prober.on_request(request, address_of("asker"), NOW, bytes_max=200)
    packets = [it.packet for it in take_said(voice)]
    assert all(isinstance(packet, ProbePacket) for packet in packets[:256])
    assert packets[256:] == [ProbeNackPacket(nonce=256)]


def test_a_member_is_asked_once_at_a_time_and_again_by_who_has_patience() -> None:
    prober, voice = make_prober("b")
    number = begin(prober, voice)
    prober.probe(voice.roster.active["b"], NOW + 0.1)
    assert take_said(voice) == []
    prober.on_ack(ack(number), NOW + 0.2, in_stream=False)
    begin(prober, voice, "b", NOW + 0.3)

    prober, voice = make_prober("b", "c")
    voice.health.score = 2
    prober.probe(voice.roster.active["b"], NOW)
    prober.tick(NOW + 1.5)
    take_said(voice)
    assert prober.deadline() == NOW + 3.5
    prober.tick(NOW + 3.5)
    asked = [it for it in take_said(voice) if it.address == address_of("b")]
    assert [it.is_stream for it in asked] == [False, True]
    prober.tick(NOW + 5.5)
    assert [it for it in take_said(voice) if it.address == address_of("b")] != []
    prober.tick(NOW + 6.0)
    assert list(voice.roster.suspects) == ["b"]
