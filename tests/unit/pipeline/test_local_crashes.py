"""A process that dies at any commit, or at all of them, loses nothing and does nothing twice."""

from __future__ import annotations

from collections import Counter

from postroad.durable import MemoryDisk, MemoryStore
from postroad.durable.store.backends.backend import StoreConnection
from postroad.pipeline import Job, LocalRunner, Segment, Task, TaskType
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import RootState
from postroad.pipeline.functions import Function
from tests.support.pipeline.crashes import POISON, CrashBehaviour, Killer, Mortal, RollsBack
from tests.support.pipeline.desk_jobs import (
    JOB,
    Appended,
    count_to,
    input_task,
    look_in,
    numbers,
)

SEGMENTS = 15


class Pipeline(Mortal):
    """A job with two branches, one of which fails at first."""

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
            *(Task(name=it, type=TaskType.OUTPUT, connector="memory") for it in ("left", "right")),
        ]
        edges = [("in", "same"), ("same", "left"), ("same", "odd"), ("odd", "right")]
        return Job(name=JOB, workflow=edges, catalog=tasks)

    async def live(self, point: str, at: int | None = None) -> Killer:
        killer = Killer(self.disk, at)
        inputs, outputs = {"in": self._input}, {"left": self.left, "right": self.right}
        store = MemoryStore(self.disk)
        await killer.run(LocalRunner(self.job, inputs, outputs, store, find=self.find), point)
        return killer

    async def check(self) -> None:
        assert numbers(self.left) == list(range(SEGMENTS))
        assert numbers(self.right) == [n for n in range(SEGMENTS) if n != POISON]
        dead, *counts = await look_in(self.disk, self._look)
        assert dead == [b"\x81\xa1n%c" % POISON]
        assert counts == [0, 0, 0]

    @staticmethod
    def _look(database: StoreConnection) -> list[object]:
        pen = JobStore(database, JOB)
        waits = [pen.count(RootState.WAITING), len(pen.deliveries()), len(pen.pending_commits())]
        return [[it.segment for it in pen.list_dead(10)], *waits]


class TestLocalCrashes(CrashBehaviour):
    async def make(self) -> Pipeline:
        return Pipeline()
