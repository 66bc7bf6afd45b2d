"""Batches that are settled while Spark is at the next one: wherever it ends, each is there once.

Spark is a model here: a log of offsets before each batch, a log of commits behind it, and a batch
that is in the first and not in the second is done again. The coordinator is the real one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from postroad.durable import MemoryDisk
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.coordinator.records import InputDelivery
from postroad.pipeline.spark.coordinator_client import (
    BeginBatch,
    CommitBatch,
    GetInitialOffset,
    PartitionResults,
    PlanPartitions,
    PollDeliveries,
)
from postroad.pipeline.spark.coordinator_server import CoordinatorServer
from postroad.pipeline.vectorized.partition import PartitionResult, encode_part
from tests.property.pipeline_strategies import SOME
from tests.support.pipeline.desk_jobs import (
    Appended,
    OpenDesk,
    count_to,
    input_task,
    job_of,
    numbers,
    open_desk,
)

SEGMENTS = 60
JOB = job_of(input_task(batch_size=4, max_pending=24))

Settle = Callable[[], Awaitable[object]]


class Killed(Exception):
    """The query is over, or the process is."""


class Life(NamedTuple):
    """What happens to a query."""

    steps: int
    """So many things happen, then it is killed."""
    kills_process: bool
    """The coordinator as well, or Spark's query alone."""
    settles_late: bool
    """If the coordinator lives on: what was on its way to it arrives when the next query runs."""


LIVES = st.lists(st.builds(Life, st.integers(1, 40), st.booleans(), st.booleans()), max_size=6)


class ModelSpark:
    """What Spark has on its disk, and what it does with it."""

    def __init__(self) -> None:
        self._offsets: list[tuple[int, int]] = []
        self._committed = 0
        self._stages = itertools.count()
        self.settling: Settle | None = None
        """A batch that Spark takes for done and that is not settled."""
        self._steps = 0

    async def run(self, it: OpenDesk, server: CoordinatorServer, steps: int) -> None:
        """Do batches until all is done, or until it is killed."""
        self._steps = steps
        server.begin_query()
        for _ in range(10 * SEGMENTS):
            if self._committed == len(self._offsets):
                start = self._offsets[-1][1] if self._offsets else await self._initial(server)
                end = await server._answer_question(PollDeliveries(start, 0.0))
                assert isinstance(end, int)
                if end == start:
                    await self._settle()
                    if await it.desk.is_drained():
                        return
                    continue
                self._step()
                self._offsets.append((start, end))
            await self._batch(it, server, self._committed)
        raise AssertionError(f"{numbers(it.output)} are written, and nothing more comes")

    @property
    def start(self) -> int:
        """The last delivery that it takes for done."""
        return self._offsets[self._committed - 1][1] if self._committed else 0

    async def _initial(self, server: CoordinatorServer) -> int:
        start = await server._answer_question(GetInitialOffset())
        assert isinstance(start, int)
        return start

    async def _batch(self, it: OpenDesk, server: CoordinatorServer, batch: int) -> None:
        self._step()
        parts = await server._answer_question(PlanPartitions(*self._offsets[batch]))
        assert isinstance(parts, list)
        self._step()
        is_open = await server._answer_question(BeginBatch("run", batch))
        results = [await self._work(it, part) for part in parts] if is_open else []
        # One batch at a time is being settled.
        await self._settle()
        if is_open:
            question = CommitBatch("run", batch, PartitionResults(results, []))
            self.settling = lambda: server._answer_question(question)
        self._step()
        self._committed = batch + 1

    async def _work(self, it: OpenDesk, part: list[InputDelivery]) -> bytes:
        self._step()
        staged = await it.stage(str(next(self._stages)), part)
        return encode_part(PartitionResult([one.number for one in part], staged=staged))

    async def _settle(self) -> None:
        if self.settling is not None:
            self._step()
            settle, self.settling = self.settling, None
            await settle()
            self._step()

    def _step(self) -> None:
        self._steps -= 1
        if self._steps == 0:
            raise Killed


async def live(disk: MemoryDisk, output: Appended, lives: list[Life]) -> None:
    spark = ModelSpark()
    waiting = [*lives, Life(-1, kills_process=True, settles_late=False)]
    while waiting:
        async with open_desk(JOB, {"in": count_to(SEGMENTS, 3)}, disk, output) as it:
            it.desk.parallelism = 2
            server = CoordinatorServer(CompiledJob(JOB), it.desk)
            late: Settle | None = None
            try:
                while waiting:
                    life = waiting.pop(0)
                    try:
                        await spark.run(it, server, life.steps)
                        return
                    except Killed:
                        late, spark.settling = spark.settling, None
                        if life.kills_process:
                            break
                    if late is not None and life.settles_late:
                        # What Spark says of itself comes first.
                        server.begin_query()
                        await server._answer_question(PlanPartitions(spark.start, spark.start))
                        await late()
                    elif late is not None:
                        await late()
            finally:
                await server.stop()


@SOME
@given(LIVES)
def test_every_segment_is_written_once_wherever_queries_and_processes_are_killed(
    lives: list[Life],
) -> None:
    output = Appended()
    asyncio.run(live(MemoryDisk(), output, lives))
    assert numbers(output) == list(range(SEGMENTS))
