"""Retries, time budgets, depth."""

import math

import pytest

from postroad.core.errors import ConfigError
from postroad.services.policies import RetryPolicy, TimeBudget, choose_timeout, is_too_deep
from tests.support.cases import each, naming

ON = RetryPolicy(is_enabled=True)


def test_retries_pause_up_to_a_limit_or_not_at_all() -> None:
    pauses = [ON.pause_before(number, is_retryable=True) for number in range(1, 7)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, None]
    assert ON.pause_before(1, is_retryable=False) is None
    assert RetryPolicy().pause_before(1, is_retryable=True) is None
    assert ON.pause_before(1, is_retryable=True, retries=0) is None
    assert ON.pause_before(9, is_retryable=True, retries=9) == 1.0
    assert ON.pause_before(5_000, is_retryable=True, retries=9_999) == 1.0
    for settings in ({"retries": -1}, {"delay_s": math.inf}, {"factor": math.nan}):
        with naming(settings), pytest.raises(ConfigError, match=next(iter(settings))):
            RetryPolicy(**settings)


@each(
    ((1.0, 2.0, 3.0), 1.0),
    ((0.0, 2.0, 3.0), 0.0),
    ((None, 2.0, 3.0), 2.0),
    ((None, None, 3.0), 3.0),
    ((None, None, None), 0.0),
    ((-1.0, 2.0, 3.0), 0.0),
)
def test_who_says_how_long_a_call_may_take(
    said: tuple[float | None, float | None, float | None], timeout_s: float
) -> None:
    assert choose_timeout(*said) == timeout_s


def test_nested_calls_get_what_is_left_of_the_budget() -> None:
    budget = TimeBudget(10.0, started_at=100.0)
    assert budget.timeout_for(3.0, 104.0) == 3.0
    assert budget.timeout_for(8.0, 104.0) == 6.0
    assert budget.timeout_for(0.0, 104.0) == 6.0
    assert not budget.is_spent(109.9)
    assert budget.is_spent(110.0)
    budget = TimeBudget(0.0, started_at=100.0)
    assert budget.timeout_for(3.0, 1e9) == 3.0
    assert budget.timeout_for(0.0, 1e9) == 0.0
    assert not budget.is_spent(1e9)
    for level, level_max, expected in ((1, 0, False), (2, 3, False), (3, 3, True), (4, 3, True)):
        assert is_too_deep(level, level_max) is expected, (level, level_max, expected)
