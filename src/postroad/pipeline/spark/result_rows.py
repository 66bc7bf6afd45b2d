"""Rows that the last pass of a job gives: what partitions came to, and segments.

Segments are for outputs that Spark writes, and for functions that take all of a batch. Where Spark
writes rows as they are, they have the columns of the output, and what partitions came to goes
beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.accumulators import AccumulatorParam, _accumulatorRegistry

from postroad.pipeline.connectors.connector import (
    Committable,
    OutputConnector,
    OutputWriter,
    UnwritableSegmentsError,
)
from postroad.pipeline.connectors.encoding import encode_all
from postroad.pipeline.coordinator.records import to_signed
from postroad.pipeline.job import Segment
from postroad.pipeline.spark.input_rows import BATCH_ROWS
from postroad.pipeline.spark.sql_expressions import struct_of
from postroad.pipeline.spark.worker_context import WorkerContext
from postroad.pipeline.validation.catalog import RESERVED_COLUMNS
from postroad.pipeline.vectorized.groups import GatheredSegment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUTCOME_TASK = ""
"""In the column `task`: of rows that say what a partition came to."""
RESULT_DDL = "task string, id bigint, segment string, outcome binary"
_SCHEMA = pa.schema(
    [("task", pa.string()), ("id", pa.int64()), ("segment", pa.string()), ("outcome", pa.binary())]
)
OUTPUT_COLUMN = f"{RESERVED_COLUMNS}output"
"""In rows that Spark writes as they are: the label of their output."""
_NOT_OF_TYPE = (pa.ArrowException, TypeError, ValueError, OverflowError)

_encode_gathered = msgspec.msgpack.Encoder().encode
_decode_gathered = msgspec.msgpack.Decoder(GatheredSegment).decode


def decode_gathered(row: bytes) -> GatheredSegment:
    """A segment for a function that takes all of a batch, from its row."""
    return _decode_gathered(row)


class WrittenRows:
    """Segments for outputs that Spark writes and for functions that take a batch, as rows."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._schema = result_schema(context)
        self._batches: list[pa.RecordBatch] = []
        self._gathered: dict[str, list[GatheredSegment]] = {}

    def gather(self, member: GatheredSegment) -> None:
        """Take a segment for a function that takes all of a batch."""
        those = self._gathered.setdefault(member.task, [])
        those.append(member)
        if len(those) == BATCH_ROWS:
            self._flush(member.task)

    def _flush(self, task: str) -> None:
        members, label = self._gathered.pop(task), output_label(self._context, task)
        columns = {"task": pa.array([label] * len(members), pa.string())}
        if task in self._context.dataframe_tasks:
            segments = [member.segment for member in members]
            columns[label] = pa.array(segments, self._context.columns[task])
            # They are there already, and nobody else wants them.
            members = [msgspec.structs.replace(it, segment={}) for it in members]
            shards = [member.root for member in members]
        else:
            shards = [member.shard for member in members]
        columns["id"] = pa.array(map(to_signed, shards), pa.int64())
        columns["gathered"] = pa.array(map(_encode_gathered, members), pa.binary())
        self._batches.append(_batch(self._schema, len(members), columns))

    def add(self, task: str, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        """Take segments.

        Raises:
            UnwritableSegmentsError: some are not what the output's schema says, or no JSON.
        """
        type_ = self._context.output_types.get(task)
        if self._context.is_direct:
            assert type_ is not None
            self._add_direct(output_label(self._context, task), _to_struct(type_, ids, segments))
            return
        columns: dict[str, pa.Array] = {
            "task": pa.array([output_label(self._context, task)] * len(ids), pa.string()),
            "id": pa.array(list(map(to_signed, ids)), pa.int64()),
        }
        if type_ is None:
            encoded = encode_all(msgspec.json.encode, ids, segments)
            columns["segment"] = pa.array([it.decode() for it in encoded], pa.string())
        else:
            columns[output_label(self._context, task)] = _to_struct(type_, ids, segments)
        self._batches.append(_batch(self._schema, len(ids), columns))

    def _add_direct(self, label: str, segments: pa.StructArray) -> None:
        columns = [pa.repeat(label, len(segments)), *segments.flatten()]
        self._batches.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def take(self) -> Iterator[pa.RecordBatch]:
        """What was taken since the last time."""
        for task in [*self._gathered]:
            self._flush(task)
        batches, self._batches = self._batches, []
        return iter(batches)


def _to_struct(
    type_: pa.StructType, ids: Sequence[int], segments: Sequence[Segment]
) -> pa.StructArray:
    try:
        return pa.array(segments, type_)
    except _NOT_OF_TYPE:
        reasons = {}
        for id, segment in zip(ids, segments, strict=True):
            try:
                pa.array([segment], type_)
            except _NOT_OF_TYPE as error:
                reasons[id] = f"it does not fit the schema of its output: {error}"
        raise UnwritableSegmentsError(reasons) from None


def output_label(context: WorkerContext, task: str) -> str:
    """An output in rows, and in names of columns and directories: any text may be a task's name."""
    return f"o{context.graph.order.index(task)}"


def result_schema(context: WorkerContext) -> pa.Schema:
    """Of the rows that the last pass gives."""
    if context.is_direct:
        type_ = next(iter(context.output_types.values()))
        return pa.schema([(OUTPUT_COLUMN, pa.string()), *type_])
    types = {**context.output_types, **{it: context.columns[it] for it in context.dataframe_tasks}}
    typed = [pa.field(output_label(context, name), type_) for name, type_ in types.items()]
    gathered = [pa.field("gathered", pa.binary())] if _has_gathered(context) else []
    return pa.schema([*_SCHEMA, *typed, *gathered])


def _has_gathered(context: WorkerContext) -> bool:
    return bool(context.group_tasks or context.dataframe_tasks)


def result_ddl(context: WorkerContext) -> str:
    """The same, as Spark writes it."""
    tasks = context.graph.tasks
    if context.is_direct:
        return f"{OUTPUT_COLUMN} string, {tasks[context.spark_outputs[0]].schema}"
    types = {name: f"struct<{tasks[name].schema}>" for name in context.output_types}
    types |= {name: struct_of(tasks[name]) for name in context.dataframe_tasks}
    typed = [f"{output_label(context, name)} {type_}" for name, type_ in types.items()]
    gathered = ["gathered binary"] if _has_gathered(context) else []
    return ", ".join([RESULT_DDL, *typed, *gathered])


def outcome_row(context: WorkerContext, outcome: bytes) -> pa.RecordBatch:
    """The row that says what a partition came to."""
    columns = {
        "task": pa.array([OUTCOME_TASK], pa.string()),
        "outcome": pa.array([outcome], pa.binary()),
    }
    return _batch(result_schema(context), 1, columns)


def _batch(schema: pa.Schema, rows: int, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    arrays = [columns.get(it.name, pa.nulls(rows, it.type)) for it in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Together(AccumulatorParam[list[bytes]]):
    def zero(self, value: list[bytes]) -> list[bytes]:
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:
        value1 += value2
        return value1


class OutcomeList:
    """What the partitions of one action came to, beside the rows that they give.

    Of each partition it has what the attempt said that counts, as Spark's accumulators do.
    """

    def __init__(self, session: SparkSession) -> None:
        self._list = session.sparkContext.accumulator([], _Together())

    def report(self, outcome: bytes) -> None:
        """Say what a partition came to; called where its task runs."""
        self._list.add([outcome])

    @property
    def outcomes(self) -> list[bytes]:
        """All that was reported; the action must be over."""
        return self._list.value

    def close(self) -> None:
        """Nothing more is reported; pyspark would keep it for ever."""
        _accumulatorRegistry.pop(self._list.aid, None)


class _RowOutput(OutputConnector):
    """An output that Spark writes: its segments become rows."""

    def __init__(self, task: str, rows: WrittenRows) -> None:
        self._task = task
        self._rows = rows

    def create_writer(self, stage: str) -> OutputWriter:
        return _RowWriter(self._task, self._rows)


class _RowWriter(OutputWriter):
    def __init__(self, task: str, rows: WrittenRows) -> None:
        self._task = task
        self._rows = rows

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        self._rows.add(self._task, ids, segments)

    def prepare_commit(self) -> Committable | None:
        return None


def outputs_with_rows(context: WorkerContext) -> tuple[Mapping[str, OutputConnector], WrittenRows]:
    """The outputs of a job, and the rows that those of Spark become."""
    rows = WrittenRows(context)
    mine = {name: _RowOutput(name, rows) for name in context.spark_outputs}
    return {**context.outputs, **mine}, rows
