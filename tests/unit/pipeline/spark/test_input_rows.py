"""Segments of Spark's readers that come into a pass as columns."""

from __future__ import annotations

import math

import pyarrow as pa

from postroad.pipeline.spark.input_rows import (
    SCHEMA,
    InputRowKind,
    read_columns,
    runs_of,
    segment_column,
)


def test_columns_are_read_as_json_would_have_them() -> None:
    broken = pa.array([b"a", b"\xff", None], pa.binary()).view(pa.string())
    columns = pa.RecordBatch.from_arrays(
        [
            pa.array([1, None, -(1 << 63)], pa.int64()),
            broken,
            pa.array([math.nan, 1.5, -math.inf]),
            pa.array([True, False, None]),
        ],
        names=["n", "text", "share", "is_good"],
    )
    assert read_columns(columns) == [
        {"n": 1, "text": "a", "share": "NaN", "is_good": True},
        {"n": None, "text": "\ufffd", "share": 1.5, "is_good": False},
        {"n": -(1 << 63), "text": None, "share": "-Infinity", "is_good": None},
    ]


def test_rows_of_several_inputs_have_the_columns_of_their_own() -> None:
    kinds = [InputRowKind.COLUMNS, InputRowKind.COLUMNS, InputRowKind.RECORD, InputRowKind.COLUMNS]
    places = [0, 0, 1, 2]
    heads = {
        "root": pa.array([11, 12, 13, 14], pa.int64()),
        "delivery": pa.array([0] * 4, pa.int64()),
        "input": pa.array(places, pa.int16()),
        "kind": pa.array(kinds, pa.int8()),
        "generation": pa.array([0] * 4, pa.int64()),
        "raw": pa.array([None, None, b"raw", None], pa.binary()),
        "published": pa.nulls(4, pa.binary()),
    }
    own = {
        segment_column(0, "a:b"): pa.array(["x", "y", None, None]),
        segment_column(2, "n"): pa.array([None, None, None, 7]),
    }
    arrays = [*(heads[name] for name in SCHEMA.names), *own.values()]
    batch = pa.RecordBatch.from_arrays(arrays, names=[*SCHEMA.names, *own])
    first, record, last = runs_of(batch)
    assert first.columns is not None and last.columns is not None
    assert read_columns(first.columns) == [{"a:b": "x"}, {"a:b": "y"}]
    assert (record.raws, record.columns) == ([b"raw"], None)
    assert read_columns(last.columns) == [{"n": 7}]
