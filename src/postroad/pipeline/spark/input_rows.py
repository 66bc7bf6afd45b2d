"""Rows by which segments come into a job's pass: of splits, of retries and of Spark's readers.

A source ends what it read of a delivery with a row that counts it, so that a pass notices when
something got lost on the way.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from postroad.pipeline.connectors.connector import RawRecords
from postroad.pipeline.coordinator.records import InputDelivery, RetryRoot, to_signed
from postroad.pipeline.job import Segment
from postroad.pipeline.vectorized.acks import Ids, root_ids

if TYPE_CHECKING:
    from postroad.pipeline.acks import AckIds

COLUMNS = (
    ("root", "bigint"),
    ("delivery", "bigint"),
    ("input", "smallint"),
    ("kind", "tinyint"),
    ("generation", "bigint"),
    ("raw", "binary"),
    ("published", "binary"),
)
DDL = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS)
SCHEMA = pa.schema(
    [
        ("root", pa.int64()),
        ("delivery", pa.int64()),
        ("input", pa.int16()),
        ("kind", pa.int8()),
        ("generation", pa.int64()),
        ("raw", pa.binary()),
        ("published", pa.binary()),
    ]
)
BATCH_ROWS = 10_000

# What Spark calls numbers that JSON has not.
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}

_encode_ids = msgspec.msgpack.Encoder().encode
_decode_ids = msgspec.msgpack.Decoder(list[int]).decode


class InputRowKind(enum.IntEnum):
    """What `raw` is."""

    RECORD = 0
    """Something that the input's connector decodes."""
    RETRY = 1
    """A segment that comes again, as the holding pen keeps it."""
    JSON = 2
    """A row of one of Spark's readers."""
    END = 3
    """Nothing: all rows of the delivery came before; `root` counts them."""
    COLUMNS = 4
    """Nothing: the segment is in columns of its own, as `segment_column` names them."""


def of_split(
    ack_ids: AckIds, place: int, delivery: InputDelivery, chunks: Iterable[RawRecords]
) -> Iterator[pa.RecordBatch]:
    """The rows of a split; `place` is that of its task among the inputs of the job."""
    count = 0
    for chunk in chunks:
        for start in range(0, len(chunk.raws), BATCH_ROWS):
            raws = chunk.raws[start : start + BATCH_ROWS]
            positions = chunk.positions[start : start + BATCH_ROWS]
            roots = root_ids(ack_ids, delivery.task, chunk.source, positions)
            yield _batch(
                roots.view(np.int64),
                delivery.number,
                place,
                InputRowKind.RECORD,
                delivery.generation,
                raws,
            )
            count += len(raws)
    yield _end(delivery, place, count)


def of_retries(
    place: int, delivery: InputDelivery, roots: Iterable[RetryRoot]
) -> Iterator[pa.RecordBatch]:
    """The rows of roots that come again."""
    count = 0
    for generation, those in _by_generation(roots):
        published = [_encode_ids(it.published) if it.published else None for it in those]
        yield _batch(
            np.array([to_signed(it.root) for it in those], dtype=np.int64),
            delivery.number,
            place,
            InputRowKind.RETRY,
            generation,
            [it.segment for it in those],
            published,
        )
        count += len(those)
    yield _end(delivery, place, count)


def _by_generation(roots: Iterable[RetryRoot]) -> Iterator[tuple[int, list[RetryRoot]]]:
    waiting: dict[int, list[RetryRoot]] = {}
    for root in roots:
        those = waiting.setdefault(root.generation, [])
        those.append(root)
        if len(those) == BATCH_ROWS:
            yield root.generation, waiting.pop(root.generation)
    yield from waiting.items()


def _end(delivery: InputDelivery, place: int, count: int) -> pa.RecordBatch:
    roots = np.array([count], dtype=np.int64)
    return _batch(roots, delivery.number, place, InputRowKind.END, delivery.generation, [b""])


def _batch(
    roots: np.ndarray,
    number: int,
    place: int,
    kind: InputRowKind,
    generation: int,
    raws: Iterable[bytes],
    published: list[bytes | None] | None = None,
) -> pa.RecordBatch:
    count = len(roots)
    columns = [
        pa.array(roots),
        pa.array(np.full(count, number, dtype=np.int64)),
        pa.array(np.full(count, place, dtype=np.int16)),
        pa.array(np.full(count, kind, dtype=np.int8)),
        pa.array(np.full(count, generation, dtype=np.int64)),
        pa.array(raws, pa.binary()),
        pa.nulls(count, pa.binary()) if published is None else pa.array(published, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def segment_column(place: int, name: str) -> str:
    """Where a value of segments is that come in by a task with that place in the job's order."""
    return f"{place}:{name}"


class RowRun(NamedTuple):
    """Rows one after the other that are of one kind, of one input and of one generation."""

    delivery: int
    place: int
    kind: InputRowKind
    generation: int
    roots: Ids
    raws: list[bytes]
    published: dict[int, list[int]]
    """By the places of rows: ids of what is written already."""
    columns: pa.RecordBatch | None
    """The segments, if they are in columns."""


def runs_of(batch: pa.RecordBatch) -> Iterator[RowRun]:
    """What a record batch has, run by run."""
    rows = batch.num_rows
    if rows == 0:
        return
    heads = [batch.column(name).to_numpy() for name in ("delivery", "input", "kind", "generation")]
    changes = np.zeros(rows - 1, dtype=bool)
    for column in heads:
        changes |= column[1:] != column[:-1]
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), rows]
    roots = batch.column("root").to_numpy().view(np.uint64)
    columns = _columns_by_place(batch)
    for start, stop in pairwise(starts):
        delivery, place, kind, generation = (int(column[start]) for column in heads)
        part = batch.slice(start, stop - start)
        published = part.column("published")
        ids = {}
        if published.null_count < len(published):
            ids = {
                at: _decode_ids(packed)
                for at, packed in enumerate(published.to_pylist())
                if packed is not None
            }
        has_columns = kind == InputRowKind.COLUMNS
        yield RowRun(
            delivery,
            place,
            InputRowKind(kind),
            generation,
            roots[start:stop],
            [] if has_columns else part.column("raw").to_pylist(),
            ids,
            columns[place].slice(start, stop - start) if has_columns else None,
        )


def _columns_by_place(batch: pa.RecordBatch) -> dict[int, pa.RecordBatch]:
    columns: dict[int, dict[str, pa.Array]] = {}
    for at in range(len(SCHEMA), batch.num_columns):
        place, _, name = batch.schema.names[at].partition(":")
        columns.setdefault(int(place), {})[name] = batch.column(at)
    return {
        place: pa.RecordBatch.from_arrays(list(those.values()), names=list(those))
        for place, those in columns.items()
    }


def read_columns(columns: pa.RecordBatch) -> list[Segment]:
    """Segments from their columns, as JSON would have them."""
    try:
        segments: list[Segment] = columns.to_pylist()
    except UnicodeDecodeError:
        arrays = list(map(_as_text, columns.columns))
        segments = pa.RecordBatch.from_arrays(arrays, names=columns.schema.names).to_pylist()
    for name, column in zip(columns.schema.names, columns.columns, strict=True):
        if pa.types.is_floating(column.type) and pc.all(pc.is_finite(column)).as_py() is False:
            for segment in segments:
                segment[name] = _NOT_FINITE.get(str(segment[name]), segment[name])
    return segments


def _as_text(column: pa.Array) -> pa.Array:
    """Texts in which what is no text is marked as such."""
    if not pa.types.is_string(column.type):
        return column
    raws = column.cast(pa.binary()).to_pylist()
    return pa.array([None if it is None else it.decode(errors="replace") for it in raws])
