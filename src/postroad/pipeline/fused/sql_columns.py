"""What expressions of Spark SQL see of segments, and what becomes of what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from postroad.pipeline.job import Segment
from postroad.pipeline.media.medium import AnySegment, decode_any

from .calls import map_function
from .rows import ShuffleRowKind, ShuffleRow, to_batch

if TYPE_CHECKING:
    import pyarrow as pa

_decode_computed = msgspec.json.Decoder(dict[str, Any]).decode


class SqlExpressionError(ValueError):
    """Spark could not compute the expressions of a task for a segment."""


def column_name(place: int) -> str:
    """The name of the column with what the expressions of one of several tasks see."""
    return f"columns_{place}"


def to_batch_with_columns(rows: list[ShuffleRow], columns: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    """Rows as Spark takes them, and beside those for some tasks, what their expressions see.

    Args:
        rows: at least one.
        columns: the type of what they see, by the name of the task.
    """
    batch = to_batch(rows)
    for place, (task, type_) in enumerate(columns.items()):
        segments = [
            _read(row.payload) if row.kind == ShuffleRowKind.SEGMENT and row.task == task else None
            for row in rows
        ]
        batch = batch.append_column(column_name(place), _to_array(segments, type_))
    return batch


def _read(payload: bytes) -> AnySegment | None:
    try:
        return decode_any(payload)
    except Exception:
        # Whoever takes it up again finds out by himself.
        return None


def _to_array(segments: Sequence[AnySegment | None], type_: pa.DataType) -> pa.Array:
    """All as an array; null where a segment does not have what it should."""
    import pyarrow as pa

    try:
        return pa.array(segments, type_)
    except Exception:
        if len(segments) == 1:
            return pa.nulls(1, type_)
    middle = len(segments) // 2
    halves = (segments[:middle], segments[middle:])
    return pa.concat_arrays([_to_array(half, type_) for half in halves])


def take_computed(
    segments: Iterable[Segment], computed: Iterable[bytes | None], type_: pa.DataType
) -> tuple[list[Any], dict[int, Exception]]:
    """Segments with what Spark computed.

    Args:
        segments: as they came to the task.
        computed: for each, what Spark has put beside it.
        type_: of what the expressions see.

    Returns:
        New segments, one for each, and what is to be said of those without, by position.
    """

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
