"""What expressions see of segments, and what becomes of what Spark computed."""

from __future__ import annotations

import pyarrow as pa

from postroad.pipeline.connectors.connector import encode_segment
from postroad.pipeline.job import Segment
from postroad.pipeline.vectorized.shuffle_columns import ShuffleColumns, to_batch_with_columns
from postroad.pipeline.vectorized.shuffle_rows import (
    ShuffleRow,
    ShuffleRowKind,
    SqlExpressionError,
    column_name,
    take_computed,
)

TYPE = pa.struct([("n", pa.int64()), ("name", pa.string())])


def on_way(task: str, segment: Segment) -> ShuffleRow:
    return ShuffleRow(1, ShuffleRowKind.SEGMENT, task, 1, payload=encode_segment(segment))


def test_rows_have_the_columns_of_their_task_beside_them() -> None:
    rows = [
        on_way("price", {"n": 1, "name": "a", "more": []}),
        on_way("price", {"name": "b"}),
        on_way("label", {"n": 2}),
        ShuffleRow(1, ShuffleRowKind.ROOT, "price", 1, payload=encode_segment({"n": 3})),
    ]
    batch = to_batch_with_columns(rows, {"price": TYPE, "label": TYPE})
    assert list(ShuffleColumns.of_batch(batch)) == rows
    price, label = (batch.column(column_name(place)).to_pylist() for place in (0, 1))
    assert price == [{"n": 1, "name": "a"}, {"n": None, "name": "b"}, None, None]
    assert label == [None, None, {"n": 2, "name": None}, None]


def test_a_segment_with_other_types_harms_no_other() -> None:
    bad = {3, 4, 9}
    rows = [on_way("price", {"n": str(n) if n in bad else n}) for n in range(10)]
    rows.append(ShuffleRow(1, ShuffleRowKind.SEGMENT, "price", 1, payload=b"\xc1"))
    seen = to_batch_with_columns(rows, {"price": TYPE}).column(column_name(0)).to_pylist()
    assert [None if it is None else it["n"] for it in seen] == [
        *(None if n in bad else n for n in range(10)),
        None,
    ]


def test_what_was_computed_is_put_into_the_segment() -> None:
    segments: list[Segment] = [{"n": 1, "x": b""}, {"n": "one"}, {"n": 2}]
    results, raised = take_computed(segments, [b'{"n":2,"y":null}', None, None], TYPE)
    assert results == [{"n": 2, "x": b"", "y": None}, None, None]
    assert segments[0] == {"n": 1, "x": b""}
    assert [type(error) for error in raised.values()] == [SqlExpressionError, SqlExpressionError]
    assert str(raised[1]).startswith("it has not the columns of the task: ")
    assert str(raised[2]) == "an expression of the task failed"
