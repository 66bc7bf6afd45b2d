"""Functions that get so much time and no more."""

from __future__ import annotations

import itertools
import signal
import threading
import time

import pytest

from postroad.core.errors import UsageError
from postroad.pipeline.task_functions import FunctionTimeoutError, TimeLimitedFunction

LIMIT_S = 0.02


def loop_for_ever(segment: object) -> None:
    for _ in itertools.count():
        time.sleep(0)


def swallow_everything(segment: object) -> None:
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            continue


def swallow_even_that(segment: object) -> str:
    try:
        loop_for_ever(segment)
    except BaseException:
        loop_for_ever(segment)
    return "never"


@pytest.mark.parametrize("function", [loop_for_ever, swallow_everything, swallow_even_that])
def test_a_function_that_does_not_end_is_ended(function: object) -> None:
    with pytest.raises(FunctionTimeoutError, match=r"it took more than 0\.02 s"):
        TimeLimitedFunction(function, LIMIT_S)({})  # type: ignore[arg-type]


def test_another_thread_is_refused() -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            TimeLimitedFunction(loop_for_ever, LIMIT_S)({})
        except UsageError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert len(caught) == 1


def test_in_time_nothing_is_noticed_of_it() -> None:
    assert TimeLimitedFunction(lambda segment, n: {**segment, "n": n}, 10.0)({"a": 1}, n=2) == {
        "a": 1,
        "n": 2,
    }
    with pytest.raises(KeyError):
        TimeLimitedFunction(lambda segment: segment["no"], 10.0)({})


def test_an_end_in_the_last_moment_harms_nobody_afterwards() -> None:
    function = TimeLimitedFunction(lambda segment: time.sleep(segment), 0.001)
    outcomes = set()
    for number in range(60):
        try:
            function(0.0008 + number * 0.00001)
            outcomes.add("in time")
        except FunctionTimeoutError:
            outcomes.add("too long")
        # A late alarm must not arrive out here.
        for _ in range(50):
            time.sleep(0)
    assert outcomes
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
