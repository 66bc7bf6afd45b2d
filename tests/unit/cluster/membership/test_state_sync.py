"""Seeds and push-pull sync: which nodes are queried, when, and how replies are handled."""

import msgspec
import pytest

from postroad.cluster.membership import MembershipConfig, MemberState
from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import GossipPacket, SyncReplyPacket, SyncRequestPacket
from postroad.cluster.membership.state_sync import _BATCH_INTERVAL_S, _BATCH_MAX, StateSync
from postroad.core import Address
from tests.support.cluster.membership import (
    INCARNATION,
    SentPacket,
    address_of,
    instance_of,
    make_context,
    make_record,
    pop_sent,
)

NOW = 100.0
CONFIG = MembershipConfig(sync_interval_s=10.0, probe_interval_s=1.0)
# Three times as many as are queried at one time.
CROWD = [f"node-{number}" for number in range(3 * _BATCH_MAX)]


def make_state_sync(
    *places: str, context: MembershipContext | None = None
) -> tuple[StateSync, MembershipContext]:
    context = context or make_context(config=CONFIG)
    state_sync = StateSync(context)
    state_sync.start(NOW)
    state_sync.set_seeds([address_of(place) for place in places], NOW)
    return state_sync, context


def queried(sent: list[SentPacket]) -> list[Address]:
    assert all(isinstance(packet.packet, SyncRequestPacket) and packet.is_stream for packet in sent)
    return [packet.address for packet in sent]


def request_of(sent: SentPacket) -> SyncRequestPacket:
    assert isinstance(sent.packet, SyncRequestPacket)
    return sent.packet


def reply(
    request: SyncRequestPacket, name: str, *names: str, agrees: bool = False
) -> SyncReplyPacket:
    return SyncReplyPacket(
        nonce=request.nonce,
        agrees=agrees,
        name=name,
        instance=instance_of(name),
        is_member=True,
        records=[make_record(name) for name in names],
    )


def query_one(state_sync: StateSync, context: MembershipContext) -> SyncRequestPacket:
    state_sync.tick(NOW)
    (sent,) = pop_sent(context)
    return request_of(sent)


def test_set_seeds_ignores_the_local_address() -> None:
    state_sync, context = make_state_sync()
    assert NOW + 0.8 <= state_sync.deadline() <= NOW + 1.2
    state_sync.tick(state_sync.deadline())
    assert pop_sent(context) == []
    assert not state_sync.set_seeds([context.member_table.local.address], NOW)
    assert state_sync.set_seeds([context.member_table.local.address, address_of("b")], NOW)
    state_sync.tick(NOW)
    assert queried(pop_sent(context)) == [address_of("b")]


def test_seed_is_queried_at_once_with_the_local_record_of_a_member() -> None:
    state_sync, context = make_state_sync("b")
    assert state_sync.deadline() == NOW
    request = query_one(state_sync, context)
    assert request.digest == context.member_table.digest()
    assert request.records == [make_record("self")]

    state_sync, context = make_state_sync("b")
    context.is_member = False
    assert query_one(state_sync, context).records == []


def test_seeds_are_queried_in_random_batches() -> None:
    state_sync, context = make_state_sync(*CROWD)
    state_sync.tick(NOW)
    first = queried(pop_sent(context))
    state_sync.tick(NOW)
    assert pop_sent(context) == [], "the others wait for their turn"
    assert state_sync.deadline() == NOW + _BATCH_INTERVAL_S
    state_sync.tick(NOW + _BATCH_INTERVAL_S)
    second = queried(pop_sent(context))
    assert len(first) == len(second) == _BATCH_MAX
    assert not set(first) & set(second)

    # Else all nodes of a long list would begin with the same few, which may be down.
    firsts = set()
    for seed in range(10):
        state_sync, context = make_state_sync(
            *CROWD, context=make_context(config=CONFIG, seed=seed)
        )
        state_sync.tick(NOW)
        firsts.add(frozenset(queried(pop_sent(context))))
    assert len(firsts) == 10

    # One that lives among many that are down would else be found late.
    names = [f"node-{number}" for number in range(20 * _BATCH_MAX)]
    state_sync, context = make_state_sync(*names)
    state_sync._next_sync = float("inf")
    now, first_round = NOW, []
    for _ in range(20):
        state_sync.tick(now)
        first_round += queried(pop_sent(context))
        now = state_sync.deadline()
    assert sorted(first_round) == sorted(map(address_of, names))


def test_set_seeds_keeps_the_backoff_of_known_seeds() -> None:
    state_sync, context = make_state_sync("b", "c")
    state_sync.tick(NOW)
    pop_sent(context)
    state_sync.set_seeds([address_of("b"), address_of("d")], NOW)
    state_sync.tick(NOW + _BATCH_INTERVAL_S)
    assert queried(pop_sent(context)) == [address_of("d")]


def test_seed_that_is_a_member_is_queried_only_after_its_death() -> None:
    state_sync, context = make_state_sync("b")
    context.member_table.add(make_record("b"), NOW)
    assert state_sync.deadline() > NOW
    state_sync.tick(NOW)
    assert pop_sent(context) == []
    context.member_table.merge(make_record("b", MemberState.LEFT), NOW)
    state_sync.tick(NOW)
    assert queried(pop_sent(context)) == [address_of("b")]


def test_seed_that_is_this_node_or_an_alias_is_known_after_its_reply() -> None:
    state_sync, context = make_state_sync("alias")
    request = query_one(state_sync, context)
    context.member_table.add(make_record("b"), NOW)
    assert state_sync.deadline() < NOW + 0.6, "the name of the node there is still unknown"
    assert state_sync.on_reply(reply(request, "b", agrees=True))
    state_sync.tick(NOW + 0.7)
    assert pop_sent(context) == []

    state_sync, context = make_state_sync("alias", "b")
    state_sync.tick(NOW)
    requests = {packet.address: request_of(packet) for packet in pop_sent(context)}
    own = reply(requests[address_of("alias")], "self", agrees=True)
    assert not state_sync.on_reply(own), "though it is a member, as far as it says"
    assert state_sync.on_reply(reply(requests[address_of("b")], "b", agrees=True))

    state_sync, context = make_state_sync("b", "c")
    state_sync.tick(NOW)
    first, second = (request_of(packet) for packet in pop_sent(context))
    is_joining = msgspec.structs.replace(reply(first, "b", agrees=True), is_member=False)
    assert not state_sync.on_reply(is_joining)
    also_joining = msgspec.structs.replace(reply(second, "c", agrees=True), is_member=False)
    assert state_sync.on_reply(also_joining), "every seed has replied"


@pytest.mark.parametrize("replies", [False, True], ids=["silent", "this very node"])
def test_seed_without_a_new_node_is_queried_with_backoff(replies: bool) -> None:
    """Behind the address of a balancer there may be others the next time."""
    state_sync, context = make_state_sync("alias")
    state_sync._next_sync = float("inf")
    pauses, now = [], NOW
    for _ in range(10):
        state_sync.tick(now)
        (sent,) = pop_sent(context)
        assert sent.address == address_of("alias")
        if replies:
            assert state_sync.on_reply(reply(request_of(sent), "self", agrees=True))
        pauses.append(state_sync.deadline() - now)
        now = state_sync.deadline()
    assert 0.25 <= pauses[0] <= 0.5
    assert all(
        CONFIG.sync_interval_s / 2 <= pause <= CONFIG.sync_interval_s for pause in pauses[-4:]
    )


def test_unknown_sender_is_queried_at_a_limited_rate() -> None:
    state_sync, context = make_state_sync()
    for later in (0.0, 0.5, 0.99):
        state_sync.query_unknown(address_of("b"), NOW + later)
    state_sync.query_unknown(address_of("c"), NOW)
    assert queried(pop_sent(context)) == [address_of("b"), address_of("c")]
    state_sync.query_unknown(address_of("b"), NOW + 1.0)
    assert queried(pop_sent(context)) == [address_of("b")]

    state_sync, context = make_state_sync()
    context.member_table.add(make_record("b"), NOW)
    state_sync.query_unknown(address_of("b"), NOW)
    assert pop_sent(context) == []


def test_queries_of_unknown_senders_are_bounded() -> None:
    state_sync, context = make_state_sync()
    for later in (0.0, 0.99):
        for port in range(1, 301):
            state_sync.query_unknown(Address("unknown", port), NOW + later)
    assert len(pop_sent(context)) == 8
    assert len(state_sync._recent_queries) == 8
    for port in range(301, 601):
        state_sync.query_unknown(Address("unknown", port), NOW + CONFIG.probe_interval_s)
    assert len(pop_sent(context)) == 8, "in the next interval others have their turn"

    state_sync, context = make_state_sync()
    for second in range(20):
        for port in range(1, 9):
            state_sync.query_unknown(Address(f"unknown-{second}", port), NOW + second)
    assert len(pop_sent(context)) == 160
    assert len(state_sync._pending) == 64


def test_sync_interval_grows_and_includes_dead_members() -> None:
    state_sync, context = make_state_sync()
    context.member_table.add(make_record("b"), NOW)
    pauses, now = [], NOW
    for _ in range(8):
        pauses.append(state_sync.deadline() - now)
        now = state_sync.deadline()
        state_sync.tick(now)
        assert queried(pop_sent(context)) == [address_of("b")]
    expected = [1, 2, 4, 8, 10, 10, 10, 10]
    assert pauses == [pytest.approx(pause_s, rel=0.21) for pause_s in expected]
    assert len(set(pauses)) == 8, "jittered"

    state_sync, context = make_state_sync()
    for name, state in (("b", MemberState.ALIVE), ("x", MemberState.DEAD), ("y", MemberState.LEFT)):
        context.member_table.add(make_record(name, state), NOW)
    state_sync.tick(state_sync.deadline())
    assert queried(pop_sent(context)) == [address_of("b"), address_of("x")]


def test_sync_request_with_another_digest_gets_the_full_state() -> None:
    state_sync, context = make_state_sync()
    context.member_table.add(make_record("b"), NOW)
    request = SyncRequestPacket(nonce=5, digest=context.member_table.digest())
    assert state_sync.on_request(request) == SyncReplyPacket(
        nonce=5, agrees=True, name="self", instance=instance_of("self"), is_member=True, records=[]
    )

    state_sync, context = make_state_sync()
    records = [make_record("b"), make_record("x", MemberState.DEAD)]
    for record in records:
        context.member_table.add(record, NOW)
    sync = state_sync.on_request(SyncRequestPacket(nonce=5, digest=b""))
    assert not sync.agrees
    assert sync.records == [make_record("self"), *records]

    state_sync, context = make_state_sync()
    context.is_member = False
    context.member_table.add(make_record("b"), NOW)
    sync = state_sync.on_request(SyncRequestPacket(nonce=5, digest=b""))
    assert sync.records == [make_record("b")]


def test_sync_reply_is_accepted_once_and_only_if_requested() -> None:
    state_sync, context = make_state_sync("b")
    request = query_one(state_sync, context)
    assert not state_sync.on_reply(
        SyncReplyPacket(nonce=1, agrees=False, name="b", instance=1, is_member=True)
    )
    assert state_sync.on_reply(reply(request, "b", agrees=True))
    assert not state_sync.on_reply(reply(request, "b")), "once is enough"
    assert pop_sent(context) == []

    state_sync, context = make_state_sync()
    state_sync.query_unknown(address_of("b"), NOW)
    request = request_of(pop_sent(context)[0])
    assert state_sync.on_reply(reply(request, "b", agrees=True))


def test_sync_reply_is_answered_with_newer_records() -> None:
    state_sync, context = make_state_sync("b")
    newer = [
        make_record("c"),
        make_record("d", MemberState.SUSPECT, reported_by="e"),
        make_record("e", version=1, properties={"role": "x"}),
        make_record("f", start=1),
    ]
    older = [make_record("g"), make_record("h")]
    for record in [*newer, *older]:
        context.member_table.add(record, NOW)
    context.gossip_queue.drop("c")
    request = query_one(state_sync, context)
    sync = reply(request, "b", "b", "d", "e", "f", "g")
    later = make_record("h", start=1, incarnation=INCARNATION + 1)
    state_sync.on_reply(msgspec.structs.replace(sync, records=[*sync.records, later]))

    (sent,) = pop_sent(context)
    assert (sent.address, sent.is_stream) == (address_of("b"), True)
    assert sent.packet == GossipPacket(records=[make_record("self"), *newer])


def test_sync_reply_without_gaps_or_while_joining_sends_nothing() -> None:
    state_sync, context = make_state_sync("b")
    request = query_one(state_sync, context)
    state_sync.on_reply(reply(request, "b", "self"))
    assert pop_sent(context) == []

    state_sync, context = make_state_sync("b")
    context.is_member = False
    context.member_table.add(make_record("c"), NOW)
    state_sync.on_reply(reply(query_one(state_sync, context), "b"))
    assert pop_sent(context) == []


def test_state_too_large_for_a_packet_is_sent_in_random_parts() -> None:
    config = MembershipConfig(packet_bytes_max=1_024, stream_bytes_max=1_024)
    state_sync, context = make_state_sync(context=make_context(config=config))
    names = {f"node-{number}" for number in range(60)}
    for name in names:
        context.member_table.add(make_record(name), NOW)
    request = SyncRequestPacket(nonce=5, digest=b"")
    parts = [{record.name for record in state_sync.on_request(request).records} for _ in range(60)]
    assert all(1 < len(part) < 60 for part in parts)
    assert set().union(*parts) == names | {"self"}
