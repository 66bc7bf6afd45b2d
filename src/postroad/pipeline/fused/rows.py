"""What goes from one stage of a job to the next, and at last to where it is accounted for, as rows.

Every row belongs to a root. All rows but segments on their way are for the end, where the rows of
a root meet again and say whether it is done with.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from postroad.pipeline.records import to_signed, to_unsigned

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    ("shard", "bigint"),
    ("kind", "tinyint"),
    ("task", "string"),
    ("root", "bigint"),
    ("generation", "bigint"),
    ("edge", "bigint"),
    ("bits", "bigint"),
    ("missing", "int"),
    ("payload", "binary"),
)
DDL = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS)

decode_again = msgspec.msgpack.Decoder(tuple[bytes, list[int]]).decode
"""A root that comes again: its segment as the pen keeps it, and ids of what is published."""


class ShuffleRowKind(enum.IntEnum):
    """What a row tells."""

    DELIVERY = 0
    """A slice was read; `edge` is its number."""
    ROOT = 1
    """A root came in by a task; `payload` is its segment, `bits` and `missing` are left over."""
    AGAIN = 2
    """One that came before; `payload` also has the ids of outputs that are written already."""
    SEGMENT = 3
    """A segment is on its way to a task of a later stage."""
    LEDGER = 4
    """Of a root something is left over."""
    OUTPUT = 5
    """What an output task made of a segment: `payload` has ids and segments."""
    ADDITION = 6
    """What is added to windows of a task."""
    FAILURE = 7
    """A task failed; `payload` says with what."""
    REFUSED = 8
    """A root never was a segment; `payload` is what the pen keeps of it."""


class ShuffleRow(NamedTuple):
    """One row. Bits and ids have no sign here."""

    shard: int
    """Rows of one shard meet."""
    kind: int
    task: str
    root: int
    generation: int = 0
    edge: int = 0
    bits: int = 0
    missing: int = 0
    payload: bytes = b""
    computed: bytes | None = None
    """For a segment on its way to a task of kind `sql`: what Spark computed, as JSON. It is never
    written, but read where Spark has put it."""


def schema() -> pa.Schema:
    """Of record batches with rows."""
    import pyarrow as pa

    types = {
        "bigint": pa.int64(),
        "int": pa.int32(),
        "tinyint": pa.int8(),
        "string": pa.string(),
        "binary": pa.binary(),
    }
    return pa.schema([(name, types[type_]) for name, type_ in COLUMNS])


_UNSIGNED = ("shard", "root", "edge", "bits")


def to_batch(rows: list[ShuffleRow]) -> pa.RecordBatch:
    """Rows as Spark takes them."""
    import pyarrow as pa

    columns = dict(zip(ShuffleRow._fields, zip(*rows, strict=True), strict=True))
    del columns["computed"]
    for name in _UNSIGNED:
        columns[name] = tuple(map(to_signed, columns[name]))
    return pa.RecordBatch.from_pydict(columns, schema=schema())


def from_batch(batch: pa.RecordBatch) -> Iterator[ShuffleRow]:
    """Rows as Spark gives them."""
    columns = {name: batch.column(name).to_pylist() for name, _ in COLUMNS}
    for name in _UNSIGNED:
        columns[name] = list(map(to_unsigned, columns[name]))
    if "computed" in batch.schema.names:
        columns["computed"] = batch.column("computed").to_pylist()
    return starmap(ShuffleRow, zip(*columns.values(), strict=True))
