"""Time: deadlines, standing still, and doing nothing when there is nothing to do."""

import pytest

from postroad.cluster.membership import MembershipConfig, State
from tests.support.cluster.membership import (
    INCARNATION,
    START,
    address_of,
    instance_of,
    make_cluster,
    make_machine,
    make_record,
    state_of,
    tell,
)

CONFIG = MembershipConfig()


def test_news_after_a_long_quiet_time_are_no_standstill_and_leave_a_deadline_ahead() -> None:
    wire, machines = make_cluster("a", "b", "c")
    machine = machines["a"]
    wire.run(100)
    tell(machine, make_record("z"), now=wire.clock())
    assert machine.deadline() >= wire.clock()
    wire.run(100)
    wire.run(1)
    assert [machine.counters.standstills for machine in machines.values()] == [0, 0, 0]


def test_a_contact_that_dies_after_a_long_time_is_no_sign_of_standing_still() -> None:
    wire, machines = make_cluster("a", "b", "c")
    wire.run(100)
    wire.stop(machines["a"])
    wire.run(60)
    assert machines["c"].counters.standstills == 0
    assert machines["c"].member("a") is None


@pytest.mark.parametrize(("late_s", "standstills"), [(0.0, 0), (0.2, 0), (0.3, 1), (100.0, 1)])
def test_who_wakes_up_late_has_stood_still(late_s: float, standstills: int) -> None:
    machine = make_machine("a")
    machine.start(START)
    machine.set_contacts([], START)
    machine.tick(machine.deadline() + late_s)
    assert machine.counters.standstills == standstills
    assert machine.health == standstills


def test_a_packet_that_comes_first_after_a_standstill_shows_it_once() -> None:
    wire, machines = make_cluster("a", "b")
    late = machines["a"].deadline() + 50
    tell(machines["a"], now=late)
    machines["a"].tick(late)
    assert machines["a"].counters.standstills == 1
    assert wire.removals("b") == []


def test_time_spent_standing_still_counts_against_nobody() -> None:
    wire, machines = make_cluster("a", "b", "c")
    machine = machines["a"]
    wire.stop(machines["b"])
    assert wire.run_until(lambda: state_of(machine, "b") is State.SUSPECT)
    machine.tick(machine.deadline() + CONFIG.failure_timeout_s + 1)
    assert state_of(machine, "b") is State.SUSPECT


def test_time_spent_standing_still_does_not_take_a_name_away() -> None:
    wire, machines = make_cluster("a", "b")
    machine = machines["a"]
    tell(machine, make_record("b", start=1, incarnation=INCARNATION + 1), now=wire.clock())
    machine.tick(machine.deadline() + 50)
    member = machine.member("b")
    assert member is not None
    assert member.instance == instance_of("b")


def test_a_whole_cluster_that_stood_still_removes_nobody() -> None:
    wire, machines = make_cluster("a", "b", "c", "d")
    for machine in machines.values():
        machine.set_contacts([address_of("a")], wire.clock())
    wire.clock.advance(300)
    wire.run(60)
    assert not any(wire.removals(name) for name in machines)
    assert all(machine.counters.standstills for machine in machines.values())


def test_one_node_that_stands_still_again_and_again_removes_nobody_else() -> None:
    wire, _machines = make_cluster("a", "b", "c", "d")
    sleeper = wire.nodes.pop(address_of("d"))
    for _ in range(20):
        wire.run(3)
        sleeper.tick(wire.clock())
        wire.nodes[address_of("d")] = sleeper
        wire.pump()
        del wire.nodes[address_of("d")]
    assert not any(wire.removals(name) for name in "abc")
    assert sleeper.counters.standstills >= 15
    assert sleeper.health > 0


def test_a_quiet_cluster_says_little() -> None:
    wire, machines = make_cluster(*(f"node-{number}" for number in range(8)))
    wire.run(30)
    before = sum(machine.counters.packets_sent for machine in machines.values())
    wire.run(60)
    sent = sum(machine.counters.packets_sent for machine in machines.values()) - before
    # A ping and its answer each second, an exchange with its answer every ten.
    assert sent <= 8 * (2 * 60 + 2 * 8)
