"""The data source `postroad`: connectors of Postroad for any Spark program, without a job.

    spark.dataSource.register(PostroadDataSource)
    spark.readStream.format("postroad").option("connector", "jsonl").option("path", "in/*.jsonl")...

Options are those of the connector, with JSON for what is no text, and:

- `connector`: `jsonl`, `csv`, `parquet`, `sql`, `queue`, `jetstream`, `redis`, or a plug-in's.
- `store`: a path or PostgreSQL URL, where it is recorded what was read and written. For `queue`,
  the store of the node that has the queue. Only batches that are read from other connectors
  need none.
- `name`: of the reader or writer in that store; `postroad` by default. A reader goes on where the
  last one of its name was, also with a fresh checkpoint.
- `max_pending`: how many rows of a stream may be read and not committed; 100,000 by default.

Without a schema, rows have the columns `id` (64 bits that tell a row from all others), `segment`
(JSON) and `raw` (bytes, where it is no segment); those of a queue have `id`, `sender`, `key`,
`headers`, `payload` (bytes) and `sent`. With a schema, its columns are what segments have under
these names, and those of the metadata with an underscore, such as `_id`. A row that does not fit is
an error, unless the schema has a column `_raw binary`: that has its bytes then, and the others are
null.

Any columns can be written. To a queue, rows with a column `payload` are written as these bytes,
others as JSON; the option `key` names the column with the key of a message.

A stream acknowledges with its next batch what Spark has committed. What it writes is published once
for each batch of a query: Spark gives a query an id that is in its checkpoint.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from postroad.core.errors import ConfigError
from postroad.durable import Store, store_from_url
from postroad.durable.store.tables.ranges import read_range
from postroad.pipeline.acks import AckIds
from postroad.pipeline.connectors import make_input, make_output
from postroad.pipeline.connectors.connector import (
    Committable,
    Position,
    UnwritableSegmentsError,
)
from postroad.pipeline.connectors.options import PAYLOAD
from postroad.pipeline.connectors.queue.input import stretch_at
from postroad.pipeline.coordinator.committer import writer_id
from postroad.pipeline.coordinator.records import InputDelivery
from postroad.pipeline.coordinator.standalone import (
    INPUT,
    OUTPUT,
    StandaloneCoordinator,
    read_config,
)
from postroad.pipeline.job import Task, TaskType
from postroad.pipeline.spark.job_data_source import leave_quietly
from postroad.pipeline.spark.rows import QUEUE_ROWS, ROWS, RowConverter
from postroad.pipeline.vectorized.acks import root_ids

# What is not for the connector; the last one is Spark's.
_OWN = ("connector", "name", "store", "max_pending", "segments_max", "checkpointlocation")
_READ_ROWS = 10_000
_WAIT_S = 5.0
_MAX_PENDING = 100_000
_PARTITIONS = 8
# Spark sets it for the tasks of a streaming query.
_QUERY_ID = "sql.streaming.queryId"


class _SourceOptions:
    """The options of a source or sink, as far as they go to other processes."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if "connector" not in options:
            raise ConfigError("the option connector says what to read or write, such as jsonl")
        self.connector_name = options["connector"]
        self.name = options.get("name", "postroad")
        store = options.get("store")
        # Other processes may be in another directory.
        self._location = store if store is None or "://" in store else os.path.abspath(store)
        pending = options.get("max_pending", options.get("segments_max", _MAX_PENDING))
        self.max_pending = int(pending)
        self._options = {key: _parse(text) for key, text in options.items() if key not in _OWN}

    @property
    def is_queue(self) -> bool:
        return self.connector_name == "queue"

    @property
    def location(self) -> str:
        """Of the store."""
        if self._location is None:
            raise ConfigError(
                "the option store says where it is recorded what was read and written:"
                " a path or a PostgreSQL URL"
            )
        return self._location

    def make_store(self) -> Store | None:
        """The store of a connector that is in one, not open; None for others."""
        if not self.is_queue:
            return None
        store = store_from_url(self.location)
        store.config = read_config(store)
        return store

    def task(self, name: str, type_: TaskType) -> Task:
        return Task(name=name, type=type_, connector=self.connector_name, options=self._options)


def _parse(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


# Reading.


class _InputSource(_SourceOptions):
    """What is to be read. The connector is made where the user is: paths are relative to that."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options)
        self._store = self.make_store()
        self.connector = make_input(self.task(INPUT, TaskType.INPUT), self._store)
        if not (self.connector.is_portable or self.is_queue):
            raise ConfigError(f"connector {self.connector_name!r} is read by jobs only")
        self._converter = RowConverter(schema, self.connector)

    def __getstate__(self) -> dict[str, Any]:
        return {name: it for name, it in self.__dict__.items() if name != "coordinator"} | {
            "_store": None
        }

    @cached_property
    def coordinator(self) -> StandaloneCoordinator:
        """What records what was read, in the one process that asks for it."""
        return StandaloneCoordinator(
            self.name,
            self._store or store_from_url(self.location),
            input=self.connector,
            max_pending=self.max_pending,
            is_node_store=self.is_queue,
        )

    def read(self, position: Position) -> Iterator[pa.RecordBatch]:
        """The rows of a split."""
        ids, rows = AckIds(self.name), self._queue_rows if self.is_queue else self._rows
        for source, positions, records in rows(position):
            numbers = root_ids(ids, INPUT, source, positions).view("int64").tolist()
            for record, number in zip(records, numbers, strict=True):
                record["id"] = number
            for start in range(0, len(records), _READ_ROWS):
                yield self._converter.convert(records[start : start + _READ_ROWS])

    def _rows(self, position: Position) -> Iterator[_Records]:
        for chunk in self.connector.read(position):
            yield chunk.source, chunk.positions, [{"raw": raw} for raw in chunk.raws]

    def _queue_rows(self, position: Position) -> Iterator[_Records]:
        with closing(store_from_url(self.location).connect_reader()) as database:
            bundles = read_range(database, stretch_at(position))
        for sender, letters in bundles:
            records = [
                {
                    "sender": sender,
                    "key": letter.key,
                    "headers": list((letter.headers or {}).items()),
                    "payload": letter.body,
                    "raw": letter.body,
                    "sent": letter.sent_ms * 1000,
                }
                for letter in letters
            ]
            yield sender, [letter.id for letter in letters], records


_Records = tuple[str, Sequence[int | str], list[dict[str, Any]]]


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are numbers of deliveries."""

    def __init__(self, source: _InputSource) -> None:
        self._source = source
        self._wait_s = _WAIT_S

    def prepareForTriggerAvailableNow(self) -> None:
        self._wait_s = 0.0

    def initialOffset(self) -> dict[str, int]:
        return {"delivery": self._source.coordinator.initial_offset()}

    def getDefaultReadLimit(self) -> ReadLimit:
        # How much is pending, the coordinator knows.
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        after = start["delivery"]
        latest = self._source.coordinator.poll(after, self._wait_s)
        return {"delivery": max(latest, after)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        coordinator = self._source.coordinator
        deliveries = coordinator.list_deliveries(start["delivery"], end["delivery"])
        return [InputPartition(part) for part in _balance(deliveries)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for position in partition.value:
            yield from self._source.read(position)

    def commit(self, end: dict[str, int]) -> None:
        self._source.coordinator.commit_input(end["delivery"])

    def stop(self) -> None:
        self._source.coordinator.close()
        leave_quietly()


def _balance(deliveries: Iterable[InputDelivery]) -> list[list[Position]]:
    """Positions in partitions of about the same size."""
    parts: list[list[Position]] = [[] for _ in range(_PARTITIONS)]
    loads = [0] * _PARTITIONS
    for delivery in sorted(deliveries, key=lambda it: (-it.segments, it.number)):
        if delivery.position is not None:
            least = loads.index(min(loads))
            parts[least].append(delivery.position)
            loads[least] += delivery.segments
    return [part for part in parts if part]


class _BatchReader(DataSourceReader):
    """Everything that is there now; nothing of it is acknowledged."""

    def __init__(self, source: _InputSource) -> None:
        self._source = source

    def partitions(self) -> Sequence[InputPartition]:
        if self._source.is_queue:
            with closing(self._source.coordinator) as coordinator:
                positions = coordinator.list_positions(_MAX_PENDING)
        else:
            positions = asyncio.run(self._list_positions())
        return [InputPartition(position) for position in positions]

    async def _list_positions(self) -> list[Position]:
        connector, positions = self._source.connector, []
        await connector.open([])
        try:
            after: Position | None = None
            while splits := await connector.plan_splits(after, _MAX_PENDING):
                positions += [split.position for split in splits]
                after = splits[-1].next_position
        finally:
            await connector.close()
        return positions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._source.read(partition.value)


# Writing.


class _OutputTarget(_SourceOptions):
    """What is to be written."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options)
        if self.is_queue and PAYLOAD in schema.names:
            self._options.setdefault("codec", "raw")
        self._store = self.make_store()
        self.connector = make_output(self.task(OUTPUT, TaskType.OUTPUT), self._store)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_store": None}

    def job_name(self, query: str) -> str:
        """The name under which the batches of a query are recorded."""
        return f"{self.name}/{query}" if query else self.name

    def write(self, batches: Iterator[pa.RecordBatch], query: str = "") -> _CommitMessage:
        """Stage the rows of a partition."""
        part = secrets.token_hex(8)
        writer = self.connector.create_writer(writer_id(self.job_name(query), part, OUTPUT))
        first = int(part, 16)
        try:
            for batch in batches:
                segments = batch.to_pylist()
                ids = [(first + row) % (1 << 64) for row in range(len(segments))]
                first += len(segments)
                writer.write(ids, segments)
            return _CommitMessage(writer.prepare_commit(), query)
        except UnwritableSegmentsError as error:
            writer.abort()
            reason = next(iter(error.reasons.values()))
            raise ValueError(f"{error}, the first because {reason}") from None
        except BaseException:
            writer.abort()
            raise

    def publish(self, messages: list[WriterCommitMessage | None], run: str, batch: int) -> None:
        """Publish what a batch wrote, once."""
        staged, query = _staged(messages)
        if staged:
            with closing(self._coordinator(query)) as coordinator:
                coordinator.commit_output(run, batch, staged)

    def discard(self, messages: list[WriterCommitMessage | None]) -> None:
        """Throw away what was staged, unless it was committed."""
        staged, query = _staged(messages)
        if staged:
            with closing(self._coordinator(query)) as coordinator:
                coordinator.abort_outputs(staged)

    def _coordinator(self, query: str) -> StandaloneCoordinator:
        return StandaloneCoordinator(
            self.job_name(query),
            self._store or store_from_url(self.location),
            output=self.connector,
            is_node_store=self.is_queue,
        )


@dataclass
class _CommitMessage(WriterCommitMessage):
    staged: Committable | None
    query: str
    """The id of the streaming query, which is in its checkpoint."""


def _staged(messages: list[WriterCommitMessage | None]) -> tuple[list[Committable], str]:
    written = [message for message in messages if isinstance(message, _CommitMessage)]
    staged = [message.staged for message in written if message.staged is not None]
    return staged, written[0].query if written else ""


def _query_id() -> str:
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(_QUERY_ID)
    if not query:
        raise RuntimeError(
            f"Spark does not say which query a task belongs to ({_QUERY_ID}), so what it writes"
            " could not be told from what others wrote"
        )
    return query


class _StreamWriter(DataSourceStreamArrowWriter):
    """Publishes each micro-batch of a query once."""

    def __init__(self, target: _OutputTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _CommitMessage:
        return self._target.write(iterator, _query_id())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._target.publish(messages, "stream", batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._target.discard(messages)


class _BatchWriter(DataSourceArrowWriter):
    """Publishes a batch."""

    def __init__(self, target: _OutputTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _CommitMessage:
        return self._target.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._target.publish(messages, secrets.token_hex(8), 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._target.discard(messages)


class PostroadDataSource(DataSource):
    """Connectors of Postroad as a data source of Spark."""

    @classmethod
    def name(cls) -> str:
        return "postroad"

    def schema(self) -> StructType:
        return QUEUE_ROWS if self.options.get("connector") == "queue" else ROWS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(_InputSource(self.options, schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(_InputSource(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _StreamWriter(_OutputTarget(self.options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _BatchWriter(_OutputTarget(self.options, schema))
