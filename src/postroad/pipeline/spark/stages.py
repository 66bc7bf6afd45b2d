"""The stages of a job as operators of Spark, for jobs that have shuffles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from postroad.pipeline.fused.rows import DDL, Kind, Row, from_batch, to_batch
from postroad.pipeline.fused.staged_passes import FirstPass, LaterPass
from postroad.pipeline.records import Delivery

from .order import Order

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_decode = msgspec.msgpack.Decoder(list[Delivery]).decode

Operator = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def add_stages(deliveries: DataFrame, order: Order) -> DataFrame:
    """Deliveries as they are for a job of one stage; otherwise the rows that they come to."""
    if order.stages == 1:
        return deliveries
    rows = deliveries.mapInArrow(_first_operator(order), DDL)
    for stage in range(1, order.stages):
        operator = _later_operator(order, stage)
        rows = rows.repartition(order.partitions, "shard").mapInArrow(operator, DDL)
    # At last all rows of a root meet.
    return rows.repartition(order.partitions, "shard")


def read_deliveries(batches: Iterator[pa.RecordBatch]) -> Iterator[Delivery]:
    """The deliveries that rows of the source name."""
    for batch in batches:
        for row in batch.column(0):
            yield from _decode(row.as_py())


def _first_operator(order: Order) -> Operator:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = FirstPass(order.program)
        for delivery in read_deliveries(batches):
            for rows in _work(order, first, delivery):
                if rows:
                    yield to_batch(rows)

    return run


def _work(order: Order, first: FirstPass, delivery: Delivery) -> Iterator[list[Row]]:
    number, task = delivery.number, delivery.task
    if delivery.place is None:
        payload = msgspec.msgpack.encode(delivery)
        yield [Row(number, Kind.AGAIN, task, number, payload=payload)]
        return
    medium = order.inputs[task]
    yield from first.take_slice(number, task, delivery.generation, medium, order.read(delivery))


def _later_operator(order: Order, stage: int) -> Operator:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        later = LaterPass(order.program, stage)
        for batch in batches:
            for rows in later.take(from_batch(batch)):
                if rows:
                    yield to_batch(rows)

    return run
