"""Nodes that die, restart or are cut off, with machines on a wire."""

from postroad.cluster.membership import MembershipConfig, State
from tests.support.cluster.membership import (
    INCARNATION,
    instance_of,
    make_cluster,
    make_machine,
    names_of,
    state_of,
)


def test_a_node_that_dies_is_suspected_then_removed_by_everybody() -> None:
    wire, machines = make_cluster("a", "b", "c", "d")
    wire.stop(machines["d"])
    assert wire.run_until(lambda: state_of(machines["a"], "d") is State.SUSPECT, limit_s=10)
    assert wire.run_until(
        lambda: all(machines[name].member("d") is None for name in "abc"), limit_s=12
    )
    assert sorted(wire.removals("d")) == ["a", "b", "c"]
    assert not any(wire.removals(name) for name in "abc")


def test_a_restart_at_the_same_address_replaces_at_once() -> None:
    wire, machines = make_cluster("a", "b", "c")
    wire.stop(machines["c"])
    wire.add(make_machine("c", start=1, incarnation=INCARNATION + 5), ["a"])
    wire.run(3)
    for name in "ab":
        member = machines[name].member("c")
        assert member is not None
        assert member.instance == instance_of("c", start=1)
    assert sorted(wire.removals("c")) == ["a", "b"], "removed and added, once each"


def test_a_member_that_was_only_cut_off_for_a_while_is_never_removed() -> None:
    wire, machines = make_cluster("a", "b", "c", "d")
    wire.isolate("d")
    assert wire.run_until(lambda: state_of(machines["a"], "d") is State.SUSPECT, limit_s=10)
    wire.heal()
    assert wire.run_until(lambda: state_of(machines["a"], "d") is State.ALIVE, limit_s=5)
    assert wire.removals("d") == []
    assert machines["d"].counters.refutations >= 1


def test_halves_that_thought_each_other_dead_find_together_without_contacts() -> None:
    wire, machines = make_cluster("a", "b", "c", "d")
    for machine in machines.values():
        machine.set_contacts([], wire.clock())
    wire.cut("a", "b")
    assert wire.run_until(lambda: names_of(machines["a"]) == ["a", "b"])
    assert wire.run_until(lambda: names_of(machines["c"]) == ["c", "d"])
    wire.heal()
    assert wire.run_until(lambda: wire.agree() and len(machines["a"].members()) == 4, limit_s=60)


def test_who_was_declared_dead_long_ago_is_forgotten() -> None:
    config = MembershipConfig(tombstone_s=20)
    wire, machines = make_cluster("a", "b", config=config)
    wire.stop(machines["b"])
    wire.run(20)
    assert machines["a"].member("b") is None
    assert "b" in machines["a"]._roster.entries
    wire.run(40)
    assert machines["a"]._roster.entries == {}


def test_where_datagrams_are_blocked_streams_keep_members_alive() -> None:
    wire, machines = make_cluster("a", "b", "c")
    wire.loses = lambda leg: not leg.is_stream
    wire.run(60)
    assert all(len(machine.members()) == 3 for machine in machines.values())
    assert all(machine.counters.probes_by_stream for machine in machines.values())
    assert wire.removals("a") == wire.removals("b") == wire.removals("c") == []


def test_where_two_cannot_reach_each_other_a_third_keeps_them_alive() -> None:
    wire, machines = make_cluster("a", "b", "c")
    wire.loses = lambda leg: {leg.sender, leg.receiver} == {"a", "b"}
    wire.run(60)
    assert all(len(machine.members()) == 3 for machine in machines.values())
    assert machines["a"].counters.suspicions == machines["b"].counters.suspicions == 0
