"""`postroad`, which kills itself at a point of a batch when a file in its directory says so.

Started as `python -m tests.chaos.doomed ...`; the file `doom` has a job and a point.
"""

from __future__ import annotations

import os
import runpy
import signal
from collections.abc import Sequence
from pathlib import Path

from postroad.pipeline.coordinator.batch_result import BatchResult, CommitResult
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.records import FailedRoot

DOOM = "doom"

STAGED = "staged"
"""Everything is staged, nothing is committed."""
COMMITTED = "committed"
"""It is committed; what was staged in files is not published."""
WRITTEN = "written"
"""Spark has written its part, and nobody knows."""
SETTLED = "settled"
"""All that is done, and Spark does not know."""
EMITTED = "emitted"
"""What windows emitted is staged, and not committed."""

_commit_batch = JobCoordinator.commit_batch
_count = JobCoordinator._count
_finish_write = JobCoordinator.finish_write


def _reach(coordinator: JobCoordinator, point: str) -> None:
    doom = Path(DOOM)
    if doom.exists() and doom.read_text() == f"{coordinator._job} {point}":
        doom.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


async def _doomed_commit_batch(
    self: JobCoordinator, run: str, batch: int, outcome: BatchResult
) -> CommitResult:
    _reach(self, STAGED)
    if any(it.task in self._program.windowed_tasks for it in outcome.deliveries):
        _reach(self, EMITTED)
    result = await _commit_batch(self, run, batch, outcome)
    _reach(self, SETTLED)
    return result


def _doomed_count(self: JobCoordinator, outcome: BatchResult, writes: Sequence[int]) -> None:
    _reach(self, COMMITTED)
    _count(self, outcome, writes)


async def _doomed_finish_write(self: JobCoordinator, id: int, failed: Sequence[FailedRoot]) -> None:
    _reach(self, WRITTEN)
    await _finish_write(self, id, failed)


if __name__ == "__main__":
    JobCoordinator.commit_batch = _doomed_commit_batch  # type: ignore[method-assign]
    JobCoordinator._count = _doomed_count  # type: ignore[method-assign]
    JobCoordinator.finish_write = _doomed_finish_write  # type: ignore[method-assign]
    runpy.run_module("postroad", run_name="__main__", alter_sys=True)
