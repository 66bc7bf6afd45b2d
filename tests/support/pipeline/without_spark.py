"""The stages of a job chained as on Spark, and its sink, in this process.

Instead of a data frame there is one that has no more than the stages ask for. Rows go through it as
record batches, and come out of a shuffle in any order, in batches of any size.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
import pyarrow as pa

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import InputConnector, RawRecords
from postroad.pipeline.coordinator.records import InputDelivery, RetryRoot, RootInput, to_root_input
from postroad.pipeline.spark.coordinator_client import CoordinatorClient, CoordinatorEndpoint
from postroad.pipeline.spark.job_data_source import read_deliveries
from postroad.pipeline.spark.job_pass import add_passes
from postroad.pipeline.spark.result_rows import RESULT_DDL
from postroad.pipeline.spark.worker_context import WorkerContext
from postroad.pipeline.vectorized.partition import PartitionResult, decode_part
from postroad.pipeline.vectorized.shuffle_columns import ShuffleColumns, to_columns
from postroad.pipeline.vectorized.shuffle_rows import PACKED_DDL, ShuffleRow
from postroad.pipeline.windows import WindowDeltaBuilder
from tests.support.pipeline.both_ways import (
    Comparable,
    Kept,
    Slices,
    comparable,
    deliver,
    run_delivered,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Batches: TypeAlias = list["pa.RecordBatch"]
OnWay: TypeAlias = Callable[[int, list[ShuffleRow]], list[ShuffleRow]]


def leave_alone(hop: int, rows: list[ShuffleRow]) -> list[ShuffleRow]:
    return rows


class Again(msgspec.Struct, frozen=True):
    """Roots of a task that come again."""

    task: str
    roots: list[RetryRoot]

    def deliver(self) -> list[RootInput]:
        return [
            to_root_input(it.root, self.task, it.generation, it.segment, it.published)
            for it in self.roots
        ]


class Given(msgspec.Struct, frozen=True):
    """What a batch is given."""

    connector: InputConnector
    slices: list[Slices]
    again: list[Again] = []

    def deliveries(self) -> list[InputDelivery]:
        """All of it, numbered from 1 on."""
        first = 1 + len(self.slices)
        slices = [
            InputDelivery(1 + at, it.task, {"slice": at}, _count(it), it.generation, 0, 0)
            for at, it in enumerate(self.slices)
        ]
        again = [
            InputDelivery(first + at, it.task, None, len(it.roots), 0, 0, 0)
            for at, it in enumerate(self.again)
        ]
        return slices + again

    def deliver(self, program: CompiledJob) -> list[RootInput]:
        """All roots, new at each call: functions change them."""
        read = [root for it in self.slices for root in deliver(program, it, self.connector)]
        return read + [root for it in self.again for root in it.deliver()]


def _count(slice: Slices) -> int:
    return sum(len(chunk.raws) for chunk in slice.chunks)


class LocalOrder(WorkerContext):
    """An order whose desk and inputs are at hand."""

    def __init__(
        self, program: CompiledJob, given: Given, outputs: Mapping[str, Kept], partitions: int
    ) -> None:
        inputs = dict.fromkeys(program.graph.inputs, given.connector)
        desk = CoordinatorEndpoint("nowhere", "token")
        super().__init__(program.job, inputs, outputs, desk, "run", 0)
        self.partitions = partitions
        self._program = program
        self._given = given

    @property
    def program(self) -> CompiledJob:
        return self._program

    @property
    def coordinator(self) -> CoordinatorClient:
        return cast("CoordinatorClient", self)

    def report_progress(self) -> None:
        return

    def store_result(self, name: str, part: bytes) -> None:
        raise AssertionError("that is much")

    def prepare(self) -> CompiledJob:
        return self._program

    def read(self, delivery: InputDelivery) -> Iterator[RawRecords]:
        assert delivery.position is not None
        return iter(self._given.slices[delivery.position["slice"]].chunks)

    def read_retries(self, delivery: InputDelivery) -> Iterator[RetryRoot]:
        first = 1 + len(self._given.slices)
        return iter(self._given.again[delivery.number - first].roots)


class Shuffling(msgspec.Struct, frozen=True):
    """How rows go from one stage to the next.

    Attributes:
        seed: decides about everything else.
        partitions: how many there are after a shuffle.
        batch_rows: how many rows a record batch has, at most.
        on_way: what happens to the rows, given the number of the shuffle.
    """

    seed: int = 0
    partitions: int = 2
    batch_rows: int = 100
    on_way: OnWay = leave_alone


class Frame:
    """As much of a data frame as stages ask for."""

    def __init__(self, partitions: list[Batches], shuffling: Shuffling, hop: int = 0) -> None:
        self.partitions = partitions
        self._shuffling = shuffling
        self._hop = hop

    def mapInArrow(self, operator: Callable[[Any], Iterator[Any]], schema: str) -> Frame:
        assert schema == PACKED_DDL or schema.startswith(RESULT_DDL)
        done = [list(operator(iter(batches))) for batches in self.partitions]
        return Frame(done, self._shuffling, self._hop)

    def repartition(self, count: int, column: str) -> Frame:
        """Rows of results by their id."""
        assert column == "id"
        chance = random.Random(f"{self._shuffling.seed} {self._hop}")
        divided: list[Batches] = [[] for _ in range(count)]
        for batch in (batch for part in self.partitions for batch in part):
            for at, id in enumerate(batch.column("id").to_pylist()):
                divided[hash((self._shuffling.seed, id)) % count].append(batch.slice(at, 1))
        for part in divided:
            chance.shuffle(part)
        return Frame(divided, self._shuffling, self._hop + 1)

    def repartitionById(self, count: int, column: str) -> Frame:
        """Rows that are packed, one by one, by where they meet."""
        assert column == "part"
        how, chance = self._shuffling, random.Random(f"{self._shuffling.seed} {self._hop}")
        rows = [
            row
            for part in self.partitions
            for batch in part
            for packed in batch.column("packed").to_pylist()
            for row in ShuffleColumns.unpack(packed)
        ]
        divided: list[list[ShuffleRow]] = [[] for _ in range(count)]
        for row in how.on_way(self._hop, rows):
            divided[hash((how.seed, row.shard)) % count].append(row)
        for part in divided:
            chance.shuffle(part)
        return Frame([_cut(part, how, chance) for part in divided], how, self._hop + 1)


def _cut(rows: list[ShuffleRow], how: Shuffling, chance: random.Random) -> Batches:
    batches = []
    while rows:
        size = chance.randint(1, how.batch_rows)
        batches.append(to_columns(rows[:size]).pack(how.partitions))
        rows = rows[size:]
    return batches


def work_without_spark(
    program: CompiledJob, given: Given, outputs: Mapping[str, Kept], how: Shuffling
) -> list[PartitionResult]:
    """What the parts of a batch come to."""
    order = LocalOrder(program, given, outputs, how.partitions)
    chance = random.Random(how.seed)
    divided: list[list[InputDelivery]] = [[] for _ in range(how.partitions)]
    for it in given.deliveries():
        chance.choice(divided).append(it)
    source = Frame([list(read_deliveries(order, part)) for part in divided], how)
    frame = cast("Frame", add_passes(cast("DataFrame", source), order))
    rows = [row for part in frame.partitions for batch in part for row in batch.to_pylist()]
    return [decode_part(row["outcome"]) for row in rows]


def run_shuffled(
    program: CompiledJob, given: Given, outputs: Mapping[str, Kept], how: Shuffling
) -> Comparable:
    """What a batch comes to, as the desk puts it together."""
    parts = work_without_spark(program, given, outputs, how)
    windows = WindowDeltaBuilder(program.windows)
    for part in parts:
        windows.merge(part.delta)
    numbers = {number for part in parts for number in part.deliveries}
    assert numbers == {it.number for it in given.deliveries()}
    assert sum(part.segments for part in parts) == sum(it.segments for it in given.deliveries())
    return comparable(outputs, [it for part in parts for it in part.failed], windows.delta)


def run_in_order(program: CompiledJob, given: Given, outputs: Mapping[str, Kept]) -> Comparable:
    """What it comes to root by root."""
    return run_delivered(program, given.deliver(program), outputs)
