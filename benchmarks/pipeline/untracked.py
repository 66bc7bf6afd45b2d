"""The same job without an account of its segments: what tracking is compared with."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from postroad.pipeline.spark.batches import BatchProcessor
from postroad.pipeline.spark.input_rows import InputRowKind, runs_of
from postroad.pipeline.spark.job_pass import Operator, Report
from postroad.pipeline.spark.queries import QueryRunner
from postroad.pipeline.spark.result_rows import outcome_row, outputs_with_rows, result_ddl
from postroad.pipeline.spark.runner import SparkRunner
from postroad.pipeline.spark.worker_context import WorkerContext
from postroad.pipeline.vectorized.acks import EdgeBatch, UnackedRemainder
from postroad.pipeline.vectorized.output_sink import OutputSink
from postroad.pipeline.vectorized.partition import PartitionResult, encode_part
from postroad.pipeline.vectorized.stage_executor import RootBatch, StageExecutor
from postroad.pipeline.vectorized.task_calls import TaskOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOTHING = np.zeros(0, dtype=np.uint64)
_NO_EDGES = EdgeBatch(_NOTHING, np.zeros(0, dtype=np.intp), _NOTHING, 0)


class NoLedger:
    """Counts nothing."""

    def add_roots(self) -> EdgeBatch:
        return _NO_EDGES

    def add_sent(self, *arguments: object) -> EdgeBatch:
        return _NO_EDGES

    def concat(self, parts: object) -> EdgeBatch:
        return _NO_EDGES

    def mark_processed(self, edges: EdgeBatch, failed: Sequence[int] = ()) -> None:
        return

    def unacked(self) -> dict[int, UnackedRemainder]:
        return {}


class UntrackedSink(OutputSink):
    """Writes without ids."""

    def write_output(self, piece: RootBatch, task: str, edges: EdgeBatch, made: TaskOutput) -> None:
        self.write(task, range(len(made.segments)), made.segments)


def untracked_pass(context: WorkerContext) -> Operator:
    """Runs the functions, and writes what they make."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # By its name: Spark could not send what it needs.
        return _run(context, batches)

    return run


def _run(context: WorkerContext, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    program, name = context.program, secrets.token_hex(8)
    outputs, written = outputs_with_rows(context)
    sink = UntrackedSink(program.job.name, name, outputs)
    stage, result = StageExecutor(program, 0, sink), PartitionResult()
    for run in (run for batch in batches for run in runs_of(batch)):
        task = context.graph.order[run.place]
        if run.kind is InputRowKind.END:
            result.deliveries.append(run.delivery)
            continue
        piece = RootBatch(program, _NOTHING, 0)
        piece.ledger = NoLedger()  # type: ignore[assignment]
        stage.run_roots(piece, task, list(map(context.inputs[task].decode, run.raws)))
        yield from written.take()
    result.staged = sink.prepare_commit()
    yield outcome_row(context, encode_part(result))


class UntrackedProcessor(BatchProcessor):
    """Does batches without tracking."""

    def _add_passes(self, rows: DataFrame, report: Report | None = None) -> DataFrame:
        return rows.mapInArrow(untracked_pass(self._context), result_ddl(self._context))


class UntrackedRunner(SparkRunner):
    """Runs jobs of one stage without tracking."""

    def _make_queries(self, session: SparkSession, context: WorkerContext) -> QueryRunner:
        queries: Any = super()._make_queries(session, context)
        queries._processor = UntrackedProcessor(context, queries._processor._stage)
        return queries  # type: ignore[no-any-return]
