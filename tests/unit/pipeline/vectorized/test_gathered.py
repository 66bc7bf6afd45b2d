"""Where the rows of each root meet again."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from postroad.pipeline import Segment, Window, WindowType
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.coordinator.records import FailedRoot
from postroad.pipeline.vectorized import partition as gathered
from postroad.pipeline.vectorized.partition import PartitionResult, ShuffledPartition
from postroad.pipeline.vectorized.shuffle_rows import ShuffleRow, ShuffleRowKind
from tests.support.pipeline.both_ways import Kept
from tests.support.pipeline.small_jobs import grouped_program_of
from tests.unit.pipeline.vectorized.staged_rows import (
    NUMBER,
    Unreadable,
    count,
    last_rows,
    refuse_odd,
    root_at,
)

WORKFLOW = [("in", "a"), ("in", "out_b"), ("a", "out")]
SUMS = Window(name="w", task="a", type=WindowType.GLOBAL, aggregation="sum", key="n")


def refusing() -> CompiledJob:
    return grouped_program_of(WORKFLOW, groups={"a": "n"}, a=refuse_odd)


def outputs() -> dict[str, Kept]:
    return {"out": Kept(), "out_b": Kept()}


def gather(
    program: CompiledJob, rows: Iterable[ShuffleRow], to: dict[str, Kept] | None = None
) -> PartitionResult:
    part = ShuffledPartition(program, outputs() if to is None else to, "part")
    part.take_rows(rows)
    return part.finish()


def only(outcome: PartitionResult) -> FailedRoot:
    (failed,) = outcome.failed
    return failed


def without(rows: Iterable[ShuffleRow], kind: ShuffleRowKind) -> list[ShuffleRow]:
    return [row for row in rows if row.kind != kind]


def test_nothing_is_told_of_what_is_done_with() -> None:
    program = refusing()
    outcome = gather(program, last_rows(program, [*count(1), *count(1)]))
    assert (outcome.failed, outcome.deliveries, outcome.segments) == ([], [NUMBER], 2)
    assert sorted(outcome.staged) == [("out", {"count": 2}), ("out_b", {"count": 2})]
    assert outcome.delta.windows == {}


def test_nothing_at_all_comes_to_nothing() -> None:
    assert gather(refusing(), []) == PartitionResult()


# What is lost.


def test_rows_without_their_root_are_not_passed_over() -> None:
    program = refusing()
    rows = without(last_rows(program, count(1)), ShuffleRowKind.ROOT)
    with pytest.raises(RuntimeError, match=f"{root_at(program, 0):016x} came without it"):
        gather(program, rows)


# Outputs.


@pytest.mark.parametrize("at_a_time", [1, 3, 4])
def test_outputs_are_written_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch, at_a_time: int
) -> None:
    monkeypatch.setattr(gathered, "_WRITE_SEGMENTS", at_a_time)
    program, to = refusing(), outputs()
    outcome = gather(program, last_rows(program, count(4)), to)
    assert (to["out"].written.total(), to["out_b"].written.total()) == (2, 4)
    assert len(outcome.failed) == 2
    assert len(to["out_b"].stages) == 1


def test_an_output_that_cannot_be_read_harms_no_other() -> None:
    def spoil(segment: Segment) -> dict[object, object]:
        return {Unreadable(): 1} if segment["n"] == 1 else dict(segment.items())

    program = grouped_program_of([("in", "a"), ("a", "out")], groups={"a": "n"}, out=spoil)
    to = {"out": Kept()}
    failed = only(gather(program, last_rows(program, count(3)), to))
    assert (failed.root, failed.published) == (root_at(program, 1), [])
    assert (failed.attempt.task, failed.attempt.error[:13]) == ("out", "DecodeError: ")
    assert to["out"].written.total() == 2


# Windows.


def test_an_addition_that_cannot_be_read_harms_no_other() -> None:
    def spoil(segment: Segment) -> dict[object, object]:
        return {"n": 1, Unreadable(): 1} if segment["n"] == 1 else dict(segment.items())

    program = grouped_program_of(WORKFLOW, windows=[SUMS], groups={"a": "n"}, a=spoil)
    outcome = gather(program, last_rows(program, count(3)))
    assert only(outcome).root == root_at(program, 1)
    assert len(outcome.delta.windows["w"].groups) == 2


def test_an_addition_that_cannot_travel_has_failed() -> None:
    program = grouped_program_of(
        WORKFLOW,
        windows=[SUMS],
        groups={"a": "n"},
        a=lambda segment: {**segment, "it": object()} if segment["n"] else segment,
    )
    failed = only(gather(program, last_rows(program, count(2))))
    assert (failed.root, failed.attempt.missing) == (root_at(program, 1), ["a"])
