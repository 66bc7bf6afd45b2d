"""Leaps of incarnations and versions: whoever is lied about can always have the last word.

A leap that one node believes must be one that the member itself believes too, and that all others
believe of it afterwards. Else it could not object, or nobody would hear it.
"""

import msgspec
import pytest

from postroad.cluster.membership import Membership, State
from postroad.cluster.membership.packets import Ack, Ping, Pull
from postroad.cluster.membership.records import CLAIM_MAX
from postroad.cluster.membership.roster import LEAP_MAX
from tests.support.cluster.membership import (
    INCARNATION,
    Wire,
    ask,
    instance_of,
    make_cluster,
    make_machine,
    make_record,
    names_of,
    take_said,
    tell,
)

NAMES = ("a", "b", "c", "d")
# Milliseconds since 1970, in this decade.
TODAY = 1_790_000_000_000


@pytest.mark.parametrize(
    ("to", "leap"), [("a", LEAP_MAX // 2), ("b", LEAP_MAX // 2), ("b", LEAP_MAX)]
)
def test_a_leap_told_to_another_or_to_the_member_is_outranked(to: str, leap: int) -> None:
    wire, machines = make_cluster(*NAMES)
    lie = make_record("b", State.DEAD, incarnation=INCARNATION + leap, witness="c")
    tell(machines[to], lie, now=wire.clock())
    wire.run(60)
    assert wire.removals("b") == []
    assert wire.agree()


def test_a_leap_told_to_a_node_that_began_later_is_outranked() -> None:
    wire = Wire()
    wire.add(make_machine("b"))
    later = wire.add(make_machine("a", incarnation=INCARNATION + 500), ["b"])
    wire.run(30)
    highest = INCARNATION + 500 + LEAP_MAX
    tell(later, make_record("b", State.DEAD, incarnation=highest, witness="c"), now=wire.clock())
    wire.run(60)
    assert wire.removals("b") == []
    assert names_of(later) == ["a", "b"]


@pytest.mark.parametrize("to", ["a", "b"])
def test_a_member_that_leapt_twice_at_once_is_still_believed(to: str) -> None:
    """The others do not believe what is told of it, but what it answers them."""
    wire, machines = make_cluster(*NAMES)
    for leaps in (1, 2):
        high = INCARNATION + leaps * LEAP_MAX
        lie = make_record("b", State.SUSPECT, incarnation=high, witness="c")
        tell(machines[to], lie, now=wire.clock())
    wire.run(20)
    wire.isolate("b")
    wire.run(4)
    wire.heal()
    wire.run(120)
    assert wire.removals("b") == []
    assert wire.agree()


def test_who_was_made_to_count_two_leaps_at_once_can_still_change_its_properties() -> None:
    wire, machines = make_cluster(*NAMES)
    for leaps in (1, 2):
        lie = make_record("b", version=leaps * LEAP_MAX, properties={"role": "forged"})
        tell(machines["b"], lie, now=wire.clock())
    machines["b"].set_properties({"role": "own"}, wire.clock())
    wire.run(60)
    member = machines["c"].member("b")
    assert member is not None
    assert dict(member.properties) == {"role": "own"}


def test_a_node_whose_clock_was_never_set_finds_the_others() -> None:
    wire = Wire()
    wire.add(make_machine("a", incarnation=TODAY))
    unset = wire.add(make_machine("b", incarnation=0), ["a"])
    wire.run(30)
    assert names_of(unset) == ["a", "b"]


def doubt(machine: Membership, name: str, now: float) -> None:
    """Let a machine hear an honest doubt about a member as it knows it."""
    known = machine._roster.entries[name].record
    tell(machine, msgspec.structs.replace(known, state=State.SUSPECT, witness="c"), now=now)


@pytest.mark.parametrize("what", ["incarnation", "version"])
def test_a_member_that_counts_as_high_as_others_may_claim_can_still_object(what: str) -> None:
    wire, machines = make_cluster(*NAMES)
    if what == "version":
        highest = Pull(version=CLAIM_MAX, instance=instance_of("b"))
        ask(machines["b"], highest, now=wire.clock(), name="c")
    else:
        tell(machines["b"], make_record("b", State.DEAD, incarnation=CLAIM_MAX), now=wire.clock())
    wire.run(30)
    doubt(machines["a"], "b", wire.clock())
    wire.run(60)
    assert wire.removals("b") == []
    assert wire.agree()


def test_who_was_asked_to_try_cannot_speak_for_a_member() -> None:
    """A relay knows the number of the question, and so can forge the answer."""
    wire, machines = make_cluster(*NAMES)
    asker, known = machines["a"], make_record("b")
    asker._prober.probe(asker._roster.active["b"], wire.clock())
    (ping,) = [it.packet for it in take_said(asker) if isinstance(it.packet, Ping)]
    asker._prober.tick(wire.clock() + asker.config.indirect_after_s)
    forged = Ack(
        number=ping.number,
        name="b",
        instance=known.instance,
        farewell=known.farewell,
        incarnation=CLAIM_MAX + 5,
        is_member=True,
    )
    ask(asker, forged, now=wire.clock(), name="c")
    member = asker.member("b")
    assert member is not None
    assert member.incarnation == known.incarnation
