"""What passes take from rows and leave in rows."""

from __future__ import annotations

from datetime import date
from typing import Any

import msgspec
import pytest

from postroad.pipeline import Segment, Window, WindowType
from postroad.pipeline.acks import ack_value
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import RawRecords, encode_segment
from postroad.pipeline.coordinator.records import FailedRoot
from postroad.pipeline.vectorized import decoding as reading
from postroad.pipeline.vectorized import shuffle_stages as staged_passes
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
    refuse_odd,
    root_at,
    same,
)

decode = msgspec.msgpack.decode


def grouped(group: str | list[str] = "n", windows: Any = (), **functions: Any) -> CompiledJob:
    return grouped_program_of(
        [("in", "a"), ("a", "b"), ("b", "out")], windows=windows, groups={"b": group}, **functions
    )


COUNTS = Window(name="w", task="b", type=WindowType.GLOBAL, aggregation="count")


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


def test_a_root_tells_what_it_gave() -> None:
    for generation in (0, 3):
        program = grouped()
        rows = first_rows(program, count(1), generation)
        root = root_at(program, 0)
        edge = program.ack_ids.edge(program.ack_ids.edge(root, "in", "a", 0), "a", "b", 0)
        sent = one(of_kind(rows, ShuffleRowKind.SEGMENT))
        assert (sent.task, sent.root, sent.generation, sent.edge) == (
            "b",
            root,
            generation,
            edge,
        ), generation
        bits = ack_value(edge, generation)
        assert of_kind(rows, ShuffleRowKind.ROOT) == [
            ShuffleRow(
                root,
                ShuffleRowKind.ROOT,
                "in",
                root,
                generation,
                0,
                bits,
                1,
                encode_segment({"n": 0}),
            )
        ], generation


def test_a_root_is_kept_as_it_was_before_functions_changed_it() -> None:
    rows = of_kind(first_rows(grouped(a=refuse_odd), count(4)), ShuffleRowKind.ROOT)
    assert [decode(row.payload) for row in rows] == [{"n": n} for n in range(4)]


def test_what_is_no_segment_goes_to_the_end() -> None:
    program = grouped()
    row = one(of_kind(first_rows(program, [*count(1), b"\xc1"]), ShuffleRowKind.REFUSED))
    refused = msgspec.msgpack.decode(row.payload, type=FailedRoot)
    assert row.shard == row.root == refused.root == root_at(program, 1)
    assert (refused.is_permanent, decode(refused.segment)) == (True, b"\xc1")


def test_what_failed_is_told_twice_over() -> None:
    """By what failed, and by the count, should that be lost."""
    for where in ("in", "a"):
        functions: dict[str, Any] = {where: refuse_odd}
        program = grouped(**functions)
        rows = first_rows(program, count(2))
        failed = one(of_kind(rows, ShuffleRowKind.FAILURE))
        assert (failed.shard, failed.root) == (root_at(program, 1),) * 2, where
        assert (failed.task, failed.payload) == (where, b"ValueError: 1 is odd"), where
        (_, root) = of_kind(rows, ShuffleRowKind.ROOT)
        assert root.missing > 0, where


def test_what_an_output_of_the_first_stage_gets_goes_to_the_end() -> None:
    program = grouped_program_of([("in", "out_b"), ("in", "b"), ("b", "out")], groups={"b": "n"})
    rows = first_rows(program, count(1))
    row, root = one(of_kind(rows, ShuffleRowKind.OUTPUT)), root_at(program, 0)
    edge = program.ack_ids.edge(root, "in", "out_b", 0)
    assert (row.task, row.shard, row.edge, row.missing) == ("out_b", root, edge, 0)
    id = program.ack_ids.edge(edge, "out_b", "out_b", 0)
    assert decode(row.payload) == [[id, {"n": 0}]]


def test_an_output_that_makes_nothing_is_done_with() -> None:
    program = grouped_program_of(
        [("in", "out_b"), ("in", "b"), ("b", "out")], groups={"b": "n"}, out_b=lambda segment: None
    )
    rows = first_rows(program, count(1))
    assert of_kind(rows, ShuffleRowKind.OUTPUT) == []
    (sent,) = of_kind(rows, ShuffleRowKind.SEGMENT)
    root = one(of_kind(rows, ShuffleRowKind.ROOT))
    assert (root.bits, root.missing) == (sent.edge, 1)


def test_what_can_be_written_is_also_when_its_brother_cannot() -> None:
    def brothers(segment: Segment) -> list[Segment]:
        return [{"it": object()}, segment, {"it": 2**70}]

    program = grouped_program_of(
        [("in", "out_b"), ("in", "b"), ("b", "out")], groups={"b": "n"}, out_b=brothers
    )
    rows = first_rows(program, count(1))
    row = one(of_kind(rows, ShuffleRowKind.OUTPUT))
    id = program.ack_ids.edge(row.edge, "out_b", "out_b", 1)
    assert decode(row.payload) == [[id, {"n": 0}]]
    assert row.missing == 2
    failed = of_kind(rows, ShuffleRowKind.FAILURE)
    assert [it.task for it in failed] == ["out_b", "out_b"]
    assert all(it.payload.startswith(b"TypeError: it cannot be written: ") for it in failed)


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


def test_a_later_stage_tells_what_it_took_and_gave() -> None:
    program = grouped()
    rows = first_rows(program, count(1), generation=2)
    sent = one(of_kind(rows, ShuffleRowKind.SEGMENT))
    found = later_rows(program, 1, [sent])
    edge = program.ack_ids.edge(sent.edge, "b", "out", 0)
    bits = ack_value(sent.edge, 2) ^ ack_value(edge, 2)
    assert of_kind(found, ShuffleRowKind.LEDGER) == [
        ShuffleRow(sent.root, ShuffleRowKind.LEDGER, "b", sent.root, 2, 0, bits, 0)
    ]
    row = one(of_kind(found, ShuffleRowKind.OUTPUT))
    assert (row.shard, row.root, row.generation, row.edge) == (sent.root, sent.root, 2, edge)


def test_all_rows_of_a_root_in_a_piece_are_one_sum() -> None:
    program = grouped(a=lambda segment: [segment, segment], b=lambda segment: None)
    rows = first_rows(program, count(2))
    found = of_kind(
        later_rows(program, 1, of_kind(rows, ShuffleRowKind.SEGMENT)), ShuffleRowKind.LEDGER
    )
    roots = of_kind(rows, ShuffleRowKind.ROOT)
    assert {row.root: (row.bits, -row.missing) for row in found} == {
        row.root: (row.bits, row.missing) for row in roots
    }


def test_generations_are_kept_apart() -> None:
    program = grouped()
    rows = [row for at in (0, 5) for row in first_rows(program, count(1), generation=at)]
    found = later_rows(program, 1, of_kind(rows, ShuffleRowKind.SEGMENT))
    assert [row.generation for row in of_kind(found, ShuffleRowKind.LEDGER)] == [0, 5]


def test_other_rows_go_to_where_their_root_is_accounted_for() -> None:
    program = grouped()
    rows = [
        ShuffleRow(99, kind, "in", 5, 1, 2, 3, 4, b"5")
        for kind in ShuffleRowKind
        if kind != ShuffleRowKind.SEGMENT
    ]
    assert later_rows(program, 1, rows) == [row._replace(shard=5) for row in rows]


def test_segments_for_a_later_stage_keep_their_shard() -> None:
    edges = [("in", "a"), ("a", "b"), ("b", "c"), ("c", "out"), ("in", "c")]
    program = grouped_program_of(edges, groups={"a": "n", "b": "n", "c": "m"})
    rows = first_rows(program, count(1))
    on_way = [row for row in of_kind(rows, ShuffleRowKind.SEGMENT) if row.task == "c"]
    assert len(on_way) == 1
    assert later_rows(program, 1, on_way) == later_rows(program, 2, on_way) == on_way


def test_without_rows_there_is_nothing_to_do() -> None:
    assert list(ShuffleStage(grouped(), 1).take([])) == []


@pytest.mark.parametrize("piece_segments", [1, 2, 5])
def test_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch, piece_segments: int) -> None:
    monkeypatch.setattr(staged_passes, "PIECE_SEGMENTS", piece_segments)
    program = grouped()
    rows = of_kind(first_rows(program, count(5)), ShuffleRowKind.SEGMENT)
    found = later_rows(program, 1, rows)
    assert (
        len(of_kind(found, ShuffleRowKind.OUTPUT))
        == len(of_kind(found, ShuffleRowKind.LEDGER))
        == 5
    )


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


def test_what_is_added_to_windows_is_counted() -> None:
    program = grouped_program_of(
        [("in", "a"), ("a", "b"), ("b", "out")], windows=[COUNTS], groups={"a": "n"}, b=same
    )
    found = later_rows(program, 1, of_kind(first_rows(program, count(1)), ShuffleRowKind.SEGMENT))
    added, ledger = (
        one(of_kind(found, ShuffleRowKind.ADDITION)),
        one(of_kind(found, ShuffleRowKind.LEDGER)),
    )
    # The segment was taken, and the addition is still to come.
    assert (ledger.missing, added.missing) == (-1 + 1, -1)
    assert decode(added.payload)[2:] == [None, {"n": 0}]
