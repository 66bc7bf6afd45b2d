"""A function called for many segments, whatever it raises."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.pipeline.vectorized.task_calls import drop_tracebacks, map_function


class Ended(StopIteration):
    """Somebody's own."""


ERRORS = (ValueError, StopIteration, Ended, StopAsyncIteration, RecursionError, MemoryError)
WHAT = st.none() | st.sampled_from(ERRORS)


@given(st.lists(WHAT, max_size=12))
def test_what_is_returned_and_raised_is_in_its_place(course: list[type[Exception] | None]) -> None:
    errors = [None if kind is None else kind(place) for place, kind in enumerate(course)]

    def function(place: int) -> str:
        error = errors[place]
        if error is not None:
            raise error
        return f"result {place}"

    results, raised = map_function(function, range(len(course)))
    assert results == [
        f"result {place}" if error is None else None for place, error in enumerate(errors)
    ]
    assert raised == {place: error for place, error in enumerate(errors) if error is not None}


def test_what_a_stop_iteration_says_is_kept() -> None:
    def stop(segment: int) -> None:
        raise Ended(segment)

    _, raised = map_function(stop, [7])
    assert repr(raised[0]) == "Ended(7)"


def test_it_is_called_once_for_each_in_order() -> None:
    calls: list[int] = []

    def refuse_some(segment: int) -> int:
        calls.append(segment)
        if segment % 3 == 0:
            raise StopIteration
        return segment

    map_function(refuse_some, range(10))
    assert calls == list(range(10))


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), GeneratorExit(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_not_about_a_segment_goes_through(error: BaseException, place: int) -> None:
    calls: list[int] = []

    def interrupt(segment: int) -> None:
        calls.append(segment)
        if segment == place:
            raise error
        raise ValueError("an ordinary one")

    with pytest.raises(type(error)) as found:
        map_function(interrupt, range(3))
    assert found.value is error
    assert calls == list(range(place + 1))


# Exceptions that are kept do not keep segments.


class Thing:
    """Something that tells when it is gone."""


def fail(segment: object) -> None:
    raise ValueError("no")


def fail_because(segment: object) -> None:
    try:
        fail(segment)
    except ValueError as error:
        raise RuntimeError("of that") from error


def fail_while_failing(segment: object) -> None:
    try:
        fail_because(segment)
    except RuntimeError:
        raise KeyError("too") from None


def fail_in_a_group(segment: object) -> None:
    _, raised = map_function(fail_while_failing, [segment])
    raise ExceptionGroup("all of them", list(raised.values()))


def fail_with_one_never_raised(segment: object) -> None:
    reason = OSError("between")
    try:
        fail(segment)
    except ValueError as error:
        reason.__cause__ = error
    raise RuntimeError("last") from reason


FAILING = [fail, fail_because, fail_while_failing, fail_in_a_group, fail_with_one_never_raised]


def test_exceptions_keep_no_segments() -> None:
    for function in FAILING:
        things = [Thing() for _ in range(5)]
        watched = [weakref.ref(thing) for thing in things]
        gc.disable()
        try:
            _, raised = map_function(function, things)
            drop_tracebacks(*raised.values())
            things.clear()
            assert [ref() for ref in watched] == [None] * 5, function
        finally:
            gc.enable()
        assert len(raised) == 5, function


def test_exceptions_in_a_circle() -> None:
    _, raised = map_function(fail, [1, 2])
    raised[0].__context__, raised[1].__context__ = raised[1], raised[0]
    drop_tracebacks(*raised.values())
    assert [error.__traceback__ for error in raised.values()] == [None, None]


def test_what_is_behind_an_exception_stays() -> None:
    _, raised = map_function(fail_because, [1])
    drop_tracebacks(raised[0])
    assert repr(raised[0].__cause__) == "ValueError('no')"
