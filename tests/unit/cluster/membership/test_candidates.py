"""Nodes that were told of: asked in a fair order, and counted when they have answered."""

from __future__ import annotations

import msgspec
import pytest

from postroad.cluster.membership import MemberRecord, MembershipConfig, MemberState
from postroad.cluster.membership.candidates import Teller, Vetting
from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import ProbePacket
from postroad.cluster.membership.members import leave_digest
from postroad.core import Address
from tests.support.cluster.membership import (
    INCARNATION,
    Said,
    ack_of,
    address_of,
    make_record,
    make_voice,
    take_said,
)

NOW = 100.0
CONFIG = MembershipConfig()
SOMEBODY = Teller(Address("somebody", 1))
LIAR = Teller(Address("liar", 2))


def make_vetting() -> tuple[Vetting, MembershipContext]:
    voice = make_voice(config=CONFIG)
    return Vetting(voice), voice


def take_questions(voice: MembershipContext) -> list[tuple[Said, ProbePacket]]:
    said = take_said(voice)
    return [(it, it.packet) for it in said if isinstance(it.packet, ProbePacket)]


def ghosts(count: int) -> list[MemberRecord]:
    return [make_record(f"ghost-{number}") for number in range(count)]


def answers(
    vetting: Vetting, voice: MembershipContext, record: MemberRecord
) -> MemberRecord | None:
    """Have the node answer if it is asked."""
    for said, ping in take_questions(voice):
        if said.peer == record.name:
            return vetting.on_ack(ack_of(record, ping.nonce), NOW)[1]
    return None


def test_a_node_is_asked_where_it_is_said_to_be_with_few_words() -> None:
    vetting, voice = make_vetting()
    voice.roster.add(make_record("c", properties={"text": "x" * 500}), NOW)
    vetting.consider(make_record("b", MemberState.SUSPECT, reported_by="c"), SOMEBODY, NOW)
    ((said, ping),) = take_questions(voice)
    assert (said.address, said.peer, said.is_stream) == (address_of("b"), "b", False)
    assert ping.records == [], "no rumours for who may be anybody"
    answered = vetting.on_ack(ack_of(make_record("b"), ping.nonce), NOW)
    assert answered == (True, make_record("b"))
    assert vetting.deadline() == float("inf")
    assert vetting.on_ack(ack_of(make_record("b"), ping.nonce), NOW) == (False, None)


def test_who_is_thought_dead_hears_of_it_so_that_it_can_object() -> None:
    vetting, voice = make_vetting()
    dead = make_record("b", MemberState.DEAD, reported_by="c")
    voice.roster.add(dead, NOW)
    vetting.consider(make_record("b", incarnation=INCARNATION + 1), SOMEBODY, NOW)
    ((_, ping),) = take_questions(voice)
    assert ping.records == [dead.without_properties()]


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "c"},
        {"instance": 5},
        {"leave_digest": leave_digest(b"another")},
        {"is_member": False},
        {"incarnation": -1},
        {"incarnation": (1 << 63) - 1},
    ],
    ids=str,
)
def test_an_answer_of_another_or_of_who_has_not_joined_counts_nobody(
    changes: dict[str, object],
) -> None:
    vetting, voice = make_vetting()
    vetting.consider(make_record("b"), SOMEBODY, NOW)
    ((_, ping),) = take_questions(voice)
    ack = msgspec.structs.replace(ack_of(make_record("b"), ping.nonce), **changes)
    assert vetting.on_ack(ack, NOW) == (True, None)


def test_what_the_node_says_itself_counts_and_not_what_was_told_of_it() -> None:
    vetting, voice = make_vetting()
    told = make_record("b", MemberState.SUSPECT, incarnation=INCARNATION + 9, reported_by="c")
    vetting.consider(told, SOMEBODY, NOW)
    assert answers(vetting, voice, make_record("b")) == make_record("b")


def test_the_stream_is_tried_later_and_who_is_silent_is_given_up() -> None:
    vetting, voice = make_vetting()
    vetting.consider(make_record("b"), SOMEBODY, NOW)
    vetting.consider(make_record("b"), LIAR, NOW)
    assert len(take_questions(voice)) == 1, "once is enough"
    assert vetting.deadline() == NOW + CONFIG.indirect_after_s
    vetting.postpone(5.0)
    vetting.tick(NOW + CONFIG.indirect_after_s)
    assert take_questions(voice) == []
    vetting.tick(NOW + 5.0 + CONFIG.indirect_after_s)
    ((said, _),) = take_questions(voice)
    assert said.is_stream
    vetting.tick(NOW + 5.0 + CONFIG.probe_timeout_s)
    assert take_questions(voice) == []
    assert vetting.deadline() == float("inf")


@pytest.mark.parametrize("in_stream", [True, False])
def test_however_much_one_tells_what_others_tell_comes_to_its_turn(in_stream: bool) -> None:
    vetting, voice = make_vetting()
    liar, somebody = (it._replace(in_stream=in_stream) for it in (LIAR, SOMEBODY))
    for ghost in ghosts(6_000):
        vetting.consider(ghost, liar, NOW)
    assert len(take_questions(voice)) == 16, "no more than the share of one"
    waiting = sum(len(lanes) for lanes in vetting._lanes.values())
    assert waiting <= (CONFIG.members_max if in_stream else 512)
    vetting.consider(make_record("b"), somebody, NOW)
    assert answers(vetting, voice, make_record("b")) == make_record("b")


def test_what_is_told_over_streams_waits_for_no_datagram() -> None:
    vetting, voice = make_vetting()
    for number, ghost in enumerate(ghosts(3_000)):
        vetting.consider(ghost, Teller(Address("liar", number)), NOW)
    assert len(take_questions(voice)) == 48
    assert not vetting.is_busy
    vetting.consider(make_record("b"), SOMEBODY._replace(in_stream=True), NOW)
    assert vetting.is_busy
    assert answers(vetting, voice, make_record("b")) == make_record("b")
    assert not vetting.is_busy


def test_large_properties_do_not_wait() -> None:
    vetting, voice = make_vetting()
    vetting.consider(make_record("b", properties={"text": "x" * 5_000}), SOMEBODY, NOW)
    answered = answers(vetting, voice, make_record("b"))
    assert answered is not None
    assert answered.properties is None


def test_of_one_node_the_newest_word_waits() -> None:
    vetting, voice = make_vetting()
    for ghost in ghosts(16):
        vetting.consider(ghost, SOMEBODY, NOW)
    take_questions(voice)
    for incarnation in (INCARNATION, INCARNATION + 2, INCARNATION + 1):
        vetting.consider(make_record("b", incarnation=incarnation), SOMEBODY, NOW)
    assert len(vetting._lanes[False]) == 1
    vetting.tick(NOW + CONFIG.probe_timeout_s)
    (number,) = (vetting._asked["b"],)
    assert vetting._questions[number].record.incarnation == INCARNATION + 2
