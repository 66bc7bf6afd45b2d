"""Tasks from record batches to record batches: the same on one segment and on many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from postroad.pipeline import LocalRunner, MemoryInput, MemoryOutput, new_job
from postroad.pipeline.functions import InvalidResultError
from postroad.pipeline.task_functions import ArrowFunction

SIZES: list[int] = []


def halve(batch: pa.RecordBatch, by: int = 2) -> pa.RecordBatch:
    """Raises if one of them is not even."""
    SIZES.append(batch.num_rows)
    numbers = batch.column("n")
    if pc.any(pc.not_equal(pc.bit_wise_and(numbers, 1), 0)).as_py():
        raise ValueError("odd")
    return batch.append_column("half", pc.divide(numbers, by))


def test_one_and_many_come_to_the_same() -> None:
    task = ArrowFunction(halve)
    segments = [{"n": n} for n in range(0, 20, 2)]
    results, raised = task.call_batch(segments)
    assert results == [task(segment) for segment in segments]
    assert results[3] == {"n": 6, "half": 3}
    assert raised == {}


def test_those_that_it_raises_for_are_found() -> None:
    for bad in ([], [0], [99], [3, 4, 50]):
        SIZES.clear()
        results, raised = ArrowFunction(halve).call_batch(
            [{"n": 2 * n + (n in bad)} for n in range(100)],
        )
        assert sorted(raised) == bad, bad
        assert [results[n]["half"] for n in range(100) if n not in bad] == [
            n for n in range(100) if n not in bad
        ], bad
        assert len(SIZES) <= 1 + 20 * len(bad), "by halves, not one by one"


def test_no_segments() -> None:
    assert ArrowFunction(halve).call_batch([]) == ([], {})


def test_keys_that_only_some_have_are_null() -> None:
    same = ArrowFunction(lambda batch: batch)
    assert same.call_batch([{"a": 1}, {"b": "x"}])[0] == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
    ]


def test_what_is_no_row_for_each_is_refused() -> None:
    functions: list[Callable[[Any], Any]] = [
        lambda batch: batch.slice(1),
        lambda batch: None,
        lambda batch: [{}],
    ]
    for function in functions:
        _, raised = ArrowFunction(function).call_batch([{"n": 0}, {"n": 1}])
        assert sorted(raised) == [0, 1], function
        assert all(isinstance(error, InvalidResultError) for error in raised.values()), function


def test_arguments() -> None:
    assert ArrowFunction(halve).bind(by=4)({"n": 8}) == {"n": 8, "half": 2}


def test_in_a_job() -> None:
    job = (
        new_job("arrow")
        .input("in", connector="memory", retry={"attempts": 1})
        .function("halve", "tests.unit.pipeline.test_arrow_tasks:halve", kind="arrow")
        .output("out", connector="memory")
        .build()
    )
    output = MemoryOutput()
    runner = LocalRunner(job, {"in": MemoryInput({"n": n} for n in range(10))}, {"out": output})
    asyncio.run(runner.run())
    assert [segment["half"] for segment in output.segments] == [0, 1, 2, 3, 4]
    assert runner.coordinator.counts.failed == 5
