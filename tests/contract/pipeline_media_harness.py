"""Sources, targets and processes, for what every connector of pipelines does."""

from __future__ import annotations

import asyncio
import pickle
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from postroad.durable import MemoryDisk, MemoryStore, Store
from postroad.pipeline import (
    InputConnector,
    Job,
    LocalRunner,
    MemoryInput,
    MemoryOutput,
    OutputConnector,
    RetryPolicy,
    Segment,
    Task,
    TaskType,
)
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors import Committable, Position, RawRecords
from postroad.pipeline.coordinator.batch_result import BatchResult
from postroad.pipeline.coordinator.committer import writer_id_prefix
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import InputDelivery, RootInput, StoredRoot
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.pipeline.read_roots import read_roots

# How long a connector on a server may take until it gives what was just put there.
PAUSE_S = 0.02
JOB = "job"
RUN = f"{writer_id_prefix(JOB, 'out')}run"
SEGMENTS = 25
BATCH = 7


class Crash(BaseException):
    """Not even an exception: the process is gone."""


class Source:
    """What an input reads from. It outlives any process, as the account of the job does."""

    def __init__(self) -> None:
        self._disk = MemoryDisk()

    def store(self) -> Store:
        """The store with the account of the job, not open; a new one sees what others wrote."""
        return MemoryStore(self._disk)

    async def put(self, segments: Sequence[Segment]) -> None:
        """Have these come in, after all that is there."""
        raise AssertionError("each source has its own")

    async def put_undecodable(self) -> None:
        """Have something come in that is no segment."""
        raise AssertionError("a source that can have it says how")

    def connector(self) -> InputConnector:
        """A new object, as another process would make it."""
        raise AssertionError("each source has its own")


class Target:
    """What an output writes to. It outlives any process."""

    def __init__(self) -> None:
        self._disk = MemoryDisk()

    def store(self) -> Store:
        """The store with the account of the job, not open; a new one sees what others wrote."""
        return MemoryStore(self._disk)

    def connector(self) -> OutputConnector:
        """A new object, as another process would make it."""
        raise AssertionError("each target has its own")

    async def published(self) -> list[Segment]:
        """Everything that readers of it see, with whatever is there twice."""
        raise AssertionError("each target has its own")

    async def leftovers(self) -> list[str]:
        """What was staged and takes up room; nothing, where it is staged nowhere but at the job."""
        return []

    def unwritable(self) -> Segment:
        """A segment that it can never take; its number is 1."""
        return {"n": 1, "text": object()}


def count_to(stop: int, start: int = 0) -> list[Segment]:
    return [{"n": n, "text": f"the {n}th"} for n in range(start, stop)]


def numbers(segments: Iterable[Segment]) -> list[int]:
    return sorted(it["n"] for it in segments)


def in_order(segments: Iterable[Segment]) -> list[Segment]:
    return sorted(segments, key=lambda it: int(it["n"]))


def job_of(**fields: Any) -> Job:
    """A job that writes what its input gives."""
    facts: dict[str, Any] = {
        "batch_size": BATCH,
        "retry": RetryPolicy(attempts=2, first_s=0.001, max_s=0.01),
    }
    tasks = [
        Task(name="in", type=TaskType.INPUT, connector="memory", **(facts | fields)),
        Task(name="out", type=TaskType.OUTPUT, connector="memory"),
    ]
    return Job(name=JOB, workflow=[("in", "out")], catalog=tasks)


def plain(chunks: Iterable[RawRecords]) -> list[tuple[str, list[int | str], list[bytes]]]:
    """Chunks in a form that can be compared."""
    return [(it.source, list(it.positions), list(it.raws)) for it in chunks]


class Process:
    """A process that has the account of the job, until it ends in one way or another."""

    def __init__(self, store: Store, connector: InputConnector, job: Job) -> None:
        self.store = store
        self.connector = connector
        self.desk = JobCoordinator(
            CompiledJob(job), store, {"in": connector}, {"out": MemoryOutput()}
        )
        self.received: list[RootInput] = []
        """What was settled here."""
        # As no other process calls its batches.
        self._run = secrets.token_hex(4)
        self._batch = 0

    async def admit(self) -> list[InputDelivery]:
        """What is delivered next; waits for it."""
        async with asyncio.timeout(DEADLINE_S):
            while not (deliveries := await self.desk.next_deliveries()):  # noqa: ASYNC110
                # It may be on its way from a server.
                await asyncio.sleep(PAUSE_S)
        return deliveries

    async def read(self, deliveries: Iterable[InputDelivery]) -> list[RootInput]:
        return [it for delivery in deliveries for it in await read_roots(self.desk, delivery)]

    async def settle(self, deliveries: Sequence[InputDelivery]) -> None:
        delivered = await self.read(deliveries)
        self._batch += 1
        # Before, because it is committed when what follows a commit is interrupted.
        self.received += delivered
        await self.desk.commit_batch(self._run, self._batch, BatchResult(list(deliveries)))

    async def settle_all(self, count: int) -> None:
        """Take in so many segments in all, and no more are there."""
        if unsettled := await self.desk.uncommitted():
            await self.settle(unsettled)
        while len(self.received) < count:
            await self.settle(await self.admit())
        assert await self.desk.next_deliveries() == []
        assert len(self.received) == count


@asynccontextmanager
async def process_of(
    source: Source, connector: InputConnector | None = None, **fields: Any
) -> AsyncIterator[Process]:
    """A process that ends without settling what it did not settle."""
    store = source.store()
    await store.open(JOB)
    process = Process(store, connector or source.connector(), job_of(**fields))
    try:
        await process.desk.open()
        yield process
    finally:
        await process.desk.close()
        await store.close()


def assert_once(received: Iterable[RootInput], expected: Sequence[Segment]) -> None:
    """Each of them is there, none is there twice, and no two have the same id."""
    received = list(received)
    assert max(Counter(it.root for it in received).values(), default=1) == 1
    segments = [it.segment for it in received if isinstance(it.segment, dict)]
    assert in_order(segments) == list(expected)
    assert len(segments) == len(received)


def read_elsewhere(connector: InputConnector, places: Sequence[Position]) -> list[list[RawRecords]]:
    """Read slices in another process."""
    program = (
        "import pickle, sys\n"
        "connector, places = pickle.load(sys.stdin.buffer)\n"
        "pickle.dump([list(connector.read(it)) for it in places], sys.stdout.buffer)\n"
    )
    return call_elsewhere(program, (connector, places))  # type: ignore[no-any-return]


def stage_elsewhere(
    connector: OutputConnector, stage: str, ids: Sequence[int], segments: Sequence[Segment]
) -> Committable | None:
    """Stage segments in another process."""
    program = (
        "import pickle, sys\n"
        "connector, stage, ids, segments = pickle.load(sys.stdin.buffer)\n"
        "stager = connector.create_writer(stage)\n"
        "stager.write(ids, segments)\n"
        "pickle.dump(stager.prepare_commit(), sys.stdout.buffer)\n"
    )
    return call_elsewhere(program, (connector, stage, ids, segments))  # type: ignore[no-any-return]


def die_while_staging(connector: OutputConnector, name: str, segments: Sequence[Segment]) -> None:
    """Begin to stage segments in another process, which is then killed."""
    program = (
        "import os, pickle, signal, sys\n"
        "connector, stage, ids, segments = pickle.load(sys.stdin.buffer)\n"
        "stager = connector.create_writer(stage)\n"
        "stager.write(ids, segments)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ids = range(len(segments))
    with pytest.raises(subprocess.CalledProcessError) as ended:
        call_elsewhere(program, (connector, f"{RUN}-{name}", list(ids), segments))
    assert ended.value.returncode == -signal.SIGKILL


def call_elsewhere(program: str, given: object) -> Any:
    ended = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(given),
        stdout=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=True,
    )
    return pickle.loads(ended.stdout)


async def run_job(source: Source, count: int) -> tuple[list[Segment], LocalRunner]:
    """Run a job until it ends; one that has no end, until so much is written."""
    connector, output = source.connector(), MemoryOutput()
    runner = LocalRunner(job_of(), {"in": connector}, {"out": output}, source.store())
    running = asyncio.create_task(runner.run())
    try:
        await eventually(
            lambda: running.done() or (not connector.is_bounded and len(output.segments) >= count),
            f"{count} are written",
            DEADLINE_S,
        )
    finally:
        running.cancel()
        await asyncio.wait([running])
    if not running.cancelled():
        await running
    return output.segments, runner


async def dead_in(store: Store) -> list[StoredRoot]:
    await store.open(JOB)
    try:
        return await store.read(lambda database: JobStore(database, JOB).list_dead(100))
    finally:
        await store.close()


def stage(
    connector: OutputConnector, name: str, segments: Sequence[Segment], run: str = RUN
) -> Committable:
    """Stage segments in two goes; their numbers are their ids."""
    stager = connector.create_writer(f"{run}-{name}")
    for part in (segments[:2], segments[2:]):
        if part:
            stager.write([it["n"] for it in part], part)
    staged = stager.prepare_commit()
    assert staged is not None
    # It goes to the desk from another process, and into a database.
    return msgspec.msgpack.decode(msgspec.msgpack.encode(staged))  # type: ignore[no-any-return]


@asynccontextmanager
async def opened(
    target: Target, unpublished: Sequence[Committable] = ()
) -> AsyncIterator[OutputConnector]:
    """An output without a desk."""
    connector = target.connector()
    await connector.open(writer_id_prefix(JOB, "out"), unpublished)
    try:
        yield connector
    finally:
        await connector.close()


@asynccontextmanager
async def settling(target: Target, connector: OutputConnector) -> AsyncIterator[JobCoordinator]:
    """A desk that has an output."""
    store = target.store()
    await store.open(JOB)
    desk = JobCoordinator(CompiledJob(job_of()), store, {"in": MemoryInput([])}, {"out": connector})
    try:
        await desk.open()
        yield desk
    finally:
        await desk.close()
        await store.close()


def parts_of(stop: int) -> list[tuple[str, list[Segment]]]:
    """Segments for several parts of a batch, with their names."""
    return [(str(start), count_to(min(start + 4, stop), start)) for start in range(0, stop, 4)]
