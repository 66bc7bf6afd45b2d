"""Candidates: probed in a fair order, and admitted once they acknowledge."""

from __future__ import annotations

import msgspec
import pytest

from postroad.cluster.membership import MemberRecord, MembershipConfig, MemberState
from postroad.cluster.membership.candidates import CandidateVerifier, GossipSource
from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import ProbePacket
from postroad.cluster.membership.members import leave_digest
from postroad.core import Address
from tests.support.cluster.membership import (
    INCARNATION,
    SentPacket,
    ack_of,
    address_of,
    make_context,
    make_record,
    pop_sent,
)

NOW = 100.0
CONFIG = MembershipConfig()
OTHER = GossipSource(Address("other", 1))
LIAR = GossipSource(Address("liar", 2))


def make_verifier() -> tuple[CandidateVerifier, MembershipContext]:
    context = make_context(config=CONFIG)
    return CandidateVerifier(context), context


def pop_probes(context: MembershipContext) -> list[tuple[SentPacket, ProbePacket]]:
    sent = pop_sent(context)
    return [(packet, packet.packet) for packet in sent if isinstance(packet.packet, ProbePacket)]


def ghosts(count: int) -> list[MemberRecord]:
    return [make_record(f"ghost-{number}") for number in range(count)]


def replies(
    verifier: CandidateVerifier, context: MembershipContext, record: MemberRecord
) -> MemberRecord | None:
    """Have the node reply if it is queried."""
    for sent, ping in pop_probes(context):
        if sent.peer == record.name:
            return verifier.on_ack(ack_of(record, ping.nonce), NOW)[1]
    return None


def test_candidate_is_probed_at_its_reported_address_with_a_short_packet() -> None:
    verifier, context = make_verifier()
    context.member_table.add(make_record("c", properties={"text": "x" * 500}), NOW)
    verifier.submit(make_record("b", MemberState.SUSPECT, reported_by="c"), OTHER, NOW)
    ((sent, ping),) = pop_probes(context)
    assert (sent.address, sent.peer, sent.is_stream) == (address_of("b"), "b", False)
    assert ping.records == [], "no rumours for who may be anybody"
    replied = verifier.on_ack(ack_of(make_record("b"), ping.nonce), NOW)
    assert replied == (True, make_record("b"))
    assert verifier.deadline() == float("inf")
    assert verifier.on_ack(ack_of(make_record("b"), ping.nonce), NOW) == (False, None)


def test_candidate_that_is_dead_here_receives_its_record_to_refute() -> None:
    verifier, context = make_verifier()
    dead = make_record("b", MemberState.DEAD, reported_by="c")
    context.member_table.add(dead, NOW)
    verifier.submit(make_record("b", incarnation=INCARNATION + 1), OTHER, NOW)
    ((_, ping),) = pop_probes(context)
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
def test_candidate_ack_of_another_or_a_joining_node_admits_none(changes: dict[str, object]) -> None:
    verifier, context = make_verifier()
    verifier.submit(make_record("b"), OTHER, NOW)
    ((_, ping),) = pop_probes(context)
    ack = msgspec.structs.replace(ack_of(make_record("b"), ping.nonce), **changes)
    assert verifier.on_ack(ack, NOW) == (True, None)


def test_candidate_is_admitted_with_the_incarnation_of_its_ack() -> None:
    verifier, context = make_verifier()
    reported = make_record("b", MemberState.SUSPECT, incarnation=INCARNATION + 9, reported_by="c")
    verifier.submit(reported, OTHER, NOW)
    assert replies(verifier, context, make_record("b")) == make_record("b")


def test_candidate_without_ack_is_probed_over_tcp_then_dropped() -> None:
    verifier, context = make_verifier()
    verifier.submit(make_record("b"), OTHER, NOW)
    verifier.submit(make_record("b"), LIAR, NOW)
    assert len(pop_probes(context)) == 1, "once is enough"
    assert verifier.deadline() == NOW + CONFIG.indirect_probe_delay_s
    verifier.extend_deadlines(5.0)
    verifier.tick(NOW + CONFIG.indirect_probe_delay_s)
    assert pop_probes(context) == []
    verifier.tick(NOW + 5.0 + CONFIG.indirect_probe_delay_s)
    ((sent, _),) = pop_probes(context)
    assert sent.is_stream
    verifier.tick(NOW + 5.0 + CONFIG.probe_timeout_s)
    assert pop_probes(context) == []
    assert verifier.deadline() == float("inf")


@pytest.mark.parametrize("in_stream", [True, False])
def test_candidates_of_a_flooding_source_do_not_starve_other_sources(in_stream: bool) -> None:
    verifier, context = make_verifier()
    liar, other = (source._replace(in_stream=in_stream) for source in (LIAR, OTHER))
    for ghost in ghosts(6_000):
        verifier.submit(ghost, liar, NOW)
    assert len(pop_probes(context)) == 16, "no more than the share of one"
    waiting = sum(len(queue) for queue in verifier._queues.values())
    assert waiting <= (CONFIG.members_max if in_stream else 512)
    verifier.submit(make_record("b"), other, NOW)
    assert replies(verifier, context, make_record("b")) == make_record("b")


def test_candidates_from_tcp_do_not_wait_for_those_from_datagrams() -> None:
    verifier, context = make_verifier()
    for number, ghost in enumerate(ghosts(3_000)):
        verifier.submit(ghost, GossipSource(Address("liar", number)), NOW)
    assert len(pop_probes(context)) == 48
    assert not verifier.is_busy
    verifier.submit(make_record("b"), OTHER._replace(in_stream=True), NOW)
    assert verifier.is_busy
    assert replies(verifier, context, make_record("b")) == make_record("b")
    assert not verifier.is_busy


def test_candidate_with_large_properties_is_queued_without_them() -> None:
    verifier, context = make_verifier()
    verifier.submit(make_record("b", properties={"text": "x" * 5_000}), OTHER, NOW)
    replied = replies(verifier, context, make_record("b"))
    assert replied is not None
    assert replied.properties is None


def test_candidate_reported_twice_is_queued_with_the_newest_record() -> None:
    verifier, context = make_verifier()
    for ghost in ghosts(16):
        verifier.submit(ghost, OTHER, NOW)
    pop_probes(context)
    for incarnation in (INCARNATION, INCARNATION + 2, INCARNATION + 1):
        verifier.submit(make_record("b", incarnation=incarnation), OTHER, NOW)
    assert len(verifier._queues[False]) == 1
    verifier.tick(NOW + CONFIG.probe_timeout_s)
    (number,) = (verifier._nonces["b"],)
    assert verifier._probes[number].record.incarnation == INCARNATION + 2
