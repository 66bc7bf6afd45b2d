"""How long a suspected member may take to speak up."""

import math

import pytest

from postroad.cluster.membership import MembershipConfig
from postroad.cluster.membership.suspicion import Suspicion

CONFIG = MembershipConfig(failure_timeout_s=10.0, confirmed_failure_timeout_s=4.0, confirmations=3)
LONGEST_S, SHORTEST_S = 10.0, 4.0


def suspect(size: int = 100, started: float = 50.0) -> Suspicion:
    return Suspicion(CONFIG, started, "first", size)


def left_s(suspicion: Suspicion, started: float = 50.0) -> float:
    return suspicion.deadline - started


def test_one_accuser_waits_longest() -> None:
    assert left_s(suspect()) == LONGEST_S


def test_each_confirmation_brings_the_end_nearer_and_the_last_one_to_the_shortest() -> None:
    suspicion = suspect()
    waits = [left_s(suspicion)]
    for accuser in ("second", "third", "fourth"):
        assert suspicion.confirm(accuser)
        waits.append(left_s(suspicion))

    assert waits == sorted(waits, reverse=True)
    assert len(set(waits)) == 4
    assert waits[1] == pytest.approx(LONGEST_S - 6.0 * math.log(2) / math.log(4))
    assert waits[-1] == pytest.approx(SHORTEST_S)


def test_the_same_accuser_counts_once() -> None:
    suspicion = suspect()
    assert not suspicion.confirm("first")
    assert suspicion.confirm("second")
    assert not suspicion.confirm("second")


def test_more_confirmations_than_needed_are_no_news() -> None:
    suspicion = suspect()
    for accuser in ("second", "third", "fourth"):
        suspicion.confirm(accuser)
    assert not suspicion.confirm("fifth")
    assert left_s(suspicion) == pytest.approx(SHORTEST_S)


@pytest.mark.parametrize("size", [1, 2])
def test_where_nobody_can_confirm_the_longest_stays(size: int) -> None:
    suspicion = suspect(size)
    assert left_s(suspicion) == LONGEST_S
    suspicion.confirm("second")
    assert left_s(suspicion) == LONGEST_S


def test_in_a_cluster_of_three_one_confirmation_is_enough() -> None:
    suspicion = suspect(3)
    assert suspicion.confirm("second")
    assert left_s(suspicion) == pytest.approx(SHORTEST_S)
    assert not suspicion.confirm("third")


def test_a_death_declared_elsewhere_hastens_once() -> None:
    suspicion = suspect()
    assert suspicion.hasten()
    assert left_s(suspicion) == SHORTEST_S
    assert not suspicion.hasten()


def test_time_spent_standing_still_does_not_count() -> None:
    suspicion = suspect()
    suspicion.postpone(3.0)
    assert left_s(suspicion) == LONGEST_S + 3.0


def test_the_member_is_reminded_once_half_way_of_the_shortest_time() -> None:
    suspicion = suspect()
    half_way = 50.0 + SHORTEST_S / 2
    assert suspicion.reminder == half_way
    assert not suspicion.is_reminder_due(half_way - 0.01)
    assert suspicion.is_reminder_due(half_way)
    assert not suspicion.is_reminder_due(half_way)
    assert suspicion.reminder == math.inf


def test_time_spent_standing_still_puts_the_reminder_off() -> None:
    suspicion = suspect()
    suspicion.postpone(3.0)
    assert suspicion.reminder == 53.0 + SHORTEST_S / 2
