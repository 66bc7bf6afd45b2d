"""A job's deliveries as a Spark source: a row for each part of a batch, saying what to read.

The rows are small. What they name is read where it is worked on, and goes through no JVM.
"""

from __future__ import annotations

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

from postroad.pipeline.coordinator.records import InputDelivery
from postroad.pipeline.spark.sink import JobStreamWriter, JobWriter
from postroad.pipeline.spark.worker_context import WorkerContext

SCHEMA = "deliveries binary"
_ARROW_SCHEMA = pa.schema([("deliveries", pa.binary())])

# A query can be stopped while it waits.
_WAIT_S = 5.0
# Below this, more parts cost more than they save.
_PART_SEGMENTS = 2_000


def balance_partitions(
    deliveries: Sequence[InputDelivery], parts: int
) -> list[list[InputDelivery]]:
    """Deliveries in parts of about the same size; the larger ones first."""
    total = sum(it.segments for it in deliveries)
    count = max(min(parts, total // _PART_SEGMENTS, len(deliveries)), 1)
    divided: list[list[InputDelivery]] = [[] for _ in range(count)]
    loads = [0] * count
    for it in sorted(deliveries, key=lambda it: (-it.segments, it.number)):
        least = loads.index(min(loads))
        divided[least].append(it)
        loads[least] += it.segments
    return [part for part in divided if part]


def _partitions(order: WorkerContext, after: int, upto: int) -> list[InputPartition]:
    parts = balance_partitions(order.coordinator.list_deliveries(after, upto), order.partitions)
    return [InputPartition(msgspec.msgpack.encode(part)) for part in parts]


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    row = pa.array([partition.value], pa.binary())
    yield pa.RecordBatch.from_arrays([row], schema=_ARROW_SCHEMA)


class JobStreamReader(DataSourceStreamReader):
    """Offsets are numbers of deliveries."""

    def __init__(self, order: WorkerContext) -> None:
        self._order = order

    def initialOffset(self) -> dict[str, int]:
        return {"delivery": self._order.coordinator.initial_offset()}

    def getDefaultReadLimit(self) -> ReadLimit:
        # How much is pending, the desk knows.
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        after = start["delivery"]
        return {"delivery": max(self._order.coordinator.poll(after, _WAIT_S), after)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return _partitions(self._order, start["delivery"], end["delivery"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class JobReader(DataSourceReader):
    """Everything that is delivered and not settled."""

    def __init__(self, order: WorkerContext, upto: int) -> None:
        self._order = order
        self._upto = upto

    def partitions(self) -> Sequence[InputPartition]:
        return _partitions(self._order, 0, self._upto)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class JobDataSource(DataSource):
    """What a job reads and writes. Each run makes a sub-class with its order.

    Options:
        upto: for batches, the number of the last delivery.
        batch: for batches, their number.
    """

    order: WorkerContext

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> JobStreamReader:
        return JobStreamReader(self.order)

    def reader(self, schema: StructType) -> JobReader:
        return JobReader(self.order, int(self.options["upto"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> JobStreamWriter:
        return JobStreamWriter(self.order)

    def writer(self, schema: StructType, overwrite: bool) -> JobWriter:
        return JobWriter(self.order, int(self.options["batch"]))


def register_data_source(format_name: str, order: WorkerContext) -> type[JobDataSource]:
    """A source and sink for one run of a job, under a name of its own."""

    def name(cls: Any) -> str:
        return format_name

    return type("BoundSource", (JobDataSource,), {"order": order, "name": classmethod(name)})
