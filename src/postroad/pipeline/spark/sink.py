"""A job's pass as a Spark sink: rows say what to read, and what comes of it goes to the desk."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from postroad.pipeline.spark.coordinator_client import PartitionResults
from postroad.pipeline.spark.stages import read_deliveries
from postroad.pipeline.spark.worker_context import WorkerContext
from postroad.pipeline.vectorized.partition import (
    PartitionExecutor,
    ShuffledPartition,
    SingleStagePartition,
    encode_part,
)
from postroad.pipeline.vectorized.shuffle_rows import from_batch

# What is larger goes to the desk itself, and not through a JVM and another process.
_INLINE_BYTES_MAX = 64 * 1024


@dataclass
class PartitionCommitMessage(WriterCommitMessage):
    """What a part came to, or the name under which it was left at the desk."""

    outcome: bytes | str


def run_partition(
    order: WorkerContext, batches: Iterator[pa.RecordBatch]
) -> PartitionCommitMessage:
    """Do a part of a batch."""
    program, name = order.prepare(), secrets.token_hex(8)
    whole = SingleStagePartition(program, order.outputs, name)
    gathered = ShuffledPartition(program, order.outputs, name)
    is_whole = len(program.graph.stages) == 1
    part: PartitionExecutor = whole if is_whole else gathered
    try:
        program.before_batch()
        if is_whole:
            _work_whole(order, whole, batches)
        else:
            gathered.take_rows(row for batch in batches for row in from_batch(batch))
        outcome = encode_part(part.finish())
        done = PartitionCommitMessage(outcome)
        if len(outcome) > _INLINE_BYTES_MAX:
            order.coordinator.store_result(name, outcome)
            done = PartitionCommitMessage(name)
        program.lifecycles.after_batch()
        return done
    except BaseException:
        part.abort()
        raise


def _work_whole(
    order: WorkerContext, part: SingleStagePartition, batches: Iterator[pa.RecordBatch]
) -> None:
    for it in read_deliveries(batches):
        if it.position is None:
            part.process_retries(it.number, it.task, order.coordinator.read_retries(it))
        else:
            connector = order.inputs[it.task]
            part.process_split(it.number, it.task, it.generation, connector, order.read(it))


def _parts(messages: list[WriterCommitMessage | None]) -> PartitionResults:
    outcomes = [it.outcome for it in messages if isinstance(it, PartitionCommitMessage)]
    return PartitionResults(
        [it for it in outcomes if isinstance(it, bytes)],
        [it for it in outcomes if isinstance(it, str)],
    )


class JobStreamWriter(DataSourceStreamArrowWriter):
    """Settles each micro-batch."""

    def __init__(self, order: WorkerContext) -> None:
        self._order = order

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionCommitMessage:
        return run_partition(self._order, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._order.coordinator.commit_batch(self._order.run, batchId, _parts(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._order.coordinator.abort_batch(_parts(messages))


class JobWriter(DataSourceArrowWriter):
    """Settles a batch."""

    def __init__(self, order: WorkerContext, batch: int) -> None:
        self._order = order
        self._batch = batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionCommitMessage:
        return run_partition(self._order, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._order.coordinator.commit_batch(self._order.run, self._batch, _parts(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._order.coordinator.abort_batch(_parts(messages))
