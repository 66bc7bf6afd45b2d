"""Rows of a shuffle that travel as one: those that meet come to the same part, as they were."""

from __future__ import annotations

from postroad.pipeline.vectorized.shuffle_columns import ShuffleColumns
from postroad.pipeline.vectorized.shuffle_rows import ShuffleRow, ShuffleRowKind

TOP = (1 << 64) - 1
ROWS = [
    ShuffleRow(TOP, ShuffleRowKind.ROOT, "in", TOP, 3, 0, TOP, -1, b"\xc1"),
    ShuffleRow(7, ShuffleRowKind.SEGMENT, "é", 5, 3, TOP, 0, 0, b"segment"),
    ShuffleRow(5, ShuffleRowKind.OUTPUT, "out", 5, 0, 9, 0, 2, b""),
    ShuffleRow(0, ShuffleRowKind.DELIVERY, "in", 0, edge=4, missing=1),
    ShuffleRow(7, ShuffleRowKind.SEGMENT, "other", 6),
]


def test_packed_rows_come_out_as_they_were_and_meet_by_their_shards() -> None:
    packs = ShuffleColumns.of_rows(ROWS).pack(3).to_pylist()
    rows = [row for it in packs for row in ShuffleColumns.unpack(it["packed"])]
    assert sorted(rows) == sorted(ROWS)
    for it in packs:
        for row in ShuffleColumns.unpack(it["packed"]):
            assert it["part"] == row.shard % 3
            assert it["is_for_stage"] == (row.kind == ShuffleRowKind.SEGMENT)


def test_many_rows_become_several_packs_and_none_becomes_none() -> None:
    many = [ShuffleRow(4, ShuffleRowKind.ROOT, "in", root) for root in range(10_000)]
    packs = ShuffleColumns.of_rows(many).pack(2)
    assert 1 < packs.num_rows < 10
    rows = [row for it in packs["packed"].to_pylist() for row in ShuffleColumns.unpack(it)]
    assert rows == many
    assert ShuffleColumns.of_rows([]).pack(2).num_rows == 0
