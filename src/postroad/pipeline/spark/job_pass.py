"""The tasks of a job as operators of Spark: a pass between two shuffles, each one `mapInArrow`.

The last pass writes what is for the job's own outputs where it runs, and gives rows: what its
partition came to, and segments for outputs that Spark writes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.coordinator.records import RetryRoot, merge_failures
from postroad.pipeline.job import Segment
from postroad.pipeline.spark.input_rows import InputRowKind, RowRun, read_columns, runs_of
from postroad.pipeline.spark.result_rows import (
    WrittenRows,
    decode_gathered,
    outcome_row,
    output_label,
    outputs_with_rows,
    result_ddl,
)
from postroad.pipeline.spark.sql_expressions import compute, ddl_with_columns
from postroad.pipeline.spark.window_rows import write_panes
from postroad.pipeline.spark.worker_context import WorkerContext
from postroad.pipeline.vectorized.acks import Ids, mix64_all
from postroad.pipeline.vectorized.decoding import (
    DecodedRoots,
    decode_retries,
    decode_roots,
    now_ms,
)
from postroad.pipeline.vectorized.partition import (
    PartitionExecutor,
    PartitionResult,
    ShuffledPartition,
    SingleStagePartition,
    encode_part,
)
from postroad.pipeline.vectorized.shuffle_columns import (
    ShuffleColumns,
    to_batch_with_columns,
    to_columns,
)
from postroad.pipeline.vectorized.shuffle_rows import PACKED_DDL, ShuffleRow
from postroad.pipeline.vectorized.shuffle_stages import ShuffleStage, SourceStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What is larger goes to the coordinator itself, and not through the JVM and another process.
_INLINE_BYTES_MAX = 64 * 1024

Operator = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]
Report = Callable[[bytes], None]

decode_json: Callable[[bytes], Segment] = msgspec.json.Decoder(dict[str, Any]).decode


def add_passes(rows: DataFrame, context: WorkerContext, report: Report | None = None) -> DataFrame:
    """Have the tasks of a job run over input rows; gives rows as `result_ddl` has them.

    Args:
        rows: as they come in.
        context: the job.
        report: takes what partitions came to; otherwise they are rows as well.
    """
    rows = _add_stages(rows, context, report)
    if context.group_tasks:
        # Rows for them have the hash of their group there.
        rows = rows.repartition(context.partitions, "id")
        rows = rows.mapInArrow(_group_stage(context), result_ddl(context))
    return rows


def _add_stages(rows: DataFrame, context: WorkerContext, report: Report | None) -> DataFrame:
    graph = context.graph
    if len(graph.stages) == 1:
        return rows.mapInArrow(_single_stage(context, report), result_ddl(context))
    transits = [_Transit(context, stage.index) for stage in graph.stages] + [_Transit(context)]
    rows = rows.mapInArrow(_first_stage(context, transits[1]), transits[1].ddl)
    for stage in graph.stages[1:]:
        arriving, leaving = transits[stage.index : stage.index + 2]
        if stage.shuffled:
            rows = arriving.shuffle(rows)
        rows = compute(rows, arriving.tasks)
        rows = rows.mapInArrow(_later_stage(context, stage.index, arriving, leaving), leaving.ddl)
    # At last all rows of a root meet.
    rows = transits[-1].shuffle(rows)
    return rows.mapInArrow(_last_stage(context, transits[-1], report), result_ddl(context))


class _Transit:
    """How rows come to a stage: one by one where Spark computes something for it, else packed."""

    def __init__(self, context: WorkerContext, stage: int | None = None) -> None:
        graph = context.graph
        self._names = () if stage is None else graph.stages[stage].computed
        self.tasks = [graph.tasks[name] for name in self._names]
        self._columns = {name: context.columns[name] for name in self._names}
        self._parts = context.partitions

    @property
    def ddl(self) -> str:
        return ddl_with_columns(self.tasks) if self._columns else PACKED_DDL

    def shuffle(self, rows: DataFrame) -> DataFrame:
        if self._columns:
            return rows.repartition(self._parts, "shard")
        return rows.repartitionById(self._parts, "part")

    def write(self, rows: Iterable[ShuffleRow]) -> pa.RecordBatch:
        if self._columns:
            return to_batch_with_columns(rows, self._columns)
        return to_columns(rows).pack(self._parts)

    def read(self, batch: pa.RecordBatch) -> ShuffleColumns:
        if self._columns:
            return ShuffleColumns.of_batch(batch)
        packs = batch.column("packed").to_pylist()
        return ShuffleColumns.concat(list(map(ShuffleColumns.unpack, packs)))

    def split(
        self, batch: pa.RecordBatch, after: _Transit
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """What a stage has to look at, and what goes on to the next as it is."""
        if self._columns or after._columns:
            return batch, None
        is_for_stage = batch.column("is_for_stage")
        return batch.filter(is_for_stage), batch.filter(pc.invert(is_for_stage))


class _RowReader:
    """Makes segments of input rows, and sees to it that none is missing."""

    def __init__(self, context: WorkerContext, program: CompiledJob) -> None:
        self._context = context
        self._program = program
        self._counts: dict[int, int] = {}
        self._seen: set[int] = set()
        self.read = 0
        """Rows of Spark's readers."""
        self.made: dict[str, int] = {}
        """Rows that functions of DataFrames made, by their tasks."""

    def task_of(self, run: RowRun) -> str:
        return self._context.graph.order[run.place]

    def decode(self, run: RowRun) -> Iterator[DecodedRoots]:
        task = self.task_of(run)
        count = len(run.roots)
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
            case InputRowKind.JSON | InputRowKind.COLUMNS:
                if task in self._program.dataframe_tasks:
                    self.made[task] = self.made.get(task, 0) + count
                else:
                    self.read += count
                may_meet = self._program.is_multi_stage or self._program.gathering_tasks
                ids = self._tell_apart(run.roots) if may_meet else run.roots
                if run.columns is not None:
                    yield _of_columns(run.columns, run.generation, ids)
                    return
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


def _of_columns(columns: pa.RecordBatch, generation: int, roots: Ids) -> DecodedRoots:
    """Roots whose segments are in columns, where those that come again are read once more."""

    def decode(place: int) -> Segment:
        return read_columns(columns.slice(place, 1))[0]

    segments = read_columns(columns)
    return DecodedRoots(generation, roots, range(len(segments)), segments, [], decode)


def _single_stage(context: WorkerContext, report: Report | None = None) -> Operator:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        program, name = context.prepare(), secrets.token_hex(8)
        outputs, written = outputs_with_rows(context)
        partition = SingleStagePartition(
            program, outputs, name, context.spark_windows, gather=written.gather
        )
        beat = context.heartbeat

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
            partition.count_made(sum(reader.made.values()))

        yield from _finish(context, program, partition, name, work(), written, report)

    return run


def _first_stage(context: WorkerContext, leaving: _Transit) -> Operator:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        program = context.prepare()
        stage, reader = SourceStage(program), _RowReader(context, program)
        beat = context.heartbeat
        for run in (run for batch in batches for run in runs_of(batch)):
            task = reader.task_of(run)
            if run.kind is InputRowKind.END:
                count = reader.check_end(run)
                yield leaving.write([stage.complete(task, run.delivery, count)])
                continue
            for roots in reader.decode(run):
                beat.is_busy = True
                rows = stage.process(task, roots)
                beat.is_busy = False
                if len(rows):
                    yield leaving.write(rows)
        counts = {"": reader.read, **reader.made}
        notes = [stage.complete(task, 0, count) for task, count in counts.items() if count]
        if notes := notes + stage.finish():
            yield leaving.write(notes)

    return run


def _later_stage(
    context: WorkerContext, index: int, arriving: _Transit, leaving: _Transit
) -> Operator:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stage = ShuffleStage(context.prepare(), index, context.columns_of_stage(index))
        beat = context.heartbeat
        for batch in batches:
            mine, others = arriving.split(batch, leaving)
            if others is not None and others.num_rows:
                yield others
            beat.is_busy = True
            for rows in stage.take(arriving.read(mine)):
                beat.is_busy = False
                if len(rows):
                    yield leaving.write(rows)
                beat.is_busy = True
            beat.is_busy = False
        if notes := stage.finish():
            yield leaving.write(notes)

    return run


def _last_stage(context: WorkerContext, arriving: _Transit, report: Report | None) -> Operator:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        program, name = context.prepare(), secrets.token_hex(8)
        outputs, written = outputs_with_rows(context)
        partition = ShuffledPartition(
            program, outputs, name, context.spark_windows, gather=written.gather
        )

        def work() -> Iterator[pa.RecordBatch]:
            partition.take_rows(ShuffleColumns.concat(list(map(arriving.read, batches))))
            yield from written.take()

        yield from _finish(context, program, partition, name, work(), written, report)

    return run


def _group_stage(context: WorkerContext) -> Operator:
    """Functions of groups, with all that the passes before have gathered for them."""
    labels = pa.array([output_label(context, name) for name in context.group_tasks])

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        program, name = context.prepare(), secrets.token_hex(8)
        outputs, written = outputs_with_rows(context)
        make = ShuffledPartition if program.is_multi_stage else SingleStagePartition
        partition = make(program, outputs, name, context.spark_windows)

        def work() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                is_mine = pc.is_in(batch.column("task"), labels)
                for member in batch.filter(is_mine).column("gathered").to_pylist():
                    partition.groups.add(decode_gathered(member))
                others = batch.filter(pc.invert(is_mine))
                if others.num_rows:
                    yield others

        yield from _finish(context, program, partition, name, work(), written)

    return run


def fail_gathered(context: WorkerContext, reason: str) -> Operator:
    """Have the roots of gathered segments come again, because the function failed for them."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _fail_rows(context, batch, reason)

    return run


def _fail_rows(context: WorkerContext, batch: pa.RecordBatch, reason: str) -> pa.RecordBatch:
    members = map(decode_gathered, batch.column("gathered").to_pylist())
    failed = [member.fail(reason, now_ms()) for member in members]
    outcome = encode_part(PartitionResult(failed=merge_failures(failed)))
    return outcome_row(context, _keep_small(context, secrets.token_hex(8), outcome))


def _finish(
    context: WorkerContext,
    program: CompiledJob,
    partition: PartitionExecutor,
    name: str,
    work: Iterator[pa.RecordBatch],
    written: WrittenRows,
    report: Report | None = None,
) -> Iterator[pa.RecordBatch]:
    """Do the work of a partition, and say what it came to."""
    try:
        program.before_batch()
        yield from work
        context.heartbeat.is_busy = True
        result = partition.finish()
        panes = [it for it in partition.panes.values() if it.panes]
        result.window_files = [write_panes(it, context.window_files) for it in panes]
        outcome = encode_part(result)
        context.heartbeat.is_busy = False
        yield from written.take()
        outcome = _keep_small(context, name, outcome)
        program.lifecycles.after_batch()
    except BaseException:
        partition.abort()
        raise
    if report is None:
        yield outcome_row(context, outcome)
    else:
        report(outcome)


def _keep_small(context: WorkerContext, name: str, outcome: bytes) -> bytes:
    """What a partition came to, or its name if the coordinator keeps it."""
    if len(outcome) <= _INLINE_BYTES_MAX:
        return outcome
    context.coordinator.store_result(name, outcome)
    return name.encode()


def read_outcomes(outcomes: Sequence[bytes]) -> tuple[list[bytes], list[str]]:
    """What partitions came to, and the names of those that the coordinator has."""
    inline = [it for it in outcomes if not _is_name(it)]
    return inline, [it.decode() for it in outcomes if _is_name(it)]


def _is_name(outcome: bytes) -> bool:
    # What a partition came to is a map in MsgPack, which begins with no hexadecimal digit.
    return not outcome[0] & 0x80
