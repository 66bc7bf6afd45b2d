"""How a job is doing, for people and programs that look at it."""

from __future__ import annotations

import time

import msgspec

from postroad.pipeline.coordinator.coordinator import JobCoordinator


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
    """Time between two batches, of late."""
    dropped_late: int = 0
    """Segments that came too late for windows; one counts for each extent it was for."""
    restarts: int = 0
    """How often Spark failed and was started again."""


class ProgressSampler:
    """Looks at a desk every now and then, and tells rates."""

    def __init__(self, job: str, pid: int, desk: JobCoordinator) -> None:
        self._job = job
        self._pid = pid
        self._desk = desk
        self._then_s = time.monotonic()
        self._before = (0, 0, 0)

    async def look(self, restarts: int = 0) -> JobProgress:
        """How it is now; rates are since the last look."""
        standing = await self._desk.status()
        counts = self._desk.counts
        now_s = time.monotonic()
        past_s = max(now_s - self._then_s, 1e-9)
        delivered, acked, batches = self._before
        self._then_s, self._before = now_s, (counts.delivered, counts.acked, counts.batches)
        new_batches = counts.batches - batches
        return JobProgress(
            job=self._job,
            pid=self._pid,
            at=time.time(),
            delivered=counts.delivered,
            acked=counts.acked,
            failed=counts.failed,
            replayed=counts.replayed,
            batches=counts.batches,
            pending=standing.pending,
            waiting=standing.waiting,
            dead=standing.dead,
            unpublished=standing.unpublished,
            oldest_s=standing.oldest_s,
            delivered_per_s=(counts.delivered - delivered) / past_s,
            acked_per_s=(counts.acked - acked) / past_s,
            batch_s=past_s / new_batches if new_batches else 0.0,
            dropped_late=standing.dropped_late,
            restarts=restarts,
        )
