"""Parquet files, one segment a row."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from postroad.core.errors import ConfigError, MissingExtraError
from postroad.pipeline.connectors.connector import (
    Committable,
    OutputWriter,
    Position,
    RawRecords,
    Split,
    UnwritableSegmentsError,
)
from postroad.pipeline.connectors.encoding import UNENCODABLE
from postroad.pipeline.connectors.files.catalog import FileInput, FileProgress
from postroad.pipeline.connectors.files.directory import DirectoryOutput, FileWriter
from postroad.pipeline.connectors.options import (
    accept_old_names,
    check_columns,
    check_positive,
    check_types,
)
from postroad.pipeline.job import Segment

if TYPE_CHECKING:
    import pyarrow

_SPLIT_SEGMENTS = 10_000
_READ_ROWS = 5_000
_GROUP_ROWS = 65_536
_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
_LIST = re.compile(r"list<(.+)>")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), *tz=(.+)\]")

_encode = msgspec.msgpack.Encoder(enc_hook=str).encode


def _arrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("parquet", "a connector of Parquet files") from None
    return pyarrow


class ParquetInput(FileInput):
    """Reads files row by row, new ones in the order of their names.

    Numbers, texts, bytes, nulls, lists, structures and times with a zone come as they are; times
    to the microsecond; decimals, dates, times without a zone and all else as text.

    Args:
        path: of a file, or a pattern such as `in/*.parquet`; on a cluster every machine must have
            it.
        columns: which of them make a segment; all by default.
        split_segments: how many rows a split has at most.
    """

    @accept_old_names(slice_segments="split_segments")
    def __init__(
        self,
        path: str,
        columns: Sequence[str] | None = None,
        split_segments: int = _SPLIT_SEGMENTS,
    ) -> None:
        super().__init__(path, is_growing=False)
        self._columns = check_columns(columns)
        self._split_segments = check_positive("split_segments", split_segments)

    def _check(self, first: str) -> None:
        names = self._metadata(first).schema.to_arrow_schema().names
        missing = set(self._columns or ()) - set(names)
        if missing:
            raise ConfigError(f"option 'columns': {first} has no {', '.join(sorted(missing))}")

    def _metadata(self, name: str) -> Any:
        with self._reading(name) as file:
            return file.metadata

    def _reading(self, name: str) -> Any:
        arrow = _arrow()
        try:
            return arrow.parquet.ParquetFile(self._files.locate(name))
        except arrow.ArrowInvalid as error:
            raise OSError(f"{name} is not a Parquet file: {error}") from error

    def _plan_file(self, name: str, row: int, segments: int) -> list[Split]:
        status = os.stat(self._files.locate(name))
        metadata = self._metadata(name)
        splits: list[Split] = []
        group_start = 0
        for group in range(metadata.num_row_groups):
            group_stop = group_start + metadata.row_group(group).num_rows
            while segments > 0 and row < group_stop:
                size = min(self._split_segments, self.split_segments_max)
                count = min(size, segments, group_stop - row)
                place = {"file": name, "group": group, "skip": row - group_start, "row": row}
                row += count
                segments -= count
                progress = _progress(row, status, metadata)
                position, state = self._catalog.offer(name, progress)
                splits.append(Split({**place, "count": count}, count, position, state))
            group_start = group_stop
        if not splits:
            self._catalog.finish(name, _progress(row, status, metadata))
        return splits

    def read(self, place: Position) -> Iterator[RawRecords]:
        name, row, skip, left = place["file"], place["row"], place["skip"], place["count"]
        with self._reading(name) as file:
            for batch in file.iter_batches(_READ_ROWS, [place["group"]], columns=self._columns):
                rows = batch.slice(skip, left)
                skip -= min(skip, batch.num_rows)
                if rows.num_rows:
                    yield RawRecords(name, range(row, row + rows.num_rows), _encode_rows(rows))
                    row += rows.num_rows
                    left -= rows.num_rows
                if not left:
                    return
        raise OSError(f"{name} has fewer rows than when it was planned")


def _progress(row: int, status: os.stat_result, metadata: Any) -> FileProgress:
    is_done = row >= metadata.num_rows
    return FileProgress(row, status.st_size, status.st_mtime_ns, is_done)


def _encode_rows(batch: pyarrow.RecordBatch) -> list[bytes]:
    names = batch.schema.names
    columns = [_to_microseconds(column).to_pylist() for column in batch.columns]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    try:
        return list(map(_encode, rows))
    except UNENCODABLE:
        return [_encode_row(row) for row in rows]


def _encode_row(row: Segment) -> bytes:
    try:
        return _encode(row)
    except UNENCODABLE:
        # What no decoder takes for a segment, and people can read.
        return repr(row).encode(errors="backslashreplace")


def _to_microseconds(column: pyarrow.Array) -> pyarrow.Array:
    arrow = _arrow()
    if arrow.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(arrow.timestamp("us", column.type.tz), safe=False)
    if column.type == arrow.duration("ns"):
        return column.cast(arrow.duration("us"), safe=False)
    if column.type == arrow.time64("ns"):
        return column.cast(arrow.time64("us"), safe=False)
    return column


class ParquetOutput(DirectoryOutput):
    """Writes Parquet files into a directory, one for each part of a batch.

    Args:
        path: the directory; on a cluster every machine must have it.
        schema: types by name: those of Arrow, such as `int64`, `double`, `string`, `bool`,
            `date32`, `timestamp[us]`, `timestamp[us, tz=UTC]`, `decimal(12, 2)`, `list<int64>`.
            Without it each file has the types of the first segments that go into it.
    """

    def __init__(self, path: str, schema: Mapping[str, str] | None = None) -> None:
        super().__init__(path)
        if schema is not None and not schema:
            raise ConfigError(
                "option 'schema' is empty; give the types of the columns, or leave it out"
            )
        self._schema = None if schema is None else check_types("schema", schema)

    async def open(self, prefix: str, unpublished: Sequence[Committable]) -> None:
        await asyncio.to_thread(self._make_schema)
        await super().open(prefix, unpublished)

    def _make_schema(self) -> pyarrow.Schema | None:
        arrow = _arrow()
        if self._schema is None:
            return None
        return arrow.schema([(name, _type_of(name, type)) for name, type in self._schema.items()])

    def create_writer(self, stage: str) -> OutputWriter:
        return _ParquetWriter(self.staging_path(f"{stage}.parquet"), self._make_schema())


def _type_of(name: str, type: str) -> pyarrow.DataType:
    arrow = _arrow()
    if match := _DECIMAL.fullmatch(type):
        return arrow.decimal128(int(match[1]), int(match[2]))
    if match := _ZONED.fullmatch(type):
        return arrow.timestamp(match[1], tz=match[2])
    if match := _LIST.fullmatch(type):
        return arrow.list_(_type_of(name, match[1]))
    try:
        return arrow.type_for_alias(type)
    except ValueError:
        raise ConfigError(
            f"option 'schema': {name!r} is {type!r}, which is no type of Arrow"
        ) from None


class _ParquetWriter(FileWriter):
    def __init__(self, path: Path, schema: pyarrow.Schema | None) -> None:
        super().__init__(path)
        self._arrow = _arrow()
        self._schema = schema
        self._batches: list[pyarrow.RecordBatch] = []
        self._rows = 0
        self._writer: Any = None

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        schema = self._infer(segments) if self._schema is None else self._schema
        names = schema.names
        if not names:
            raise UnwritableSegmentsError(dict.fromkeys(ids, "the segment has no keys"))
        try:
            columns = [[segment[name] for segment in segments] for name in names]
            # None has less than all, so that none has more if the sum is right.
            are_alike = sum(map(len, segments)) == len(names) * len(segments)
        except KeyError:
            columns = [[segment.get(name) for segment in segments] for name in names]
            are_alike = False
        reasons = {} if are_alike else _find_strangers(names, ids, segments)
        arrays = []
        for field, values in zip(schema, columns, strict=True):
            try:
                arrays.append(self._arrow.array(values, field.type))
            except self._unfit:
                reasons |= self._find_unfit(field, ids, values)
        if reasons:
            raise UnwritableSegmentsError(reasons)
        self._schema = schema
        self._batches.append(self._arrow.record_batch(arrays, schema=schema))
        self._rows += len(segments)
        if self._rows >= _GROUP_ROWS:
            self._flush()

    @property
    def _unfit(self) -> tuple[type[Exception], ...]:
        return (self._arrow.ArrowException, *UNENCODABLE)

    def _infer(self, segments: Sequence[Segment]) -> pyarrow.Schema:
        """The types of some segments; where they differ, that of the first."""
        names = dict.fromkeys(chain.from_iterable(segments))
        return self._arrow.schema(
            [
                (name, self._infer_type([segment.get(name) for segment in segments]))
                for name in names
            ]
        )

    def _infer_type(self, values: Sequence[Any]) -> pyarrow.DataType:
        for candidate in chain([values], ([value] for value in values if value is not None)):
            try:
                type_ = self._arrow.array(candidate).type
            except self._unfit:
                continue
            if not self._arrow.types.is_null(type_):
                return type_
        return self._arrow.string()

    def _find_unfit(
        self, field: pyarrow.Field, ids: Sequence[int], values: Sequence[Any]
    ) -> dict[int, str]:
        reasons = {}
        for id, value in zip(ids, values, strict=True):
            try:
                self._arrow.array([value], field.type)
            except self._unfit as error:
                reasons[id] = f"{field.name!r} is not {field.type}: {error}"
        return reasons

    def _flush(self) -> None:
        if self._writer is None:
            # Dictionaries take three times as long, and make little that zstd would not.
            self._writer = self._arrow.parquet.ParquetWriter(
                self._open(), self._schema, use_dictionary=False, compression="zstd"
            )
        table = self._arrow.Table.from_batches(self._batches)
        self._writer.write_table(table, _GROUP_ROWS)
        self._batches, self._rows = [], 0

    def _finish(self) -> None:
        if self._batches:
            self._flush()
        if self._writer is not None:
            self._writer.close()

    def abort(self) -> None:
        self._batches, self._rows = [], 0
        super().abort()


def _find_strangers(
    names: Sequence[str], ids: Sequence[int], segments: Sequence[Segment]
) -> dict[int, str]:
    known = frozenset(names)
    if all(map(known.issuperset, segments)):
        return {}
    strange = ((id, segment.keys() - known) for id, segment in zip(ids, segments, strict=True))
    return {
        id: f"there is no column for {', '.join(map(repr, keys))}" for id, keys in strange if keys
    }
