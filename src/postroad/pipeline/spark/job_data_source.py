"""What a coordinator delivers, as a Spark source whose rows are the segments."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from postroad.pipeline.acks import AckIds
from postroad.pipeline.coordinator.records import InputDelivery
from postroad.pipeline.spark.input_rows import DDL, of_retries, of_split
from postroad.pipeline.spark.worker_context import WorkerContext

_decode = msgspec.msgpack.Decoder(list[InputDelivery]).decode


def read_deliveries(
    context: WorkerContext, deliveries: Sequence[InputDelivery]
) -> Iterator[pa.RecordBatch]:
    """The rows of some deliveries."""
    ack_ids = AckIds(context.job_name)
    for it in deliveries:
        place = context.graph.order.index(it.task)
        if it.position is None:
            yield from of_retries(place, it, context.coordinator.read_retries(it))
        else:
            yield from of_split(ack_ids, place, it, context.read(it))


def leave_quietly() -> None:
    """End this process, if Spark has hung up on it.

    A query that is stopped closes the connection of its source. pyspark would try to tell Spark so,
    and print a traceback of the pipe that is broken.
    """
    if isinstance(sys.exc_info()[1], EOFError | BrokenPipeError | ConnectionResetError):
        os._exit(0)


class JobStreamReader(DataSourceStreamReader):
    """Offsets are numbers of deliveries."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    def initialOffset(self) -> dict[str, int]:
        return {"delivery": self._context.coordinator.initial_offset()}

    def getDefaultReadLimit(self) -> ReadLimit:
        # How much is pending, the coordinator knows.
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        after = start["delivery"]
        latest = self._context.coordinator.poll(after, self._context.poll_s)
        return {"delivery": max(latest, after)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return _partitions(self._context, start["delivery"], end["delivery"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_deliveries(self._context, _decode(partition.value))

    def stop(self) -> None:
        leave_quietly()


class JobReader(DataSourceReader):
    """Everything that is delivered and not committed."""

    def __init__(self, context: WorkerContext, upto: int) -> None:
        self._context = context
        self._upto = upto

    def partitions(self) -> Sequence[InputPartition]:
        return _partitions(self._context, 0, self._upto)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_deliveries(self._context, _decode(partition.value))


def _partitions(context: WorkerContext, after: int, upto: int) -> list[InputPartition]:
    partitions = context.coordinator.plan_partitions(after, upto)
    return [InputPartition(msgspec.msgpack.encode(it)) for it in partitions]


class JobDataSource(DataSource):
    """What a job's coordinator delivers. Each run makes a sub-class with its context.

    Options:
        upto: for batches, the number of the last delivery.
    """

    context: WorkerContext

    def schema(self) -> str:
        return DDL

    def streamReader(self, schema: StructType) -> JobStreamReader:
        return JobStreamReader(self.context)

    def reader(self, schema: StructType) -> JobReader:
        return JobReader(self.context, int(self.options["upto"]))


def bind_data_source(format_name: str, context: WorkerContext) -> type[JobDataSource]:
    """The source of one run of a job, under a name of its own."""

    def name(cls: Any) -> str:
        return format_name

    members = {"context": context, "name": classmethod(name)}
    return type("BoundDataSource", (JobDataSource,), members)
