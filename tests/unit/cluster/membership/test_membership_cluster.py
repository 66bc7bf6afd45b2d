"""Clusters of state machines: failures, stalls, name conflicts, forged records."""

import msgspec
import pytest

from postroad.cluster.membership import (
    Membership,
    MembershipConfig,
    MembershipEvent,
    MembershipPhase,
    MemberState,
    NameConflictDetected,
    NameConflictLost,
)
from postroad.cluster.membership.gossip import ProbeAckPacket, ProbePacket, PropertiesRequestPacket
from postroad.cluster.membership.member_table import INCARNATION_JUMP_MAX
from postroad.cluster.membership.members import CLAIM_MAX
from tests.support.cluster.membership import (
    INCARNATION,
    START,
    Wire,
    address_of,
    exchange,
    instance_of,
    make_cluster,
    make_machine,
    make_record,
    member_of,
    names_of,
    pop_sent,
    receive_gossip,
    state_of,
)


def test_failed_member_is_suspected_then_removed_by_all() -> None:
    wire, machines = make_cluster("a", "b", "c", "d")
    wire.stop(machines["d"])
    assert wire.run_until(lambda: state_of(machines["a"], "d") is MemberState.SUSPECT, limit_s=10)
    assert wire.run_until(
        lambda: all(machines[name].member("d") is None for name in "abc"), limit_s=12
    )
    assert sorted(wire.removals("d")) == ["a", "b", "c"]
    assert not any(wire.removals(name) for name in "abc")


def test_restart_at_the_same_address_replaces_the_process_at_once() -> None:
    wire, machines = make_cluster("a", "b", "c")
    wire.stop(machines["c"])
    wire.add(make_machine("c", start=1, incarnation=INCARNATION + 5), ["a"])
    wire.run(3)
    for name in "ab":
        assert member_of(machines[name], "c").instance == instance_of("c", start=1)
    assert sorted(wire.removals("c")) == ["a", "b"], "removed and added, once each"


def test_member_isolated_for_a_short_time_is_never_removed() -> None:
    wire, machines = make_cluster("a", "b", "c", "d")
    wire.isolate("d")
    assert wire.run_until(lambda: state_of(machines["a"], "d") is MemberState.SUSPECT, limit_s=10)
    wire.heal()
    assert wire.run_until(lambda: state_of(machines["a"], "d") is MemberState.ALIVE, limit_s=5)
    assert wire.removals("d") == []
    assert machines["d"].counters.refutations >= 1


def test_partition_healed_merges_without_seeds() -> None:
    wire, machines = make_cluster("a", "b", "c", "d")
    for machine in machines.values():
        machine.set_seeds([], wire.clock())
    wire.cut("a", "b")
    assert wire.run_until(lambda: names_of(machines["a"]) == ["a", "b"])
    assert wire.run_until(lambda: names_of(machines["c"]) == ["c", "d"])
    wire.heal()
    assert wire.run_until(lambda: wire.agree() and len(machines["a"].members()) == 4, limit_s=60)


def test_member_declared_dead_is_reaped_after_the_tombstone_time() -> None:
    config = MembershipConfig(tombstone_ttl_s=20)
    wire, machines = make_cluster("a", "b", config=config)
    wire.stop(machines["b"])
    wire.run(20)
    assert machines["a"].member("b") is None
    assert "b" in machines["a"]._member_table.entries
    wire.run(40)
    assert machines["a"]._member_table.entries == {}


def test_tcp_and_indirect_probes_keep_members_alive() -> None:
    wire, machines = make_cluster("a", "b", "c")
    wire.loses = lambda leg: not leg.is_stream
    wire.run(60)
    assert all(len(machine.members()) == 3 for machine in machines.values())
    assert all(machine.counters.probes_by_stream for machine in machines.values())
    assert wire.removals("a") == wire.removals("b") == wire.removals("c") == []

    wire, machines = make_cluster("a", "b", "c")
    wire.loses = lambda leg: {leg.sender, leg.receiver} == {"a", "b"}
    wire.run(60)
    assert all(len(machine.members()) == 3 for machine in machines.values())
    assert machines["a"].counters.suspicions == machines["b"].counters.suspicions == 0


CONFIG = MembershipConfig()


def test_gossip_after_a_quiet_time_is_not_a_stall() -> None:
    wire, machines = make_cluster("a", "b", "c")
    machine = machines["a"]
    wire.run(100)
    receive_gossip(machine, make_record("z"), now=wire.clock())
    assert machine.deadline() >= wire.clock()
    wire.run(100)
    wire.run(1)
    assert [machine.counters.stalls for machine in machines.values()] == [0, 0, 0]


def test_seed_that_fails_after_a_long_time_is_not_a_stall() -> None:
    wire, machines = make_cluster("a", "b", "c")
    wire.run(100)
    wire.stop(machines["a"])
    wire.run(60)
    assert machines["c"].counters.stalls == 0
    assert machines["c"].member("a") is None


@pytest.mark.parametrize(("late_s", "stalls"), [(0.0, 0), (0.2, 0), (0.3, 1), (100.0, 1)])
def test_tick_after_the_deadline_is_detected_as_a_stall(late_s: float, stalls: int) -> None:
    machine = make_machine("a")
    machine.start(START)
    machine.set_seeds([], START)
    machine.tick(machine.deadline() + late_s)
    assert machine.counters.stalls == stalls
    assert machine.health == stalls


def test_packet_before_the_late_tick_detects_the_stall_once() -> None:
    wire, machines = make_cluster("a", "b")
    late = machines["a"].deadline() + 50
    receive_gossip(machines["a"], now=late)
    machines["a"].tick(late)
    assert machines["a"].counters.stalls == 1
    assert wire.removals("b") == []


def test_stall_extends_suspicions_and_name_probes() -> None:
    wire, machines = make_cluster("a", "b", "c")
    machine = machines["a"]
    wire.stop(machines["b"])
    assert wire.run_until(lambda: state_of(machine, "b") is MemberState.SUSPECT)
    machine.tick(machine.deadline() + CONFIG.failure_timeout_s + 1)
    assert state_of(machine, "b") is MemberState.SUSPECT

    wire, machines = make_cluster("a", "b")
    machine = machines["a"]
    receive_gossip(
        machine, make_record("b", start=1, incarnation=INCARNATION + 1), now=wire.clock()
    )
    machine.tick(machine.deadline() + 50)
    assert member_of(machine, "b").instance == instance_of("b")


def test_stall_of_a_whole_cluster_removes_no_member() -> None:
    wire, machines = make_cluster("a", "b", "c", "d")
    for machine in machines.values():
        machine.set_seeds([address_of("a")], wire.clock())
    wire.clock.advance(300)
    wire.run(60)
    assert not any(wire.removals(name) for name in machines)
    assert all(machine.counters.stalls for machine in machines.values())


def test_repeated_stalls_of_one_node_remove_no_other_member() -> None:
    wire, _machines = make_cluster("a", "b", "c", "d")
    sleeper = wire.nodes.pop(address_of("d"))
    for _ in range(20):
        wire.run(3)
        sleeper.tick(wire.clock())
        wire.nodes[address_of("d")] = sleeper
        wire.pump()
        del wire.nodes[address_of("d")]
    assert not any(wire.removals(name) for name in "abc")
    assert sleeper.counters.stalls >= 15
    assert sleeper.health > 0


def test_quiet_cluster_sends_few_packets() -> None:
    wire, machines = make_cluster(*(f"node-{number}" for number in range(8)))
    wire.run(30)
    before = sum(machine.counters.packets_sent for machine in machines.values())
    wire.run(60)
    sent = sum(machine.counters.packets_sent for machine in machines.values()) - before
    # A ping and its reply each second, an exchange with its reply every ten.
    assert sent <= 8 * (2 * 60 + 2 * 8)


ELSEWHERE = address_of("elsewhere")


def make_second(name: str, *, start: int = 1) -> Membership:
    """A second process of the name, at another address."""
    return make_machine(name, start=start, incarnation=INCARNATION + 50, address=ELSEWHERE)


def notices(wire: Wire, name: str) -> list[NameConflictDetected | NameConflictLost]:
    return [change for change in wire.changes[name] if not isinstance(change, MembershipEvent)]


def test_join_with_a_name_in_use_is_rejected_and_the_holder_stays() -> None:
    wire, machines = make_cluster("a", "b", "c")
    second = wire.add(make_second("c"), ["a"])
    assert wire.run_until(lambda: second.phase is MembershipPhase.NAME_LOST, limit_s=3)
    assert NameConflictLost(address_of("c")) in notices(wire, "c")
    assert NameConflictDetected(ELSEWHERE) in notices(wire, "c"), "the holder is notified"
    wire.run(30)
    assert wire.removals("c") == []
    assert machines["c"].phase is MembershipPhase.MEMBER
    assert second.counters.name_conflicts >= 1


def test_join_with_the_holder_as_seed_is_rejected() -> None:
    wire, _machines = make_cluster("a", "c")
    second = wire.add(make_second("c"), ["c"])
    assert second.phase is MembershipPhase.NAME_LOST
    assert second.deadline() == float("inf")
    assert second.drain_outgoing() == []


def test_join_with_the_name_of_a_failed_process_waits_for_the_probe() -> None:
    wire, machines = make_cluster("a", "b", "c")
    wire.stop(machines["c"])
    second = wire.add(make_second("c"), ["a"])
    assert second.phase is MembershipPhase.JOINING
    wire.run(CONFIG.probe_timeout_s - 0.1)
    assert second.phase is MembershipPhase.JOINING
    assert wire.run_until(lambda: second.phase is MembershipPhase.MEMBER, limit_s=0.2)
    wire.run(5)
    member = machines["a"].member("c")
    assert member is not None
    assert (member.address, member.instance) == (ELSEWHERE, instance_of("c", start=1))
    assert sorted(wire.removals("c")) == ["a", "b"]


@pytest.mark.parametrize("start", [1, -1])
def test_merge_of_two_halves_leaves_the_name_to_the_earlier_process(start: int) -> None:
    wire = Wire()
    wire.add(make_machine("a"))
    first = wire.add(make_machine("c"), ["a"])
    wire.add(make_machine("b"))
    second = wire.add(make_second("c", start=start), ["b"])
    wire.run(10)
    assert first.phase is second.phase is MembershipPhase.MEMBER
    bridge = wire.add(make_machine("d"), ["a", "b"])
    elder, younger = (first, second) if start > 0 else (second, first)
    assert wire.run_until(lambda: younger.phase is MembershipPhase.NAME_LOST, limit_s=30)
    wire.stop(younger)
    assert wire.run_until(wire.agree, limit_s=60)
    assert elder.phase is MembershipPhase.MEMBER
    assert names_of(bridge) == ["a", "b", "c", "d"]
    assert member_of(bridge, "c").address == elder.local_member.address


def test_duplicate_name_peer_or_caller_is_resolved_by_age(subtests: pytest.Subtests) -> None:
    for age, phase in [(1, MembershipPhase.MEMBER), (-1, MembershipPhase.NAME_LOST)]:
        with subtests.test(age=age):
            machine = make_machine("a")
            machine.start(START)
            machine.set_seeds([], START)
            machine.set_seeds([address_of("b")], START)
            machine.on_duplicate_name_peer(
                address_of("b"), instance_of("a", start=age), START, is_member=True
            )
            assert machine.phase is phase
            kind = NameConflictDetected if phase is MembershipPhase.MEMBER else NameConflictLost
            assert machine.drain_events() == [kind(address_of("b"))]

    machine = make_machine("a")
    machine.start(START)
    machine.set_seeds([address_of("b")], START)
    machine.on_duplicate_name_peer(
        address_of("b"), instance_of("a", start=1), START, is_member=True
    )
    assert machine.phase is MembershipPhase.NAME_LOST
    assert machine.drain_events() == [NameConflictLost(address_of("b"))]
    machine.on_duplicate_name_peer(
        address_of("c"), instance_of("a", start=1), START, is_member=True
    )
    assert machine.drain_events() == [], "once is enough"

    machine = make_machine("a")
    machine.start(START)
    machine.set_seeds([], START)
    machine.on_duplicate_name_caller(address_of("b"), instance_of("a", start=-1), START)
    assert machine.phase is MembershipPhase.MEMBER
    assert {send.address for send in machine.drain_outgoing()} == {address_of("b")}
    machine.tick(START + 60)
    assert machine.phase is MembershipPhase.MEMBER


NAMES = ("a", "b", "c", "d")


# Milliseconds since 1970, in this decade.
TODAY = 1_790_000_000_000


@pytest.mark.parametrize(
    ("to", "leap"),
    [
        ("a", INCARNATION_JUMP_MAX // 2),
        ("b", INCARNATION_JUMP_MAX // 2),
        ("b", INCARNATION_JUMP_MAX),
    ],
)
def test_incarnation_jump_sent_to_a_member_is_outranked(to: str, leap: int) -> None:
    wire, machines = make_cluster(*NAMES)
    lie = make_record("b", MemberState.DEAD, incarnation=INCARNATION + leap, reported_by="c")
    receive_gossip(machines[to], lie, now=wire.clock())
    wire.run(60)
    assert wire.removals("b") == []
    assert wire.agree()


def test_incarnation_jump_sent_to_a_later_node_is_outranked() -> None:
    wire = Wire()
    wire.add(make_machine("b"))
    later = wire.add(make_machine("a", incarnation=INCARNATION + 500), ["b"])
    wire.run(30)
    highest = INCARNATION + 500 + INCARNATION_JUMP_MAX
    receive_gossip(
        later,
        make_record("b", MemberState.DEAD, incarnation=highest, reported_by="c"),
        now=wire.clock(),
    )
    wire.run(60)
    assert wire.removals("b") == []
    assert names_of(later) == ["a", "b"]


@pytest.mark.parametrize("to", ["a", "b"])
def test_member_after_two_incarnation_jumps_is_still_accepted(to: str) -> None:
    """The others rely on its own acks, not on what is gossiped about it."""
    wire, machines = make_cluster(*NAMES)
    for leaps in (1, 2):
        high = INCARNATION + leaps * INCARNATION_JUMP_MAX
        lie = make_record("b", MemberState.SUSPECT, incarnation=high, reported_by="c")
        receive_gossip(machines[to], lie, now=wire.clock())
    wire.run(20)
    wire.isolate("b")
    wire.run(4)
    wire.heal()
    wire.run(120)
    assert wire.removals("b") == []
    assert wire.agree()


def test_member_after_two_incarnation_jumps_can_change_properties() -> None:
    wire, machines = make_cluster(*NAMES)
    for leaps in (1, 2):
        lie = make_record("b", version=leaps * INCARNATION_JUMP_MAX, properties={"role": "forged"})
        receive_gossip(machines["b"], lie, now=wire.clock())
    machines["b"].set_properties({"role": "own"}, wire.clock())
    wire.run(60)
    assert dict(member_of(machines["c"], "b").properties) == {"role": "own"}


def test_node_with_an_unset_clock_joins() -> None:
    wire = Wire()
    wire.add(make_machine("a", incarnation=TODAY))
    unset = wire.add(make_machine("b", incarnation=0), ["a"])
    wire.run(30)
    assert names_of(unset) == ["a", "b"]


def doubt(machine: Membership, name: str, now: float) -> None:
    """Have a machine receive a valid suspicion of a member."""
    record = machine._member_table.entries[name].record
    receive_gossip(
        machine,
        msgspec.structs.replace(record, state=MemberState.SUSPECT, reported_by="c"),
        now=now,
    )


@pytest.mark.parametrize("what", ["incarnation", "version"])
def test_member_at_the_claim_limit_can_still_refute(what: str) -> None:
    wire, machines = make_cluster(*NAMES)
    if what == "version":
        highest = PropertiesRequestPacket(version=CLAIM_MAX, instance=instance_of("b"))
        exchange(machines["b"], highest, now=wire.clock(), name="c")
    else:
        receive_gossip(
            machines["b"],
            make_record("b", MemberState.DEAD, incarnation=CLAIM_MAX),
            now=wire.clock(),
        )
    wire.run(30)
    doubt(machines["a"], "b", wire.clock())
    wire.run(60)
    assert wire.removals("b") == []
    assert wire.agree()


def test_relay_cannot_forge_the_incarnation_of_a_member() -> None:
    """A relay knows the number of the request, and so can forge the reply."""
    wire, machines = make_cluster(*NAMES)
    asker, record = machines["a"], make_record("b")
    asker._prober.probe(asker._member_table.active["b"], wire.clock())
    (ping,) = [
        packet.packet for packet in pop_sent(asker) if isinstance(packet.packet, ProbePacket)
    ]
    asker._prober.tick(wire.clock() + asker.config.indirect_probe_delay_s)
    forged = ProbeAckPacket(
        nonce=ping.nonce,
        name="b",
        instance=record.instance,
        leave_digest=record.leave_digest,
        incarnation=CLAIM_MAX + 5,
        is_member=True,
    )
    exchange(asker, forged, now=wire.clock(), name="c")
    assert member_of(asker, "b").incarnation == record.incarnation
