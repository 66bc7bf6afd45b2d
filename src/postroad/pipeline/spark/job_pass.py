"""The tasks of a job as operators of Spark: a pass between two shuffles, each one `mapInArrow`.

The last pass writes what is for the job's own outputs where it runs, and gives rows: what its
partition came to, and segments for outputs that Spark writes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import (
    Committable,
    OutputConnector,
    OutputWriter,
    UnwritableSegmentsError,
)
from postroad.pipeline.connectors.encoding import encode_all
from postroad.pipeline.coordinator.records import RetryRoot, to_signed
from postroad.pipeline.job import Segment
from postroad.pipeline.spark.input_rows import InputRowKind, RowRun, runs_of
from postroad.pipeline.spark.sql_expressions import compute, ddl_with_columns
from postroad.pipeline.spark.worker_context import WorkerContext
from postroad.pipeline.vectorized.acks import Ids, mix64_all
from postroad.pipeline.vectorized.decoding import DecodedRoots, decode_retries, decode_roots
from postroad.pipeline.vectorized.partition import (
    PartitionExecutor,
    ShuffledPartition,
    SingleStagePartition,
    encode_part,
)
from postroad.pipeline.vectorized.shuffle_columns import ShuffleColumns, to_batch_with_columns
from postroad.pipeline.vectorized.shuffle_rows import ShuffleRowKind, schema
from postroad.pipeline.vectorized.shuffle_stages import ShuffleStage, SourceStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUTCOME_TASK = ""
"""In the column `task`: of rows that say what a partition came to."""
RESULT_DDL = "task string, id bigint, segment string, outcome binary"
_SCHEMA = pa.schema(
    [("task", pa.string()), ("id", pa.int64()), ("segment", pa.string()), ("outcome", pa.binary())]
)
# What is larger goes to the coordinator itself, and not through the JVM and another process.
_INLINE_BYTES_MAX = 64 * 1024
_NOT_OF_TYPE = (pa.ArrowException, TypeError, ValueError, OverflowError)

Operator = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]

decode_json: Callable[[bytes], Segment] = msgspec.json.Decoder(dict[str, Any]).decode


def add_passes(rows: DataFrame, context: WorkerContext) -> DataFrame:
    """Have the tasks of a job run over input rows; gives rows as `RESULT_DDL` has them."""
    graph = context.graph
    if len(graph.stages) == 1:
        return rows.mapInArrow(_single_stage(context), result_ddl(context))
    tasks = [[graph.tasks[name] for name in stage.computed] for stage in graph.stages] + [[]]
    rows = rows.mapInArrow(_first_stage(context), ddl_with_columns(tasks[1]))
    for stage in graph.stages[1:]:
        if stage.shuffled:
            rows = rows.repartition(context.partitions, "shard")
        rows = compute(rows, tasks[stage.index])
        ddl = ddl_with_columns(tasks[stage.index + 1])
        rows = rows.mapInArrow(_later_stage(context, stage.index), ddl)
    # At last all rows of a root meet.
    rows = rows.repartition(context.partitions, "shard")
    return rows.mapInArrow(_last_stage(context), result_ddl(context))


class _RowReader:
    """Makes segments of input rows, and sees to it that none is missing."""

    def __init__(self, context: WorkerContext, program: CompiledJob) -> None:
        self._context = context
        self._program = program
        self._counts: dict[int, int] = {}
        self._seen: set[int] = set()
        self.read = 0
        """Rows of Spark's readers."""

    def task_of(self, run: RowRun) -> str:
        return self._context.graph.order[run.place]

    def decode(self, run: RowRun) -> Iterator[DecodedRoots]:
        task = self.task_of(run)
        count = len(run.raws)
        match run.kind:
            case InputRowKind.RECORD:
                decode = self._context.inputs[task].decode
                yield decode_roots(self._program, task, run.generation, decode, run.roots, run.raws)
            case InputRowKind.RETRY:
                roots = zip(run.roots.tolist(), run.raws, strict=True)
                retries = (
                    RetryRoot(root, run.generation, raw, run.published.get(at, []))
                    for at, (root, raw) in enumerate(roots)
                )
                yield from decode_retries(task, retries)
            case InputRowKind.JSON:
                self.read += count
                ids = self._tell_apart(run.roots) if self._program.is_multi_stage else run.roots
                yield decode_roots(self._program, task, run.generation, decode_json, ids, run.raws)
                return
        self._counts[run.delivery] = self._counts.get(run.delivery, 0) + count

    def check_end(self, run: RowRun) -> int:
        """How many rows the delivery had that ends here.

        Raises:
            RuntimeError: some of them did not come here.
        """
        expected, came = int(run.roots[0]), self._counts.pop(run.delivery, 0)
        if came != expected:
            raise RuntimeError(f"{came} of {expected} rows of delivery {run.delivery} came")
        return came

    def _tell_apart(self, roots: Ids) -> Ids:
        """The ids of rows that a reader gave: two that are the same are two segments."""
        found, first = np.unique(roots, return_index=True)
        ids = found.tolist()
        if len(found) < len(roots) or not self._seen.isdisjoint(ids):
            roots = roots.copy()
            is_first = np.zeros(len(roots), dtype=bool)
            is_first[first] = True
            for place, root in enumerate(roots.tolist()):
                while root in self._seen or not is_first[place]:
                    is_first[place] = True
                    changed = np.array([root + 1], dtype=np.uint64)
                    root = int(mix64_all(changed)[0])
                roots[place] = root
                self._seen.add(root)
        else:
            self._seen.update(ids)
        return roots


def _single_stage(context: WorkerContext) -> Operator:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        program, name = context.prepare(), secrets.token_hex(8)
        outputs, written = outputs_with_rows(context)
        partition, beat = SingleStagePartition(program, outputs, name), context.heartbeat

        def work() -> Iterator[pa.RecordBatch]:
            reader = _RowReader(context, program)
            for run in (run for batch in batches for run in runs_of(batch)):
                if run.kind is InputRowKind.END:
                    reader.check_end(run)
                    partition.complete(run.delivery)
                    continue
                beat.is_busy = True
                for roots in reader.decode(run):
                    partition.process(reader.task_of(run), roots)
                beat.is_busy = False
                yield from written.take()
            partition.count_read(reader.read)

        yield from _finish(context, program, partition, name, work(), written)

    return run


def _first_stage(context: WorkerContext) -> Operator:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        program, columns = context.prepare(), context.columns_of_stage(1)
        stage, reader = SourceStage(program), _RowReader(context, program)
        beat = context.heartbeat
        for run in (run for batch in batches for run in runs_of(batch)):
            task = reader.task_of(run)
            if run.kind is InputRowKind.END:
                count = reader.check_end(run)
                yield to_batch_with_columns([stage.complete(task, run.delivery, count)], columns)
                continue
            for roots in reader.decode(run):
                beat.is_busy = True
                rows = stage.process(task, roots)
                beat.is_busy = False
                if len(rows):
                    yield to_batch_with_columns(rows, columns)
        if reader.read:
            yield to_batch_with_columns([stage.complete("", 0, reader.read)], columns)

    return run


def _later_stage(context: WorkerContext, index: int) -> Operator:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stage = ShuffleStage(context.prepare(), index, context.columns_of_stage(index))
        columns, beat = context.columns_of_stage(index + 1), context.heartbeat
        for batch in batches:
            mine, others = _split(batch, context.graph.stages[index].tasks)
            if others.num_rows:
                if columns:
                    others = to_batch_with_columns(ShuffleColumns.of_batch(others), columns)
                yield others
            beat.is_busy = True
            for rows in stage.take(ShuffleColumns.of_batch(mine)):
                beat.is_busy = False
                if len(rows):
                    yield to_batch_with_columns(rows, columns)
                beat.is_busy = True
            beat.is_busy = False

    return run


def _split(batch: pa.RecordBatch, tasks: Sequence[str]) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Segments for some tasks, and all other rows, which stay as they are but for where they meet:
    those of a root, in the end."""
    is_segment = pc.equal(batch.column("kind"), ShuffleRowKind.SEGMENT)
    is_mine = pc.and_(is_segment, pc.is_in(batch.column("task"), pa.array(tasks, pa.string())))
    shard = pc.if_else(is_segment, batch.column("shard"), batch.column("root"))
    columns = [shard if it.name == "shard" else batch.column(it.name) for it in schema()]
    others = pa.RecordBatch.from_arrays(columns, schema=schema()).filter(pc.invert(is_mine))
    return batch.filter(is_mine), others


def _last_stage(context: WorkerContext) -> Operator:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        program, name = context.prepare(), secrets.token_hex(8)
        outputs, written = outputs_with_rows(context)
        partition = ShuffledPartition(program, outputs, name)

        def work() -> Iterator[pa.RecordBatch]:
            partition.take_rows(ShuffleColumns.concat(list(map(ShuffleColumns.of_batch, batches))))
            yield from written.take()

        yield from _finish(context, program, partition, name, work(), written)

    return run


def _finish(
    context: WorkerContext,
    program: CompiledJob,
    partition: PartitionExecutor,
    name: str,
    work: Iterator[pa.RecordBatch],
    written: WrittenRows,
) -> Iterator[pa.RecordBatch]:
    """Do the work of a partition, and say what it came to."""
    try:
        program.before_batch()
        yield from work
        outcome = encode_part(partition.finish())
        yield from written.take()
        if len(outcome) > _INLINE_BYTES_MAX:
            context.coordinator.store_result(name, outcome)
            outcome = name.encode()
        program.lifecycles.after_batch()
    except BaseException:
        partition.abort()
        raise
    yield outcome_row(context, outcome)


def read_outcomes(outcomes: Sequence[bytes]) -> tuple[list[bytes], list[str]]:
    """What partitions came to, and the names of those that the coordinator has."""
    inline = [it for it in outcomes if not _is_name(it)]
    return inline, [it.decode() for it in outcomes if _is_name(it)]


def _is_name(outcome: bytes) -> bool:
    # What a partition came to is a map in MsgPack, which begins with no hexadecimal digit.
    return not outcome[0] & 0x80


class WrittenRows:
    """Segments for outputs that Spark writes, as rows."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._schema = result_schema(context)
        self._batches: list[pa.RecordBatch] = []

    def add(self, task: str, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        """Take segments.

        Raises:
            UnwritableSegmentsError: some are not what the output's schema says, or no JSON.
        """
        type_ = self._context.output_types.get(task)
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

    def take(self) -> Iterator[pa.RecordBatch]:
        """What was taken since the last time."""
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
    typed = [(output_label(context, name), it) for name, it in context.output_types.items()]
    return pa.schema([*_SCHEMA, *(pa.field(name, it) for name, it in typed)])


def result_ddl(context: WorkerContext) -> str:
    """The same, as Spark writes it."""
    tasks = context.graph.tasks
    typed = (
        f"{output_label(context, name)} struct<{tasks[name].schema}>"
        for name in context.output_types
    )
    return ", ".join([RESULT_DDL, *typed])


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
