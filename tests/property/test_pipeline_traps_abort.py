"""What was settled is published, whatever Spark thinks of the commit."""

from __future__ import annotations

import asyncio

import pytest

from postroad.durable import MemoryDisk
from postroad.pipeline.connectors import Committable
from postroad.pipeline.coordinator import committer as publishing
from postroad.pipeline.coordinator.batch_result import BatchResult, CommitResult
from tests.support.pipeline.desk_jobs import (
    Appended,
    count_to,
    input_task,
    job_of,
    numbers,
    open_desk,
)


class DownAtFirst(Appended):
    """Cannot publish yet."""

    is_down = True

    async def commit(self, staged: Committable) -> None:
        if self.is_down:
            raise ConnectionRefusedError("down")
        await super().commit(staged)


@pytest.mark.parametrize("way", ["abort", "commit"])
async def test_what_is_settled_and_not_yet_published_is_not_thrown_away(way: str) -> None:
    """Spark aborts a batch if it hears nothing of its commit in time, and then does it again. If
    the desk had settled the batch all the same, what it wrote is still to be published: nobody
    will ever write it again.
    """
    output = DownAtFirst()
    async with open_desk(job_of(input_task()), {"in": count_to(3)}, MemoryDisk(), output) as it:
        first = await it.desk.next_deliveries()
        outcome = BatchResult(first, [], await it.stage("one", first))
        await it.desk.commit_batch("run", 1, outcome)
        if way == "abort":
            await it.desk.abort_outputs(outcome.staged)
        else:
            await it.desk.commit_batch("run", 1, outcome)
        output.is_down = False
        await it.desk.next_deliveries()
        assert numbers(output) == [0, 1, 2]
        assert await it.desk.is_drained()


async def test_what_was_thrown_away_is_not_settled_afterwards() -> None:
    """A commit may be on its way for so long that Spark aborts the batch before it arrives."""
    output = Appended()
    async with open_desk(job_of(input_task()), {"in": count_to(3)}, MemoryDisk(), output) as it:
        deliveries = await it.desk.next_deliveries()
        outcome = BatchResult(deliveries, [], await it.stage("one", deliveries))
        await it.desk.abort_outputs(outcome.staged)
        with pytest.raises(RuntimeError, match="what batch 1 wrote was thrown away"):
            await it.desk.commit_batch("run", 1, outcome)
        assert await it.desk.uncommitted() == deliveries
        again = BatchResult(deliveries, [], await it.stage("two", deliveries))
        assert await it.desk.commit_batch("run", 1, again) is CommitResult.NOW
        assert numbers(output) == [0, 1, 2]


class Slow(Appended):
    """Takes long to publish."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()

    async def commit(self, staged: Committable) -> None:
        await self.may_go_on.wait()
        await super().commit(staged)


async def test_whoever_settles_does_not_wait_for_a_slow_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark gives a batch up if its commit takes too long. Nothing more is read meanwhile."""
    monkeypatch.setattr(publishing, "_WAIT_S", 0.01)
    output = Slow()
    job = job_of(input_task(batch_size=2))
    async with open_desk(job, {"in": count_to(3)}, MemoryDisk(), output) as it:
        first = await it.desk.next_deliveries()
        outcome = BatchResult(first, [], await it.stage("one", first))
        assert await it.desk.commit_batch("run", 1, outcome) is CommitResult.NOW
        assert await it.desk.next_deliveries() == []
        output.may_go_on.set()
        assert len(await it.desk.next_deliveries()) == 1
        assert numbers(output) == [0, 1]
