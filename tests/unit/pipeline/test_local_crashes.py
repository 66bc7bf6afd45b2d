"""A process that dies at any commit, or at all of them, loses nothing and does nothing twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from postroad.core import faults
from postroad.durable import MemoryDisk, MemoryStore
from postroad.durable.store.database import Database
from postroad.pipeline import Job, LocalRunner, Segment, Task, TaskType
from postroad.pipeline.functions import Function
from postroad.pipeline.pen import Pen
from postroad.pipeline.records import State
from tests.support.deadlines import DEADLINE_S
from tests.support.pipeline.desk_jobs import JOB, Appended, count_to, input_task, numbers

SEGMENTS = 15
POISON = 5
# Opening, two commits to deliver, one to settle: with the sixth, something was done.
COMMITS_OF_A_BATCH = 6


class Crash(BaseException):
    """Not even an exception: the process is gone."""


class RollsBack(Random):
    """What was not committed when the process died is not there."""

    def random(self) -> float:
        return 1.0


class Killer:
    """A fault point that ends the process when it was reached so often."""

    def __init__(self, disk: MemoryDisk, at: int | None) -> None:
        self._disk = disk
        self._at = at
        self._loop = asyncio.get_running_loop()
        self.count = 0
        self.is_dead = asyncio.Event()

    def __call__(self, units: object) -> None:
        """Be the fault point, in the thread of the store."""
        self.count += 1
        if self._at is not None and self.count >= self._at:
            self._disk.crash()
            self._loop.call_soon_threadsafe(self.is_dead.set)
            raise Crash


class Pipeline:
    """A job with two branches, one of which fails at first, and all that outlives a process."""

    def __init__(self) -> None:
        self.disk = MemoryDisk(RollsBack())
        self.left, self.right = Appended(), Appended()
        self._input = count_to(SEGMENTS, 2)
        self._calls: Counter[int] = Counter()

    def find(self, name: str) -> Function:
        return {"same": self._same, "fail_at_first": self._fail_at_first}[name]

    @staticmethod
    def _same(segment: Segment) -> Segment:
        return segment

    def _fail_at_first(self, segment: Segment) -> Segment:
        number = segment["n"]
        self._calls[number] += 1
        if number == POISON or (number % 2 and self._calls[number] == 1):
            raise ValueError(number)
        return segment

    @property
    def job(self) -> Job:
        tasks = [
            input_task(batch_size=4),
            Task(name="same", type=TaskType.FUNCTION, fn="same"),
            Task(name="odd", type=TaskType.FUNCTION, fn="fail_at_first"),
            *(Task(name=it, type=TaskType.OUTPUT, medium="seq") for it in ("left", "right")),
        ]
        edges = [("in", "same"), ("same", "left"), ("same", "odd"), ("odd", "right")]
        return Job(name=JOB, workflow=edges, catalog=tasks)

    async def live(self, point: str, at: int | None = None) -> Killer:
        """Run until everything is done, or until the process dies."""
        killer = Killer(self.disk, at)
        runner = LocalRunner(
            self.job,
            {"in": self._input},
            {"left": self.left, "right": self.right},
            MemoryStore(self.disk),
            find=self.find,
        )
        with faults.armed(f"durable.commit.{point}", killer):
            running = asyncio.create_task(runner.run())
            dying = asyncio.create_task(killer.is_dead.wait())
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.wait((running, dying), return_when=asyncio.FIRST_COMPLETED)
                await end(running, dying)
        return killer

    async def check(self) -> None:
        """Every segment is in every output once, and what cannot be done is dead."""
        assert numbers(self.left) == list(range(SEGMENTS))
        assert numbers(self.right) == [n for n in range(SEGMENTS) if n != POISON]
        store = MemoryStore(self.disk)
        await store.open(JOB)
        try:
            dead, *counts = await store.read(self._look)
        finally:
            await store.close()
        assert dead == [b"\x81\xa1n%c" % POISON]
        assert counts == [0, 0, 0]

    @staticmethod
    def _look(database: Database) -> list[object]:
        pen = Pen(database, JOB)
        waits = [pen.count(State.WAITING), len(pen.deliveries()), len(pen.publications())]
        return [[it.segment for it in pen.dead(10)], *waits]


async def end(running: asyncio.Task[None], dying: asyncio.Task[bool]) -> None:
    """Have nothing go on of a process, whether it is done or dead."""
    is_dead = dying.done()
    if is_dead:
        running.cancel()
    dying.cancel()
    try:
        await running
    except (Crash, asyncio.CancelledError):
        assert is_dead


async def test_a_process_that_does_not_die() -> None:
    pipeline = Pipeline()
    assert (await pipeline.live("before")).count > COMMITS_OF_A_BATCH
    await pipeline.check()


@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_process_that_dies_at_one_commit(point: str) -> None:
    commits = (await Pipeline().live(point)).count
    for at in range(1, commits + 1):
        pipeline = Pipeline()
        assert (await pipeline.live(point, at)).is_dead.is_set(), f"commit {at} of {commits}"
        await pipeline.live(point)
        await pipeline.check()


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("at", range(COMMITS_OF_A_BATCH, COMMITS_OF_A_BATCH + 4))
async def test_a_process_that_dies_again_and_again(point: str, at: int) -> None:
    pipeline = Pipeline()
    lives = 1
    while (await pipeline.live(point, at)).is_dead.is_set():
        lives += 1
        assert lives < 50, "it gets nowhere"
    assert lives > 2
    await pipeline.check()


@pytest.mark.parametrize("seed", range(5))
async def test_a_process_that_dies_at_any_time(seed: int) -> None:
    rng, pipeline = Random(seed), Pipeline()
    for _ in range(10):
        await pipeline.live(rng.choice(("before", "after")), rng.randrange(1, 12))
    await pipeline.live("after")
    await pipeline.check()
