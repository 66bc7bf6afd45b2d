"""Rows exchanged between stages, and their SQL columns."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from postroad.pipeline.job import Segment
from postroad.pipeline.vectorized.task_calls import map_function

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
PACKED_DDL = "part int, is_for_stage boolean, packed binary"
"""Many rows as one: where they meet, whether the next stage takes them up, and the rows."""

decode_again = msgspec.msgpack.Decoder(tuple[bytes, list[int]]).decode
"""A root to retry: its segment as the holding pen has it, and ids of written outputs."""


class ShuffleRowKind(enum.IntEnum):
    """What a row tells."""

    DELIVERY = 0
    """A split was read; `edge` is its number."""
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
    """A root never was a segment; `payload` is what the holding pen keeps of it."""
    COUNTS = 9
    """What tasks of a stage did; `payload` has that by their names."""


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


_decode_computed = msgspec.json.Decoder(dict[str, Any]).decode


class SqlExpressionError(ValueError):
    """Spark could not compute the expressions of a task for a segment."""


def column_name(place: int) -> str:
    """The name of the column with what the expressions of one of several tasks see."""
    return f"columns_{place}"


def take_computed(
    segments: Iterable[Segment], computed: Iterable[bytes | None], type_: pa.DataType
) -> tuple[list[Any], dict[int, Exception]]:
    """Segments with what Spark computed, and the errors of those without, by position."""

    def take(pair: tuple[Segment, bytes | None]) -> Segment:
        segment, values = pair
        if values is None:
            raise SqlExpressionError(_reason(segment, type_))
        return {**segment, **_decode_computed(values)}

    return map_function(take, list(zip(segments, computed, strict=True)))


def _reason(segment: Segment, type_: pa.DataType) -> str:
    import pyarrow as pa

    try:
        pa.array([segment], type_)
    except Exception as error:
        return f"it has not the columns of the task: {error}"
    return "an expression of the task failed"
