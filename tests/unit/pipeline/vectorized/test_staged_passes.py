"""What passes take from rows and leave in rows."""

from __future__ import annotations

from datetime import date
from typing import Any

import msgspec
import pytest

from postroad.pipeline import Segment
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import RawRecords, encode_segment
from postroad.pipeline.vectorized import decoding as reading
from postroad.pipeline.vectorized.shuffle_rows import ShuffleRow, ShuffleRowKind
from postroad.pipeline.vectorized.shuffle_stages import ShuffleStage, SourceStage
from tests.support.pipeline.both_ways import RawInput
from tests.support.pipeline.small_jobs import grouped_program_of
from tests.unit.pipeline.vectorized.staged_rows import (
    NUMBER,
    Unreadable,
    count,
    first_rows,
    later_rows,
    of_kind,
    root_at,
    same,
)

decode = msgspec.msgpack.decode


def grouped(group: str | list[str] = "n", **functions: Any) -> CompiledJob:
    return grouped_program_of(
        [("in", "a"), ("a", "b"), ("b", "out")], groups={"b": group}, **functions
    )


def one(rows: list[ShuffleRow]) -> ShuffleRow:
    (row,) = rows
    return row


# The first stage.


def test_a_slice_ends_with_its_delivery() -> None:
    rows = first_rows(grouped(), [*count(3), b"\xc1"])
    # What the tasks of the stage did comes last.
    assert rows[-1].kind == ShuffleRowKind.COUNTS
    assert rows[-2] == ShuffleRow(0, ShuffleRowKind.DELIVERY, "in", 0, edge=NUMBER, missing=4)
    assert len(of_kind(rows, ShuffleRowKind.DELIVERY)) == 1


def test_of_an_empty_slice_nothing_else_is_told() -> None:
    for chunks in ([], [RawRecords("file", [], [])]):
        slice = SourceStage(grouped()).process_split(NUMBER, "in", 0, RawInput(), chunks)
        rows = [row for those in slice for row in those]
        assert rows == [ShuffleRow(0, ShuffleRowKind.DELIVERY, "in", 0, edge=NUMBER)], chunks


def test_rows_come_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PIECE_SEGMENTS", 2)
    chunk = RawRecords("file", range(5), count(5))
    pieces = list(SourceStage(grouped()).process_split(NUMBER, "in", 0, RawInput(), [chunk]))
    assert [len(of_kind(rows, ShuffleRowKind.ROOT)) for rows in pieces] == [2, 2, 1, 0]


# Shards.


def shards(program: CompiledJob, *segments: Segment) -> list[int]:
    rows = first_rows(program, list(map(encode_segment, segments)))
    return [row.shard for row in of_kind(rows, ShuffleRowKind.SEGMENT)]


def test_segments_of_a_group_meet() -> None:
    groups = [1, 1.0, "1", None, True, [1], 1, b"1"]
    one, float_one, *others, again, raw = shards(grouped(), *({"n": it} for it in groups))
    assert one == float_one == again
    assert len({one, raw, *others}) == 6


def test_a_key_that_is_not_there_counts_as_nothing() -> None:
    first, second, other = shards(grouped(["n", "m"]), {"n": 1}, {"n": 1, "m": None}, {"m": 1})
    assert first == second != other


def test_segments_that_need_not_meet_are_spread() -> None:
    edges = [("in", "a"), ("in", "b"), ("a", "b"), ("b", "out")]
    program = grouped_program_of(edges, groups={"a": "n"})
    rows = of_kind(first_rows(program, count(4)), ShuffleRowKind.SEGMENT)
    assert [row.shard for row in rows if row.task == "b"] == [root_at(program, n) for n in range(4)]


def to_date(segment: Segment) -> Segment:
    return {"n": date(2026, 1, 1 + segment["n"] % 2)}


def test_functions_may_be_grouped_by_what_windows_cannot_keep() -> None:
    first, other, again = shards(grouped(a=to_date), {"n": 0}, {"n": 1}, {"n": 2})
    assert first == again != other


def test_what_cannot_travel_fails_alone() -> None:
    def spoil(segment: Segment) -> Segment:
        return {"n": object() if segment["n"] == 1 else 0}

    program = grouped(a=spoil)
    rows = first_rows(program, count(3))
    assert [row.root for row in of_kind(rows, ShuffleRowKind.SEGMENT)] == [
        root_at(program, n) for n in (0, 2)
    ]
    failed = one(of_kind(rows, ShuffleRowKind.FAILURE))
    assert (failed.root, failed.task) == (root_at(program, 1), "b")


# Later stages.


def test_without_rows_there_is_nothing_to_do() -> None:
    assert list(ShuffleStage(grouped(), 1).take([])) == []


def test_a_segment_may_have_names_that_are_no_texts() -> None:
    program = grouped(a=lambda segment: {**segment, 1: 2})
    found = later_rows(program, 1, first_rows(program, count(1)))
    (output,) = decode(one(of_kind(found, ShuffleRowKind.OUTPUT)).payload)
    assert output[1] == {"n": 0, 1: 2}


@pytest.mark.parametrize("good", [0, 2])
def test_a_segment_that_cannot_be_read_harms_no_other(good: int) -> None:
    def spoil(segment: Segment) -> dict[object, object]:
        return {Unreadable(): 1} if segment["n"] == good else dict(segment.items())

    program = grouped(a=spoil, b=same)
    found = later_rows(program, 1, first_rows(program, count(good + 1)))
    failed = one(of_kind(found, ShuffleRowKind.FAILURE))
    assert (failed.root, failed.task) == (root_at(program, good), "b")
    assert failed.payload.startswith(b"DecodeError: ")
    assert len(of_kind(found, ShuffleRowKind.OUTPUT)) == good
