"""The same fused job without an account of its segments: what tracking is compared with."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import InputConnector, OutputConnector, RawRecords
from postroad.pipeline.spark.queries import QueryRunner
from postroad.pipeline.spark.runner import SparkRunner
from postroad.pipeline.spark.sink import JobStreamWriter, JobWriter, PartitionCommitMessage
from postroad.pipeline.spark.source import JobDataSource
from postroad.pipeline.spark.stages import read_deliveries
from postroad.pipeline.spark.worker_context import WorkerContext
from postroad.pipeline.vectorized.acks import EdgeBatch, UnackedRemainder
from postroad.pipeline.vectorized.partition import OutputSink, SingleStagePartition, encode_part
from postroad.pipeline.vectorized.stage_executor import RootBatch, StageExecutor
from postroad.pipeline.vectorized.task_calls import TaskOutput

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_NOTHING = np.zeros(0, dtype=np.uint64)
_NO_EDGES = EdgeBatch(_NOTHING, np.zeros(0, dtype=np.intp), _NOTHING, 0)


class NoLedger:
    """Counts nothing."""

    def enter(self) -> EdgeBatch:
        return _NO_EDGES

    def give(self, *arguments: object) -> EdgeBatch:
        return _NO_EDGES

    def join(self, parts: object) -> EdgeBatch:
        return _NO_EDGES

    def take(self, edges: EdgeBatch, failed: Sequence[int] = ()) -> None:
        return

    def close(self) -> dict[int, UnackedRemainder]:
        return {}


class UntrackedSink(OutputSink):
    """Writes without ids."""

    def write_output(self, piece: RootBatch, task: str, edges: EdgeBatch, made: TaskOutput) -> None:
        self.write(task, range(len(made.segments)), made.segments)


class UntrackedPart(SingleStagePartition):
    """Runs the functions, and writes what they make."""

    def __init__(
        self, program: CompiledJob, outputs: Mapping[str, OutputConnector], name: str
    ) -> None:
        super().__init__(program, outputs, name)
        self._sink = UntrackedSink(program.job.name, name, outputs)
        self._pass = StageExecutor(program, 0, self._sink)

    def process_split(
        self,
        number: int,
        task: str,
        generation: int,
        connector: InputConnector,
        chunks: Iterable[RawRecords],
    ) -> None:
        from postroad.pipeline.vectorized.decoding import PIECE_SEGMENTS

        self._outcome.deliveries.append(number)
        for chunk in chunks:
            for start in range(0, len(chunk.raws), PIECE_SEGMENTS):
                segments = list(map(connector.decode, chunk.raws[start : start + PIECE_SEGMENTS]))
                piece = RootBatch(self._program, _NOTHING, generation)
                piece.ledger = NoLedger()  # type: ignore[assignment]
                self._pass.run_roots(piece, task, segments)


def _work(order: WorkerContext, batches: Iterator[pa.RecordBatch]) -> PartitionCommitMessage:
    part = UntrackedPart(order.program, order.outputs, secrets.token_hex(8))
    for it in read_deliveries(batches):
        part.process_split(it.number, it.task, 0, order.inputs[it.task], order.read(it))
    return PartitionCommitMessage(encode_part(part.finish()))


class _StreamWriter(JobStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionCommitMessage:
        return _work(self._order, iterator)


class _Writer(JobWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionCommitMessage:
        return _work(self._order, iterator)


class _Source(JobDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> JobStreamWriter:
        return _StreamWriter(self.order)

    def writer(self, schema: StructType, overwrite: bool) -> JobWriter:
        return _Writer(self.order, int(self.options["batch"]))


class UntrackedRunner(SparkRunner):
    """Runs jobs of one stage without tracking."""

    def _make_queries(self, session: SparkSession, order: WorkerContext) -> QueryRunner:
        queries: Any = super()._make_queries(session, order)
        name: str = queries._name
        members = {"order": order, "name": classmethod(lambda cls: name)}
        session.dataSource.register(type("Untracked", (_Source,), members))
        return queries  # type: ignore[no-any-return]
