"""Counts of a running job: nothing counts as acknowledged before its output has it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from postroad.pipeline.connectors import Committable
from postroad.pipeline.connectors.connector import RejectedSegment, encode_segment
from postroad.pipeline.coordinator.progress import ProgressSampler
from postroad.pipeline.coordinator.records import FailedRoot, SegmentAttempt
from postroad.pipeline.job import RetryPolicy
from tests.support.pipeline.desk_jobs import JOB, Appended, OpenDesk, count_to, input_task, job_of
from tests.support.pipeline.desk_jobs import open_desk as open_any

NO_RETRY = RetryPolicy(attempts=1, first_s=0.0, max_s=0.0)
TWO_ATTEMPTS = RetryPolicy(attempts=2, first_s=0.0, max_s=0.0)


class External(Appended):
    """Whoever runs the batches writes what was committed."""

    is_external = True


class Refusing(Appended):
    """Is down at first; then it refuses one segment whenever it is written."""

    is_down = True

    async def commit(self, staged: Committable) -> Sequence[RejectedSegment] | None:  # type: ignore[override]
        if self.is_down:
            raise OSError("it is down")
        segments = self.staged.pop(staged["stage"], [])
        self.segments += [it for it in segments if it["n"] != 2]
        bad = [it for it in segments if it["n"] == 2]
        return [RejectedSegment(7, "no twos", encode_segment(it)) for it in bad]


class Sampled:
    """Progress as `job run` shows it; no look may show less than the one before."""

    def __init__(self, it: OpenDesk) -> None:
        self._sampler = ProgressSampler(JOB, os.getpid(), it.desk)

    async def look(self) -> tuple[int, int]:
        progress = await self._sampler.look()
        assert progress.acked_per_s >= 0
        return progress.acked, progress.failed


def open_desk(output: Appended, retry: RetryPolicy = NO_RETRY):  # type: ignore[no-untyped-def]
    return open_any(job_of(input_task(retry=retry)), {"in": count_to(5)}, output=output)


async def commit(it: OpenDesk) -> None:
    deliveries = await it.desk.next_deliveries()
    await it.settle(deliveries, staged=await it.stage("one", deliveries))


@pytest.mark.parametrize("refused", [0, 1])
async def test_segments_count_as_acked_when_spark_has_written_them(refused: int) -> None:
    async with open_desk(External()) as it:
        sampled = Sampled(it)
        await commit(it)
        assert await sampled.look() == (0, 0)
        (write,) = await it.desk.pending_writes()
        attempt = SegmentAttempt(0, 0, "out", "no")
        failed = [FailedRoot(7, "out", 0, encode_segment({"n": 2}), attempt, [])]

        await it.desk.finish_write(write.id, failed[:refused])

        assert await sampled.look() == (5 - refused, refused)
        assert (await it.desk.status()).dead == refused


async def test_segments_that_were_refused_never_count_as_acked() -> None:
    output = Refusing()
    async with open_desk(output) as it:
        sampled = Sampled(it)
        await commit(it)
        assert await sampled.look() == (0, 0)

        output.is_down = False
        await it.desk.commit_outputs()

        assert await sampled.look() == (4, 1)
        assert (await it.desk.status()).dead == 1


async def test_segment_that_is_written_after_all_counts_once() -> None:
    class Once(Refusing):
        """Refuses it once."""

        async def commit(self, staged: Committable) -> Sequence[RejectedSegment] | None:  # type: ignore[override]
            if any(it["n"] == 2 for it in self.segments):
                return None
            rejected = await super().commit(staged)
            if staged["stage"] != "one" and rejected:
                self.segments.append({"n": 2})
                return None
            return rejected

    output = Once()
    output.is_down = False
    async with open_desk(output, TWO_ATTEMPTS) as it:
        sampled = Sampled(it)
        await commit(it)
        assert await sampled.look() == (4, 1)

        await it.desk.next_deliveries()

        assert await sampled.look() == (5, 1)
        assert sorted(segment["n"] for segment in output.segments) == [0, 1, 2, 3, 4]


async def test_write_of_an_earlier_process_is_not_counted_twice() -> None:
    async with open_desk(External()) as it:
        await it.desk.finish_write(77, [])
        assert await Sampled(it).look() == (0, 0)
