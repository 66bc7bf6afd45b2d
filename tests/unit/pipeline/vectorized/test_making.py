"""What a task makes of many segments."""

from __future__ import annotations

from typing import Any

from postroad.pipeline import FlowCondition, Segment
from postroad.pipeline.functions import Function
from postroad.pipeline.vectorized.task_calls import TaskOutput, run_task
from tests.support.pipeline.small_jobs import count, program_of

EDGES = [("in", "f"), ("f", "out"), ("f", "out_b")]


def make_with(
    function: Function, *conditions: FlowCondition, segments: list[Segment] | None = None
) -> TaskOutput:
    program = program_of(EDGES, conditions, f=function)
    return run_task(program, "f", count() if segments is None else segments)


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


def test_some_of_them() -> None:
    made = make_with(
        lambda it: [it, it] if it["n"] % 2 else it, FlowCondition(source="f", to=["out"])
    )
    some = made.select([2, 4])
    assert (numbers(some), places(some)) == ([1, 3], ([1, 3], [1, 0]))
    assert some.targets == [("out",)] * 2


def test_one_for_each_needs_no_places() -> None:
    segments = count()
    made = make_with(lambda segment: segment, segments=segments)
    assert [id(it) for it in made.segments] == [id(it) for it in segments]
    assert places(made) == (None, None)
    assert made.targets is None
    assert not made.failed


def test_where_none_has_others_there_are_no_ordinals() -> None:
    made = make_with(lambda it: it if it["n"] else None)
    assert (numbers(made), places(made)) == ([1, 2, 3], ([1, 2, 3], None))


def test_an_exception_that_goes_everywhere_needs_no_targets() -> None:
    everywhere = FlowCondition(source="f", to="all", exceptions=True, short_circuit=True)
    made = make_with(refuse_odd, everywhere)
    assert made.targets is None
    assert made.exceptional == {1, 3}
