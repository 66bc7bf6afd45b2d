"""Handling of received records: merge, refute, verify, or reject and count."""

import msgspec
import pytest

from postroad.cluster.membership import MemberRecord, MembershipConfig, MemberState
from postroad.cluster.membership.candidates import CandidateVerifier, GossipSource
from postroad.cluster.membership.gossip import ProbePacket, PropertiesRequestPacket
from postroad.cluster.membership.gossip_handler import GossipHandler
from postroad.cluster.membership.local_member import LocalMember
from postroad.cluster.membership.member_table import INCARNATION_JUMP_MAX, MergeResult
from postroad.cluster.membership.members import CLAIM_MAX
from postroad.cluster.membership.name_conflicts import NameConflictResolver
from postroad.cluster.membership.prober import Prober
from postroad.cluster.membership.state_sync import StateSync
from postroad.core import Address
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
ELSEWHERE = address_of("elsewhere")


class Ear:
    def __init__(self, *names: str, config: MembershipConfig | None = None) -> None:
        self.context = make_context(config=config)
        self.verifier = CandidateVerifier(self.context)
        self.name_conflicts = NameConflictResolver(self.context, self.verifier)
        own = LocalMember(self.context, secret_of("self"))
        state_sync = StateSync(self.context)
        self.hearing = GossipHandler(
            self.context, own, Prober(self.context), state_sync, self.name_conflicts, self.verifier
        )
        for name in names:
            self.context.member_table.add(make_record(name), NOW)
            self.context.gossip_queue.drop(name)

    def hear(
        self,
        *records: MemberRecord,
        now: float = NOW,
        is_trusted: bool = False,
        in_stream: bool = False,
    ) -> None:
        source = GossipSource(Address("somewhere", 1), in_stream, is_trusted)
        for record in records:
            self.hearing.apply_record(record, now, source)
        self.hearing.tick(now)

    @property
    def own(self) -> MemberRecord:
        return self.context.member_table.local

    @property
    def refused(self) -> dict[str, int]:
        return self.context.counters.rejected

    def take_pulls(self, version: int = 0) -> int:
        sent = pop_sent(self.context)
        assert all(
            packet.is_stream
            and packet.packet == PropertiesRequestPacket(version=version, instance=instance_of("b"))
            for packet in sent
        )
        return len(sent)


def large(version: int = 0) -> MemberRecord:
    """News of b with properties that did not fit."""
    return make_record("b", version=version).without_properties()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (msgspec.structs.replace(make_record("b"), port=0), "malformed record"),
        (
            make_record("b", incarnation=INCARNATION + INCARNATION_JUMP_MAX + 1),
            "incarnation out of range",
        ),
        (make_record("b", MemberState.LEFT, secret=b"guess"), "forged leave"),
        (make_record("self", MemberState.LEFT), "forged leave"),
        (make_record("self", incarnation=CLAIM_MAX + 1), "incarnation out of range"),
        (
            make_record("self", start=1, incarnation=CLAIM_MAX + 1),
            "incarnation out of range",
        ),
        (make_record("d"), "too many members"),
    ],
    ids=lambda case: case if isinstance(case, str) else case.name,
)
def test_invalid_record_is_counted_and_changes_nothing(record: MemberRecord, reason: str) -> None:
    ear = Ear("b", "c", config=MembershipConfig(members_max=2))
    ear.context.member_table.events.clear()
    ear.hear(record)
    assert ear.refused == {reason: 1}
    assert ear.context.member_table.events == []
    assert ear.own == make_record("self")
    assert len(ear.context.gossip_queue) == 0
    assert pop_sent(ear.context) == []


def test_record_of_this_node_that_is_true_or_old_is_not_refuted() -> None:
    ear = Ear("b")
    ear.context.member_table.events.clear()
    ear.hear(make_record("b"))
    assert ear.context.member_table.events == []
    assert len(ear.context.gossip_queue) == 0

    ear = Ear("b")
    older = make_record("self", MemberState.DEAD, incarnation=INCARNATION - 1)
    ear.hear(make_record("self"), older)
    assert ear.own == make_record("self")
    assert ear.context.counters.refutations == 0


@pytest.mark.parametrize("state", [MemberState.SUSPECT, MemberState.DEAD])
def test_refutation_is_requeued_for_a_sender_that_missed_it(state: MemberState) -> None:
    ear = Ear("b")
    ear.hear(make_record("self", state, reported_by="b"))
    assert ear.own.incarnation == INCARNATION + 1
    assert ear.own.state is MemberState.ALIVE
    assert ear.context.counters.refutations == 1
    assert ear.context.health.score == 1
    assert ear.context.gossip_records() == [ear.own]

    ear = Ear("b")
    ear.hear(make_record("self", state, reported_by="b"))
    while ear.context.gossip_records():
        assert len(ear.context.gossip_queue) <= 1
    ear.hear(make_record("self", state, reported_by="c"))
    assert ear.context.gossip_records() == [ear.own], "told with the very answer"
    assert ear.context.counters.refutations == 1


def test_forged_properties_and_leave_of_this_node_are_refuted() -> None:
    ear = Ear("b")
    forged = make_record("self", version=9, properties={"role": "forged"})
    ear.hear(forged)
    assert ear.own.version > forged.version
    assert ear.own.properties == {}
    assert ear.context.gossip_records() == [ear.own]

    # Who has met only the forger of it would else believe that this node has left for ever.
    ear = Ear()
    forged = msgspec.structs.replace(
        make_record("self", MemberState.LEFT, incarnation=INCARNATION + 5), leave_digest=b"f" * 16
    )
    ear.hear(forged)
    assert ear.refused == {"forged leave": 1}
    assert ear.own.incarnation == INCARNATION + 6
    assert ear.context.gossip_records() == [ear.own]


def test_duplicate_of_this_name_is_outranked_and_probed(
    subtests: pytest.Subtests,
) -> None:
    for is_trusted in (True, False):
        ear = Ear()
        rival = make_record("self", start=1, incarnation=INCARNATION + 5, address=ELSEWHERE)
        ear.hear(rival, is_trusted=is_trusted)
        assert ear.own.incarnation == INCARNATION + 6
        assert ear.name_conflicts.has_rivals is is_trusted
        (sent,) = pop_sent(ear.context)
        assert (sent.address, sent.is_stream) == (ELSEWHERE, True)

    ear = Ear()
    ear.hear(make_record("self", start=-1))
    assert ear.own.incarnation == INCARNATION + 1
    assert not ear.name_conflicts.has_rivals

    for state in [MemberState.DEAD, MemberState.LEFT]:
        with subtests.test(state=state):
            ear = Ear()
            ear.hear(make_record("self", state, start=1, address=ELSEWHERE))
            assert ear.own.incarnation == INCARNATION + 1
            assert not ear.name_conflicts.has_rivals

    ear = Ear("b")
    ear.hear(make_record("b", start=1))
    assert ear.context.counters.name_conflicts == 1
    assert [packet.address for packet in pop_sent(ear.context)] == [address_of("b")] * 2


@pytest.mark.parametrize(
    ("is_member", "is_trusted", "asks"),
    [(True, False, False), (False, False, True), (True, True, True), (False, True, True)],
)
def test_earlier_duplicate_is_probed_while_joining_or_if_vouched_for(
    is_member: bool, is_trusted: bool, asks: bool
) -> None:
    ear = Ear()
    ear.context.is_member = is_member
    rival = make_record("self", start=-1, incarnation=INCARNATION - 5, address=ELSEWHERE)
    ear.hear(rival, is_trusted=is_trusted)
    assert bool(pop_sent(ear.context)) is asks
    assert ear.name_conflicts.has_rivals is is_trusted, "nobody else can keep it from joining"
    assert ear.own == make_record("self")


def test_second_name_at_an_address_has_the_first_member_probed_once() -> None:
    ear = Ear("b")
    ear.hear(make_record("c", address=address_of("b")))
    assert ear.refused == {"claims another member's address": 1}
    sent = pop_sent(ear.context)
    assert all(
        isinstance(packet.packet, ProbePacket) and packet.address == address_of("b")
        for packet in sent
    )
    assert [packet.peer for packet in sent] == ["b", "c"]

    ear = Ear("b")
    for number in range(50):
        ear.hear(make_record(f"liar-{number}", address=address_of("b")))
    assert ear.refused == {"claims another member's address": 50}
    assert [packet.peer for packet in pop_sent(ear.context)].count("b") == 1

    names = [f"node-{number}" for number in range(65)]
    ear = Ear(*names)
    ear.hear(*(make_record(f"liar-{name}", address=address_of(name)) for name in names))
    assert ear.refused == {"claims another member's address": 65}
    assert [packet.peer for packet in pop_sent(ear.context) if packet.peer in names] == names[:64]

    ear = Ear()
    ear.hear(make_record("c", address=address_of("self")))
    assert ear.refused == {"claims this node's address": 1}
    assert pop_sent(ear.context) == []


@pytest.mark.parametrize("state", [MemberState.DEAD, MemberState.LEFT])
def test_dead_member_claims_no_address(state: MemberState) -> None:
    ear = Ear("b")
    ear.hear(make_record("c", state, address=address_of("b")))
    ear.hear(make_record("d", state, address=address_of("self")))
    assert ear.refused == {}


def test_missing_properties_are_requested_until_they_arrive() -> None:
    ear = Ear()
    ear.hearing.admit(large(), NOW)
    ear.hear(large())
    assert ear.take_pulls() == 1
    ear.hear(large(), now=NOW + 0.5)
    assert ear.take_pulls() == 0, "not at every word"
    assert ear.hearing.deadline() == NOW + 1.0
    ear.hearing.tick(NOW + 0.99)
    assert ear.take_pulls() == 0
    ear.hearing.tick(NOW + 1.0)
    assert ear.take_pulls() == 1
    ear.hear(make_record("b", properties={"role": "x"}), now=NOW + 1.1)
    assert ear.hearing.deadline() == float("inf")
    ear.hearing.tick(NOW + 5.0)
    assert ear.take_pulls() == 0

    ear = Ear()
    ear.hearing.admit(large(), NOW)
    ear.hearing.tick(NOW)
    assert ear.take_pulls() == 1
    ear.hear(make_record("b", MemberState.LEFT))
    ear.hearing.tick(NOW + 1.0)
    assert ear.take_pulls() == 0
    assert ear.hearing.deadline() == float("inf")
    ear = Ear("b")
    ear.hear(large(version=3))
    assert ear.take_pulls(version=3) == 1
    ear.hear(large(version=5))
    ear.hearing.tick(NOW + 1.0)
    assert ear.take_pulls(version=5) == 1
    ear = Ear()
    ear.hearing.admit(large(), NOW)
    ear.hearing.tick(NOW)
    (sent,) = pop_sent(ear.context)
    assert (sent.address, sent.peer) == (address_of("b"), "b")


@pytest.mark.parametrize(
    ("start", "place"),
    [(0, address_of("b")), (-1, ELSEWHERE)],
    ids=["the same process where it is known to be", "an earlier process where it says it is"],
)
def test_node_reported_alive_but_dead_here_is_notified(start: int, place: Address) -> None:
    ear = Ear()
    ear.context.member_table.add(make_record("b", MemberState.DEAD, reported_by="c"), NOW)
    claim = make_record("b", start=start, incarnation=INCARNATION - 1, address=ELSEWHERE)
    ear.hear(claim)
    (sent,) = pop_sent(ear.context)
    assert (sent.address, sent.is_stream) == (place, start != 0)
    assert [record.state for record in sent.packet.records] == [MemberState.DEAD]
    ear.hear(claim, now=NOW + 0.1)
    assert pop_sent(ear.context) == [], "not at every word"
    ear.hear(claim, now=NOW + 1.0)
    assert len(pop_sent(ear.context)) == 1


def test_notifications_of_dead_members_are_limited_per_interval() -> None:
    ear = Ear()
    names = [f"node-{number}" for number in range(40)]
    for name in names:
        ear.context.member_table.add(make_record(name, MemberState.DEAD, reported_by="c"), NOW)
    claims = [make_record(name, incarnation=INCARNATION - 1) for name in names]
    ear.hear(*claims)
    first = {packet.address for packet in pop_sent(ear.context)}
    assert len(first) == 16
    ear.hear(*claims, now=NOW + 0.99)
    assert pop_sent(ear.context) == []
    ear.hear(*reversed(claims), now=NOW + 1.0)
    second = {packet.address for packet in pop_sent(ear.context)}
    assert len(second) == 16
    assert not first & second, "the others hear of it another time"

    ear = Ear("c")
    ear.context.member_table.add(make_record("b", MemberState.LEFT), NOW)
    ear.hear(make_record("b", incarnation=INCARNATION - 1))
    ear.hear(make_record("c", incarnation=INCARNATION - 1))
    assert pop_sent(ear.context) == []


def test_many_names_at_one_address_do_not_fill_the_table() -> None:
    ear, address = Ear(), Address("10.0.0.9", 1)
    table = ear.context.member_table
    records = [make_record(f"n{number}", address=address) for number in range(100)]
    results = [table.admit(record, NOW) for record in records]
    assert results == [MergeResult.APPLIED] * 8 + [MergeResult.TABLE_FULL] * 92
    assert table.size == 9
    assert table.merge(records[-1], NOW) is MergeResult.TABLE_FULL
    # Others are not concerned, and who goes makes room for the next one there.
    assert table.admit(make_record("b"), NOW) is MergeResult.APPLIED
    table.merge(make_record("n0", MemberState.LEFT, address=address), NOW)
    assert table.merge(records[-1], NOW) is MergeResult.UNPROVEN
    assert table.admit(records[-1], NOW) is MergeResult.APPLIED
