"""Where the rows of each root meet again."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from postroad.pipeline import Segment, Window, WindowType
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import encode_segment
from postroad.pipeline.coordinator.records import FailedRoot, RetryRoot
from postroad.pipeline.vectorized import partition as gathered
from postroad.pipeline.vectorized.partition import PartitionResult, ShuffledPartition
from postroad.pipeline.vectorized.shuffle_rows import ShuffleRow, ShuffleRowKind
from tests.support.pipeline.both_ways import Kept
from tests.support.pipeline.seen_windows import encode_delta
from tests.support.pipeline.small_jobs import grouped_program_of
from tests.unit.pipeline.vectorized.staged_rows import (
    NUMBER,
    Unreadable,
    count,
    last_rows,
    of_kind,
    refuse_odd,
    root_at,
    rows_again,
    same,
)

WORKFLOW = [("in", "a"), ("in", "out_b"), ("a", "out")]
SUMS = Window(name="w", task="a", type=WindowType.GLOBAL, aggregation="sum", key="n")


def refusing(windows: Iterable[Window] = ()) -> CompiledJob:
    return grouped_program_of(WORKFLOW, windows=windows, groups={"a": "n"}, a=refuse_odd)


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


def three(segment: Segment) -> list[Segment]:
    return [{"n": 1}, {"n": 2}, segment]


def test_nothing_is_told_of_what_is_done_with() -> None:
    program = refusing()
    outcome = gather(program, last_rows(program, [*count(1), *count(1)]))
    assert (outcome.failed, outcome.deliveries, outcome.segments) == ([], [NUMBER], 2)
    assert sorted(outcome.staged) == [("out", {"count": 2}), ("out_b", {"count": 2})]
    assert outcome.delta.windows == {}


def test_nothing_at_all_comes_to_nothing() -> None:
    assert gather(refusing(), []) == PartitionResult()


def test_what_failed_is_told() -> None:
    for generation in (0, 4):
        program = refusing()
        failed = only(gather(program, last_rows(program, count(2), generation)))
        root = root_at(program, 1)
        assert (failed.root, failed.task, failed.generation) == (root, "in", generation), generation
        assert msgspec.msgpack.decode(failed.segment) == {"n": 1}, generation
        attempt = failed.attempt
        assert (attempt.generation, attempt.task, attempt.missing) == (generation, "a", ["a"]), (
            generation
        )
        assert attempt.error == "ValueError: 1 is odd", generation
        edge = program.ack_ids.edge(root, "in", "out_b", 0)
        assert failed.published == [program.ack_ids.edge(edge, "out_b", "out_b", 0)], generation


def test_rows_may_come_in_any_order() -> None:
    for seed in range(5):
        program = refusing([SUMS])
        rows = last_rows(program, [*count(4), b"\xc1"])
        expected = gather(program, rows)
        random.Random(seed).shuffle(rows)
        found = gather(program, rows)
        assert sorted(it.root for it in found.failed) == sorted(
            it.root for it in expected.failed
        ), seed
        assert encode_delta(found.delta) == encode_delta(expected.delta), seed
        assert sorted(found.staged) == sorted(expected.staged), seed


def test_what_is_no_segment_is_put_away_as_it_came() -> None:
    program = refusing()
    failed = only(gather(program, last_rows(program, [b"\xc1"])))
    assert (failed.root, failed.is_permanent) == (root_at(program, 0), True)


# What is lost.


def test_a_root_is_not_done_with_where_something_is_lost() -> None:
    for kind in (ShuffleRowKind.LEDGER, ShuffleRowKind.OUTPUT):
        program = refusing()
        rows = last_rows(program, count(1))
        failed = only(gather(program, without(rows, kind)))
        assert (failed.attempt.task, failed.attempt.missing) == ("in", []), kind
        assert failed.attempt.error.endswith(" of what was made of it never arrived"), kind


def test_a_failure_that_is_lost_was_one() -> None:
    for where in ("in", "a"):
        functions: dict[str, Any] = {where: refuse_odd}
        program = grouped_program_of(WORKFLOW, groups={"a": "n"}, **functions)
        rows = without(last_rows(program, count(2)), ShuffleRowKind.FAILURE)
        failed = only(gather(program, rows))
        assert (failed.root, failed.attempt.missing) == (root_at(program, 1), []), where


def test_an_addition_that_is_lost_leaves_nothing_in_windows() -> None:
    program = grouped_program_of(WORKFLOW, windows=[SUMS], groups={"a": "n"}, a=three)
    rows = last_rows(program, count(1))
    lost = of_kind(rows, ShuffleRowKind.ADDITION)[1]
    outcome = gather(program, [row for row in rows if row is not lost])
    assert only(outcome).attempt.error == "1 of what was made of it never arrived"
    assert outcome.delta.windows == {}


def test_rows_without_their_root_are_not_passed_over() -> None:
    program = refusing()
    rows = without(last_rows(program, count(1)), ShuffleRowKind.ROOT)
    with pytest.raises(RuntimeError, match=f"{root_at(program, 0):016x} came without it"):
        gather(program, rows)


# What comes twice.


def test_what_comes_twice_counts_once() -> None:
    for kind in [
        it for it in ShuffleRowKind if it not in (ShuffleRowKind.SEGMENT, ShuffleRowKind.AGAIN)
    ]:
        program = grouped_program_of(
            [("in", "a"), ("in", "b"), ("in", "out_b"), ("a", "out"), ("b", "out")],
            windows=[SUMS],
            groups={"a": "n", "b": "n"},
            a=same,
            b=refuse_odd,
        )
        rows = last_rows(program, [*count(3), b"\xc1"])
        doubled = of_kind(rows, kind)
        assert doubled, kind
        first, second = outputs(), outputs()
        expected, found = gather(program, rows, first), gather(program, rows + doubled, second)
        assert [it.root for it in found.failed] == [it.root for it in expected.failed], kind
        assert (found.deliveries, found.segments) == ([NUMBER], 4), kind
        assert encode_delta(found.delta) == encode_delta(expected.delta), kind
        assert found.tasks.keys() == {"in", "a", "b", "out", "out_b"}, kind
        assert {name: it.processed for name, it in found.tasks.items()} == {
            name: it.processed for name, it in expected.tasks.items()
        }, kind
        assert {it: second[it].written for it in second} == {
            it: first[it].written for it in first
        }, kind


def test_a_task_may_fail_twice_in_the_same_way() -> None:
    def fail(segment: Segment) -> Segment:
        raise ValueError("no")

    program = grouped_program_of(
        [("in", "a"), ("a", "b"), ("b", "out")],
        groups={"b": "n"},
        a=lambda segment: [segment, segment],
        b=fail,
    )
    failed = only(gather(program, last_rows(program, count(1))))
    assert failed.attempt.missing == ["b", "b"]


def test_roots_that_come_again_write_what_is_not_yet_written() -> None:
    program, to = refusing(), outputs()
    again = [
        RetryRoot(5, 1, encode_segment({"n": 0}), []),
        RetryRoot(6, 1, encode_segment({"n": 1}), []),
    ]
    first = gather(program, rows_again(program, again), to)
    assert (first.deliveries, first.segments) == ([NUMBER], 2)
    failed = only(first)
    assert (failed.root, failed.published) == (6, [id for id, _ in to["out_b"].written][1:])
    # Once more, with what is written by now.
    kept = RetryRoot(6, 2, failed.segment, failed.published)
    second = only(gather(program, rows_again(program, [kept]), to))
    assert (second.generation, second.published) == (2, failed.published)
    assert [to[name].written.total() for name in ("out", "out_b")] == [1, 2]


# Outputs.


def test_what_cannot_be_written_fails_and_the_rest_is_written() -> None:
    program = grouped_program_of([("in", "a"), ("a", "out")], groups={"a": "n"}, out=three)
    to = {"out": Kept(lambda segment: segment["n"] > 0, at_once=1)}
    failed = only(gather(program, last_rows(program, count(1)), to))
    ids = [id for id, _ in to["out"].written]
    assert len(ids) == 1
    assert failed.published == ids
    assert failed.attempt.missing == ["out", "out"]
    assert failed.attempt.error.startswith("TypeError: it cannot be written: ")


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


def test_only_what_is_done_with_adds_to_windows() -> None:
    program = grouped_program_of(
        [("in", "a"), ("in", "b"), ("a", "out"), ("b", "out_b")],
        windows=[SUMS],
        groups={"a": ["x"]},
        b=refuse_odd,
    )
    outcome = gather(program, last_rows(program, count(5)))
    ((_, (added,)),) = outcome.delta.windows["w"].groups.items()
    assert added.segments == 3
    assert len(outcome.failed) == 2


def test_what_a_window_refuses_has_failed_and_added_nothing() -> None:
    program = grouped_program_of(
        WORKFLOW,
        windows=[SUMS],
        groups={"a": "n"},
        a=lambda segment: [segment, {"n": "text"}] if segment["n"] else segment,
    )
    outcome = gather(program, last_rows(program, count(2)))
    failed = only(outcome)
    assert (failed.attempt.task, failed.attempt.missing) == ("a", ["a"])
    assert failed.attempt.error.startswith("InvalidSegmentError: ")
    (added,) = (it for groups in outcome.delta.windows["w"].groups.values() for it in groups)
    assert added.segments == 1


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
