"""What a task makes of many segments."""

from __future__ import annotations

import traceback
from typing import Any

from postroad.pipeline import FlowAction, FlowCondition, Segment
from postroad.pipeline.functions import Function, InvalidResultError
from postroad.pipeline.routing import SegmentRetryRequestedError
from postroad.pipeline.vectorized.task_calls import TaskOutput, run_task
from tests.support.pipeline.small_jobs import count, program_of

EDGES = [("in", "f"), ("f", "out"), ("f", "out_b")]
CATCH = FlowCondition(source="f", to=["out_b"], exceptions=True, short_circuit=True)


def make_with(
    function: Function, *conditions: FlowCondition, segments: list[Segment] | None = None
) -> TaskOutput:
    program = program_of(EDGES, conditions, f=function, is_odd=is_odd, locate=locate)
    return run_task(program, "f", count() if segments is None else segments)


def is_odd(new: Segment, old: Segment) -> bool:
    return bool(new["n"] % 2)


def locate(error: Exception, segment: Segment) -> Segment:
    return {"in": traceback.extract_tb(error.__traceback__)[-1].name}


def refuse_odd(segment: Segment) -> Segment:
    if segment["n"] % 2:
        raise ValueError(f"{segment['n']} is odd")
    return segment


def numbers(made: TaskOutput) -> list[Any]:
    return [segment.get("n") for segment in made.segments]


def places(made: TaskOutput) -> tuple[list[int] | None, list[int] | None]:
    """Parents and ordinals."""
    return (
        None if made.parents is None else made.parents.tolist(),
        None if made.ordinals is None else made.ordinals.tolist(),
    )


def test_one_for_each_needs_no_places() -> None:
    segments = count()
    made = make_with(lambda segment: segment, segments=segments)
    assert [id(it) for it in made.segments] == [id(it) for it in segments]
    assert places(made) == (None, None)
    assert made.targets is None
    assert not made.failed


def test_a_task_without_a_function_passes_on_what_it_is_given() -> None:
    made = run_task(program_of(EDGES), "in", count())
    assert (numbers(made), places(made)) == ([0, 1, 2, 3], (None, None))


def test_nothing_one_and_several() -> None:
    for conditions in ((), (FlowCondition(source="f", to=["out", "out_b"]),)):
        made = make_with(lambda it: [None, it, [it, it, it], []][it["n"]], *conditions)
        assert numbers(made) == [1, 2, 2, 2], conditions
        assert places(made) == ([1, 2, 2, 2], [0, 0, 1, 2]), conditions


def test_where_none_has_others_there_are_no_ordinals() -> None:
    made = make_with(lambda it: it if it["n"] else None)
    assert (numbers(made), places(made)) == ([1, 2, 3], ([1, 2, 3], None))


def test_what_fails_is_told_by_its_place() -> None:
    for conditions in ((), (FlowCondition(source="f", to=["out"]),)):
        made = make_with(refuse_odd, *conditions)
        assert {at: repr(error) for at, error in made.failed.items()} == {
            1: "ValueError('1 is odd')",
            3: "ValueError('3 is odd')",
        }, conditions
        assert (numbers(made), places(made)) == ([0, 2], ([0, 2], None)), conditions
        assert [error.__traceback__ for error in made.failed.values()] == [None, None], conditions


def test_nonsense_fails() -> None:
    made = make_with(lambda it: [7, "text", [it, 7], it][it["n"]])
    assert sorted(made.failed) == [0, 1, 2]
    assert all(isinstance(error, InvalidResultError) for error in made.failed.values())
    assert (numbers(made), places(made)) == ([3], ([3], None))


def test_what_is_made_of_an_exception_goes_its_own_way() -> None:
    made = make_with(refuse_odd, CATCH)
    assert (numbers(made), places(made)) == ([0, 1, 2, 3], ([0, 1, 2, 3], None))
    assert made.targets == [("out", "out_b"), ("out_b",)] * 2
    assert made.exceptional == {1, 3}
    assert not made.failed


def test_an_exception_that_goes_everywhere_needs_no_targets() -> None:
    everywhere = FlowCondition(source="f", to="all", exceptions=True, short_circuit=True)
    made = make_with(refuse_odd, everywhere)
    assert made.targets is None
    assert made.exceptional == {1, 3}


def test_a_transform_sees_where_it_was_raised() -> None:
    condition = FlowCondition(
        source="f", to=["out"], exceptions=True, short_circuit=True, post_transform="locate"
    )
    made = make_with(refuse_odd, condition)
    assert made.segments == [{"n": 0}, {"in": "refuse_odd"}, {"n": 2}, {"in": "refuse_odd"}]


def test_conditions_say_for_each_where_it_goes() -> None:
    made = make_with(lambda it: it, FlowCondition(source="f", to=["out_b"], predicate="is_odd"))
    assert made.targets == [(), ("out_b",), (), ("out_b",)]
    assert places(made) == ([0, 1, 2, 3], None)


def test_one_that_is_wanted_again_fails_with_all_that_was_made_with_it() -> None:
    again = FlowCondition(
        source="f", to="none", predicate="is_odd", short_circuit=True, action=FlowAction.RETRY
    )
    made = make_with(lambda it: [{"n": 0}, it], again)
    assert sorted(made.failed) == [1, 3]
    assert all(isinstance(error, SegmentRetryRequestedError) for error in made.failed.values())
    assert places(made) == ([0, 0, 2, 2], [0, 1, 0, 1])


def test_of_nothing_nothing_is_made() -> None:
    for conditions in ((), (CATCH,), (FlowCondition(source="f", to=["out"]),)):
        made = make_with(refuse_odd, *conditions, segments=[])
        assert (made.segments, made.failed) == ([], {})


def test_some_of_them() -> None:
    made = make_with(
        lambda it: [it, it] if it["n"] % 2 else it, FlowCondition(source="f", to=["out"])
    )
    some = made.select([2, 4])
    assert (numbers(some), places(some)) == ([1, 3], ([1, 3], [1, 0]))
    assert some.targets == [("out",)] * 2


def test_none_of_them() -> None:
    none = make_with(lambda it: it).select([])
    assert (none.segments, places(none)) == ([], ([], None))
