"""Lifecycle of the membership state machine: join, membership, leave."""

from collections.abc import Callable

import pytest

from postroad.cluster.membership import (
    Membership,
    MembershipConfig,
    MembershipEvent,
    MembershipEventType,
    MembershipPhase,
    MemberState,
    NameConflictDetected,
    NameConflictLost,
)
from postroad.cluster.membership.gossip import ProbePacket
from postroad.core import Address
from postroad.core.errors import ConfigError
from tests.support.cluster.membership import (
    INCARNATION,
    START,
    Wire,
    address_of,
    exchange,
    join_alone,
    make_cluster,
    make_machine,
    make_record,
    member_of,
    names_of,
    receive_gossip,
    state_of,
)

CONFIG = MembershipConfig()


def phase_of(machine: Membership) -> MembershipPhase:
    """What a call may have changed, though a type checker cannot see it."""
    return machine.phase


def test_membership_not_started_does_nothing() -> None:
    machine = make_machine("a")
    assert machine.phase is MembershipPhase.NEW
    assert machine.deadline() == float("inf")
    assert exchange(machine, ProbePacket(nonce=1, name="b", instance=1)) is None
    machine.tick(START)
    assert machine.drain_outgoing() == []
    assert machine.counters.packets_received == 0

    with pytest.raises(ConfigError):
        make_machine("a", properties={"key": "x" * 20_000})


def test_join_without_seeds_is_immediate_and_delayed_with_silent_ones() -> None:
    machine = join_alone()
    assert phase_of(machine) is MembershipPhase.MEMBER
    assert machine.members() == [machine.local_member]
    assert machine.drain_events() == []

    machine = make_machine("a")
    machine.start(START)
    assert phase_of(machine) is MembershipPhase.JOINING
    machine.tick(START + CONFIG.join_timeout_s - 0.1)
    assert phase_of(machine) is MembershipPhase.JOINING
    machine.tick(START + CONFIG.join_timeout_s)
    assert phase_of(machine) is MembershipPhase.MEMBER

    wire = Wire()
    machine = wire.add(make_machine("a"), ["absent"])
    wire.run(CONFIG.join_timeout_s - 0.1)
    assert phase_of(machine) is MembershipPhase.JOINING
    wire.run(0.2)
    assert phase_of(machine) is MembershipPhase.MEMBER


def test_join_follows_the_first_reply_and_a_late_seed_is_found() -> None:
    wire = Wire()
    first = wire.add(make_machine("a"))
    second = wire.add(make_machine("b", properties={"role": "x"}), ["a"])
    assert second.phase is MembershipPhase.MEMBER
    assert names_of(second) == ["a", "b"]
    wire.run(0.1)
    assert names_of(first) == ["a", "b"]
    (change,) = wire.changes["a"]
    assert isinstance(change, MembershipEvent)
    assert (change.kind, change.member) == (MembershipEventType.ADDED, second.local_member)

    wire = Wire()
    second = wire.add(make_machine("b"), ["a"])
    wire.run(30)
    first = wire.add(make_machine("a"))
    assert wire.run_until(lambda: names_of(first) == names_of(second) == ["a", "b"], limit_s=11)

    wire = Wire()
    first, second = wire.add(make_machine("a")), wire.add(make_machine("b"))
    first.contact(second.local_member.address, wire.clock())
    wire.pump()
    assert names_of(first) == names_of(second) == ["a", "b"]


def test_join_by_a_seed_that_is_this_node_waits_for_other_seeds() -> None:
    wire = Wire()
    machine = make_machine("a")
    wire.nodes[address_of("alias")] = machine
    wire.add(machine, ["alias"])
    assert phase_of(machine) is MembershipPhase.MEMBER
    assert names_of(machine) == ["a"]

    wire = Wire()
    machine = make_machine("a")
    wire.nodes[address_of("alias")] = machine
    wire.add(machine, ["alias", "absent"])
    assert phase_of(machine) is MembershipPhase.JOINING
    wire.run(CONFIG.join_timeout_s)
    assert phase_of(machine) is MembershipPhase.MEMBER


def test_seed_that_was_this_node_first_is_queried_again() -> None:
    wire = Wire()
    machine = make_machine("a")
    wire.nodes[address_of("balancer")] = machine
    wire.add(machine, ["balancer"])
    wire.run(120)
    other = wire.add(make_machine("b"))
    wire.nodes[address_of("balancer")] = other
    assert wire.run_until(lambda: names_of(machine) == ["a", "b"], limit_s=11)


def test_many_nodes_or_two_halves_join_through_one_seed() -> None:
    names = [f"node-{number}" for number in range(12)]
    wire, machines = make_cluster(*names)
    assert all(names_of(machine) == sorted(names) for machine in machines.values())
    assert wire.agree()
    assert not any(wire.removals(name) for name in names)
    assert [machine.health for machine in machines.values()] == [0] * 12

    wire = Wire()
    first, second = wire.add(make_machine("a")), wire.add(make_machine("b"))
    bridge = wire.add(make_machine("c"), ["a"])
    wire.add(make_machine("d"), ["b"])
    wire.run(10)
    assert names_of(first) == ["a", "c"]
    bridge.set_seeds([address_of("d")], wire.clock())
    assert wire.run_until(lambda: wire.agree() and len(second.members()) == 4, limit_s=15)


def test_members_are_looked_up_by_name_and_by_address() -> None:
    wire, machines = make_cluster("a", "b")
    machine = machines["a"]
    assert machine.member("a") == machine.local_member == machine.members()[0]
    member = machine.member("b")
    assert member == machine.members()[1]
    assert machine.member("absent") is None
    assert machine.names_at(address_of("a")) == ["a"]
    assert machine.names_at(address_of("b")) == ["b"]
    assert machine.names_at(Address("nowhere", 1)) == []
    assert machine.round_trips_s() == {"b": 0.0}
    wire.stop(machines["b"])
    assert wire.run_until(lambda: machine.member("b") is None)
    assert machine.round_trips_s() == {}


def test_properties_and_their_removal_reach_all_members() -> None:
    wire, machines = make_cluster("a", "b", "c")
    machines["a"].set_properties({"role": "leader", "zone": "north"}, wire.clock())
    wire.run(1)
    machines["a"].set_properties({"role": None}, wire.clock())
    wire.run(1)
    for machine in machines.values():
        assert dict(member_of(machine, "a").properties) == {"zone": "north"}
    kinds = [change.kind for change in wire.changes["b"] if isinstance(change, MembershipEvent)]
    assert kinds[-2:] == [MembershipEventType.METADATA] * 2


def test_properties_set_while_joining_or_oversized_reach_all_members() -> None:
    wire, machines = make_cluster("a", "b", "c")
    text = "x" * 10_000
    machines["a"].set_properties({"text": text}, wire.clock())
    wire.run(1)
    for machine in machines.values():
        assert member_of(machine, "a").properties["text"] == text

    wire, machines = make_cluster("a", "b", "c")
    wire.loses = lambda leg: leg.is_stream
    machines["a"].set_properties({"text": "x" * 10_000}, wire.clock())
    wire.run(1.5)
    wire.heal()
    wire.run(1.5)
    assert wire.agree()

    wire = Wire()
    first = wire.add(make_machine("a"))
    second = make_machine("b")
    second.set_properties({"role": "x"}, START)
    wire.add(second, ["a"])
    wire.run(1)
    assert dict(member_of(first, "b").properties) == {"role": "x"}


def test_member_that_leaves_is_removed_and_can_rejoin_as_a_new_process() -> None:
    wire, machines = make_cluster("a", "b", "c", "d")
    machines["d"].leave()
    wire.run(1)
    assert machines["d"].phase is MembershipPhase.LEFT
    for name in "abc":
        assert names_of(machines[name]) == ["a", "b", "c"]
        last = wire.changes[name][-1]
        assert isinstance(last, MembershipEvent)
        assert (last.kind, last.member.state) == (MembershipEventType.REMOVED, MemberState.LEFT)
    wire.run(60)
    assert wire.removals("d") == ["a", "b", "c"]

    wire, machines = make_cluster("a", "b")
    machines["b"].leave()
    wire.run(1)
    wire.stop(machines["b"])
    again = wire.add(make_machine("b", start=1, incarnation=INCARNATION + 5), ["a"])
    wire.run(1)
    assert names_of(machines["a"]) == ["a", "b"]
    assert state_of(machines["a"], "b") is MemberState.ALIVE
    assert again.phase is MembershipPhase.MEMBER


def test_leave_while_joining_sends_nothing() -> None:
    machine = make_machine("a")
    machine.start(START)
    machine.leave()
    assert machine.phase is MembershipPhase.LEFT
    assert machine.drain_outgoing() == []
    assert [phase for phase in MembershipPhase if phase.is_running] == [
        MembershipPhase.JOINING,
        MembershipPhase.MEMBER,
    ]


def use_after_leaving() -> dict[str, Callable[[Membership], object]]:
    now = START + 1
    return {
        "tick": lambda machine: machine.tick(now),
        "leave": lambda machine: machine.leave(),
        "receive": lambda machine: receive_gossip(machine, make_record("c"), now=now),
        "meet": lambda machine: machine.contact(address_of("c"), now),
        "namesake": lambda machine: machine.on_duplicate_name_caller(address_of("c"), 1, now),
        "seeds": lambda machine: machine.set_seeds([address_of("c")], now),
        "same name": lambda machine: machine.on_duplicate_name_peer(
            address_of("c"), 1, now, is_member=True
        ),
    }


@pytest.mark.parametrize("use", use_after_leaving())
def test_membership_after_leave_sends_nothing(use: str) -> None:
    machine = join_alone()
    receive_gossip(machine, make_record("b"), now=START)
    machine.leave()
    machine.drain_outgoing()
    machine.drain_events()
    use_after_leaving()[use](machine)
    assert machine.phase is MembershipPhase.LEFT
    assert machine.drain_outgoing() == []
    assert machine.drain_events() == []
    assert machine.deadline() == float("inf")


def test_events_are_drained_once_and_round_trips_only_if_measured() -> None:
    machine = join_alone()
    receive_gossip(machine, make_record("b"), now=START)
    first = machine.drain_events()
    assert len(first) == 1
    assert not isinstance(first[0], NameConflictDetected | NameConflictLost)
    assert machine.drain_events() == []
    assert machine.round_trips_s() == {}
