"""Resolution of name conflicts."""

import msgspec
import pytest

from postroad.cluster.membership import MemberRecord, MembershipConfig, MembershipEventType
from postroad.cluster.membership.candidates import CandidateVerifier
from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import ProbeAckPacket, ProbePacket
from postroad.cluster.membership.member_table import MergeResult
from postroad.cluster.membership.members import leave_digest
from postroad.cluster.membership.name_conflicts import NameConflictResolver, NameResolution
from tests.support.cluster.membership import (
    INCARNATION,
    address_of,
    instance_of,
    make_context,
    make_record,
    pop_sent,
    secret_of,
)

NOW = 100.0
TIMEOUT_S = 2.0
CONFIG = MembershipConfig(probe_timeout_s=TIMEOUT_S)
ELSEWHERE = address_of("elsewhere")

CHALLENGER = make_record("b", start=1, incarnation=INCARNATION + 1, address=ELSEWHERE)
ELDER, YOUNGER = -1, +1


def make_name_conflicts(
    *names: str, is_member: bool = True
) -> tuple[NameConflictResolver, MembershipContext]:
    context = make_context(config=CONFIG)
    context.is_member = is_member
    for name in names:
        context.member_table.add(make_record(name), NOW)
        context.gossip_queue.drop(name)
    context.member_table.events.clear()
    return NameConflictResolver(context, CandidateVerifier(context)), context


def probed_rival(context: MembershipContext) -> ProbePacket:
    """The request that went out, over a stream."""
    (stream,) = pop_sent(context)
    assert stream.is_stream
    assert stream.peer is not None
    assert isinstance(stream.packet, ProbePacket)
    return stream.packet


def queried(context: MembershipContext) -> ProbePacket:
    """The request that went out, by datagram and by stream."""
    datagram, stream = pop_sent(context)
    assert (datagram.is_stream, stream.is_stream) == (False, True)
    assert datagram.address == stream.address
    assert isinstance(datagram.packet, ProbePacket)
    assert isinstance(stream.packet, ProbePacket)
    assert datagram.packet.nonce == stream.packet.nonce
    assert datagram.peer == stream.peer is not None
    return datagram.packet


def challenge(
    name_conflicts: NameConflictResolver,
    context: MembershipContext,
    challenger: MemberRecord = CHALLENGER,
) -> int:
    assert context.member_table.merge(challenger, NOW) is MergeResult.NAME_CONFLICT
    name_conflicts.challenge(challenger, NOW)
    return queried(context).nonce


def ack(number: int, name: str, instance: int, *, is_member: bool = True) -> ProbeAckPacket:
    leave_record = leave_digest(secret_of(name))
    return ProbeAckPacket(number, name, instance, leave_record, incarnation=0, is_member=is_member)


def kinds(context: MembershipContext) -> list[MembershipEventType]:
    return [change.kind for change in context.member_table.events]


REPLACED = [MembershipEventType.REMOVED, MembershipEventType.ADDED]


def test_challenge_probes_the_holder_with_the_claimants_record() -> None:
    name_conflicts, context = make_name_conflicts("b")
    name_conflicts.challenge(CHALLENGER, NOW)
    datagram, stream = pop_sent(context)
    for packet in (datagram, stream):
        assert packet.address == address_of("b")
        assert isinstance(packet.packet, ProbePacket)
        assert (packet.peer, packet.packet.name, packet.packet.is_joining) == ("b", "self", False)
        assert packet.packet.records == [CHALLENGER]
    assert context.gossip_records() == [], "not gossiped before the ack"
    assert context.counters.name_conflicts == 1
    assert name_conflicts.deadline() == NOW + TIMEOUT_S
    assert not name_conflicts.has_rivals

    names = [f"node-{number}" for number in range(65)]
    name_conflicts, context = make_name_conflicts(*names)
    for name in names:
        name_conflicts.challenge(make_record(name, start=1), NOW)
    assert context.counters.name_conflicts == 64
    assert len(pop_sent(context)) == 2 * 64


def test_holder_keeps_its_name_unless_it_is_silent() -> None:
    name_conflicts, context = make_name_conflicts("b")
    number = challenge(name_conflicts, context)
    assert name_conflicts.on_ack(ack(number, "b", instance_of("b")), NOW + 1) is None
    name_conflicts.tick(NOW + TIMEOUT_S)
    assert kinds(context) == []
    assert name_conflicts.deadline() == float("inf")

    name_conflicts, context = make_name_conflicts("b")
    challenge(name_conflicts, context)
    name_conflicts.tick(NOW + TIMEOUT_S - 0.01)
    assert kinds(context) == []
    name_conflicts.tick(NOW + TIMEOUT_S)
    assert kinds(context) == [], "pending the ack of the other"
    acknowledge(context, name_conflicts, CHALLENGER)
    assert kinds(context) == REPLACED

    # Its reply may be lost while its word arrives by way of others.
    name_conflicts, context = make_name_conflicts("b")
    challenge(name_conflicts, context)
    context.member_table.merge(make_record("b", incarnation=CHALLENGER.incarnation + 1), NOW + 1)
    name_conflicts.tick(NOW + TIMEOUT_S)
    assert kinds(context) == []
    assert context.member_table.active["b"].record.instance == instance_of("b")


@pytest.mark.parametrize(
    ("name", "instance"), [("b", CHALLENGER.instance), ("other", instance_of("other"))]
)
def test_ack_of_the_claimant_at_the_holders_address_transfers_the_name(
    name: str, instance: int
) -> None:
    name_conflicts, context = make_name_conflicts("b")
    number = challenge(name_conflicts, context)
    assert name_conflicts.on_ack(ack(number, name, instance), NOW + 1) is None
    assert kinds(context) == []
    acknowledge(context, name_conflicts, CHALLENGER)
    assert kinds(context) == REPLACED
    assert context.member_table.active["b"].record == CHALLENGER


@pytest.mark.parametrize("instance", [instance_of("b"), CHALLENGER.instance, 7])
def test_ack_with_an_unknown_leave_digest_changes_nothing(instance: int) -> None:
    """Process numbers are known to all; only the digest tells a process from a pretender."""
    name_conflicts, context = make_name_conflicts("b")
    number = challenge(name_conflicts, context)
    forged = msgspec.structs.replace(
        ack(number, "b", instance), leave_digest=leave_digest(b"forged")
    )
    assert name_conflicts.on_ack(forged, NOW + 1) is None
    assert kinds(context) == []
    assert name_conflicts.deadline() == float("inf")


def test_newest_claimant_counts_in_any_order() -> None:
    name_conflicts, context = make_name_conflicts("b")
    challenge(name_conflicts, context)
    newer = make_record("b", start=2, incarnation=INCARNATION + 2)
    name_conflicts.challenge(newer, NOW + 1)
    name_conflicts.challenge(CHALLENGER, NOW + 1)
    assert pop_sent(context) == [], "one probe is enough"
    assert context.counters.name_conflicts == 1
    name_conflicts.tick(NOW + TIMEOUT_S)
    acknowledge(context, name_conflicts, newer)
    assert context.member_table.active["b"].record == newer

    first = make_record("b", start=1, incarnation=INCARNATION + 1)
    second = make_record("b", start=2, incarnation=INCARNATION + 1)
    for order in ((first, second), (second, first)):
        name_conflicts, context = make_name_conflicts("b")
        for challenger in order:
            name_conflicts.challenge(challenger, NOW)
        pop_sent(context)
        name_conflicts.tick(NOW + TIMEOUT_S)
        acknowledge(context, name_conflicts, second)
        assert context.member_table.active["b"].record == second


def test_name_probe_timeout_grows_with_health_score_and_stalls() -> None:
    name_conflicts, context = make_name_conflicts("b")
    context.health.worsen()
    challenge(name_conflicts, context)
    assert name_conflicts.deadline() == NOW + 2 * TIMEOUT_S

    name_conflicts, context = make_name_conflicts("b")
    challenge(name_conflicts, context)
    name_conflicts.probe_rival(
        make_record("self", start=1, address=ELSEWHERE), NOW, is_vouched=True
    )
    name_conflicts.extend_deadlines(5.0)
    assert name_conflicts.deadline() == NOW + 5.0 + TIMEOUT_S
    name_conflicts.tick(NOW + TIMEOUT_S)
    assert kinds(context) == []
    assert name_conflicts.has_rivals


def make_rival(age: int) -> MemberRecord:
    """A second process of this node's name, older or younger than it."""
    return make_record("self", start=age, address=ELSEWHERE, incarnation=INCARNATION)


def probe_own_name(
    name_conflicts: NameConflictResolver,
    context: MembershipContext,
    rival: MemberRecord,
    *,
    is_vouched: bool = True,
) -> ProbePacket:
    name_conflicts.probe_rival(rival, NOW, is_vouched=is_vouched)
    assert name_conflicts.has_rivals is is_vouched
    return probed_rival(context)


def acknowledge(
    context: MembershipContext, name_conflicts: NameConflictResolver, record: MemberRecord
) -> None:
    """Have the challenger reply what it is queried itself."""
    (sent,) = pop_sent(context)
    assert isinstance(sent.packet, ProbePacket)
    assert (sent.address, sent.peer) == (record.address, record.name)
    reported = msgspec.structs.replace(
        ack(sent.packet.nonce, record.name, record.instance), incarnation=record.incarnation
    )
    is_candidate, replied = name_conflicts._verifier.on_ack(reported, NOW)
    assert is_candidate
    assert replied == record
    assert name_conflicts.is_silent(record)
    context.member_table.admit(replied, NOW)


def test_probe_rival_carries_the_local_record_once_a_member() -> None:
    name_conflicts, context = make_name_conflicts()
    ping = probe_own_name(name_conflicts, context, make_rival(YOUNGER))
    assert (ping.is_joining, ping.records) == (False, [context.member_table.local])

    name_conflicts, context = make_name_conflicts(is_member=False)
    ping = probe_own_name(name_conflicts, context, make_rival(YOUNGER))
    assert (ping.is_joining, ping.records) == (True, [])


@pytest.mark.parametrize(
    ("is_member", "rival_is_member", "age", "yields"),
    [
        (True, True, YOUNGER, False),
        (True, True, ELDER, True),
        (False, True, YOUNGER, True),
        (False, True, ELDER, True),
        (True, False, YOUNGER, False),
        (True, False, ELDER, False),
        (False, False, YOUNGER, False),
        (False, False, ELDER, True),
    ],
)
@pytest.mark.parametrize("channel", ["reply", "dialed connection", "unexpected connection"])
def test_own_name_goes_to_the_member_then_to_the_earlier_process(
    is_member: bool, rival_is_member: bool, age: int, yields: bool, channel: str
) -> None:
    name_conflicts, context = make_name_conflicts(is_member=is_member)
    rival = make_rival(age)
    number = (
        0
        if channel == "unexpected connection"
        else probe_own_name(name_conflicts, context, rival).nonce
    )
    if channel == "reply":
        reported = ack(number, "self", rival.instance, is_member=rival_is_member)
        resolution = name_conflicts.on_ack(reported, NOW + 1)
        assert context.counters.name_conflicts == 1
    else:
        resolution = name_conflicts.on_duplicate_name_peer(
            ELSEWHERE, rival.instance, NOW, is_member=rival_is_member, is_vouched=True
        )
    assert resolution == NameResolution(ELSEWHERE, must_leave=yields)
    assert not name_conflicts.has_rivals


def test_ack_of_another_address_or_nonce_leaves_probes_open() -> None:
    name_conflicts, context = make_name_conflicts()
    probe_own_name(name_conflicts, context, make_rival(ELDER))
    third = instance_of("self", start=YOUNGER)
    name_conflicts.on_duplicate_name_peer(
        address_of("third"), third, NOW, is_vouched=True, is_member=True
    )
    assert name_conflicts.has_rivals
    assert name_conflicts.on_ack(ack(1, "self", make_rival(ELDER).instance), NOW + 1) is None
    assert name_conflicts.has_rivals
    own = instance_of("self")
    assert (
        name_conflicts.on_duplicate_name_peer(ELSEWHERE, own, NOW, is_vouched=True, is_member=True)
        is None
    )


@pytest.mark.parametrize("name", ["self", "other"])
def test_ack_by_this_node_or_another_name_is_no_rival(name: str) -> None:
    name_conflicts, context = make_name_conflicts()
    number = probe_own_name(name_conflicts, context, make_rival(ELDER)).nonce
    assert name_conflicts.on_ack(ack(number, name, instance_of(name)), NOW + 1) is None
    assert not name_conflicts.has_rivals


def test_rival_is_probed_once_at_a_time_and_dropped_if_silent() -> None:
    name_conflicts, context = make_name_conflicts()
    probe_own_name(name_conflicts, context, make_rival(ELDER))
    name_conflicts.tick(NOW + TIMEOUT_S)
    assert not name_conflicts.has_rivals
    assert context.counters.name_conflicts == 0

    name_conflicts, context = make_name_conflicts()
    probe_own_name(name_conflicts, context, make_rival(ELDER))
    name_conflicts.probe_rival(make_rival(ELDER), NOW, is_vouched=True)
    assert pop_sent(context) == []
    for number in range(100):
        rival = make_record("self", start=1, address=address_of(f"at-{number}"))
        name_conflicts.probe_rival(rival, NOW, is_vouched=True)
    assert len(pop_sent(context)) == 63


@pytest.mark.parametrize("age", [ELDER, YOUNGER])
@pytest.mark.parametrize("is_member", [True, False])
@pytest.mark.parametrize("channel", ["reply", "dialed connection", "unexpected connection"])
def test_rival_that_no_member_vouches_for_is_ignored(
    age: int, is_member: bool, channel: str
) -> None:
    name_conflicts, context = make_name_conflicts(is_member=is_member)
    rival = make_rival(age)
    if channel == "unexpected connection":
        number = 0
    else:
        number = probe_own_name(name_conflicts, context, rival, is_vouched=False).nonce
    if channel == "reply":
        resolution = name_conflicts.on_ack(ack(number, "self", rival.instance), NOW)
    else:
        resolution = name_conflicts.on_duplicate_name_peer(
            ELSEWHERE, rival.instance, NOW, is_member=True, is_vouched=False
        )
    assert resolution == NameResolution(ELSEWHERE, must_leave=False, is_known=False)
    # It is left alone for a while, unless somebody vouches for it after all.
    name_conflicts.probe_rival(rival, NOW + 1, is_vouched=False)
    assert pop_sent(context) == []
    probe_own_name(name_conflicts, context, rival)
    name_conflicts.probe_rival(rival, NOW, is_vouched=False)
    assert name_conflicts.has_rivals, "what was vouched for once stays so"


def test_rival_with_a_proven_name_needs_no_voucher() -> None:
    context = make_context(config=CONFIG)
    name_conflicts = NameConflictResolver(context, CandidateVerifier(context), proves_names=True)
    instance = make_rival(ELDER).instance
    resolution = name_conflicts.on_duplicate_name_peer(
        ELSEWHERE, instance, NOW, is_member=True, is_vouched=False
    )
    assert resolution == NameResolution(ELSEWHERE, must_leave=True)


def test_earlier_process_leaves_if_all_members_know_the_later_one() -> None:
    name_conflicts, _ = make_name_conflicts()
    rival, own = make_rival(YOUNGER).instance, instance_of("self")

    def rule(now: float) -> bool:
        resolution = name_conflicts.on_duplicate_name_peer(
            ELSEWHERE, rival, now, is_member=True, is_vouched=True
        )
        assert resolution is not None
        return resolution.must_leave

    assert not rule(NOW)
    name_conflicts.record_name_holder(address_of("b"), rival, NOW)
    name_conflicts.record_name_holder(address_of("c"), own, NOW)
    assert not rule(NOW)
    name_conflicts.record_name_holder(address_of("c"), rival, NOW + 1)
    assert rule(NOW + 1)
    assert not rule(NOW + 2 + 3 * CONFIG.sync_interval_s), "views are not believed for ever"
