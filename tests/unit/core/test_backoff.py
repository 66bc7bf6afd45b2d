"""Pauses between attempts: doubling, bounded, jittered."""

import pytest

from postroad.core.backoff import backoff


@pytest.mark.parametrize(
    ("attempt", "whole"), [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (6, 1.0)]
)
def test_doubles_up_to_the_maximum(attempt: int, whole: float) -> None:
    assert backoff(attempt, first_s=0.1, max_s=1.0, chance=1.0) == pytest.approx(whole)


@pytest.mark.parametrize("chance", [0.0, 0.25, 0.5, 1.0])
def test_chance_spreads_over_the_upper_half(chance: float) -> None:
    pause = backoff(3, first_s=0.1, max_s=10.0, chance=chance)
    assert pause == pytest.approx(0.4 * (0.5 + chance / 2))


def test_first_pause_larger_than_the_maximum() -> None:
    assert backoff(1, first_s=5.0, max_s=1.0, chance=1.0) == 1.0


@pytest.mark.parametrize("attempt", [33, 1_000, 10**9])
def test_many_attempts_do_not_overflow(attempt: int) -> None:
    assert backoff(attempt, first_s=0.05, max_s=2.0, chance=0.0) == 1.0
