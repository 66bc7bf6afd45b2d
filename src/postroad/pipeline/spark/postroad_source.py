"""The data source `postroad`: any connector of Postroad for any user of Spark, without a job.

    spark.dataSource.register(PostroadDataSource)
    spark.readStream.format("postroad").option("connector", "jsonl").option("path", "in/*.jsonl")...

Reading gives the columns `id` (64 bits that tell a segment from all others), `segment` (JSON) and
`raw` (bytes, where it is no segment). Writing takes any columns. Options are those of the
connector,
with JSON for what is no text, and:

- `connector`: the name of a connector.
- `name`: what the account is called; `postroad` by default.
- `store`: where the account is kept, a path or URL; only batches that are read need none.
- `segments_max`: how much of a stream may be read and not committed; 100,000 by default.

A stream acknowledges with its next batch what Spark has committed.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import pyarrow as pa
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
from postroad.pipeline.acks import AckIds
from postroad.pipeline.connectors import make_input, make_output
from postroad.pipeline.connectors.connector import (
    Committable,
    InputConnector,
    Position,
    RawRecords,
    UndecodableRecord,
)
from postroad.pipeline.coordinator.committer import writer_id
from postroad.pipeline.coordinator.records import decode_or_reject
from postroad.pipeline.job import Task, TaskType
from postroad.pipeline.spark.accounts import INPUT, OUTPUT, StandaloneCoordinator
from postroad.pipeline.spark.job_data_source import balance_partitions
from postroad.pipeline.vectorized.acks import root_ids

# What is not for the connector; the last one is Spark's.
_OWN = ("connector", "name", "store", "segments_max", "checkpointlocation")
_SCHEMA = pa.schema([("id", pa.int64()), ("segment", pa.string()), ("raw", pa.binary())])
_ROWS = 10_000
_WAIT_S = 5.0
_SEGMENTS_MAX = 100_000
_PARTITIONS = 8
_encode = msgspec.json.Encoder().encode


class _SourceOptions:
    """What a user wants, as far as it can go to other processes."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if "connector" not in options:
            raise ConfigError("the option connector says what to read or write, such as lines")
        self.name = options.get("name", "postroad")
        self.store = options.get("store")
        self.segments_max = int(options.get("segments_max", _SEGMENTS_MAX))
        self._medium = options["connector"]
        self._options = {key: _value(it) for key, it in options.items() if key not in _OWN}

    @property
    def _store(self) -> str:
        if self.store is None:
            raise ConfigError("the option store says where the account is kept")
        return self.store

    def _task(self, name: str, type_: TaskType) -> Task:
        return Task(name=name, type=type_, connector=self._medium, options=self._options)


class _InputSource(_SourceOptions):
    """What is to be read. The connector is made where the user is: paths are relative to that."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.connector = make_input(self._task(INPUT, TaskType.INPUT))
        if not self.connector.is_portable:
            raise ConfigError(f"a {self._medium!r} is read by jobs only")

    def account(self) -> StandaloneCoordinator:
        """The account of what is read, in the one process that asks for it."""
        key = (os.getpid(), self._store, self.name)
        account = _accounts.get(key)
        if account is None:
            inputs = {INPUT: self.connector}
            account = StandaloneCoordinator(self.name, self._store, inputs, {}, self.segments_max)
            _accounts[key] = account
        return account

    def read(self, place: Position) -> Iterator[pa.RecordBatch]:
        """The rows of a slice."""
        connector, bits = self.connector, AckIds(self.name)
        for chunk in connector.read(place):
            for start in range(0, len(chunk.raws), _ROWS):
                yield _rows(connector, bits, chunk, start)


class _OutputTarget(_SourceOptions):
    """What is to be written."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.connector = make_output(self._task(OUTPUT, TaskType.OUTPUT))

    def publish(self, run: str, batch: int, staged: Sequence[Committable]) -> None:
        """Publish what a batch wrote, once; each is committed by whatever process."""
        with self._account(staged) as account:
            account.commit_output(run, batch, staged)

    def discard(self, staged: Sequence[Committable]) -> None:
        """Throw away what was staged, unless it was committed."""
        with self._account(staged) as account:
            account.abort_outputs(staged)

    @contextmanager
    def _account(self, staged: Sequence[Committable]) -> Iterator[StandaloneCoordinator]:
        outputs = {OUTPUT: self.connector}
        account = StandaloneCoordinator(
            self.name, self._store, {}, outputs, self.segments_max, staged
        )
        try:
            yield account
        finally:
            account.close()


_accounts: dict[tuple[int, str, str], StandaloneCoordinator] = {}


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _rows(connector: InputConnector, bits: AckIds, chunk: RawRecords, start: int) -> pa.RecordBatch:
    stop = start + _ROWS
    ids = root_ids(bits, INPUT, chunk.source, chunk.positions[start:stop])
    segments: list[bytes | None] = []
    raws: list[bytes | None] = []
    for raw in chunk.raws[start:stop]:
        found = decode_or_reject(raw, connector.decode)
        is_segment = not isinstance(found, UndecodableRecord)
        segments.append(_encode(found) if is_segment else None)
        raws.append(None if is_segment else raw)
    texts = pa.array(segments, pa.binary()).cast(pa.string())
    columns = [pa.array(ids.view("int64")), texts, pa.array(raws, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are numbers of deliveries."""

    def __init__(self, given: _InputSource) -> None:
        self._given = given
        self._wait_s = _WAIT_S

    def prepareForTriggerAvailableNow(self) -> None:
        self._wait_s = 0.0

    def initialOffset(self) -> dict[str, int]:
        return {"delivery": self._given.account().initial_offset()}

    def getDefaultReadLimit(self) -> ReadLimit:
        # How much is pending, the account knows.
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        after = start["delivery"]
        latest = self._given.account().poll(after, self._wait_s)
        return {"delivery": max(latest, after)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        deliveries = self._given.account().list_deliveries(start["delivery"], end["delivery"])
        parts = balance_partitions(deliveries, _PARTITIONS)
        return [InputPartition([it.position for it in part]) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for place in partition.value:
            yield from self._given.read(place)

    def commit(self, end: dict[str, int]) -> None:
        self._given.account().commit_input(end["delivery"])


class _PostroadReader(DataSourceReader):
    """Everything that is there now."""

    def __init__(self, given: _InputSource) -> None:
        self._given = given

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(place) for place in asyncio.run(self._places())]

    async def _places(self) -> list[Position]:
        connector, places = self._given.connector, []
        await connector.open([])
        try:
            after: Position | None = None
            while slices := await connector.plan_splits(after, _SEGMENTS_MAX):
                places += [it.position for it in slices]
                after = slices[-1].next_position
        finally:
            await connector.close()
        return places

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._given.read(partition.value)


@dataclass
class _CommitMessage(WriterCommitMessage):
    staged: Committable | None


def _stage(given: _OutputTarget, batches: Iterator[pa.RecordBatch]) -> _CommitMessage:
    part = secrets.token_hex(8)
    stager = given.connector.create_writer(writer_id(given.name, part, OUTPUT))
    first = int(part, 16)
    try:
        for batch in batches:
            segments = batch.to_pylist()
            ids = [(first + place) % (1 << 64) for place in range(len(segments))]
            first += len(segments)
            stager.write(ids, segments)
        return _CommitMessage(stager.prepare_commit())
    except BaseException:
        stager.abort()
        raise


def _staged(messages: list[WriterCommitMessage | None]) -> list[Committable]:
    return [
        it.staged for it in messages if isinstance(it, _CommitMessage) and it.staged is not None
    ]


class _StreamWriter(DataSourceStreamArrowWriter):
    """Publishes each micro-batch once."""

    def __init__(self, given: _OutputTarget) -> None:
        self._given = given

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _CommitMessage:
        return _stage(self._given, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._given.publish("stream", batchId, _staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._given.discard(_staged(messages))


class _Writer(DataSourceArrowWriter):
    """Publishes a batch."""

    def __init__(self, given: _OutputTarget) -> None:
        self._given = given

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _CommitMessage:
        return _stage(self._given, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._given.publish(secrets.token_hex(8), 0, _staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._given.discard(_staged(messages))


class PostroadDataSource(DataSource):
    """Media of Postroad as a data source of Spark."""

    @classmethod
    def name(cls) -> str:
        return "postroad"

    def schema(self) -> str:
        return "id bigint, segment string, raw binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(_InputSource(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _PostroadReader(_InputSource(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _StreamWriter(_OutputTarget(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer(_OutputTarget(self.options))
