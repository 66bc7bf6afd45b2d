"""Pauses between attempts: doubling, bounded, jittered."""

import pytest

from postroad.core.timing import backoff


def test_pauses_double_up_to_the_maximum_and_spread_over_their_upper_half(
    subtests: pytest.Subtests,
) -> None:
    for attempt, whole in [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (6, 1.0)]:
        assert backoff(attempt, initial_delay_s=0.1, max_delay_s=1.0, jitter=1.0) == pytest.approx(
            whole
        ), attempt

    for chance in [0.0, 0.25, 0.5, 1.0]:
        with subtests.test(chance=chance):
            pause = backoff(3, initial_delay_s=0.1, max_delay_s=10.0, jitter=chance)
            assert pause == pytest.approx(0.4 * (0.5 + chance / 2))

    assert backoff(1, initial_delay_s=5.0, max_delay_s=1.0, jitter=1.0) == 1.0

    for attempt in [33, 1_000, 10**9]:
        assert backoff(attempt, initial_delay_s=0.05, max_delay_s=2.0, jitter=0.0) == 1.0, attempt
