"""How a job is doing, for people and programs that look at it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import RootState

if TYPE_CHECKING:
    from postroad.pipeline.coordinator.coordinator import JobCoordinator


class TaskCounts(msgspec.Struct, frozen=True):
    """What a task did."""

    processed: int = 0
    """Segments it was given, those that failed included."""
    failed: int = 0
    seconds: float = 0.0
    """Time spent in its function, or in writing for an output, of all workers together."""

    def __add__(self, other: TaskCounts) -> TaskCounts:
        return TaskCounts(
            self.processed + other.processed,
            self.failed + other.failed,
            self.seconds + other.seconds,
        )


def add_counts(counts: dict[str, TaskCounts], more: Mapping[str, TaskCounts]) -> None:
    """Add what tasks did to what they did before."""
    for task, did in more.items():
        counts[task] = counts.get(task, TaskCounts()) + did


class JobCounters(msgspec.Struct):
    """What happened since this process began."""

    delivered: int = 0
    acked: int = 0
    failed: int = 0
    replayed: int = 0
    batches: int = 0
    tasks: dict[str, TaskCounts] = {}
    """By the name of the task."""


class _BatchOutput(msgspec.Struct):
    """What a batch acknowledges once all that it wrote is published."""

    writes: int
    segments: int


class PendingAcks:
    """Counts segments as acknowledged when outputs have taken what was made of them, not before.

    What writes of an earlier process acknowledge was for that process to count.
    """

    def __init__(self, counters: JobCounters) -> None:
        self._counters = counters
        # By the ids of what is to be published.
        self._batches: dict[int, _BatchOutput] = {}

    def add(self, segments: int, writes: Collection[int]) -> None:
        """Something is done but for what is still to be published."""
        if writes:
            self._batches |= dict.fromkeys(writes, _BatchOutput(len(writes), segments))
        else:
            self._counters.acked += segments

    def on_published(self, id: int, rejected: int = 0) -> None:
        """Something is published, but for segments that the output refused."""
        self._counters.failed += rejected
        if (batch := self._batches.pop(id, None)) is None:
            return
        batch.writes -= 1
        batch.segments -= rejected
        if not batch.writes:
            # Several of the refused ones may come from one segment.
            self._counters.acked += max(batch.segments, 0)


class JobStatus(msgspec.Struct, frozen=True):
    """How things stand, by the store."""

    pending: int
    waiting: int
    dead: int
    unpublished: int
    oldest_s: float


def read_job_status(pen: JobStore, now_ms: int) -> JobStatus:
    """How things stand in a pen."""
    deliveries = pen.deliveries()
    oldest_ms = min((it.started_ms for it in deliveries), default=now_ms)
    return JobStatus(
        sum(it.segments for it in deliveries),
        pen.count(RootState.WAITING),
        pen.count(RootState.DEAD),
        len(pen.pending_commits()),
        max(now_ms - oldest_ms, 0) / 1000,
    )


class TaskProgress(msgspec.Struct, frozen=True):
    """What a task of a running job did, and how fast it is."""

    processed: int
    failed: int
    per_s: float
    """Segments per second since the last look."""
    latency_s: float
    """Average time in its function for one segment, since the last look."""


class JobProgress(msgspec.Struct, frozen=True):
    """What a running job did, and how it stands."""

    job: str
    pid: int
    at: float
    """When this was, in seconds since 1970."""
    delivered: int
    acked: int
    failed: int
    replayed: int
    batches: int
    pending: int
    """Segments delivered and not settled."""
    waiting: int
    """Roots that come again later."""
    dead: int
    unpublished: int
    """Parts of batches that are settled, and which an output cannot take now."""
    oldest_s: float
    """Age of the oldest delivery that is not settled."""
    delivered_per_s: float
    acked_per_s: float
    batch_s: float
    """Time between two batches, since the last look."""
    restarts: int = 0
    """How often Spark failed and was started again."""
    tasks: dict[str, TaskProgress] = {}
    """By the name of the task."""
    late: dict[str, int] = {}
    """Segments that came too late for their window, by the name of the window."""
    spark_ui_url: str | None = None
    """Where Spark's own pages about the job are."""


class ProgressSampler:
    """Looks at a coordinator every now and then, and tells rates."""

    def __init__(self, job: str, pid: int, coordinator: JobCoordinator) -> None:
        self._job = job
        self._pid = pid
        self._coordinator = coordinator
        self._then_s = time.monotonic()
        self._before = JobCounters()

    async def look(self, restarts: int = 0, spark_ui_url: str | None = None) -> JobProgress:
        """How it is now; rates are since the last look."""
        status = await self._coordinator.status()
        late = await self._coordinator.late()
        now_s = time.monotonic()
        past_s = max(now_s - self._then_s, 1e-9)
        counts, before = self._coordinator.counts, self._before
        self._then_s = now_s
        self._before = msgspec.structs.replace(counts, tasks=dict(counts.tasks))
        new_batches = counts.batches - before.batches
        return JobProgress(
            job=self._job,
            pid=self._pid,
            at=time.time(),
            delivered=counts.delivered,
            acked=counts.acked,
            failed=counts.failed,
            replayed=counts.replayed,
            batches=counts.batches,
            pending=status.pending,
            waiting=status.waiting,
            dead=status.dead,
            unpublished=status.unpublished,
            oldest_s=status.oldest_s,
            delivered_per_s=(counts.delivered - before.delivered) / past_s,
            acked_per_s=(counts.acked - before.acked) / past_s,
            batch_s=past_s / new_batches if new_batches else 0.0,
            restarts=restarts,
            tasks={
                task: _task_progress(now, before.tasks.get(task, TaskCounts()), past_s)
                for task, now in counts.tasks.items()
            },
            late=late,
            spark_ui_url=spark_ui_url,
        )


def _task_progress(now: TaskCounts, before: TaskCounts, past_s: float) -> TaskProgress:
    processed = now.processed - before.processed
    return TaskProgress(
        now.processed,
        now.failed,
        per_s=processed / past_s,
        latency_s=(now.seconds - before.seconds) / processed if processed else 0.0,
    )
