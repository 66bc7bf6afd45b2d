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


class Receiver:
    def __init__(self, *names: str, config: MembershipConfig | None = None) -> None:
        self.context = make_context(config=config)
        self.verifier = CandidateVerifier(self.context)
        self.name_conflicts = NameConflictResolver(self.context, self.verifier)
        local = LocalMember(self.context, secret_of("self"))
        state_sync = StateSync(self.context)
        self.handler = GossipHandler(
            self.context,
            local,
            Prober(self.context),
            state_sync,
            self.name_conflicts,
            self.verifier,
        )
        for name in names:
            self.context.member_table.add(make_record(name), NOW)
            self.context.gossip_queue.drop(name)

    def receive(
        self,
        *records: MemberRecord,
        now: float = NOW,
        is_trusted: bool = False,
        in_stream: bool = False,
    ) -> None:
        source = GossipSource(Address("somewhere", 1), in_stream, is_trusted)
        for record in records:
            self.handler.apply_record(record, now, source)
        self.handler.tick(now)

    @property
    def local(self) -> MemberRecord:
        return self.context.member_table.local

    @property
    def rejected(self) -> dict[str, int]:
        return self.context.counters.rejected

    def count_properties_requests(self, version: int = 0) -> int:
        sent = pop_sent(self.context)
        assert all(
            packet.is_stream
            and packet.packet == PropertiesRequestPacket(version=version, instance=instance_of("b"))
            for packet in sent
        )
        return len(sent)


def large(version: int = 0) -> MemberRecord:
    """A record of b whose properties did not fit."""
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
        (make_record("self", start=1, incarnation=CLAIM_MAX + 1), "incarnation out of range"),
        (make_record("d"), "too many members"),
    ],
    ids=lambda case: case if isinstance(case, str) else case.name,
)
def test_invalid_record_is_counted_and_changes_nothing(record: MemberRecord, reason: str) -> None:
    receiver = Receiver("b", "c", config=MembershipConfig(members_max=2))
    receiver.context.member_table.events.clear()
    receiver.receive(record)
    assert receiver.rejected == {reason: 1}
    assert receiver.context.member_table.events == []
    assert receiver.local == make_record("self")
    assert len(receiver.context.gossip_queue) == 0
    assert pop_sent(receiver.context) == []


def test_record_of_this_node_that_is_true_or_old_is_not_refuted() -> None:
    receiver = Receiver("b")
    receiver.context.member_table.events.clear()
    receiver.receive(make_record("b"))
    assert receiver.context.member_table.events == []
    assert len(receiver.context.gossip_queue) == 0

    receiver = Receiver("b")
    older = make_record("self", MemberState.DEAD, incarnation=INCARNATION - 1)
    receiver.receive(make_record("self"), older)
    assert receiver.local == make_record("self")
    assert receiver.context.counters.refutations == 0


@pytest.mark.parametrize("state", [MemberState.SUSPECT, MemberState.DEAD])
def test_refutation_is_requeued_for_a_sender_that_missed_it(state: MemberState) -> None:
    receiver = Receiver("b")
    receiver.receive(make_record("self", state, reported_by="b"))
    assert receiver.local.incarnation == INCARNATION + 1
    assert receiver.local.state is MemberState.ALIVE
    assert receiver.context.counters.refutations == 1
    assert receiver.context.health.score == 1
    assert receiver.context.gossip_records() == [receiver.local]

    receiver = Receiver("b")
    receiver.receive(make_record("self", state, reported_by="b"))
    while receiver.context.gossip_records():
        assert len(receiver.context.gossip_queue) <= 1
    receiver.receive(make_record("self", state, reported_by="c"))
    assert receiver.context.gossip_records() == [receiver.local], "sent with the ack of that packet"
    assert receiver.context.counters.refutations == 1


def test_forged_properties_and_leave_of_this_node_are_refuted() -> None:
    receiver = Receiver("b")
    forged = make_record("self", version=9, properties={"role": "forged"})
    receiver.receive(forged)
    assert receiver.local.version > forged.version
    assert receiver.local.properties == {}
    assert receiver.context.gossip_records() == [receiver.local]

    # Nodes that know only the forger would otherwise count this node as left for ever.
    receiver = Receiver()
    forged = msgspec.structs.replace(
        make_record("self", MemberState.LEFT, incarnation=INCARNATION + 5), leave_digest=b"f" * 16
    )
    receiver.receive(forged)
    assert receiver.rejected == {"forged leave": 1}
    assert receiver.local.incarnation == INCARNATION + 6
    assert receiver.context.gossip_records() == [receiver.local]


def test_duplicate_of_this_name_is_outranked_and_probed(subtests: pytest.Subtests) -> None:
    for is_trusted in (True, False):
        receiver = Receiver()
        rival = make_record("self", start=1, incarnation=INCARNATION + 5, address=ELSEWHERE)
        receiver.receive(rival, is_trusted=is_trusted)
        assert receiver.local.incarnation == INCARNATION + 6
        assert receiver.name_conflicts.has_rivals is is_trusted
        (sent,) = pop_sent(receiver.context)
        assert (sent.address, sent.is_stream) == (ELSEWHERE, True)

    receiver = Receiver()
    receiver.receive(make_record("self", start=-1))
    assert receiver.local.incarnation == INCARNATION + 1
    assert not receiver.name_conflicts.has_rivals

    for state in [MemberState.DEAD, MemberState.LEFT]:
        with subtests.test(state=state):
            receiver = Receiver()
            receiver.receive(make_record("self", state, start=1, address=ELSEWHERE))
            assert receiver.local.incarnation == INCARNATION + 1
            assert not receiver.name_conflicts.has_rivals

    receiver = Receiver("b")
    receiver.receive(make_record("b", start=1))
    assert receiver.context.counters.name_conflicts == 1
    assert [packet.address for packet in pop_sent(receiver.context)] == [address_of("b")] * 2


@pytest.mark.parametrize(
    ("is_member", "is_trusted", "is_probed"),
    [(True, False, False), (False, False, True), (True, True, True), (False, True, True)],
)
def test_earlier_duplicate_is_probed_while_joining_or_if_vouched_for(
    is_member: bool, is_trusted: bool, is_probed: bool
) -> None:
    receiver = Receiver()
    receiver.context.is_member = is_member
    rival = make_record("self", start=-1, incarnation=INCARNATION - 5, address=ELSEWHERE)
    receiver.receive(rival, is_trusted=is_trusted)
    assert bool(pop_sent(receiver.context)) is is_probed
    assert receiver.name_conflicts.has_rivals is is_trusted, "others cannot delay the join"
    assert receiver.local == make_record("self")


def test_second_name_at_an_address_has_the_first_member_probed_once() -> None:
    receiver = Receiver("b")
    receiver.receive(make_record("c", address=address_of("b")))
    assert receiver.rejected == {"claims another member's address": 1}
    sent = pop_sent(receiver.context)
    assert all(
        isinstance(packet.packet, ProbePacket) and packet.address == address_of("b")
        for packet in sent
    )
    assert [packet.peer for packet in sent] == ["b", "c"]

    receiver = Receiver("b")
    for number in range(50):
        receiver.receive(make_record(f"liar-{number}", address=address_of("b")))
    assert receiver.rejected == {"claims another member's address": 50}
    assert [packet.peer for packet in pop_sent(receiver.context)].count("b") == 1

    names = [f"node-{number}" for number in range(65)]
    receiver = Receiver(*names)
    receiver.receive(*(make_record(f"liar-{name}", address=address_of(name)) for name in names))
    assert receiver.rejected == {"claims another member's address": 65}
    assert [packet.peer for packet in pop_sent(receiver.context) if packet.peer in names] == names[
        :64
    ]

    receiver = Receiver()
    receiver.receive(make_record("c", address=address_of("self")))
    assert receiver.rejected == {"claims this node's address": 1}
    assert pop_sent(receiver.context) == []


@pytest.mark.parametrize("state", [MemberState.DEAD, MemberState.LEFT])
def test_dead_member_claims_no_address(state: MemberState) -> None:
    receiver = Receiver("b")
    receiver.receive(make_record("c", state, address=address_of("b")))
    receiver.receive(make_record("d", state, address=address_of("self")))
    assert receiver.rejected == {}


def test_missing_properties_are_requested_until_they_arrive() -> None:
    receiver = Receiver()
    receiver.handler.admit(large(), NOW)
    receiver.receive(large())
    assert receiver.count_properties_requests() == 1
    receiver.receive(large(), now=NOW + 0.5)
    assert receiver.count_properties_requests() == 0, "once per interval"
    assert receiver.handler.deadline() == NOW + 1.0
    receiver.handler.tick(NOW + 0.99)
    assert receiver.count_properties_requests() == 0
    receiver.handler.tick(NOW + 1.0)
    assert receiver.count_properties_requests() == 1
    receiver.receive(make_record("b", properties={"role": "x"}), now=NOW + 1.1)
    assert receiver.handler.deadline() == float("inf")
    receiver.handler.tick(NOW + 5.0)
    assert receiver.count_properties_requests() == 0

    receiver = Receiver()
    receiver.handler.admit(large(), NOW)
    receiver.handler.tick(NOW)
    assert receiver.count_properties_requests() == 1
    receiver.receive(make_record("b", MemberState.LEFT))
    receiver.handler.tick(NOW + 1.0)
    assert receiver.count_properties_requests() == 0
    assert receiver.handler.deadline() == float("inf")
    receiver = Receiver("b")
    receiver.receive(large(version=3))
    assert receiver.count_properties_requests(version=3) == 1
    receiver.receive(large(version=5))
    receiver.handler.tick(NOW + 1.0)
    assert receiver.count_properties_requests(version=5) == 1
    receiver = Receiver()
    receiver.handler.admit(large(), NOW)
    receiver.handler.tick(NOW)
    (sent,) = pop_sent(receiver.context)
    assert (sent.address, sent.peer) == (address_of("b"), "b")


@pytest.mark.parametrize(
    ("start", "place"),
    [(0, address_of("b")), (-1, ELSEWHERE)],
    ids=["the same process where it is known to be", "an earlier process where it says it is"],
)
def test_node_reported_alive_but_dead_here_is_notified(start: int, place: Address) -> None:
    receiver = Receiver()
    receiver.context.member_table.add(make_record("b", MemberState.DEAD, reported_by="c"), NOW)
    claim = make_record("b", start=start, incarnation=INCARNATION - 1, address=ELSEWHERE)
    receiver.receive(claim)
    (sent,) = pop_sent(receiver.context)
    assert (sent.address, sent.is_stream) == (place, start != 0)
    assert [record.state for record in sent.packet.records] == [MemberState.DEAD]
    receiver.receive(claim, now=NOW + 0.1)
    assert pop_sent(receiver.context) == [], "once per interval"
    receiver.receive(claim, now=NOW + 1.0)
    assert len(pop_sent(receiver.context)) == 1


def test_notifications_of_dead_members_are_limited_per_interval() -> None:
    receiver = Receiver()
    names = [f"node-{number}" for number in range(40)]
    for name in names:
        receiver.context.member_table.add(make_record(name, MemberState.DEAD, reported_by="c"), NOW)
    claims = [make_record(name, incarnation=INCARNATION - 1) for name in names]
    receiver.receive(*claims)
    first = {packet.address for packet in pop_sent(receiver.context)}
    assert len(first) == 16
    receiver.receive(*claims, now=NOW + 0.99)
    assert pop_sent(receiver.context) == []
    receiver.receive(*reversed(claims), now=NOW + 1.0)
    second = {packet.address for packet in pop_sent(receiver.context)}
    assert len(second) == 16
    assert not first & second, "the others receive of it another time"

    receiver = Receiver("c")
    receiver.context.member_table.add(make_record("b", MemberState.LEFT), NOW)
    receiver.receive(make_record("b", incarnation=INCARNATION - 1))
    receiver.receive(make_record("c", incarnation=INCARNATION - 1))
    assert pop_sent(receiver.context) == []


def test_many_names_at_one_address_do_not_fill_the_table() -> None:
    receiver, address = Receiver(), Address("10.0.0.9", 1)
    table = receiver.context.member_table
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
