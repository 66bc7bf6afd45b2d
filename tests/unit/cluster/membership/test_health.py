"""The node's doubts about itself, and its estimate of distances."""

import pytest

from postroad.cluster.membership.suspicion import LocalHealth, RoundTripEstimator


def test_doubts_rise_to_the_maximum_and_fall_one_by_one() -> None:
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


def test_the_first_answer_sets_the_estimate_and_later_ones_move_it_slowly() -> None:
    trip = RoundTripEstimator()
    assert trip.smoothed_s is None
    assert trip.upper_bound_s == 0.0
    trip.add(0.1)
    assert trip.smoothed_s == 0.1
    assert trip.upper_bound_s == pytest.approx(0.3)
    trip.add(0.2)
    assert trip.smoothed_s == pytest.approx(0.1 + 0.1 / 8)
    assert trip.upper_bound_s == pytest.approx(0.1125 + 4 * (0.05 + (0.1 - 0.05) / 4))


def test_steady_answers_narrow_the_bound_and_varying_ones_widen_it() -> None:
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
