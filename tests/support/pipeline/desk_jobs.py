"""Desks of small jobs, with a clock that a test moves, for tests of what a desk does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from postroad.durable import MemoryDisk, MemoryStore
from postroad.durable.store.database import Database
from postroad.pipeline import (
    Desk,
    Job,
    OutputMedium,
    RetryPolicy,
    Segment,
    SeqInput,
    Task,
    TaskType,
)
from postroad.pipeline.desk import Outcome
from postroad.pipeline.media import Staged, Stager
from postroad.pipeline.media.medium import encode_segment
from postroad.pipeline.pen import Pen
from postroad.pipeline.program import Program
from postroad.pipeline.records import Attempt, Delivery, FailedRoot, PenRoot

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


class Appended(OutputMedium):
    """Appends what is published, and cannot tell what it has already.

    It outlives any process: what was staged is there until it is published or discarded.
    """

    def __init__(self) -> None:
        self.staged: dict[str, list[Segment]] = {}
        self.segments: list[Segment] = []
        self.discarded: list[str] = []

    def begin(self, stage: str) -> Stager:
        return _AppendedStager(self, stage)

    async def publish(self, staged: Staged) -> None:
        self.segments += self.staged.pop(staged["stage"], [])

    async def discard(self, staged: Staged) -> None:
        self.discarded.append(staged["stage"])
        self.staged.pop(staged["stage"], None)


class _AppendedStager(Stager):
    def __init__(self, output: Appended, stage: str) -> None:
        self._stage = stage
        self._taken = output.staged[stage] = []

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        self._taken += segments

    def finish(self) -> Staged | None:
        return {"stage": self._stage}


def numbers(output: Appended) -> list[int]:
    return sorted(segment["n"] for segment in output.segments)


def count_to(count: int, slice_segments: int = 100) -> SeqInput:
    return SeqInput(({"n": n} for n in range(count)), slice_segments)


def job_of(*inputs: Task) -> Job:
    """A job that writes what its inputs give."""
    output = Task(name="out", type=TaskType.OUTPUT, medium="seq")
    edges = [(it.name, "out") for it in inputs]
    return Job(name=JOB, workflow=edges, catalog=[*inputs, output])


def input_task(name: str = "in", **fields: object) -> Task:
    """An input whose roots come again at once."""
    facts = {"retry": AT_ONCE} | fields
    return Task(name=name, type=TaskType.INPUT, medium="seq", **facts)  # type: ignore[arg-type]


class OpenDesk:
    """A desk with what is behind it."""

    def __init__(self, desk: Desk, store: MemoryStore, output: Appended) -> None:
        self.desk = desk
        self.store = store
        self.output = output
        self.batch = 0
        """Number of the last batch that was settled here."""

    async def see(self, look: Callable[[Pen], T]) -> T:
        return await self.store.read(lambda database: look(Pen(database, JOB)))

    async def settle(self, deliveries: Iterable[Delivery], **fields: object) -> object:
        """Settle deliveries in a batch of their own."""
        self.batch += 1
        outcome = Outcome(list(deliveries), **fields)  # type: ignore[arg-type]
        return await self.desk.settle("run", self.batch, outcome)

    async def settle_nothing(self, batches: int) -> None:
        for _ in range(batches):
            await self.settle([])

    async def stage(self, name: str, deliveries: Iterable[Delivery]) -> list[tuple[str, Staged]]:
        """Stage what some deliveries have, for the output."""
        stager = self.output.begin(name)
        for delivery in deliveries:
            for it in await self.desk.read(delivery):
                assert isinstance(it.segment, dict)
                stager.write([it.root], [it.segment])
        staged = stager.finish()
        return [] if staged is None else [("out", staged)]

    async def fail(self, deliveries: Iterable[Delivery]) -> list[FailedRoot]:
        """All roots of some deliveries, failed."""
        return [
            FailedRoot(
                it.root,
                it.task,
                it.generation,
                encode_segment(it.segment),
                Attempt(it.generation, 0, "out", "no"),
                [],
            )
            for delivery in deliveries
            for it in await self.desk.read(delivery)
        ]


@asynccontextmanager
async def open_desk(
    job: Job,
    inputs: dict[str, SeqInput],
    disk: MemoryDisk | None = None,
    output: Appended | None = None,
) -> AsyncIterator[OpenDesk]:
    """A desk on a disk, closed at the end."""
    store = MemoryStore(disk or MemoryDisk())
    await store.open(JOB)
    output = output or Appended()
    try:
        desk = Desk(Program(job), store, inputs, {"out": output})
        await desk.open()
        yield OpenDesk(desk, store, output)
        await desk.close()
    finally:
        await store.close()


def total(deliveries: Iterable[Delivery]) -> int:
    return sum(it.segments for it in deliveries)


async def look_in(disk: MemoryDisk, look: Callable[[Database], T]) -> T:
    """What is in the store of a job that does not run."""
    store = MemoryStore(disk)
    await store.open(JOB)
    try:
        return await store.read(look)
    finally:
        await store.close()


async def dead_in(disk: MemoryDisk) -> list[PenRoot]:
    """The dead letters of a job that does not run."""
    return await look_in(disk, lambda database: Pen(database, JOB).dead(100_000))
