"""Desks of small jobs, with a clock that a test moves, for tests of what a desk does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from postroad.durable import MemoryDisk, MemoryStore
from postroad.durable.store.backends.backend import StoreConnection
from postroad.pipeline import (
    Job,
    MemoryInput,
    OutputConnector,
    RetryPolicy,
    Segment,
    Task,
    TaskType,
)
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors import Committable, OutputWriter
from postroad.pipeline.connectors.connector import encode_segment
from postroad.pipeline.coordinator.batch_result import BatchResult
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import (
    FailedRoot,
    InputDelivery,
    SegmentAttempt,
    StoredRoot,
)
from tests.support.pipeline.read_roots import read_roots

T = TypeVar("T")

JOB = "job"
AT_ONCE = RetryPolicy(attempts=3, first_s=0.0, max_s=0.0)


class Clock:
    """What `_now_ms` of a desk is in a test."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)


class Appended(OutputConnector):
    """Appends what is published, and cannot tell what it has already.

    It outlives any process: what was staged is there until it is published or discarded.
    """

    def __init__(self) -> None:
        self.staged: dict[str, list[Segment]] = {}
        self.segments: list[Segment] = []
        self.discarded: list[str] = []

    def create_writer(self, stage: str) -> OutputWriter:
        return _AppendedStager(self, stage)

    async def commit(self, staged: Committable) -> None:
        self.segments += self.staged.pop(staged["stage"], [])

    async def abort(self, staged: Committable) -> None:
        self.discarded.append(staged["stage"])
        self.staged.pop(staged["stage"], None)


class _AppendedStager(OutputWriter):
    def __init__(self, output: Appended, stage: str) -> None:
        self._stage = stage
        self._taken = output.staged[stage] = []

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        self._taken += segments

    def prepare_commit(self) -> Committable | None:
        return {"stage": self._stage}


def numbers(output: Appended) -> list[int]:
    return sorted(segment["n"] for segment in output.segments)


def count_to(count: int, split_segments: int = 100) -> MemoryInput:
    return MemoryInput(({"n": n} for n in range(count)), split_segments)


def job_of(*inputs: Task) -> Job:
    """A job that writes what its inputs give."""
    output = Task(name="out", type=TaskType.OUTPUT, connector="memory")
    edges = [(it.name, "out") for it in inputs]
    return Job(name=JOB, workflow=edges, catalog=[*inputs, output])


def input_task(name: str = "in", **fields: object) -> Task:
    """An input whose roots come again at once."""
    facts = {"retry": AT_ONCE} | fields
    return Task(name=name, type=TaskType.INPUT, connector="memory", **facts)  # type: ignore[arg-type]


class OpenDesk:
    """A desk with what is behind it."""

    def __init__(self, desk: JobCoordinator, store: MemoryStore, output: Appended) -> None:
        self.desk = desk
        self.store = store
        self.output = output
        self.batch = 0
        """Number of the last batch that was settled here."""

    async def see(self, look: Callable[[JobStore], T]) -> T:
        return await self.store.read(lambda database: look(JobStore(database, JOB)))

    async def settle(self, deliveries: Iterable[InputDelivery], **fields: object) -> object:
        """Settle deliveries in a batch of their own."""
        self.batch += 1
        outcome = BatchResult(list(deliveries), **fields)  # type: ignore[arg-type]
        return await self.desk.commit_batch("run", self.batch, outcome)

    async def settle_nothing(self, batches: int) -> None:
        for _ in range(batches):
            await self.settle([])

    async def stage(
        self, name: str, deliveries: Iterable[InputDelivery]
    ) -> list[tuple[str, Committable]]:
        """Stage what some deliveries have, for the output."""
        stager = self.output.create_writer(name)
        for delivery in deliveries:
            for it in await read_roots(self.desk, delivery):
                assert isinstance(it.segment, dict)
                stager.write([it.root], [it.segment])
        staged = stager.prepare_commit()
        return [] if staged is None else [("out", staged)]

    async def fail(self, deliveries: Iterable[InputDelivery]) -> list[FailedRoot]:
        """All roots of some deliveries, failed."""
        return [
            FailedRoot(
                it.root,
                it.task,
                it.generation,
                encode_segment(it.segment),
                SegmentAttempt(it.generation, 0, "out", "no"),
                [],
            )
            for delivery in deliveries
            for it in await read_roots(self.desk, delivery)
        ]


@asynccontextmanager
async def open_desk(
    job: Job,
    inputs: dict[str, MemoryInput],
    disk: MemoryDisk | None = None,
    output: Appended | None = None,
) -> AsyncIterator[OpenDesk]:
    """A desk on a disk, closed at the end."""
    store = MemoryStore(disk or MemoryDisk())
    await store.open(JOB)
    output = output or Appended()
    try:
        desk = JobCoordinator(CompiledJob(job), store, inputs, {"out": output})
        await desk.open()
        yield OpenDesk(desk, store, output)
        await desk.close()
    finally:
        await store.close()


def total(deliveries: Iterable[InputDelivery]) -> int:
    return sum(it.segments for it in deliveries)


async def look_in(disk: MemoryDisk, look: Callable[[StoreConnection], T]) -> T:
    """What is in the store of a job that does not run."""
    store = MemoryStore(disk)
    await store.open(JOB)
    try:
        return await store.read(look)
    finally:
        await store.close()


async def dead_in(disk: MemoryDisk) -> list[StoredRoot]:
    """The dead letters of a job that does not run."""
    return await look_in(disk, lambda database: JobStore(database, JOB).list_dead(100_000))
