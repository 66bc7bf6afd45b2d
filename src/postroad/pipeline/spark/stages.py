"""The stages of a job as operators of Spark, for jobs that have several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from postroad.pipeline.coordinator.records import InputDelivery
from postroad.pipeline.spark.sql_expressions import compute, ddl_with_columns
from postroad.pipeline.spark.worker_context import WorkerContext
from postroad.pipeline.vectorized.shuffle_rows import ShuffleRow, from_batch, to_batch_with_columns
from postroad.pipeline.vectorized.shuffle_stages import ShuffleStage, SourceStage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_decode = msgspec.msgpack.Decoder(list[InputDelivery]).decode

Operator = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def add_stages(deliveries: DataFrame, order: WorkerContext) -> DataFrame:
    """Deliveries as they are for a job of one stage; otherwise the rows that they come to."""
    if len(order.graph.stages) == 1:
        return deliveries
    graph = order.graph
    tasks = [[graph.tasks[name] for name in stage.computed] for stage in graph.stages] + [[]]
    rows = deliveries.mapInArrow(_first_operator(order), ddl_with_columns(tasks[1]))
    for stage in graph.stages[1:]:
        if stage.shuffled:
            rows = rows.repartition(order.partitions, "shard")
        rows = compute(rows, tasks[stage.index])
        ddl = ddl_with_columns(tasks[stage.index + 1])
        rows = rows.mapInArrow(_later_operator(order, stage.index), ddl)
    # At last all rows of a root meet.
    return rows.repartition(order.partitions, "shard")


def read_deliveries(batches: Iterator[pa.RecordBatch]) -> Iterator[InputDelivery]:
    """The deliveries that rows of the source name."""
    for batch in batches:
        for row in batch.column(0):
            yield from _decode(row.as_py())


def _first_operator(order: WorkerContext) -> Operator:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first, columns = SourceStage(order.prepare()), order.columns_of_stage(1)
        for delivery in read_deliveries(batches):
            for rows in _work(order, first, delivery):
                if rows:
                    yield to_batch_with_columns(rows, columns)

    return run


def _work(
    order: WorkerContext, first: SourceStage, delivery: InputDelivery
) -> Iterator[list[ShuffleRow]]:
    number, task = delivery.number, delivery.task
    if delivery.position is None:
        yield from first.process_retries(number, task, order.coordinator.read_retries(delivery))
        return
    connector = order.inputs[task]
    yield from first.process_split(
        number, task, delivery.generation, connector, order.read(delivery)
    )


def _later_operator(order: WorkerContext, stage: int) -> Operator:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        later = ShuffleStage(order.prepare(), stage, order.columns_of_stage(stage))
        columns = order.columns_of_stage(stage + 1)
        for batch in batches:
            for rows in later.take(from_batch(batch)):
                if rows:
                    yield to_batch_with_columns(rows, columns)

    return run
