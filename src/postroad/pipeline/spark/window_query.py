"""Windows as streaming queries of Spark, which keeps their contents in its state store.

A query takes what committed batches add, in their order: its offsets are their numbers. What it
emits is taken in once for each of its batches, as new roots of the job. So however often Spark
does a batch again, of either query, each segment counts once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from postroad.pipeline.coordinator.records import FailedRoot
from postroad.pipeline.coordinator.window_deltas import CommittedDelta, ResultFile
from postroad.pipeline.spark.batches import BatchFailed
from postroad.pipeline.spark.watching import summarize_failure
from postroad.pipeline.spark.window_rows import (
    RESULT_DDL,
    aggregate,
    ddl_of,
    read_deltas,
    watermark_row,
    write_results,
)
from postroad.pipeline.spark.worker_context import WorkerContext
from postroad.pipeline.windows.partials import PartialColumns, PartialWindow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("postroad.pipeline")

# Spark looks whether the watermark has moved after it has asked for more.
_POLL_S = 0.1
_STATE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTITIONS = "spark.sql.shuffle.partitions"
_CONF = {
    "spark.sql.streaming.stateStore.providerClass": _STATE,
    # A batch writes what has changed, and not all that there is.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # A query that is stopped as it notes its first batch leaves a file there.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    # The state store needs checksum files, which other queries do without.
    "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}

_decode_files = msgspec.msgpack.Decoder(tuple[list[CommittedDelta], list[str], int | None]).decode
_decode_failed = msgspec.msgpack.Decoder(FailedRoot).decode


class WindowStreamReader(DataSourceStreamReader):
    """Offsets are numbers of committed batches."""

    def __init__(self, context: WorkerContext, window: str, columns: PartialColumns) -> None:
        self._context = context
        self._window = window
        self._columns = columns

    def initialOffset(self) -> dict[str, int]:
        return {"number": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        coordinator = self._context.coordinator
        return {"number": coordinator.poll_deltas(self._window, start["number"], _POLL_S)}

    def commit(self, end: dict[str, int]) -> None:
        self._context.coordinator.discard_deltas(self._window, end["number"])

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        numbers = start["number"], end["number"]
        deltas = self._context.coordinator.list_deltas(self._window, *numbers)
        if not deltas:
            return [InputPartition(msgspec.msgpack.encode(([], [], None)))]
        paths = [path for it in deltas for path in it.paths]
        count = min(self._context.partitions, len(paths))
        parts = [paths[place::count] for place in range(count)]
        # The watermark moves with the whole batch: one partition does that for all.
        return [
            InputPartition(
                msgspec.msgpack.encode((deltas, those, None if place else deltas[-1].closed))
            )
            for place, those in enumerate(parts)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        deltas, paths, closed = _decode_files(partition.value)
        if closed is not None:
            yield watermark_row(self._columns, closed)
        yield from read_deltas(self._columns, deltas, paths)


class WindowDataSource(DataSource):
    """What is added to a window. Each run makes a sub-class for each window."""

    context: WorkerContext
    window: str
    columns: PartialColumns

    def schema(self) -> str:
        return ddl_of(self.columns)

    def streamReader(self, schema: StructType) -> WindowStreamReader:
        return WindowStreamReader(self.context, self.window, self.columns)


def _bind(
    format_name: str, context: WorkerContext, window: str, columns: PartialColumns
) -> type[DataSource]:
    def name(cls: Any) -> str:
        return format_name

    members: dict[str, Any] = {"context": context, "window": window, "columns": columns}
    members["name"] = classmethod(name)
    return type("BoundWindowSource", (WindowDataSource,), members)


class ResultsProcessor:
    """Takes what a window emits with a batch of its query."""

    def __init__(self, context: WorkerContext, window: str, directory: str) -> None:
        self._context = context
        self._window = window
        self._directory = directory

    def __call__(self, panes: DataFrame, batch: int) -> None:
        """Take it, unless that was done before."""
        try:
            self._process(panes, batch)
        except Exception as error:
            logger.debug("batch %d of window %r failed", batch, self._window, exc_info=True)
            raise BatchFailed(summarize_failure(error)) from None

    def _process(self, panes: DataFrame, batch: int) -> None:
        coordinator, run = self._context.coordinator, self._context.run
        is_new = coordinator.begin_window_batch(run, self._window, batch)
        context, window, directory = self._context, self._window, Path(self._directory)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            program = context.program
            partial = PartialWindow(program.windows.by_name[window])
            return write_results(program, partial, directory, batches)

        if not is_new:
            # The state has to be as it is after the batch all the same.
            panes.write.format("noop").mode("overwrite").save()
        else:
            rows = panes.where("grp IS NOT NULL").mapInArrow(write, RESULT_DDL).collect()
            files = [ResultFile(row.path, row.segments) for row in rows if row.path is not None]
            failed = [_decode_failed(row.failed) for row in rows if row.failed is not None]
            coordinator.commit_window_batch(run, window, batch, files, failed)


def start_window_query(
    session: SparkSession,
    context: WorkerContext,
    window: PartialWindow,
    checkpoint: str,
    directory: str,
) -> StreamingQuery:
    """Start the query of a window, in a session of its own.

    Args:
        session: whose JVM it runs in.
        context: the job.
        window: which one.
        checkpoint: where Spark keeps its contents.
        directory: one that all workers reach, for what it emits.
    """
    own = session.newSession()
    for key, value in _CONF.items():
        own.conf.set(key, value)
    partitions = str(session.conf.get(_PARTITIONS))
    # Spark's default is for large tables: each of these has a database of its own.
    own.conf.set(_PARTITIONS, str(context.partitions) if partitions == "200" else partitions)
    name, columns = window.window.name, window.columns
    format_name = f"postroad_{context.run}_window"
    own.dataSource.register(_bind(format_name, context, name, columns))
    return (
        aggregate(own.readStream.format(format_name).load(), columns)
        .writeStream.outputMode("append")
        .foreachBatch(ResultsProcessor(context, name, directory))
        .option("checkpointLocation", checkpoint)
        .queryName(f"{context.job_name}: window {name}")
        .trigger(processingTime="0 seconds")
        .start()
    )
