"""In whatever order slices are settled, what is read and not done with is never skipped."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.durable import MemoryDisk
from postroad.pipeline import RetryPolicy
from postroad.pipeline.coordinator.batch_result import CommitResult
from postroad.pipeline.coordinator.records import InputDelivery, RootState
from tests.property.pipeline_strategies import SOME
from tests.support.pipeline.desk_jobs import OpenDesk, count_to, input_task, job_of, open_desk

SEGMENTS = 40
PATIENT = RetryPolicy(attempts=1_000, first_s=0.0, max_s=0.0)
TASK = input_task(batch_size=9, max_pending=20, retry=PATIENT)


class Step(NamedTuple):
    """What a runner does next: it asks for more, then settles some of what it has."""

    admits: bool
    settled: list[bool]
    """Which of the deliveries, in their order."""
    fails: bool


STEPS = st.lists(
    st.builds(Step, st.booleans(), st.lists(st.booleans(), max_size=6), st.booleans()), max_size=8
)


class Course:
    """What became of every number, as far as a runner was told."""

    def __init__(self) -> None:
        self._disk = MemoryDisk()
        self._input = {"in": count_to(SEGMENTS, 4)}
        self.done: Counter[int] = Counter()
        self._failed: set[int] = set()
        self._batch = 0

    async def live(self, steps: Iterable[Step]) -> None:
        """One process, from its start to its end."""
        async with open_desk(job_of(TASK), self._input, self._disk) as it:
            await self._check(it)
            for step in steps:
                await self._take(it, step)
                await self._check(it)

    async def finish(self) -> None:
        """A process that does all that is left."""
        async with open_desk(job_of(TASK), self._input, self._disk) as it:
            deliveries = await it.desk.uncommitted()
            for _ in range(SEGMENTS):
                await self._settle(it, deliveries, fails=False)
                deliveries = await it.desk.next_deliveries()
            assert await it.desk.is_drained()

    async def _take(self, it: OpenDesk, step: Step) -> None:
        if step.admits:
            await it.desk.next_deliveries()
        pending = await it.desk.uncommitted()
        chosen = [one for one, is_it in zip(pending, step.settled, strict=False) if is_it]
        await self._settle(it, chosen, fails=step.fails)

    async def _settle(self, it: OpenDesk, chosen: list[InputDelivery], *, fails: bool) -> None:
        read = await numbers_in(it, chosen)
        failed = await it.fail(chosen) if fails else []
        it.batch = self._batch = self._batch + 1
        assert await it.settle(chosen, failed=failed) is CommitResult.NOW
        if fails:
            self._failed.update(read)
        else:
            self.done.update(read)
            self._failed.difference_update(read)

    async def _check(self, it: OpenDesk) -> None:
        """All that was read is done with, or delivered, or waits; and each of it once."""
        position = await it.see(lambda pen: pen.position("in"))
        pending = await numbers_in(it, await it.desk.uncommitted())
        waiting = self._failed.difference(pending)
        end = 0 if position is None else position["index"]
        assert self.done + Counter(pending) + Counter(waiting) == Counter(range(end))
        assert await it.see(lambda pen: pen.count(RootState.WAITING)) == len(waiting)


async def numbers_in(it: OpenDesk, deliveries: Iterable[InputDelivery]) -> list[int]:
    failed = [one for delivery in deliveries for one in await it.fail([delivery])]
    return [msgspec.msgpack.decode(one.segment)["n"] for one in failed]


async def run(lives: list[list[Step]]) -> Counter[int]:
    course = Course()
    for steps in lives:
        await course.live(steps)
    await course.finish()
    return course.done


@SOME
@given(st.lists(STEPS, max_size=4))
@pytest.mark.slow
def test_nothing_is_skipped_or_done_twice(lives: list[list[Step]]) -> None:
    assert asyncio.run(run(lives)) == Counter(range(SEGMENTS))
