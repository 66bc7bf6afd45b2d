"""What a coordinator does for windows whose contents Spark keeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence

from postroad.durable.store import Store
from postroad.durable.store.database import Database
from postroad.durable.store.ledger import Ledger
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import FailedRoot
from postroad.pipeline.coordinator.window_deltas import (
    CommittedDelta,
    ResultFile,
    WindowDeltas,
    remove_files,
)
from postroad.pipeline.coordinator.window_store import WindowStore

# How often to see whether something was added to a window.
_LOOK_S = 0.05


class SparkWindows:
    """Windows of a job whose contents Spark keeps.

    Args:
        program: the job.
        store: where its account is kept.
        others: keeps all other windows.
    """

    def __init__(self, program: CompiledJob, store: Store, others: WindowStore) -> None:
        self._store = store
        self._others = others
        self._job = program.job.name
        self.deltas = WindowDeltas(program)

    async def assign(self, run: str, names: Collection[str] = ()) -> list[str]:
        """Decide which windows Spark keeps, in the checkpoint of a run; returns their names.

        Args:
            run: its name.
            names: those that it may keep.

        Raises:
            ConfigError: it keeps others already.
        """
        await self._store.write(lambda ledger: self.deltas.assign(ledger.database, run, names))
        self._others.leave_out(self.deltas.windows)
        return list(self.deltas.windows)

    async def needed_files(self) -> set[str]:
        """Files of windows that are still to be read."""

        def find(database: Database) -> set[str]:
            delivered = [
                it.position for it in JobStore(database, self._job).deliveries() if it.position
            ]
            paths = {it["path"] for it in delivered if "path" in it}
            return self.deltas.needed_files(database) | paths

        return await self._store.read(find)

    async def poll(self, window: str, after: int, wait_s: float) -> int:
        """The number of the last batch that added to a window, when it is above the given one or
        when the time is over."""
        deadline_s = asyncio.get_running_loop().time() + wait_s
        while True:
            latest = await self.last_number(window)
            left_s = deadline_s - asyncio.get_running_loop().time()
            if latest > after or left_s <= 0:
                return max(latest, after)
            await asyncio.sleep(min(left_s, _LOOK_S))

    async def last_number(self, window: str) -> int:
        """The number of the last batch that added to a window."""
        return await self._store.read(lambda it: self.deltas.last_number(it, window))

    async def list_deltas(self, window: str, after: int, upto: int) -> list[CommittedDelta]:
        """What a range of batches added to a window."""
        return await self._store.read(lambda it: self.deltas.deltas(it, window, after, upto))

    async def discard(self, window: str, upto: int) -> None:
        """Spark has taken what batches added to a window, for good."""
        paths = await self._store.write(
            lambda ledger: self.deltas.discard(ledger.database, window, upto)
        )
        await asyncio.to_thread(remove_files, paths)

    async def is_committed(self, run: str, window: str, batch: int) -> bool:
        """Whether what a window emitted with a batch of its query was taken in."""
        return await self._store.read(lambda it: self.deltas.is_emitted(it, run, window, batch))

    async def commit_batch(
        self,
        run: str,
        window: str,
        batch: int,
        files: Sequence[ResultFile],
        failed: Sequence[FailedRoot],
    ) -> None:
        """Take in, once, what a window emitted."""

        def commit(ledger: Ledger) -> None:
            if not self.deltas.is_emitted(ledger.database, run, window, batch):
                pen, now_ms = JobStore(ledger.database, self._job), time.time_ns() // 1_000_000
                self.deltas.emit(pen, window, batch, files, failed, now_ms)

        await self._store.write(commit)
