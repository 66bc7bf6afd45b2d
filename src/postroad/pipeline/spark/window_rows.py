"""What segments add to windows that Spark keeps, as rows of Arrow files, and what these emit."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.coordinator.records import FailedRoot
from postroad.pipeline.coordinator.window_deltas import CommittedDelta, WindowFile, encode_results
from postroad.pipeline.coordinator.window_store import emit_roots
from postroad.pipeline.vectorized.decoding import now_ms
from postroad.pipeline.windows.partials import (
    LIMBS,
    PartialColumns,
    PartialPanes,
    PartialWindow,
    encode_others,
    to_limbs,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_BASE = 1 << 51
"""Spark's watermark begins at 0, so the first extent must be later."""
_LIMB_NAMES = [f"limb_{place}" for place in range(LIMBS)]
# Segments of a file that windows emitted: about as many as a task is worth.
_RESULT_ROWS = 5_000
RESULT_DDL = "path string, segments bigint, failed binary"
_RESULT_SCHEMA = pa.schema(
    [("path", pa.string()), ("segments", pa.int64()), ("failed", pa.binary())]
)


def _columns(window: PartialColumns) -> list[tuple[str, str, pa.DataType]]:
    columns = [
        ("at", "bigint", pa.int64()),
        ("grp", "binary", pa.binary()),
        ("n", "bigint", pa.int64()),
    ]
    if window.has_total:
        columns += [(name, "bigint", pa.int64()) for name in _LIMB_NAMES]
        columns.append(("floats", "boolean", pa.bool_()))
    if window.has_extreme:
        columns.append(("extreme", "binary", pa.binary()))
    if window.has_others:
        columns.append(("others", "binary", pa.binary()))
    return columns


def ddl_of(window: PartialColumns) -> str:
    """The columns of what is added to a window."""
    return ", ".join(f"{name} {type_}" for name, type_, _ in _columns(window))


def _schema(window: PartialColumns) -> pa.Schema:
    return pa.schema([(name, type_) for name, _, type_ in _columns(window)])


# Adding.


def write_panes(panes: PartialPanes, directory: Path) -> WindowFile:
    """Write what a part of a batch adds to a window; nobody reads it before it is committed."""
    window = panes.window
    values = panes.panes.values()
    columns: list[Any] = [
        [_BASE + index for _, index in panes.panes],
        [group for group, _ in panes.panes],
        [pane.count for pane in values],
    ]
    if window.has_total:
        columns += zip(*(to_limbs(pane.total) for pane in values), strict=True)
        columns.append([pane.has_floats for pane in values])
    if window.has_extreme:
        columns.append([pane.extreme for pane in values])
    if window.has_others:
        columns.append([encode_others(pane.others) for pane in values])
    schema = _schema(window.columns)
    arrays = [pa.array(it, field.type) for it, field in zip(columns, schema, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    path = _write(directory, sink.getvalue().to_pybytes())
    return WindowFile(window.window.name, path, panes.latest_s, panes.counts())


def _write(directory: Path, content: bytes) -> str:
    path = directory / secrets.token_hex(12)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        # The account of the batch names it, and must not outlive it.
        os.fsync(file.fileno())
    return str(path)


def read_deltas(
    window: PartialColumns, deltas: Sequence[CommittedDelta], paths: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Rows of some of the files that batches left, but for what came too late."""
    schema = _schema(window)
    for delta in deltas:
        for path in delta.paths:
            if path not in paths:
                continue
            with pa.OSFile(path) as file, pa.ipc.open_file(file) as reader:
                rows = reader.read_all()
            if delta.closed_before is not None:
                rows = rows.filter(pc.greater(rows["at"], _BASE + delta.closed_before))
            yield from rows.cast(schema).to_batches()


def watermark_row(window: PartialColumns, closed: int) -> pa.RecordBatch:
    """A row of no group that moves the watermark to an extent."""
    schema = _schema(window)
    values = {"at": _BASE + closed + window.ahead}
    arrays = [pa.array([values.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# The query.


def aggregate(rows: DataFrame, window: PartialColumns) -> DataFrame:
    """Put together what was added, and give it on once the watermark has passed it.

    Rows of no group come out, too: Spark would filter them where they come in, and then they would
    not move the watermark.
    """
    from pyspark.sql import functions as f

    rows = rows.withColumn("time", f.timestamp_millis("at"))
    rows = rows.withWatermark("time", f"{window.ahead} milliseconds")
    columns: list[Column] = [f.sum("n").alias("n")]
    if window.has_total:
        columns += [f.sum(name).alias(name) for name in _LIMB_NAMES]
        columns.append(f.max("floats").alias("floats"))
    if window.has_extreme:
        extreme = f.max("extreme") if window.is_max else f.min("extreme")
        columns.append(extreme.alias("extreme"))
    if window.has_others:
        columns.append(f.collect_list("others").alias("others"))
    panes = rows.groupBy("time", "grp").agg(*columns)
    names = [name for name, _, _ in _columns(window) if name != "at"]
    return panes.select(f.unix_millis("time").alias("at"), *names)


# Emitting.


def write_results(
    program: CompiledJob,
    window: PartialWindow,
    directory: Path,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write what a window emits; gives the files, and what failed."""
    rows: list[tuple[str, bytes]] = []
    for batch in batches:
        for pane in batch.to_pylist():
            for made in _roots(program, window, pane):
                if isinstance(made, FailedRoot):
                    yield _result(None, 0, msgspec.msgpack.encode(made))
                else:
                    rows.append(made)
            if len(rows) >= _RESULT_ROWS:
                yield _result(_write(directory, encode_results(rows)), len(rows), None)
                rows = []
    if rows:
        yield _result(_write(directory, encode_results(rows)), len(rows), None)


def _roots(
    program: CompiledJob, window: PartialWindow, pane: dict[str, Any]
) -> Iterator[tuple[str, bytes] | FailedRoot]:
    limbs = [pane[name] for name in _LIMB_NAMES] if window.has_total else ()
    extent = window.extent(
        pane["grp"],
        pane["at"] - _BASE,
        pane["n"],
        limbs,
        bool(pane.get("floats")),
        pane.get("extreme"),
        pane.get("others") or (),
    )
    for made in emit_roots(program, extent, now_ms()):
        yield made if isinstance(made, FailedRoot) else (made.place, made.segment)


def _result(path: str | None, segments: int, failed: bytes | None) -> pa.RecordBatch:
    columns = [[path], [segments], [failed]]
    arrays = [pa.array(it, field.type) for it, field in zip(columns, _RESULT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_RESULT_SCHEMA)
