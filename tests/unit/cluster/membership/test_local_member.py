"""This node's own record."""

import pytest

from postroad.cluster.membership import MembershipConfig, MembershipEventType, MemberState
from postroad.cluster.membership.gossip import GossipPacket
from postroad.cluster.membership.local_member import (
    LocalMember,
    new_local_record,
    validate_properties,
)
from postroad.cluster.membership.members import is_authentic_leave
from postroad.core.errors import ConfigError
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
CONFIG = MembershipConfig(properties_bytes_max=100)


def test_local_member_starts_alive_and_gossips_itself() -> None:
    record = new_local_record(
        "b",
        address_of("b"),
        instance=instance_of("b"),
        incarnation=INCARNATION,
        secret=secret_of("b"),
        properties={},
    )
    assert record == make_record("b")

    context = make_context()
    own = LocalMember(context, secret_of("self"))
    own.publish()
    assert own.gossip_now
    assert context.gossip_records() == [make_record("self")]


def test_properties_too_large_or_not_strings_are_rejected(subtests: pytest.Subtests) -> None:
    rejections: list[tuple[dict[object, object], str]] = [
        ({"role": 1}, "'role'=1 must be a string"),
        ({1: "role"}, "1='role' must be a string"),
        ({"role": None}, "'role'=None must be a string"),
        ({"role": "\ud800"}, "UTF-8"),
        ({"role": "x" * 100}, "properties of 108 bytes exceed the 100 allowed"),
    ]
    for properties, words in rejections:
        with subtests.test(words=words), pytest.raises(ConfigError, match=words):
            validate_properties(properties, CONFIG)

    original = {"role": "leader"}
    checked = validate_properties(original, CONFIG)
    original["role"] = "changed"
    assert checked == {"role": "leader"}

    context = make_context(config=CONFIG)
    with pytest.raises(ConfigError):
        LocalMember(context, secret_of("self")).change_properties({"role": "x" * 100})
    assert context.member_table.local == make_record("self")


def test_local_member_while_joining_gossips_nothing() -> None:
    context = make_context()
    context.is_member = False
    context.member_table.add(make_record("b"), NOW)
    context.gossip_queue.drop("b")
    own = LocalMember(context, secret_of("self"))
    own.publish()
    own.refute(make_record("self", MemberState.SUSPECT))
    own.change_properties({"role": "x"})
    own.send_leave()
    assert not own.gossip_now
    assert context.gossip_records() == []
    assert pop_sent(context) == []
    assert context.member_table.local.incarnation == INCARNATION + 1


@pytest.mark.parametrize("ahead", [-5, 0, 7])
def test_refute_raises_the_incarnation_above_the_record(ahead: int) -> None:
    context = make_context()
    own = LocalMember(context, secret_of("self"))
    claim = make_record("self", MemberState.DEAD, incarnation=INCARNATION + ahead)
    own.refute(claim)
    assert context.member_table.local.precedence > claim.precedence
    assert context.member_table.local.incarnation == INCARNATION + max(ahead, 0) + 1
    assert context.gossip_records() == [context.member_table.local]


def test_change_properties_raises_the_version(subtests: pytest.Subtests) -> None:
    context = make_context()
    own = LocalMember(context, secret_of("self"))
    own.change_properties({"role": "leader", "zone": "north"})
    own.change_properties({"role": None, "zone": "south"})
    assert context.member_table.local.properties == {"zone": "south"}
    assert context.member_table.local.version == 2
    assert [change.kind for change in context.member_table.events] == [
        MembershipEventType.METADATA
    ] * 2
    assert context.member_table.events[1].previous == context.member_table.events[0].member
    assert context.gossip_records() == [context.member_table.local]

    for changes in [{}, {"role": None}]:
        with subtests.test(changes=changes):
            context = make_context()
            LocalMember(context, secret_of("self")).change_properties(changes)
            assert context.member_table.local.version == 0
            assert context.member_table.events == []

    for received, counts in [(3, 3), (2, 3), (0, 3), (4, 5), (99, 100)]:
        with subtests.test(received=received):
            context = make_context()
            context.member_table.set_local(make_record("self", version=3, properties={"role": "x"}))
            own = LocalMember(context, secret_of("self"))
            own.raise_properties_version(received)
            assert context.member_table.local == make_record(
                "self", version=counts, properties={"role": "x"}
            )
            assert own.gossip_now is (counts > 3), "refutations are published"


def test_send_leave_includes_suspected_members() -> None:
    """They may be alive, and without them a cluster of suspects would not learn of the leave."""
    context = make_context()
    context.member_table.add(make_record("b", MemberState.SUSPECT, reported_by="c"), NOW)
    LocalMember(context, secret_of("self")).send_leave()
    (sent,) = pop_sent(context)
    assert (sent.address, sent.is_stream) == (address_of("b"), True)


def test_send_leave_carries_the_proof_to_few_over_tcp_and_some_by_datagram() -> None:
    context = make_context()
    for number in range(30):
        context.member_table.add(make_record(f"node-{number}"), NOW)
    LocalMember(context, secret_of("self")).send_leave()
    sent = pop_sent(context)
    assert [packet.is_stream for packet in sent] == [True] * 3 + [False] * 8
    assert len({packet.address for packet in sent}) == 11
    for packet in sent:
        assert isinstance(packet.packet, GossipPacket)
        (leave_record,) = packet.packet.records
        assert leave_record.state is MemberState.LEFT
        assert is_authentic_leave(leave_record, context.member_table.local.leave_digest)
