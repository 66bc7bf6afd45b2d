"""Suspicion timeouts, local health and round-trip estimates."""

import math

import pytest

from postroad.cluster.membership import MembershipConfig
from postroad.cluster.membership.config import LocalHealth, RoundTripEstimator, Suspicion

CONFIG = MembershipConfig(
    failure_timeout_s=10.0, confirmed_failure_timeout_s=4.0, suspicion_confirmations=3
)
LONGEST_S, SHORTEST_S = 10.0, 4.0


def suspect(size: int = 100, started: float = 50.0) -> Suspicion:
    return Suspicion(CONFIG, started, "first", size)


def left_s(suspicion: Suspicion, started: float = 50.0) -> float:
    return suspicion.deadline - started


def test_confirmations_shorten_the_timeout_down_to_the_minimum() -> None:
    suspicion = suspect()
    waits = [left_s(suspicion)]
    for reporter in ("second", "third", "fourth"):
        assert suspicion.confirm(reporter)
        waits.append(left_s(suspicion))

    assert waits == sorted(waits, reverse=True)
    assert len(set(waits)) == 4
    assert waits[1] == pytest.approx(LONGEST_S - 6.0 * math.log(2) / math.log(4))
    assert waits[-1] == pytest.approx(SHORTEST_S)


def test_confirm_by_the_same_or_a_surplus_reporter_is_ignored() -> None:
    suspicion = suspect()
    assert not suspicion.confirm("first")
    assert suspicion.confirm("second")
    assert not suspicion.confirm("second")

    suspicion = suspect()
    for reporter in ("second", "third", "fourth"):
        suspicion.confirm(reporter)
    assert not suspicion.confirm("fifth")
    assert left_s(suspicion) == pytest.approx(SHORTEST_S)


def test_confirmations_needed_depend_on_the_cluster_size(subtests: pytest.Subtests) -> None:
    for size in [1, 2]:
        with subtests.test(size=size):
            suspicion = suspect(size)
            assert left_s(suspicion) == LONGEST_S
            suspicion.confirm("second")
            assert left_s(suspicion) == LONGEST_S

    suspicion = suspect(3)
    assert suspicion.confirm("second")
    assert left_s(suspicion) == pytest.approx(SHORTEST_S)
    assert not suspicion.confirm("third")


def test_stall_extends_and_reported_death_shortens_the_suspicion() -> None:
    suspicion = suspect()
    suspicion.extend_deadlines(3.0)
    assert left_s(suspicion) == LONGEST_S + 3.0
    assert suspicion.renotify_at == 53.0 + SHORTEST_S / 2

    suspicion = suspect()
    assert suspicion.use_min_timeout()
    assert left_s(suspicion) == SHORTEST_S
    assert not suspicion.use_min_timeout()

    assert left_s(suspect()) == LONGEST_S


def test_renotify_is_due_once_at_half_the_minimum_timeout() -> None:
    suspicion = suspect()
    halfway = 50.0 + SHORTEST_S / 2
    assert suspicion.renotify_at == halfway
    assert not suspicion.is_renotify_due(halfway - 0.01)
    assert suspicion.is_renotify_due(halfway)
    assert not suspicion.is_renotify_due(halfway)
    assert suspicion.renotify_at == math.inf


def test_health_score_rises_to_the_maximum_and_falls_by_one() -> None:
    health = LocalHealth(8)
    assert (health.score, health.timeout_multiplier) == (0, 1)

    health = LocalHealth(3)
    health.worsen()
    assert health.timeout_multiplier == 2
    for _ in range(5):
        health.worsen()
    assert health.score == 3
    scores = []
    for _ in range(4):
        health.improve()
        scores.append(health.score)
    assert scores == [2, 1, 0, 0]


def test_round_trip_starts_at_the_first_sample_and_moves_slowly() -> None:
    trip = RoundTripEstimator()
    assert trip.smoothed_s is None
    assert trip.upper_bound_s == 0.0
    trip.add(0.1)
    assert trip.smoothed_s == 0.1
    assert trip.upper_bound_s == pytest.approx(0.3)
    trip.add(0.2)
    assert trip.smoothed_s == pytest.approx(0.1 + 0.1 / 8)
    assert trip.upper_bound_s == pytest.approx(0.1125 + 4 * (0.05 + (0.1 - 0.05) / 4))


def test_round_trip_bound_narrows_when_steady_and_widens_when_varying() -> None:
    trip = RoundTripEstimator()
    for _ in range(100):
        trip.add(0.1)
    assert trip.smoothed_s == pytest.approx(0.1)
    assert trip.upper_bound_s == pytest.approx(0.1, rel=1e-3)

    steady, varying = RoundTripEstimator(), RoundTripEstimator()
    for number in range(50):
        steady.add(0.1)
        varying.add(0.05 if number % 2 else 0.15)
    assert varying.upper_bound_s > 2 * steady.upper_bound_s
