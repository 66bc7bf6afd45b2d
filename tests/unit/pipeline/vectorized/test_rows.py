"""What goes from one stage to the next, as record batches."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from postroad.pipeline.connectors.connector import decode_any
from postroad.pipeline.vectorized.shuffle_columns import ShuffleColumns, to_columns
from postroad.pipeline.vectorized.shuffle_rows import (
    COLUMNS,
    DDL,
    ShuffleRow,
    ShuffleRowKind,
    schema,
)

ROWS = [
    ShuffleRow(0, ShuffleRowKind.DELIVERY, "in", 0),
    ShuffleRow(
        2**63 - 1, ShuffleRowKind.SEGMENT, "päckchen", 2**63, 1, 2**64 - 1, payload=b"\x00\xff"
    ),
    ShuffleRow(2**64 - 1, ShuffleRowKind.LEDGER, "", 1, 2**40, 2**63, 2**64 - 1, -(2**31)),
    ShuffleRow(
        2**63, ShuffleRowKind.REFUSED, "in", 2**64 - 1, 2**62, 7, 8, 2**31 - 1, b"x" * 100_000
    ),
]


def test_rows_come_back_as_they_were() -> None:
    assert list(ShuffleColumns.of_batch(to_columns(ROWS).to_batch())) == ROWS


def test_kinds_come_back_as_they_were() -> None:
    for kind in ShuffleRowKind:
        (row,) = ShuffleColumns.of_batch(to_columns([ShuffleRow(1, kind, "task", 2)]).to_batch())
        assert ShuffleRowKind(row.kind) is kind, kind


def test_a_part_of_a_batch_is_one() -> None:
    assert list(ShuffleColumns.of_batch(to_columns(ROWS).to_batch().slice(1, 2))) == ROWS[1:3]


def test_a_batch_without_rows_has_none() -> None:
    assert list(ShuffleColumns.of_batch(to_columns(ROWS).to_batch().slice(0, 0))) == []


def test_batches_are_what_spark_is_told() -> None:
    assert [name for name, _ in COLUMNS] == list(ShuffleRow._fields)[:-1] == schema().names
    assert f"{DDL}, ".startswith("shard bigint, kind tinyint, task string, root bigint, ")
    types = dict(zip(schema().names, schema().types, strict=True))
    assert (types["generation"], types["payload"]) == (pa.int64(), pa.binary())
    assert to_columns(ROWS).to_batch().schema == schema()


def test_columns_are_found_by_their_names() -> None:
    batch = to_columns(ROWS).to_batch()
    assert list(ShuffleColumns.of_batch(batch.select(batch.schema.names[::-1]))) == ROWS


def test_a_segment_is_read_whatever_its_names_are() -> None:
    for segment in ({}, {"n": 1}, {1: 2}, {None: 1, (1, 2): {"a": [{}]}}):
        assert decode_any(msgspec.msgpack.encode(segment)) == segment, segment


def test_what_is_no_segment_is_not_read() -> None:
    others: list[object] = [7, [{}], None, "text"]
    for other in others:
        with pytest.raises(msgspec.ValidationError):
            decode_any(msgspec.msgpack.encode(other))
