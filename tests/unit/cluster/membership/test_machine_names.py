"""Two processes of one name, with machines on a wire."""

import pytest

from postroad.cluster.membership import (
    MemberChange,
    Membership,
    MembershipConfig,
    NameContested,
    NameLost,
    Phase,
)
from tests.support.cluster.membership import (
    INCARNATION,
    START,
    Wire,
    address_of,
    instance_of,
    make_cluster,
    make_machine,
    names_of,
)

CONFIG = MembershipConfig()
ELSEWHERE = address_of("elsewhere")


def make_second(name: str, *, start: int = 1) -> Membership:
    """A second process of the name, at another address."""
    return make_machine(name, start=start, incarnation=INCARNATION + 50, address=ELSEWHERE)


def notices(wire: Wire, name: str) -> list[NameContested | NameLost]:
    return [it for it in wire.changes[name] if not isinstance(it, MemberChange)]


def test_who_joins_under_a_taken_name_is_refused_and_nobody_loses_the_holder() -> None:
    wire, machines = make_cluster("a", "b", "c")
    second = wire.add(make_second("c"), ["a"])
    assert wire.run_until(lambda: second.phase is Phase.REFUSED, limit_s=3)
    assert NameLost(address_of("c")) in notices(wire, "c")
    assert NameContested(ELSEWHERE) in notices(wire, "c"), "the holder is told"
    wire.run(30)
    assert wire.removals("c") == []
    assert machines["c"].phase is Phase.MEMBER
    assert second.counters.names_contested >= 1


def test_who_joins_with_the_holder_for_a_contact_is_refused() -> None:
    wire, _machines = make_cluster("a", "c")
    second = wire.add(make_second("c"), ["c"])
    assert second.phase is Phase.REFUSED
    assert second.deadline() == float("inf")
    assert second.take_outgoing() == []


def test_who_joins_under_the_name_of_a_dead_process_waits_until_that_is_sure() -> None:
    wire, machines = make_cluster("a", "b", "c")
    wire.stop(machines["c"])
    second = wire.add(make_second("c"), ["a"])
    assert second.phase is Phase.JOINING
    wire.run(CONFIG.probe_timeout_s - 0.1)
    assert second.phase is Phase.JOINING
    assert wire.run_until(lambda: second.phase is Phase.MEMBER, limit_s=0.2)
    wire.run(5)
    member = machines["a"].member("c")
    assert member is not None
    assert (member.address, member.instance) == (ELSEWHERE, instance_of("c", start=1))
    assert sorted(wire.removals("c")) == ["a", "b"]


@pytest.mark.parametrize("start", [1, -1])
def test_where_two_halves_merge_the_elder_keeps_the_name(start: int) -> None:
    wire = Wire()
    wire.add(make_machine("a"))
    first = wire.add(make_machine("c"), ["a"])
    wire.add(make_machine("b"))
    second = wire.add(make_second("c", start=start), ["b"])
    wire.run(10)
    assert first.phase is second.phase is Phase.MEMBER
    bridge = wire.add(make_machine("d"), ["a", "b"])
    elder, younger = (first, second) if start > 0 else (second, first)
    assert wire.run_until(lambda: younger.phase is Phase.REFUSED, limit_s=30)
    wire.stop(younger)
    assert wire.run_until(wire.agree, limit_s=60)
    assert elder.phase is Phase.MEMBER
    assert names_of(bridge) == ["a", "b", "c", "d"]
    member = bridge.member("c")
    assert member is not None
    assert member.address == elder.own.address


def test_a_refused_connection_while_joining_is_the_end() -> None:
    machine = make_machine("a")
    machine.start(START)
    machine.on_same_name(address_of("b"), instance_of("a", start=1), START, is_member=True)
    assert machine.phase is Phase.REFUSED
    assert machine.take_changes() == [NameLost(address_of("b"))]
    machine.on_same_name(address_of("c"), instance_of("a", start=1), START, is_member=True)
    assert machine.take_changes() == [], "once is enough"


@pytest.mark.parametrize(("age", "phase"), [(1, Phase.MEMBER), (-1, Phase.REFUSED)])
def test_a_refused_connection_of_a_member_tells_who_is_the_elder(age: int, phase: Phase) -> None:
    machine = make_machine("a")
    machine.start(START)
    machine.set_contacts([], START)
    machine.on_same_name(address_of("b"), instance_of("a", start=age), START, is_member=True)
    assert machine.phase is phase
    kind = NameContested if phase is Phase.MEMBER else NameLost
    assert machine.take_changes() == [kind(address_of("b"))]


def test_a_caller_of_this_name_is_asked_before_anything_is_believed() -> None:
    machine = make_machine("a")
    machine.start(START)
    machine.set_contacts([], START)
    machine.hear_of_namesake(address_of("b"), instance_of("a", start=-1), START)
    assert machine.phase is Phase.MEMBER
    assert {send.address for send in machine.take_outgoing()} == {address_of("b")}
    machine.tick(START + 60)
    assert machine.phase is Phase.MEMBER
