"""Circuit breakers."""

import math

import pytest

from postroad.core.errors import ConfigError
from postroad.services.breakers import Breaker, BreakerConfig, BreakerState, is_blamed
from tests.support.cases import each, naming

CONFIG = BreakerConfig(threshold=0.5, window_s=60, requests_min=4, half_open_s=10)


def make_breaker(results: str = "", now: float = 0) -> Breaker:
    breaker = Breaker(CONFIG, 0)
    call(breaker, results, now)
    return breaker


def call(breaker: Breaker, results: str, now: float = 0) -> None:
    """Calls one after another: `+` succeeds, `-` fails."""
    for result in results:
        ticket = breaker.begin(now)
        end = breaker.succeed if result == "+" else breaker.fail
        end(ticket, now)


@each(
    ("---", BreakerState.CLOSED),
    ("----", BreakerState.OPEN),
    ("++--", BreakerState.OPEN),
    ("--++", BreakerState.OPEN),
    ("+++-+-", BreakerState.CLOSED),
)
def test_too_many_failures_open_it(results: str, state: BreakerState) -> None:
    breaker = make_breaker(results)
    assert breaker.state is state
    assert breaker.is_accepting == (state is BreakerState.CLOSED)


def test_failures_are_counted_by_window_and_blame() -> None:
    breaker = make_breaker("---", now=59)
    call(breaker, "-", now=60)
    assert breaker.state is BreakerState.CLOSED
    assert (breaker.requests, breaker.rate) == (1, 1.0)
    breaker = make_breaker("----")
    call(breaker, "+-+-", now=5)
    assert (breaker.state, breaker.deadline()) == (BreakerState.OPEN, 10)
    assert repr(breaker) == "<Breaker open: 4 of 4 failed>"
    for code, failed_at, blamed in (
        (500, "n1", True),
        (503, None, True),
        (None, None, True),
        (404, "n1", False),
        (500, "n2", False),
    ):
        assert is_blamed(code, failed_at=failed_at, endpoint="n1") is blamed, (
            code,
            failed_at,
            blamed,
        )
    for settings in ({"threshold": 0}, {"threshold": 1.1}, {"window_s": 0}, {"requests_min": 0}):
        with naming(settings), pytest.raises(ConfigError, match=next(iter(settings))):
            BreakerConfig(**settings)


def test_one_call_is_tried_after_a_while() -> None:
    breaker = make_breaker("----", now=5)
    assert breaker.deadline() == 15
    breaker.tick(14.9)
    assert not breaker.is_accepting
    breaker.tick(15)
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.is_accepting
    breaker.begin(16)
    assert breaker.state is BreakerState.TRYING
    assert not breaker.is_accepting


def test_trial_closes_or_opens_the_breaker() -> None:
    breaker = make_breaker("----")
    breaker.tick(10)
    call(breaker, "+", now=11)
    assert breaker.state is BreakerState.CLOSED
    assert (breaker.requests, breaker.rate, breaker.deadline()) == (0, 0.0, math.inf)
    breaker = make_breaker("----")
    breaker.tick(10)
    call(breaker, "-", now=11)
    assert breaker.state is BreakerState.OPEN
    assert breaker.deadline() == 21
    breaker = make_breaker("----")
    breaker.tick(10)
    lost = breaker.begin(11)
    breaker.tick(21)
    assert breaker.state is BreakerState.HALF_OPEN
    breaker.succeed(lost, 22)
    assert breaker.state is BreakerState.HALF_OPEN


def test_answers_to_calls_from_before_count_no_more() -> None:
    breaker = make_breaker()
    late = [breaker.begin(0) for _ in range(3)]
    call(breaker, "----")
    breaker.tick(10)
    trial = breaker.begin(10)
    breaker.fail(late[0], 10)
    breaker.succeed(late[1], 10)
    assert breaker.state is BreakerState.TRYING
    breaker.succeed(trial, 10)
    breaker.fail(late[2], 10)
    assert (breaker.state, breaker.requests) == (BreakerState.CLOSED, 0)
