"""Rows of a shuffle as columns: what many rows have in common is done for all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from postroad.pipeline.connectors.connector import AnySegment, decode_any
from postroad.pipeline.vectorized.acks import Ids, Indexes
from postroad.pipeline.vectorized.shuffle_rows import (
    ShuffleRow,
    ShuffleRowKind,
    column_name,
    schema,
)

if TYPE_CHECKING:
    import pyarrow as pa

_ARRAYS = ("shard", "kind", "root", "generation", "edge", "bits", "missing")
_UNSIGNED = ("shard", "root", "edge", "bits")
_TYPES: dict[str, type[Any]] = {
    **dict.fromkeys(_ARRAYS, np.int64),
    **dict.fromkeys(_UNSIGNED, np.uint64),
    "kind": np.int8,
    "task": np.intp,
}
# As many as make what is done for each pack small, and packs small enough to go from hand to hand.
_PACK_ROWS = 4096
_encode_packed = msgspec.msgpack.Encoder().encode
_decode_packed = msgspec.msgpack.Decoder(tuple[list[str], list[bytes], list[bytes]]).decode
# Odd numbers without a pattern: rows that differ hardly ever have the same sum.
_WEIGHTS = (
    0x9E3779B97F4A7C15,
    0xBF58476D1CE4E5B9,
    0x94D049BB133111EB,
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
    0xE7037ED1A0B428DB,
    0x8EBC6AF09C88C6E3,
    0x589965CC75374CC3,
)


class ShuffleColumns:
    """Some rows. Looked at one by one, they are `ShuffleRow`s.

    Attributes:
        tasks: names.
        task: of each row, the place of its task in `tasks`.
        payload: of each row.
        computed: the same, if Spark computed anything.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        task: Indexes,
        columns: dict[str, NDArray[Any]],
        payload: list[bytes],
        computed: list[bytes | None] | None = None,
    ) -> None:
        self.tasks = tasks
        self.task = task
        self.shard: Ids = columns["shard"]
        self.kind: NDArray[np.int8] = columns["kind"]
        self.root: Ids = columns["root"]
        self.generation: NDArray[np.int64] = columns["generation"]
        self.edge: Ids = columns["edge"]
        self.bits: Ids = columns["bits"]
        self.missing: NDArray[np.int64] = columns["missing"]
        self.payload = payload
        self.computed = computed

    @classmethod
    def same(
        cls,
        kind: ShuffleRowKind,
        task: str,
        roots: Ids,
        generation: int,
        **columns: NDArray[Any] | list[bytes],
    ) -> ShuffleColumns:
        """Rows of one kind and task; what is not given is nothing, and they meet by root."""
        rows = len(roots)
        payload: Any = columns.pop("payload", None)
        arrays: dict[str, Any] = {
            "shard": roots,
            "kind": np.full(rows, kind, dtype=np.int8),
            "root": roots,
            "generation": np.full(rows, generation, dtype=np.int64),
            "edge": np.zeros(rows, dtype=np.uint64),
            "bits": np.zeros(rows, dtype=np.uint64),
            "missing": np.zeros(rows, dtype=np.int64),
        }
        places = np.zeros(rows, dtype=np.intp)
        return cls([task], places, arrays | columns, [b""] * rows if payload is None else payload)

    @classmethod
    def of_rows(cls, rows: Sequence[ShuffleRow]) -> ShuffleColumns:
        """Rows one by one as columns."""
        tasks = list(dict.fromkeys(row.task for row in rows))
        codes = {name: place for place, name in enumerate(tasks)}
        columns = {
            name: np.array([getattr(row, name) for row in rows], dtype=_TYPES[name])
            for name in _ARRAYS
        }
        computed = [row.computed for row in rows]
        return cls(
            tasks,
            np.array([codes[row.task] for row in rows], dtype=np.intp),
            columns,
            [row.payload for row in rows],
            computed if any(it is not None for it in computed) else None,
        )

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch) -> ShuffleColumns:
        """Rows as Spark gives them."""
        named = batch.column("task").dictionary_encode()
        columns = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in _ARRAYS}
        for name in _UNSIGNED:
            columns[name] = columns[name].view(np.uint64)
        columns["missing"] = columns["missing"].astype(np.int64)
        has_computed = "computed" in batch.schema.names
        return cls(
            named.dictionary.to_pylist(),
            named.indices.to_numpy(zero_copy_only=False).astype(np.intp),
            columns,
            batch.column("payload").to_pylist(),
            batch.column("computed").to_pylist() if has_computed else None,
        )

    def to_batch(self) -> pa.RecordBatch:
        """Rows as Spark takes them."""
        import pyarrow as pa

        arrays: dict[str, Any] = {name: getattr(self, name) for name in _ARRAYS}
        for name in _UNSIGNED:
            arrays[name] = arrays[name].view(np.int64)
        arrays["missing"] = arrays["missing"].astype(np.int32)
        arrays["task"] = pa.array(self.tasks, pa.string()).take(pa.array(self.task))
        arrays["payload"] = pa.array(self.payload, pa.binary())
        columns = [
            it if isinstance(it := arrays[field.name], pa.Array) else pa.array(it, field.type)
            for field in schema()
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema())

    def pack(self, parts: int) -> pa.RecordBatch:
        """Rows as Spark takes them where it need not look at each: those that meet are one row."""
        import pyarrow as pa

        is_segment = self.kind == ShuffleRowKind.SEGMENT
        target = (self.shard % np.uint64(parts)).astype(np.intp) * 2 + is_segment
        order = np.argsort(target, kind="stable")
        ends = np.cumsum(np.bincount(target, minlength=2 * parts))
        heads, packed = [], []
        for head, (start, stop) in enumerate(pairwise([0, *ends.tolist()])):
            for first in range(start, stop, _PACK_ROWS):
                heads.append(head)
                packed.append(self.select(order[first : min(first + _PACK_ROWS, stop)])._encode())
        columns = [
            pa.array([head // 2 for head in heads], pa.int32()),
            pa.array([head % 2 == 1 for head in heads], pa.bool_()),
            pa.array(packed, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, names=["part", "is_for_stage", "packed"])

    def _encode(self) -> bytes:
        arrays = [_to_bytes(it) for it in (self.task, *(getattr(self, name) for name in _ARRAYS))]
        return _encode_packed((self.tasks, arrays, self.payload))

    @classmethod
    def unpack(cls, packed: bytes) -> ShuffleColumns:
        """The rows that one has, of those that `pack` gave."""
        tasks, arrays, payload = _decode_packed(packed)
        columns = {
            name: _of_bytes(array, _TYPES[name], len(payload))
            for name, array in zip(("task", *_ARRAYS), arrays, strict=True)
        }
        return cls(tasks, columns.pop("task"), columns, payload)

    @classmethod
    def concat(cls, parts: Sequence[ShuffleColumns]) -> ShuffleColumns:
        """All rows of several."""
        if not parts:
            return cls.of_rows([])
        if len(parts) == 1:
            return parts[0]
        tasks = list(dict.fromkeys(name for part in parts for name in part.tasks))
        codes = {name: place for place, name in enumerate(tasks)}
        recoded = [
            np.array([codes[name] for name in part.tasks], dtype=np.intp)[part.task]
            if part.tasks
            else part.task
            for part in parts
        ]
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS
        }
        computed: list[bytes | None] | None = None
        if any(part.computed is not None for part in parts):
            computed = [it for part in parts for it in part.computed or [None] * len(part)]
        payload = [it for part in parts for it in part.payload]
        return cls(tasks, np.concatenate(recoded), columns, payload, computed)

    def select(self, places: Indexes) -> ShuffleColumns:
        """Some of the rows."""
        chosen = places.tolist()
        return ShuffleColumns(
            self.tasks,
            self.task[places],
            {name: getattr(self, name)[places] for name in _ARRAYS},
            [self.payload[place] for place in chosen],
            None if self.computed is None else [self.computed[place] for place in chosen],
        )

    def unique(self) -> ShuffleColumns:
        """The same rows, each once; but a task may well fail twice in the same way."""
        sums = np.zeros(len(self), dtype=np.uint64)
        for weight, name in zip(_WEIGHTS, ("task", *_ARRAYS), strict=True):
            sums += getattr(self, name).astype(np.uint64) * np.uint64(weight)
        _, places, counts = np.unique(sums, return_inverse=True, return_counts=True)
        suspicious = (counts[places] > 1) & (self.kind != ShuffleRowKind.FAILURE)
        if not suspicious.any():
            return self
        kept = np.ones(len(self), dtype=bool)
        seen: set[ShuffleRow] = set()
        for place in np.flatnonzero(suspicious).tolist():
            row = self.row(place)
            kept[place] = row not in seen
            seen.add(row)
        return self.select(np.flatnonzero(kept))

    def row(self, place: int) -> ShuffleRow:
        """One of them."""
        return ShuffleRow(
            int(self.shard[place]),
            int(self.kind[place]),
            self.tasks[self.task[place]],
            int(self.root[place]),
            int(self.generation[place]),
            int(self.edge[place]),
            int(self.bits[place]),
            int(self.missing[place]),
            self.payload[place],
            None if self.computed is None else self.computed[place],
        )

    def __len__(self) -> int:
        return len(self.root)

    def __iter__(self) -> Iterator[ShuffleRow]:
        return map(self.row, range(len(self)))


def _to_bytes(values: NDArray[Any]) -> bytes:
    """A column of at least one row; what is the same in all of them, once."""
    return (values[:1] if (values == values[0]).all() else values).tobytes()


def _of_bytes(data: bytes, type_: type[Any], rows: int) -> NDArray[Any]:
    return np.broadcast_to(np.frombuffer(data, type_), rows)


def to_columns(rows: Iterable[ShuffleRow]) -> ShuffleColumns:
    """Rows as columns, if they are none."""
    return rows if isinstance(rows, ShuffleColumns) else ShuffleColumns.of_rows(list(rows))


def to_batch_with_columns(
    rows: Iterable[ShuffleRow], columns: Mapping[str, pa.DataType]
) -> pa.RecordBatch:
    """Rows as Spark takes them, and beside those for some tasks, what their expressions see.

    Args:
        rows: at least one.
        columns: the type of what they see, by the name of the task.
    """
    batch = to_columns(rows).to_batch()
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
